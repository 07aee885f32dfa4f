"""Which versions of PyTorch are supported.

flashlift.torch builds on internals, which may change with every minor version. A version that it was not tested with
(make test-torch-versions) is refused, rather than found out by a wrong result.
"""

import re

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("flashlift.torch needs PyTorch: pip install 'flashlift[torch]'", name="torch") from None

OLDEST, NEWEST = (2, 9), (2, 15)


def _checked_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= version <= NEWEST:
        oldest, newest = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
        instead = "look for a newer flashlift, or install" if version > NEWEST else "install"
        raise ImportError(
            f"flashlift.torch is for torch {oldest} to {newest}, whose internals it builds on; this is torch "
            f"{torch.__version__}. To go on, {instead} a torch of those: pip install 'flashlift[torch]'"
        )
    return version


VERSION = _checked_version()
