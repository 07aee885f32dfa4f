"""Runs PyTorch's own tests of flex_attention with flashlift's function in place of PyTorch's.

    python tests/python/pytorch_suite.py PATH/TO/pytorch/test/inductor/test_flex_attention.py [pytest's arguments]

The file is the one of the installed PyTorch's version, and needs the package expecttest; nothing is downloaded. Every
flex_attention in it becomes ours, and with it what the tests compile, so that reference values (float64) are computed
by ours as well, unfused. Tests of inductor's code, of its options and of devices that are not there do not apply; they
fail or skip as they do without us, which --theirs shows.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as theirs


def replace() -> None:
    from flashlift.torch import flex_attention as ours

    def flex_attention(*args, **kwargs):
        return ours(*args, **kwargs)

    theirs.flex_attention = flex_attention


class CpuHasGradients:
    """PyTorch's tests compute gradients only on devices where its own flex_attention has them; ours has them on
    CPUs."""

    def pytest_collection_modifyitems(self, items: list) -> None:
        for module in {item.module for item in items}:
            supported = getattr(module, "DEVICE_SUPPORTS_BACKWARDS", None)
            if supported is not None:
                supported.items.add("cpu")


def main() -> int:
    arguments = sys.argv[1:]
    keep_theirs = "--theirs" in arguments
    arguments = [one for one in arguments if one != "--theirs"]
    if not arguments or not Path(arguments[0]).is_file():
        print(__doc__)
        return 2
    path = Path(arguments[0]).resolve()
    if not keep_theirs:
        replace()
    print(f"torch {torch.__version__}, {'torch' if keep_theirs else 'flashlift'}'s flex_attention, {path}")
    plugins = [] if keep_theirs else [CpuHasGradients()]
    return pytest.main(
        ["-q", "-rs", "-p", "no:cacheprovider", "--rootdir", str(path.parent), str(path), *arguments[1:]], plugins
    )


if __name__ == "__main__":
    sys.exit(main())
