"""Checks that the loader searches only the folders of built and installed libraries, and never the current folder.

Run by ctest: loader_test.py BUILD WORK DECOY [COMMAND]
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def output_of(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, **options).stdout


def is_loadable(path):
    """An ELF executable or shared library."""
    if path.is_symlink() or not path.is_file() or path.suffix == ".o":
        return False
    with path.open("rb") as file:
        start = file.read(18)
    return start[:4] == b"\x7fELF" and start[16] in (2, 3)


def built_files(build, tests):
    """All files except those that the package tests make: users' programs may name any folder."""
    others = {build / name for name in ("venv", "setup")} | {tests}
    for folder, folders, names in os.walk(build):
        folders[:] = [name for name in folders if Path(folder) / name not in others and name != "CMakeFiles"]
        yield from (path for name in names if is_loadable(path := Path(folder) / name))


def dynamic_section(path):
    """The file's RUNPATH entries, and the libraries that it needs."""
    text = output_of("readelf", "-dW", path)
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)
    return [entry for path in paths for entry in path.split(":")], re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def fault_of(entry, needed, path, build):
    if not entry.startswith(("/", "$ORIGIN")):
        return "is relative: whoever owns the current folder may put a library there"
    folder = Path(entry.replace("$ORIGIN", str(path.parent)))
    if folder.resolve().is_relative_to(build):
        return "is in the build folder, which others may not have"
    if not any((folder / name).exists() for name in needed):
        return "holds none of the libraries that the file needs"
    return None


def check_files(files, build):
    """The faults of the files' RUNPATHs, and all libraries that they need."""
    faults, all_needed = [], set()
    for path in files:
        entries, needed = dynamic_section(path)
        all_needed.update(needed)
        faults += [f"{path}: needs {name}: a name with a slash is a path" for name in needed if "/" in name]
        faults += [f"{path}: {entry!r} {fault}" for entry in entries if (fault := fault_of(entry, needed, path, build))]
    return faults, all_needed


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("LD_")} | more


def main():
    build, work, decoy = (Path(argument).resolve() for argument in sys.argv[1:4])
    shutil.rmtree(work, ignore_errors=True)
    files = list(built_files(build, work.parent))
    for name, component in [("cpp", []), ("python", ["--component", "python"])]:
        output_of("cmake", "--install", build, "--prefix", work / "installed" / name, *component)
        installed = [path for path in (work / "installed" / name).rglob("*") if is_loadable(path)]
        assert installed, f"component {name} has no library"
        files += installed
    faults, needed = check_files(files, build)

    folder = work / "current"
    folder.mkdir()
    for name in needed:
        shutil.copy(decoy, folder / Path(name).name)
    for path in files:
        # The loader reports it, without running anything.
        found = output_of("ldd", path, cwd=folder, env=environment())
        faults += [f"{path}: {line.strip()}" for line in found.splitlines() if str(folder) in line or "=> ./" in line]
    for command in sys.argv[4:]:
        done = subprocess.run([command, "--version"], cwd=folder, env=environment(), capture_output=True, text=True)
        if done.returncode != 0:
            faults.append(f"{command} in a folder of decoys: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        # The test detects a foreign library if there is one.
        lured = environment(LD_LIBRARY_PATH=str(folder))
        assert subprocess.run([command, "--version"], env=lured, capture_output=True).returncode != 0
    print(f"{len(files)} files, {len(needed)} libraries", *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
