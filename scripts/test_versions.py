"""Runs the Python tests with each supported version of PyTorch or JAX, in a folder of its own under build/versions.

scripts/test_versions.py torch|jax BUILD [VERSION...]

Without versions: the newest release of each supported minor version that the package index serves for this Python. A
folder is removed when its tests have run, and kept with --keep. Everything else (numpy, pytest, Flashlift itself) comes
from the environment in BUILD/venv; with --python PYTHON, which is for versions of JAX that need a newer Python, from
the package index, and Flashlift from BUILD/venv.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# The oldest and the newest supported version, the packages that a version consists of, and its tests.
FRAMEWORKS = {
    "torch": ((2, 9), (2, 15), ["torch"], ["test_torch_*.py"]),
    # Lifting reads what JAX writes.
    "jax": ((0, 9, 2), (0, 12), ["jax", "jaxlib"], ["test_jax_*.py", "test_fused_gradients.py", "test_lifting_*.py"]),
}
OF_TESTS = ["numpy", "pytest", "pytest-xdist", "flatbuffers"]  # what the tests of JAX need beside it

# What a function of CUDA's libraries returns here: cudaErrorNoDevice, and its text where it names an error.
NO_DEVICE = 100
NAMES_AN_ERROR = re.compile(
    r"^(cuda|cu[a-z]+|nccl|nvrtc|nvJitLink)Get(Last)?(Error|Status)(String|Name)$|^ncclGetLastError$"
)


def run(*command, **options):
    return subprocess.run([str(one) for one in command], check=True, text=True, **options)


def output_of(*command):
    return run(*command, stdout=subprocess.PIPE).stdout


def served_versions(python, framework):
    """The newest release of each supported minor version, from the oldest."""
    oldest, newest_minor, packages, _ = FRAMEWORKS[framework]
    text = output_of(python, "-m", "pip", "index", "versions", packages[-1])
    line = re.search(r"Available versions: (.*)", text)[1]
    releases = [one for one in line.split(", ") if re.fullmatch(r"[0-9.]+", one)]
    newest = {}
    for release in sorted(releases, key=numbers):
        if oldest <= numbers(release) and numbers(release)[:2] <= newest_minor:
            newest[numbers(release)[:2]] = release
    return list(newest.values())


def numbers(release):
    return tuple(map(int, release.split(".")))


def install(python, framework, version, folder):
    """Installs the packages without their dependencies: PyTorch's releases require gigabytes of CUDA libraries."""
    packages = [f"{name}=={version}" for name in FRAMEWORKS[framework][2]]
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder, *packages)
    if framework == "torch":
        stand_in_for_cuda(folder / "torch" / "lib")


def install_for_another_python(python, of_build, framework, version, folder):
    """Installs the packages with all that the tests need, and links Flashlift's."""
    packages = [f"{name}=={version}" for name in FRAMEWORKS[framework][2]]
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--target", folder, *packages, *OF_TESTS)
    code = "import importlib.util; print(importlib.util.find_spec('flashlift').submodule_search_locations[0])"
    (folder / "flashlift").symlink_to(output_of(of_build, "-c", code).strip())


def stand_in_for_cuda(folder):
    """Replaces CUDA's libraries, to which torch links, by libraries whose functions all report that there is no
    device."""
    libraries = sorted(folder.glob("*.so*"))
    needed, plain, versioned, defined, file_of = set(), set(), set(), set(), {}
    for path in libraries:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", path)))
        *_, of_needs = re.split("Version needs section", output_of("readelf", "-VW", path), flags=re.IGNORECASE)
        for line in of_needs.splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif found := re.search(r"Name: (\S+)", line):
                file_of[found[1]] = file
        for line in output_of("nm", "-D", path).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind not in "Uwv":
                defined.add(name)
            elif version:
                versioned.add((name, version.lstrip("@")))
            elif re.match(r"(cu|nccl|nvml|nvtx|nvrtc|nvJitLink|nvshmem)[A-Z_a-z]", name):
                plain.add(name)
    missing = sorted(name for name in needed - {path.name for path in libraries} if not is_found(name))
    for library in missing:
        nodes = {version: [] for version, file in file_of.items() if file == library}
        for name, version in sorted(versioned):
            if version in nodes:
                nodes[version].append(name)
        functions = [name for names in nodes.values() for name in names]
        if library == missing[0]:
            functions += sorted(plain - defined)
        source, script = folder / "no_cuda.c", folder / "no_cuda.map"
        source.write_text("".join(map(stand_in_for, functions)))
        script.write_text(
            "".join(f"{version} {{ {' '.join(f'{name};' for name in names)} }};\n" for version, names in nodes.items())
        )
        options = [f"-Wl,--version-script={script}"] if nodes else []
        run("cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", *options,
            "-o", folder / library, source)  # fmt: skip


def stand_in_for(function):
    if NAMES_AN_ERROR.search(function):
        return f'const char* {function}(void) {{ return "no CUDA device is detected"; }}\n'
    return f"int {function}(void) {{ return {NO_DEVICE}; }}\n"


def is_found(name):
    return (
        subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL({name!r})"], stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("build", type=Path)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--keep", action="store_true", help="do not remove the folders of the versions")
    parser.add_argument("--python", help="run JAX and the tests by this one, such as python3.12")
    parser.add_argument("--tests", nargs="*", help="arguments for pytest, in place of all tests of the framework")
    options = parser.parse_args()

    of_build = options.build.resolve() / "venv" / "bin" / "python"
    python = options.python or of_build
    if options.python and options.framework != "jax":
        parser.error("--python is for jax: PyTorch's supported versions run by the Python of the build")
    tests = Path(__file__).resolve().parent.parent / "tests" / "python"
    chosen = options.tests or sorted(one for names in FRAMEWORKS[options.framework][3] for one in tests.glob(names))
    failed = []
    versions = options.versions or served_versions(python, options.framework)
    for version in versions:
        folder = options.build.resolve() / "versions" / f"{options.framework}-{version}"
        print(f"==> {options.framework} {version}", flush=True)
        if not folder.exists():
            try:
                if options.python:
                    install_for_another_python(python, of_build, options.framework, version, folder)
                else:
                    install(python, options.framework, version, folder)
            except subprocess.CalledProcessError:  # pip has said why
                shutil.rmtree(folder, ignore_errors=True)
                failed.append(f"{version} (not installed)")
                continue
        environment = os.environ | {"PYTHONPATH": str(folder)}
        code = f"import {options.framework} as one; assert one.__version__.split('+')[0] == {version!r}, one.__file__"
        run(python, "-c", code, env=environment)
        parallel = ["-n", "auto", "--maxprocesses=8", "--dist=worksteal"]
        done = subprocess.run([python, "-m", "pytest", "-q", *parallel, *chosen], env=environment)
        if done.returncode:
            failed.append(version)
        if not options.keep:
            shutil.rmtree(folder)
    print(f"{options.framework}: {len(versions)} versions, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
