"""jax.export of attention, of batches and lengths that are not known yet, with gradients."""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import flash_attention
from jax import export
from test_jax_gradients import normal


@jax.jit
def attend(q, k, v):
    return flash_attention(q, k, v, causal=True, sliding_window=9)


def shapes(batch, length):
    return [jax.ShapeDtypeStruct((batch, length, heads, 8), jnp.float32) for heads in (4, 2, 2)]


@pytest.mark.parametrize("sizes", ["2, 16", "b, 16", "b, 8*s"])
def test_exported(sizes):
    checks = flashlift.jax.export_checks()
    exported = export.export(attend, disabled_checks=checks)(*shapes(*export.symbolic_shape(sizes)))
    given = [normal(2, 16, heads, 8) for heads in (4, 2, 2)]
    np.testing.assert_allclose(exported.call(*given), attend(*given), atol=1e-6)
    mine = jax.grad(lambda *qkv: jnp.sin(exported.call(*qkv)).sum(), argnums=(0, 1, 2))(*given)
    theirs = jax.grad(lambda *qkv: jnp.sin(attend(*qkv)).sum(), argnums=(0, 1, 2))(*given)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_names_of_residuals():
    """What a policy of jax.checkpoint can save: no second forward call."""
    names = jax.checkpoint_policies.save_only_these_names("flashlift_out", "flashlift_lse")
    q, k, v = (normal(1, 16, 2, 8) for _ in range(3))

    def calls(policy):
        loss = jax.checkpoint(lambda q: jnp.sin(flash_attention(q, k, v)).sum(), policy=policy)
        return jax.jit(jax.value_and_grad(loss)).lower(q).as_text().count("@flashlift.attention(")

    assert (calls(names), calls(jax.checkpoint_policies.nothing_saveable)) == (1, 2)
