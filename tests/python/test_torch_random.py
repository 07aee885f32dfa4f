"""Random mods: attention with them is that of single scores. random_mods.py draws more of them."""

import pytest
import random_mods

pytestmark = pytest.mark.filterwarnings("ignore:a mod captures a float64 tensor")


@pytest.mark.parametrize("number", range(40))
def test_mods(number):
    text, problem = random_mods.check(number)
    assert problem is None, text


@pytest.mark.parametrize("number", range(40, 44))
def test_compiled_mods(number):
    text, problem = random_mods.check(number, compiled=True)
    assert problem is None, text
