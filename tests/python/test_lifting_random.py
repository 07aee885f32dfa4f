"""A few modules of each kind that `make soak-lifting` draws by the thousand: fused ones compute the same as XLA's
original.
"""

import sys
from pathlib import Path

import flashlift.jax
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "corpus"))
import random_masks
import random_modules
import random_numbers
import random_steps


@pytest.mark.parametrize("kind", [random_masks, random_numbers, random_steps], ids=lambda kind: kind.__name__)
def test_drawn_modules_agree_with_xla(kind):
    flashlift.jax.register()
    wrong = []
    summary = random_modules.check_numbers(kind.draw_module, 1, range(6), lambda *words: wrong.append(words))
    assert summary.modules == 6 and summary.fused > 0
    assert not wrong
