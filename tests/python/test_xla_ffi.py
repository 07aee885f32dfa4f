"""The custom call flashlift.attention inside JAX, as docs/custom_call.md defines it for callers."""

from concurrent.futures import ThreadPoolExecutor

import flashlift
import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

RNG = np.random.default_rng(11)
BATCH, LENGTH, HEADS, KV_HEADS, DEPTH = 2, 40, 6, 2, 16
Q = jnp.asarray(RNG.normal(size=(BATCH, LENGTH, HEADS, DEPTH)), jnp.float32)
K, V = (jnp.asarray(RNG.normal(size=(BATCH, LENGTH, KV_HEADS, DEPTH)), jnp.float32) for _ in range(2))
PROBLEM = "attn b2 hq6 hkv2 s40 d16 f32 causal"
DIMS = {"q_dims": "bshd", "k_dims": "bshd", "v_dims": "bshd", "out_dims": "bshd"}


def bhsd(array):
    return np.swapaxes(np.asarray(array, np.float64), 1, 2)


EXPECTED, EXPECTED_LSE = reference.attention(bhsd(Q), bhsd(K), bhsd(V), mask=np.tril(np.ones((LENGTH, LENGTH), bool)))


def call(*operands, result=Q.shape, dtype=jnp.float32, **attributes):
    flashlift.jax.register()
    return jax.ffi.ffi_call("flashlift.attention", jax.ShapeDtypeStruct(result, dtype))(*operands, **attributes)


def test_runs_in_a_jitted_function():
    out = jax.jit(lambda q, k, v: 2 * call(q, k, v, problem=PROBLEM, **DIMS))(Q, K, V)
    np.testing.assert_allclose(bhsd(out), 2 * EXPECTED, atol=4e-6)


def test_grouped_heads_as_two_dimensions():
    q = Q.reshape(BATCH, LENGTH, KV_HEADS, HEADS // KV_HEADS, DEPTH)
    out = call(q, K, V, problem=PROBLEM, result=q.shape, **(DIMS | {"q_dims": "bshhd", "out_dims": "bshhd"}))
    np.testing.assert_allclose(bhsd(out.reshape(Q.shape)), EXPECTED, atol=2e-6)


def test_any_order_of_dimensions():
    q, k, v = (jnp.transpose(Q, (3, 1, 0, 2)), jnp.transpose(K, (0, 2, 3, 1)), jnp.transpose(V, (2, 0, 1, 3)))
    out = call(
        q, k, v, problem=PROBLEM, result=(LENGTH, BATCH, HEADS, DEPTH),
        q_dims="dsbh", k_dims="bhds", v_dims="hbsd", out_dims="sbhd",
    )  # fmt: skip
    np.testing.assert_allclose(np.transpose(out, (1, 2, 0, 3)), EXPECTED, atol=2e-6)


def test_shared_keys_and_values():
    out = call(Q, K[0], V[0], problem=PROBLEM, **(DIMS | {"k_dims": "shd", "v_dims": "shd"}))
    np.testing.assert_allclose(bhsd(out)[0], EXPECTED[0], atol=2e-6)


def test_attention_as_an_operation():
    out, lse = flashlift.jax.attention(Q, K, V, "causal lse")
    np.testing.assert_allclose(bhsd(out), EXPECTED, atol=2e-6)
    np.testing.assert_allclose(lse, EXPECTED_LSE, atol=4e-6)
    lengths = jnp.array([7, 40], jnp.int32)
    program = "mask_mod(length: i32[2]) { %0 = load length[b]; %1 = lt kv, %0; return %1 }"
    sinks = jnp.full((HEADS, 2), -jnp.inf)
    out = jax.jit(lambda q, k, v: flashlift.jax.attention(q, k, v, program, captures=[lengths], sinks=sinks))(Q, K, V)
    mask = np.arange(LENGTH) < np.asarray(lengths)[:, None, None, None]
    np.testing.assert_allclose(bhsd(out), reference.attention(bhsd(Q), bhsd(K), bhsd(V), mask=mask)[0], atol=2e-6)
    with pytest.raises(flashlift.InvalidArgumentError, match="layout"):
        flashlift.jax.attention(Q, K, V, layout="bsh")
    with pytest.raises(flashlift.InvalidArgumentError, match="4 dimensions"):
        flashlift.jax.attention(Q[0], K, V)


def test_many_calls_at_once():
    """Several calls at a time share XLA's thread pool, and some of them run on its threads."""
    shape = (1, 512, 8, 32)
    q = jnp.asarray(RNG.normal(size=shape), jnp.float32)

    @jax.jit
    def several(q):
        outs = [flashlift.jax.attention(q, q + i, q - i, "causal") for i in range(4)]
        return jnp.stack(outs).sum(0)

    expected = several(q)
    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: several(q), range(32)):
            assert jnp.array_equal(out, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problem": "attn b2"}, "INVALID_ARGUMENT: flashlift.attention: "),
        ({"problem": PROBLEM + " mask_mod() { %0 = le kv, q }"}, "INVALID_ARGUMENT"),
        ({"problem": PROBLEM.replace("s40", "s41")}, "the problem says 41"),
        ({"problem": PROBLEM.replace("f32", "bf16")}, "q has element type f32, but the problem says bf16"),
        ({"problem": PROBLEM + " lse"}, "attribute lse_dims is missing"),
        ({"problem": PROBLEM + " mask_mod(m: bool[2]) { %0 = load m[b]; return %0 }"}, "expected 4 operands"),
        ({"problem": None}, "attribute problem is missing"),
        ({"q_dims": None}, "attribute q_dims is missing"),
        ({"q_dims": "bsxd"}, "got 'x'"),
        ({"q_dims": "bsh"}, 'q has 4 dimensions, but q_dims = "bsh" names 3'),
        ({"q_dims": "bhsd"}, "q has shape [2,40,6,16]"),
        ({"q_dims": 4}, "attribute q_dims must be a string"),
        ({"scale": "0.5"}, "unknown attribute scale"),
        ({"implementation": "fastest"}, "no implementation named fastest"),
    ],
)
def test_malformed_attributes(change, words):
    attributes = {name: value for name, value in ({"problem": PROBLEM} | DIMS | change).items() if value is not None}
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(call(Q, K, V, **attributes))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("operands", "result", "dtype", "words"),
    [
        ((Q, K), Q.shape, jnp.float32, "expected 3 operands"),
        ((Q, K, V, V), Q.shape, jnp.float32, "expected 3 operands (q, k, v, 0 captured tensors), got 4"),
        ((Q, K[:, :, :1], V), Q.shape, jnp.float32, "reads as h = 1; the problem says 2"),
        ((Q, K.astype(jnp.bfloat16), V), Q.shape, jnp.float32, "k has element type bf16"),
        ((Q, K.astype(jnp.complex64), V), Q.shape, jnp.float32, "element type 15 is not supported"),
        ((Q, K, V), (*Q.shape[:3], 8), jnp.float32, "out has shape [2,40,6,8]"),
        ((Q, K, V), Q.shape, jnp.float16, "out has element type f16"),
    ],
)
def test_buffers_that_do_not_fit(operands, result, dtype, words):
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(call(*operands, result=result, dtype=dtype, problem=PROBLEM, **DIMS))
    assert words in str(raised.value)
