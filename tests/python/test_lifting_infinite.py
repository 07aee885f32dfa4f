"""Scores that a constant makes infinite or NaN. Their rows are NaN in the forward pass of the module and of a fused
call. But the gradients of scores that a select replaced are 0 in the module, where a fused call would return NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fused_gradients import run_both_ways, with_gradients

R = np.random.default_rng(19)
S, T, D = 20, 24, 8
ROW, KEY = jnp.arange(S)[:, None], jnp.arange(T)[None]


def tensors():
    shapes = (2, S, 2, D), (2, T, 2, D), (2, T, 2, D)
    return [jnp.asarray(R.standard_normal(shape), jnp.float32) for shape in shapes]


INFINITE = {
    "+inf for one key": lambda s: jnp.where(KEY == 3, jnp.inf, s),
    "+inf in a row": lambda s: jnp.where(ROW == 3, jnp.inf, s),
    "+inf for one key of later rows": lambda s: jnp.where((KEY == 3) & (ROW > 3), jnp.inf, s),
    "NaN in a row": lambda s: jnp.where(ROW == 3, jnp.nan, s),
    "+inf added under another select": lambda s: jnp.where(KEY == 2, -5.0, s + jnp.where(ROW == 3, jnp.inf, 0.0)),
    "+inf under a mask": lambda s: jnp.where(KEY <= ROW, jnp.where(ROW == 3, jnp.inf, s), -jnp.inf),
    "+inf times a score": lambda s: jnp.where(ROW == 3, s * jnp.inf, s),
}
FINITE = {
    "-inf for one key": lambda s: jnp.where(KEY == 3, -jnp.inf, s),
    "-inf added for one key": lambda s: s + jnp.where(KEY == 3, -jnp.inf, 0.0),
    "+inf that is cut off": lambda s: jnp.minimum(s + jnp.where(ROW == 3, jnp.inf, 0.0), 9.0),
    "the lower of a score and +inf": lambda s: jnp.minimum(s, jnp.where(KEY == 3, -9.0, jnp.inf)),
}


@pytest.mark.parametrize("name", [*INFINITE, *FINITE])
def test_gradients_of_infinite_scores_stay(name):
    change = {**INFINITE, **FINITE}[name]

    def forward(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(change(s), -1), v)

    assert run_both_ways(forward, tensors()).fused_count == 1
    report = run_both_ways(with_gradients(forward, 3), tensors())
    assert report.fused_count == (name in FINITE), report
