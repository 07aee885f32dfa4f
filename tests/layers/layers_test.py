"""Checks that each folder includes only folders to its left in the layer order of docs/design.md.

    layers_test.py ROOT

Reads #include lines only, so it needs no build. Also checks that third-party headers stay in the folders they belong
to, that no switch over operations has a default, that no function has a static object behind the compiler's lock, and
that neither Python's modules nor their folders import one another in a circle. The check itself is checked first, on
lines that must and must not pass.
"""

import ast
import re
import sys
from pathlib import Path

# The folders that each folder may include, besides itself and everything that these include in turn.
DIRECT = {
    "src/support": [],
    "src/score": ["src/support"],
    "src/problem": ["src/score"],
    "src/database": ["src/problem"],
    "src/visits": ["src/problem"],
    "src/cpu": ["src/visits"],
    "src/cuda": ["src/visits"],
    "src/plan": ["src/cpu", "src/cuda"],
    "src/runtime": ["src/plan", "src/database"],
    "src/tuning": ["src/runtime"],
    "src/stablehlo/algebra": ["src/problem"],
    "src/stablehlo": ["src/stablehlo/algebra"],
    "src/capi": ["src/tuning", "src/stablehlo"],
    "src/xla": ["src/capi"],
    "python": ["src/capi"],
    "cli": ["src/capi"],
    "benchmarks": ["src/capi"],
}

# Third-party headers, and the only folders that may include them.
CONFINED = {
    r"(llvm|llvm-c)/": ["src/cpu/jit", "src/stablehlo"],  # MLIR's own interfaces use LLVM's value types
    r"(mlir|mlir-c)/": ["src/stablehlo"],
    r"xla/": ["src/xla"],
    r"(([a-z]{1,2}mm|x86|amx[a-z0-9]*)intrin\.h|cpuid\.h)": ["src/cpu/tile/x86", "benchmarks"],
    r"cpu/tile/x86/": ["src/cpu/tile/x86"],
    r"(Python\.h|nanobind/|pybind11/)": ["python"],
    r"(cuda|cuda_runtime|cuda_fp16|cuda_bf16|nvrtc|cudaTypedefs)(\.h|_api\.h)": [],
}

# Folders inside the allowed ones that must not include them: their tests build without the third-party library.
KEPT_OUT = {"src/stablehlo/algebra": r"(llvm|llvm-c|mlir|mlir-c)/"}

# Sources that are compiled at run time: their includes are resolved then.
NOT_HOST_CODE = ["src/cuda/kernels"]

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
SUFFIXES = {".h", ".hpp", ".def", ".cpp", ".cc", ".cuh", ".cu", ".inc"}


# The folders that define what operations mean. (Code that matches patterns of a few operations, such as lifting, may
# leave out the others.)
OPERATIONS = ("src/score", "src/problem", "src/cpu", "src/cuda", "src/runtime")


def switches_that_forget(path, text):
    """Lines with `default:` in a switch over operations: a default hides that the switch lacks a new operation."""
    if not path.startswith(tuple(folder + "/" for folder in OPERATIONS)):
        return []
    found, stack = [], []  # for each open brace: whether a `case Op::` stands in it, and the line of its `default:`
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0]
        if stack and re.match(r"\s*case (\w+::)*Op::k_", code):
            stack[-1][0] = True
        if stack and re.match(r"\s*default:", code):
            stack[-1][1] = number
        for character in re.sub(r"'.'|\"(\\.|[^\"])*\"", "", code):
            if character == "{":
                stack.append([False, None])
            elif character == "}" and stack:
                over_operations, default = stack.pop()
                if over_operations and default:
                    found.append(default)
    return found


def guarded_statics(path, text):
    """Lines with a function's static object that the first caller makes, behind the compiler's lock. If another thread
    holds that lock during fork(), the child waits for ever; and most such objects are destroyed at exit, when other
    threads may still compile."""
    if not path.startswith("src/"):
        return []
    guarded = re.compile(r"\s+static (?!constexpr |constinit |thread_local |inline |_assert)[^(=;{]* \w+( =|;|\{)")
    return [number for number, line in enumerate(text.splitlines(), 1) if guarded.match(line)]


def allowed(folder):
    reached = {folder}
    for other in DIRECT[folder]:
        reached |= allowed(other)
    return reached


def layer_of(path):
    parts = path.split("/")
    names = ("/".join(parts[:length]) for length in (3, 2, 1))  # the innermost folder that is listed
    return next((name for name in names if name in DIRECT), None)


def problem_with(path, included, ours):
    """Why `path` (relative to the root) must not include `included`, or None."""
    for pattern, folders in CONFINED.items():
        if re.match(pattern, included) and not any(path.startswith(f + "/") for f in folders):
            return f"{included} may be included only under {', '.join(folders) or 'no folder'}"
    for folder, pattern in KEPT_OUT.items():
        if path.startswith(folder + "/") and re.match(pattern, included):
            return f"{included} must not be included under {folder}"
    if path.startswith("include/"):
        if ours(included) and not included.startswith("flashlift/"):
            return f"a public header includes {included}, which is not installed"
        return None
    target = layer_of("src/" + included)
    if target is None or not ours(included):
        return None
    source = layer_of(path)
    if source is None:
        return f"{path} is in no layer; add its folder to {Path(__file__).name}"
    if target not in allowed(source):
        return f"{source} is left of {target}, so it must not include {included}"
    return None


def imports_of(path, text, modules):
    """The modules among `modules` (name -> path) that a Python module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for one in node.names:  # a module of a package, or a name in a module
                inner = f"{node.module}.{one.name}"
                found.add(inner if inner in modules else node.module)
    return found & modules.keys()


def folder_of(module, modules):
    return module if modules[module].endswith("/__init__.py") else module.rpartition(".")[0]


def circle_in(graph):
    """A circle in a graph (node -> its successors), as a list whose last element equals the first, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        circle = next(filter(None, map(visit, sorted(graph.get(node, ())))), None)
        path.pop()
        done.add(node)
        return circle

    return next(filter(None, map(visit, sorted(graph))), None)


def python_circles(sources):
    """Circles of imports in a package, path -> text, between modules or between folders that do not contain one
    another."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    graph = {name: imports_of(path, sources[path], modules) - {name} for name, path in modules.items()}
    folders = {}
    for name, imported in graph.items():
        here = folder_of(name, modules)
        for there in (folder_of(one, modules) for one in imported):
            if not f"{here}.".startswith(f"{there}.") and not f"{there}.".startswith(f"{here}."):
                folders.setdefault(here, set()).add(there)
    return [" imports ".join(circle) for circle in (circle_in(graph), circle_in(folders)) if circle]


def check_the_check():
    everything = lambda name: True
    must_pass = [
        ("src/problem/oracle.cpp", "score/interpret.h"),
        ("src/cpu/jit/engine.cpp", "llvm/IR/Module.h"),
        ("src/runtime/attention.cpp", "cuda/launch/driver.h"),
        ("src/plan/cuda_forward_list.cpp", "cuda/launch/driver.h"),
        ("cli/run.cpp", "problem/oracle.h"),
        ("src/stablehlo/lift/lift.cpp", "mlir/IR/Operation.h"),
        ("src/stablehlo/lift/lift.cpp", "stablehlo/algebra/symbol.h"),
        ("src/stablehlo/algebra/masks.cpp", "score/scalar.h"),
        ("src/stablehlo/fuse.cpp", "stablehlo/algebra/reason.h"),
        ("src/score/text.cpp", "flashlift/program.h"),
    ]
    must_fail = [
        ("src/score/text.cpp", "problem/oracle.h"),
        ("src/cpu/tile/gemm.cpp", "llvm/IR/Module.h"),
        ("src/cpu/backend.cpp", "cuda/launch/driver.h"),
        ("src/cpu/forward.cpp", "plan/implementation.h"),
        ("src/stablehlo/lift/lift.cpp", "runtime/cache.h"),
        ("src/stablehlo/algebra/symbol.h", "mlir/IR/Value.h"),
        ("src/stablehlo/algebra/symbol.h", "llvm/ADT/DenseMap.h"),
        ("src/stablehlo/algebra/softmax.cpp", "stablehlo/reader/ops.h"),
        ("src/cuda/launch/driver.cpp", "cuda.h"),
        ("src/cpu/tile/rows_impl.h", "immintrin.h"),
        ("src/cpu/tile/isa.cpp", "cpuid.h"),
        ("src/cpu/tile/kernels.cpp", "cpu/tile/x86/vector_avx2.h"),
        ("include/flashlift/tensor.h", "support/error.h"),
    ]
    for path, included in must_pass:
        reason = problem_with(path, included, everything)
        assert reason is None, f"{path} -> {included} should be allowed: {reason}"
    for path, included in must_fail:
        assert problem_with(path, included, everything), f"{path} -> {included} should be refused"
    forgets = "switch (op) {\n  case Op::k_add: {\n    break;\n  }\n  default:\n    return 0;\n}"
    assert switches_that_forget("src/score/x.cpp", forgets) == [5]
    assert switches_that_forget("src/stablehlo/lift/x.cpp", forgets) == []
    assert switches_that_forget("src/score/x.cpp", forgets.replace("Op::k_add", "Type::kI1")) == []
    for guarded in (
        "std::string name = f();",
        "auto* const a = new A;",
        "const bool has_amx = f();",
        "std::mutex mutex;",
    ):
        assert guarded_statics("src/a/x.cpp", f"{{\n  static {guarded}") == [2], guarded
    for free in ("constinit Lazy<A> lazy;", "thread_local A a;", "Status f(int a = 1);", "Result<A> f() {"):
        assert guarded_statics("src/a/x.cpp", f"{{\n  static {free}") == [], free
    late = {"p/a.py": "def f():\n    from p.b import g", "p/b.py": "import p.a"}
    assert python_circles(late) == ["p.a imports p.b imports p.a"]
    between = {
        "p/x/a.py": "from p.y import b",
        "p/y/b.py": "",
        "p/y/c.py": "import p.x.d",
        "p/x/d.py": "",
        "p/y/__init__.py": "",
    }
    assert python_circles(between) == ["p.x imports p.y imports p.x"]
    assert python_circles({"p/__init__.py": "from p.a import f", "p/a.py": "from p.b import f", "p/b.py": ""}) == []


def main(root):
    check_the_check()
    problems, files = [], 0
    ours = lambda name: (root / "src" / name).exists() or (root / "include" / name).exists()
    folders = ["include", "src", "cli", "benchmarks", "python"]
    sources = [p for f in folders if (root / f).exists() for p in sorted((root / f).rglob("*")) if p.suffix in SUFFIXES]
    for source in sources:
        path = source.relative_to(root).as_posix()
        if any(path.startswith(folder + "/") for folder in NOT_HOST_CODE):
            continue
        files += 1
        text = source.read_text()
        for number in switches_that_forget(path, text):
            problems.append(
                f"{path}:{number}: a switch over operations has a default, which would hide a new operation"
            )
        for number in guarded_statics(path, text):
            problems.append(
                f"{path}:{number}: a function's static object is made behind the compiler's lock; use constinit and, "
                "where needed, Lazy (support/lazy.h)"
            )
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            reason = match and problem_with(path, match.group(1), ours)
            if reason:
                problems.append(f"{path}:{number}: {reason}")
    python = root / "python"
    modules = {
        one.relative_to(python).as_posix(): one.read_text() for one in sorted((python / "flashlift").rglob("*.py"))
    }
    problems += python_circles(modules)
    print(
        "\n".join(problems) or f"{files} files keep the layer order, {len(modules)} Python modules import in no circle"
    )
    assert files > 0, f"no sources under {root}"
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
