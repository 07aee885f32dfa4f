"""python -m flashlift: the command line. Options print the folders that C, C++ and CMake need."""

import os
import sys
from pathlib import Path

_PREFIX = Path(__file__).parent
_FOLDERS = {
    "--cmake-dir": ("lib/cmake/flashlift", "for CMAKE_PREFIX_PATH or flashlift_DIR"),
    "--pkg-config-dir": ("lib/pkgconfig", "for PKG_CONFIG_PATH"),
    "--include-dir": ("include", "the headers"),
    "--library-dir": ("lib", "the libraries, for LD_LIBRARY_PATH or an rpath"),
}


def main(arguments: list[str]) -> str | int:
    if arguments and all(one in _FOLDERS for one in arguments):
        for one in arguments:
            folder = _PREFIX / _FOLDERS[one][0]
            if not folder.exists():
                return f"error: {folder} is missing: this package was built without it. A wheel has it."
            print(folder)
        return 0
    if arguments in (["--help"], ["-h"]):
        lines = "".join(f"  {option:28}{meaning}\n" for option, (_, meaning) in _FOLDERS.items())
        print(f"python -m flashlift is the command line, and prints folders of this package:\n{lines}", flush=True)
    program = _PREFIX / "bin" / "flashlift"
    if not program.exists():
        return f"error: {program} is missing: this package was built without the command line. A wheel has it."
    os.execv(program, [str(program), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
