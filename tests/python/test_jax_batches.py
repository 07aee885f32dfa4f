"""jax.vmap of attention, compared with a loop: one larger call wherever that is equivalent."""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import MaskInfo, attention, flash_attention
from test_jax_gradients import normal

N, B, S, H, D = 3, 2, 11, 4, 8
Q, K, V = normal(N, B, S, H, D), normal(N, B, S, 2, D), normal(N, B, S, 2, D)
BIAS = normal(N, 1, H, S, S)
IDS = jnp.asarray(np.random.default_rng(0).integers(-1, 2, (N, B, S)), jnp.int32)
ENDS = jnp.asarray([0, 4, S])


def same(function, *given, loops=0):
    """The batched call gives the results of a loop, without a loop."""
    got = jax.vmap(function)(*given)
    each = [function(*(one[i] for one in given)) for i in range(N)]
    for one, other in zip(
        jax.tree.leaves(got), jax.tree.leaves(jax.tree.map(lambda *x: jnp.stack(x), *each)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert jax.jit(jax.vmap(function)).lower(*given).as_text().count("stablehlo.while") == loops


def masked(q, k, v, bias, ids):
    return flash_attention(q, k, v, bias, q_segment_ids=ids, causal=True, return_lse=True)


def test_all_operands_are_mapped():
    same(masked, Q, K, V, BIAS, IDS)
    loss = lambda *given: jnp.sum(jnp.sin(masked(*given)[0]))
    same(jax.grad(loss, argnums=range(4)), Q, K, V, BIAS, IDS)


def test_gradients_by_what_is_shared():
    """Each call has its own gradient of a shared operand."""
    shared = normal(B, 1, S, S)
    loss = lambda bias, q: jnp.sum(jnp.sin(flash_attention(q, K[0], V[0], bias)))
    same(lambda q: jax.grad(loss, argnums=(0, 1))(shared, q), Q)
    broadcast = normal(1, 1, S, S)
    same(lambda q: jax.grad(loss)(broadcast, q), Q)


@pytest.mark.parametrize(
    ("function", "loops"),
    [
        (lambda q: flash_attention(q[:1], K[0, :1], V[0, :1], None, ENDS, ENDS, causal=True), 0),
        (lambda q: attention(q, K[0], V[0], "alibi"), 0),
        (lambda q: flash_attention(q, q, q, softmax_aux=normal(H, 2) * 0 + 1), 0),
        (lambda q: flash_attention(q, q, q, softmax_aux=q[0, 0, :, :2]), 1),
        (lambda q: flash_attention(q, q, q, dropout_prob=0.3, dropout_seed=1), 1),
        (lambda q: attention(q, q, q, layout="shbd"), 0),
    ],
    ids=["packed", "alibi", "sinks", "sinks of each", "dropout", "layout"],
)
def test_features(function, loops):
    same(function, Q, loops=loops)


def test_programs_that_read_their_own_batch():
    same(
        lambda q, lengths: flash_attention(q, K[0], V[0], mask_info=MaskInfo().apply_kv_lengths(lengths)),
        Q,
        jnp.asarray([[3, 4], [5, 6], [11, 2]]),
    )
    same(lambda q, slope: attention(q, q, q, score_mod=lambda s, b, h, i, j: s + slope[b] * (j - i)), Q, normal(N, B))


MOST = {
    "t[h, b]": ((H, B), lambda t, b, h: t[h, b]),
    "t[b, b]": ((B, B), lambda t, b, h: t[b, b]),
    "t[b, h, b]": ((B, H, B), lambda t, b, h: t[b, h, b]),
    "t[h, b] t[h, 0]": ((H, B), lambda t, b, h: t[h, b] * t[h, 0]),
    "t[b + 1]": ((B,), lambda t, b, h: t[b + 1]),
    "t[h, b] of one batch": ((H, 1), lambda t, b, h: t[h, b]),
    "t[b, b] of one batch": ((1, 1), lambda t, b, h: t[b, b]),
    "t[b] of one batch": ((1,), lambda t, b, h: t[b]),
}


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("where", MOST)
def test_where_a_table_is_read_at_the_batch(where, is_mapped):
    shape, read = MOST[where]
    batch = 1 if "of one" in where else B
    loss = lambda q, t: jnp.sum(
        jnp.sin(attention(q, K[0, :batch], V[0, :batch], score_mod=lambda s, b, h, i, j: s * read(t, b, h)))
    )
    slopes = jax.value_and_grad(loss, argnums=(0, 1))
    q, table = Q[:, :batch], normal(*shape)
    if is_mapped:
        same(slopes, q, normal(N, *shape))
    else:
        same(lambda q: slopes(q, table), q)
        same(lambda q: loss(q, table), q)


@pytest.mark.parametrize("size", ["batch", "1", "?"])
def test_declared_sizes_of_one_batch(size):
    text = f"score_mod(t: f32[heads,{size}]) {{ %0 = load t[h, b]; %1 = mul score, %0; return %1 }}"
    table = normal(H, 1)
    same(lambda q: attention(q, q, q, text, captures=[table]), Q[:, :1])
    same(lambda q, t: attention(q, q, q, text, captures=[t]), Q[:, :1], normal(N, H, 1))


def test_sizes_written_into_a_program():
    text = "score_mod(t: f32[2]) { %0 = load t[b]; %1 = mul score, %0; return %1 }"
    same(lambda q, t: attention(q, q, q, text, captures=[t]), Q, normal(N, B))


def test_heads_and_batches_one_by_one():
    one = lambda q: flash_attention(q[None, :, None], q[None, :, None], q[None, :, None])[0, :, 0]
    heads = jax.vmap(jax.vmap(one, 1, 1))
    np.testing.assert_allclose(heads(Q[0]), flash_attention(Q[0], Q[0], Q[0]), atol=1e-6)
    assert "stablehlo.while" not in jax.jit(heads).lower(Q[0]).as_text()
    fused = flashlift.jax.equinox_attention_fn
    over_heads = jax.vmap(jax.vmap(fused, (1, 1, 1), 1))(Q[0], Q[1], Q[2])
    np.testing.assert_allclose(over_heads, flash_attention(*Q), atol=1e-6)


def test_no_calls_at_all():
    """An empty batch gives results of the right shapes, as JAX's own operations do."""
    attend = lambda q, k, slopes: flash_attention(q, k, k, score_mod=lambda s, b, h, i, j: s * (b + slopes[h]))
    given = jnp.zeros((0, B, S, H, D)), K[0], jnp.ones((0, H))
    mapped = (0, None, 0)
    assert jax.vmap(attend, mapped)(*given).shape == (0, B, S, H, D)
    gradients = jax.vmap(jax.grad(lambda *one: attend(*one).sum(), argnums=(0, 1, 2)), mapped)(*given)
    assert [one.shape for one in gradients] == [(0, B, S, H, D), (0, *K[0].shape), (0, H)]
