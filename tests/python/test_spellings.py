"""Every way to write attention in spellings.py is found and fused, with the same results as XLA's own compilation;
similar computations stay unfused.
"""

import flashlift.jax
import jax
import numpy as np
import pytest
from spellings import CASES, NEAR_MISSES


def run_both_ways(make):
    """Compares the fused function's results with XLA's, and returns the number of fused attentions and the report."""
    function, arguments = make()
    fused = flashlift.jax.fuse(function)
    got = jax.tree.leaves(fused(*arguments))
    tolerance = 2e-5 if arguments[0].dtype == np.float32 else 2e-2
    for mine, xla in zip(got, jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), np.asarray(xla, np.float64), rtol=tolerance, atol=tolerance
        )
    return sum(candidate.fused for candidate in fused.report.candidates), fused.report


@pytest.mark.parametrize("name", CASES)
def test_attention_is_fused(name):
    count, report = run_both_ways(CASES[name])
    assert count == 1, report


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_is_left_alone(name):
    count, report = run_both_ways(NEAR_MISSES[name])
    assert count == 0, report
    assert all(candidate.reason for candidate in report.candidates), report
