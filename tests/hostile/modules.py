"""Attacks by modules: short texts that stand for large modules, and small stacks."""

from collections.abc import Callable

from attack import REFUSED, SMALL_STACK, SUCCESS, Attack, command

SQUARE = "tensor<4x4xf32>"


def module(name: str, text: str | bytes, codes=REFUSED, words=(), short=False) -> Attack:
    arguments = ["fuse", "m.mlir", "-o", "out"]
    return command(
        name,
        *arguments,
        codes=codes,
        words=words,
        files={"m.mlir": text},
        written=["out"],
        limits=SMALL_STACK,
        short=short,
    )


def function(body: str, type: str = "tensor<2xf32>") -> str:
    return f"func.func @main(%x: {type}) -> {type} {{\n{body}\n  return %x : {type}\n}}\n"


def repeated(step: Callable[[int], str], count: int, separator: str = "") -> str:
    return separator.join(step(i) for i in range(count))


def aliases(first: str, step: str, count: int, sigil: str = "#a") -> str:
    """`count` aliases; each contains the one before it, at the place of @ in `step`."""
    return f"{sigil}0 = {first}\n" + repeated(lambda i: f"{sigil}{i + 1} = {step.replace('@', f'{sigil}{i}')}\n", count)


def texts() -> list[Attack]:
    """Texts on which MLIR's lexer, parser and verifier are slow or recurse."""
    use = "  %0 = stablehlo.negate %x {a = #a@} : tensor<2xf32>"
    dimensions = "1x" * 100_000
    order = repeated(str, 100_000, ", ")
    wide = repeated(lambda i: f"  %{i} = stablehlo.negate %x {{a = {i} : i16777215}} : tensor<2xf32>\n", 3000)
    wrong = (
        "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> attributes {b = #a@} {\n  return %x : tensor<2xf32>\n}\n"
    )
    return [
        module("30 nested aliases", aliases("[1, 1]", "[@, @]", 30) + function(use.replace("@", "30")), short=True),
        module("30 nested aliases, an error", aliases("[1, 1]", "[@, @]", 30) + wrong.replace("@", "30"), short=True),
        module("18 nested aliases, an error", aliases("[1, 1]", "[@, @]", 18) + wrong.replace("@", "18")),
        module("30 nested types", aliases("tuple<f32, f32>", "tuple<@, @>", 30, "!t") + "func.func private @f(!t30)", short=True),
        module("aliases over lines", aliases("f32", "(\n@) -> //\n @", 60, "!t") + "func.func private @f(!t60)"),
        module("a chain of aliases", aliases("[1]", "[@]", 100_000) + function(use.replace("@", "100000"))),
        module("a chain of locations", aliases('loc("f":1:1)', 'loc("a"(@))', 100_000) + function("") + "loc(#a100000)"),
        module("doubled locations", aliases('loc("f":1:1)', "loc(callsite(@ at @))", 60) + function("  %0 = stablehlo.negate %x : tensor<2xf32> loc(#a60)"), SUCCESS, short=True),
        module("affine terms", "#m = affine_map<(d0) -> (" + " + ".join(["d0"] * 100_000) + ")>\n" + function(""), short=True),
        module("affine dimensions", f"#m = affine_map<({repeated(lambda i: f'd{i}', 100_000, ', ')}) -> (d0)>\n" + function("")),
        module("minus signs", "#m = affine_map<(d0) -> (" + "-" * 100_000 + "d0)>\n" + function("")),
        module("dimensions", f"func.func private @f(tensor<{dimensions}f32>)", short=True),
        module("dimensions apart", f"func.func private @f(tensor<{dimensions.replace('x', ' x ')}f32>)"),
        module("a permutation", function(f"  %0 = stablehlo.transpose %x, dims = [{order}] : (tensor<2xf32>) -> tensor<2xf32>")),
        module("elements", function("  %0 = stablehlo.constant dense<0> : tensor<9999999x9999999x9999999xi32>"), short=True),
        module("a digit a bit", function("  %0 = stablehlo.negate %x {a = " + "9" * 1_000_000 + " : i32} : tensor<2xf32>"), short=True),
        module("digits of a float", function("  %0 = stablehlo.negate %x {a = 1." + "9" * 1_000_000 + "} : tensor<2xf32>"), short=True),
        module("wide integers", function(wide), short=True),
        module("a wide tensor", function(f"  %0 = stablehlo.negate %x {{a = dense<[{repeated(str, 5000, ', ')}]> : tensor<5000xi16777215>}} : tensor<2xf32>")),
        module("brackets", "(" * 1_000_000, short=True),
        module("angles", "<" * 1_000_000),
        module("modules in modules", "module {" * 300 + "}" * 300),
        module("an open string", '"' + "x" * 1_000_000),
        module("no end", "func.func @f() {\n" + "  %0 = " * 100_000),
        module("a long name", function("").replace("main", "m" * 5_000_000), SUCCESS),
        module("nothing", "", words=["empty"], short=True),
        module("a zero byte", function("").encode() + b"\0\n", words=["zero"], short=True),
        module("no text", bytes(range(256)) * 1000),
        module("bytecode", b"ML\xefR" + bytes(1000), words=["bytecode"], short=True),
        module("no return", "func.func @f(%x: tensor<2xf32>) {\n  %0 = stablehlo.add %x, %x : tensor<2xf32>\n}\n", words=["end in `return`"], short=True),
        module("an empty block", '"func.func"() ({\n^bb0:\n}) {sym_name = "f", function_type = () -> ()} : () -> ()\n'),
    ]  # fmt: skip


def many_things() -> list[Attack]:
    """Modules with very many of the things of which usual modules have few."""
    blocks = repeated(lambda i: f'^bb{i}:\n  "a.b"()[^bb{i * 7 % 50_000}] : () -> ()\n', 50_000)
    operations = repeated(lambda i: f"  %{i} = stablehlo.negate %{i - 1 if i else 'x'} : tensor<2xf32>\n", 100_000)
    operands = ", ".join(["%x"] * 100_000)
    types = ", ".join(["tensor<2xf32>"] * 100_000)
    functions = repeated(lambda i: f"func.func @f{i}() {{\n  return\n}}\n", 50_000)
    two_calls = (
        "func.func private @f{} (%x: tensor<2xf32>) -> tensor<2xf32> {{\n"
        "  %0 = call @f{}(%x) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "  %1 = call @f{}(%0) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "  return %1 : tensor<2xf32>\n}}\n"
    )
    leaf = (
        "func.func private @f0(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
        '  %0:1000 = "stablehlo.custom_call"(%x) {call_target_name = "a", has_side_effect = true} : (tensor<2xf32>) -> ('
        + ", ".join(["tensor<2xf32>"] * 1000)
        + ")\n  return %0#1 : tensor<2xf32>\n}\n"
    )
    calls = leaf + repeated(lambda i: two_calls.format(i + 1, i, i), 25)
    call = "  %0 = call @f25(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    return [
        module("attributes", function(f"  %0 = stablehlo.negate %x {{{repeated(lambda i: f'a{i} = {i}', 100_000, ', ')}}} : tensor<2xf32>"), SUCCESS),
        module("regions", function(f"  \"stablehlo.foo\"() ({', '.join(['{}'] * 100_000)}) : () -> ()"), SUCCESS),
        module("blocks", function(f'  "stablehlo.foo"() ({{{blocks}}}) : () -> ()')),
        module("operations", function(operations), SUCCESS),
        module("operands", function(f"  %0 = stablehlo.concatenate {operands}, dim = 0 : ({types}) -> tensor<200000xf32>"), SUCCESS),
        module("results", function(f'  %0:100000 = "stablehlo.foo"() : () -> ({types})'), SUCCESS),
        module("functions", functions, SUCCESS),
        module("calls of calls", calls + function(call), words=["inlining"]),
    ]  # fmt: skip


# What stands between the product of queries and keys, %s, and the softmax over %last.
HEAD = f"""func.func @main(%x: {SQUARE}) -> {SQUARE} {{
  %s = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : ({SQUARE}, {SQUARE}) -> {SQUARE}
  %one = stablehlo.constant dense<1.0> : {SQUARE}
  %q = stablehlo.iota dim = 0 : tensor<4x4xi32>
  %k = stablehlo.iota dim = 1 : tensor<4x4xi32>
  %low = stablehlo.constant dense<0xFF800000> : {SQUARE}
"""
TAIL = f"""  %e = stablehlo.exponential %last : {SQUARE}
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1] : ({SQUARE}, tensor<f32>) -> tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> {SQUARE}
  %p = stablehlo.divide %e, %b : {SQUARE}
  %o = stablehlo.dot_general %p, %x, contracting_dims = [1] x [0] : ({SQUARE}, {SQUARE}) -> {SQUARE}
  return %o : {SQUARE}
}}
"""
SMALLER = "stablehlo.compare LT, %{0}, %one : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>"
# Each line computes %c<i> from %<before>, which it reads twice: n lines give 2^n terms.
DOUBLING = {
    **{
        name: f"  %c{{1}} = stablehlo.{name} %{{0}}, %{{0}} : {SQUARE}\n"
        for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
    },
    "select": f"  %m{{1}} = {SMALLER}\n  %c{{1}} = stablehlo.select %m{{1}}, %{{0}}, %one : tensor<4x4xi1>, {SQUARE}\n",
    "select of two": f"  %m{{1}} = {SMALLER}\n  %n{{1}} = stablehlo.negate %{{0}} : {SQUARE}\n"
    f"  %c{{1}} = stablehlo.select %m{{1}}, %{{0}}, %n{{1}} : tensor<4x4xi1>, {SQUARE}\n",
    "tanh": f"  %t{{1}} = stablehlo.tanh %{{0}} : {SQUARE}\n  %c{{1}} = stablehlo.multiply %t{{1}}, %{{0}} : {SQUARE}\n",
    "exponential": f"  %t{{1}} = stablehlo.exponential %{{0}} : {SQUARE}\n"
    f"  %c{{1}} = stablehlo.multiply %t{{1}}, %{{0}} : {SQUARE}\n",
    "mask": "  %j{1} = stablehlo.add %j{2}, %j{2} : tensor<4x4xi32>\n"
    "  %m{1} = stablehlo.compare LT, %j{1}, %k : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>\n"
    f"  %c{{1}} = stablehlo.select %m{{1}}, %{{0}}, %low : tensor<4x4xi1>, {SQUARE}\n",
    "shift": "  %a{1} = stablehlo.slice %{0} [0:4, 1:4] : (tensor<4x4xf32>) -> tensor<4x3xf32>\n"
    "  %b{1} = stablehlo.slice %{0} [0:4, 0:1] : (tensor<4x4xf32>) -> tensor<4x1xf32>\n"
    "  %r{1} = stablehlo.concatenate %a{1}, %b{1}, dim = 1 : (tensor<4x3xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>\n"
    f"  %c{{1}} = stablehlo.add %{{0}}, %r{{1}} : {SQUARE}\n",
    "reshape": f"  %r{{1}} = stablehlo.reshape %{{0}} : ({SQUARE}) -> tensor<2x8xf32>\n"
    "  %t{1} = stablehlo.transpose %r{1}, dims = [1, 0] : (tensor<2x8xf32>) -> tensor<8x2xf32>\n"
    f"  %w{{1}} = stablehlo.reshape %t{{1}} : (tensor<8x2xf32>) -> {SQUARE}\n"
    f"  %c{{1}} = stablehlo.add %{{0}}, %w{{1}} : {SQUARE}\n",
}


def chain(step: str, count: int, behind: str = "scores") -> str:
    """An attention with `count` operations after its scores, its exponentials, or the sum that they are divided by."""
    start, shown = {"scores": ("s", "last"), "exponentials": ("e", "e"), "probabilities": ("p", "p")}[behind]
    lines = "".join(step.format(f"c{i - 1}" if i else start, i, f"{i - 1}" if i else "q") for i in range(count))
    lines = lines.replace("%jq", "%q")
    last = f"c{count - 1}"
    if behind == "scores":
        return HEAD + lines + TAIL.replace("%last", f"%{last}")
    head, tail = TAIL.replace("%last", "%s").split(f"%{shown} = ", 1)
    line, rest = tail.split("\n", 1)
    reads = "reduce(%e" if behind == "exponentials" else "dot_general %p"
    rest = rest.replace(reads, reads.replace(f"%{shown}", f"%{last}"))
    if behind == "exponentials":
        rest = rest.replace("divide %e", f"divide %{last}")
    return HEAD + head + f"%{shown} = {line}\n" + lines + rest


def attentions() -> list[Attack]:
    """Work between two products that is far larger as an expanded formula than as operations."""
    attacks = [
        module(f"{count} steps of {name} behind {behind}", chain(step, count, behind), SUCCESS, short=count == 40 and name in ("add", "mask"))
        for name, step in DOUBLING.items()
        for behind in ("scores", "exponentials", "probabilities")
        for count in (40, 400, 2500)
    ]  # fmt: skip
    values = "tensor<4x" + "x".join(["2"] * 57) + "xf32>"
    many_dimensions = (
        (HEAD + TAIL)
        .replace("%last", "%s")
        .replace(f"(%x: {SQUARE}) -> {SQUARE}", f"(%x: {SQUARE}, %v: {values}) -> {values}")
        .replace("dot_general %p, %x", "dot_general %p, %v")
        .replace(
            f"dims = [1] x [0] : ({SQUARE}, {SQUARE}) -> {SQUARE}",
            f"dims = [1] x [0] : ({SQUARE}, {values}) -> {values}",
        )
        .replace(f"return %o : {SQUARE}", f"return %o : {values}")
    )
    one = (HEAD + TAIL).replace("%last", "%s").replace("@main", "private @f0")
    twice = (
        "func.func private @f{} (%x: tensor<4x4xf32>) -> tensor<4x4xf32> {{\n"
        "  %0 = call @f{}(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>\n"
        "  %1 = call @f{}(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>\n"
        "  return %1 : tensor<4x4xf32>\n}}\n"
    )
    calls = one.replace("func.func private @f0", "func.func private @f0 ") + repeated(
        lambda i: twice.format(i + 1, i, i), 12
    )
    products = repeated(
        lambda i: (
            f"  %d{i} = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] {{n = {i}}} : ({SQUARE}, {SQUARE}) -> {SQUARE}\n"
            f"  %c{i} = stablehlo.add %{f'c{i - 1}' if i else 's'}, %d{i} : {SQUARE}\n"
        ),
        2000,
    )
    return [
        *attacks,
        module("values of 58 dimensions", many_dimensions, SUCCESS, words=["too many dimensions"], short=True),
        module("4096 attentions", calls + function(f"  %0 = call @f12(%x) : ({SQUARE}) -> {SQUARE}", SQUARE), SUCCESS),
        module("a sum of 2000 products", HEAD + products + TAIL.replace("%last", "%c1999"), SUCCESS),
    ]  # fmt: skip


def files() -> list[Attack]:
    devices = ["/dev/zero", "/dev/urandom", "/dev/full", "/dev/null"]
    return [command(f"{name} {path}", *arguments, short=path == "/dev/zero")
            for path in [*devices, "/proc/self/mem", "/", "missing", ""]
            for name, arguments in {"fuse": ["fuse", path, "-o", "out"], "explain": ["explain", path]}.items()]  # fmt: skip


def names() -> list[Attack]:
    """Names with which a terminal would run commands, or that imitate lines of our output, in places where they are
    quoted."""
    call = '  %c = stablehlo.custom_call @"{}"(%s) : (tensor<4x4xf32>) -> tensor<4x4xf32>\n'
    hostile = HEAD + call.format("\\1b[31m\\0a1 of 1 fused\\1b]0;title\\07") + TAIL.replace("%last", "%c")
    shown = ["\\x1b[31m\\x0a1 of 1 fused\\x1b]0;title\\x07", "0 of 1 fused"]
    located = HEAD + TAIL.replace("%last", "%s").replace(
        f"({SQUARE}, {SQUARE}) -> {SQUARE}\n  return", f'({SQUARE}, {SQUARE}) -> {SQUARE} loc("\\1b[31m":1:1)\n  return'
    )
    return [
        command("a call's name in the report", "fuse", "m.mlir", "-o", "out", codes=SUCCESS, words=shown, files={"m.mlir": hostile}, written=["out"], short=True),
        command("a call's name explained", "explain", "m.mlir", codes=SUCCESS, words=shown, files={"m.mlir": hostile}),
        command("a location", "explain", "m.mlir", codes=SUCCESS, words=["\\x1b[31m"], files={"m.mlir": located}),
        command("a file's name", "fuse", "\x1b[31m\x07.mlir", "-o", "out", words=["\\x1b[31m\\x07"], short=True),
        command("a word of a problem", "run", "attn h1 s8 d8 \x1b[31m", words=["\\x1b[31m"]),
        command("an implementation", "run", "attn h1 s8 d8", "--implementation=\u009b31m", words=["\\x9b31m"]),
    ]  # fmt: skip


def attacks() -> list[Attack]:
    return texts() + many_things() + attentions() + files() + names()
