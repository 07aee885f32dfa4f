"""A few modules of each kind that `make soak-lifting` draws by the thousand: fused ones compute the same as XLA's
original.
"""

import sys
from pathlib import Path

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
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


def of_values_that_mapped_calls_share(q, k, v):
    attend = lambda q, k, v: jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k)), v)
    return jax.vmap(attend, (0, 0, None))(q, k, v)


def of_a_sink_that_heads_share(q, k, v, sink):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    column = jnp.broadcast_to(sink, (*s.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([s, column], -1), -1)[..., :-1] @ jnp.stack([v, 2 * v])


@pytest.mark.parametrize("function", [of_values_that_mapped_calls_share, of_a_sink_that_heads_share])
def test_a_composite_keeps_the_original_of_operands_that_are_repeated(function):
    flashlift.jax.register()
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 16, 4), (2, 3, 15, 4), (3, 15, 4)] + [(1,)] * (function is of_a_sink_that_heads_share)
    arguments = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    text = random_modules.lowered(function, arguments)
    result = random_modules.fused(text, "composite")
    assert result.fused_count == 1
    (got,), _ = random_modules.compile_and_run(result.module, arguments)
    np.testing.assert_allclose(got, function(*arguments), atol=1e-5)
