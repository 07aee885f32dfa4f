"""Which versions of PyTorch are supported, and what differs between them.

flashlift.torch builds on internals, which may change with every minor version. A version that it was not tested with
(make test-torch-versions) is refused, rather than found out by a wrong result.
"""

import re
from typing import Any

import torch

OLDEST, NEWEST = (2, 9), (2, 14)


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


# What BlockMask.__getitem__ puts in the place of the mask_mod that it forgets. PyTorch 2.9 puts one that keeps
# everything, and does not tell.
if _checked_version() >= (2, 10):
    from torch.nn.attention.flex_attention import _sliced_mask_mod_error

    sliced_mask_mod_error: Any = _sliced_mask_mod_error
else:
    sliced_mask_mod_error = None
