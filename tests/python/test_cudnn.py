"""Modules with cuDNN's attention calls, as JAX lowers them for CUDA, run on the CPU after they are fused."""

import re

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir

BATCH, LENGTH, HEADS, DEPTH = 2, 48, 4, 32


@pytest.fixture(autouse=True)
def lower_without_a_gpu(monkeypatch):
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda *_, **__: 91900)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_, **__: True)
    flashlift.jax.register()


def draw(*shape, dtype=jnp.float16, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def lowered(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def run(text, *arguments):
    device = jax.devices("cpu")[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        executable = device.client.compile_and_load(
            module.operation.get_asm(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
        )
    results = executable.execute_sharded([jax.device_put(each, device) for each in arguments])
    return [np.asarray(each[0], np.float32) for each in results.disassemble_into_single_device_arrays()]


def exact(*arguments):
    return [jnp.asarray(each, jnp.float32) if jnp.issubdtype(each.dtype, jnp.floating) else each for each in arguments]


CASES = {
    "plain": ({}, HEADS, ()),
    "grouped": ({}, 2, ()),
    "causal": ({"is_causal": True}, HEADS, ()),
    "window": ({"is_causal": True, "local_window_size": (10, 0)}, 2, ()),
    "bias": ({}, HEADS, ("bias",)),
    "causal_bias": ({"is_causal": True}, HEADS, ("bias",)),
    "lengths": ({}, HEADS, ("query_seq_lengths", "key_value_seq_lengths")),
}
EXTRAS = {
    "bias": lambda: draw(BATCH, HEADS, LENGTH, LENGTH, seed=7),
    "query_seq_lengths": lambda: jnp.asarray([LENGTH, 17], jnp.int32),
    "key_value_seq_lengths": lambda: jnp.asarray([31, LENGTH], jnp.int32),
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_computes_what_jax_does(case, gradient):
    options, kv_heads, names = CASES[case]
    q = draw(BATCH, LENGTH, HEADS, DEPTH, seed=1)
    k, v = (draw(BATCH, LENGTH, kv_heads, DEPTH, seed=seed) for seed in (2, 3))
    extras = [EXTRAS[name]() for name in names]

    def attend(implementation):
        def call(q, k, v, *extras):
            keywords = dict(zip(names, extras, strict=True))
            return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **keywords, **options)

        if not gradient:
            return call
        # Of the bias, too, if there is one.
        wanted = (0, 1, 2, 3) if "bias" in names else (0, 1, 2)
        return jax.grad(lambda *all: jnp.sum(call(*all).astype(jnp.float32) ** 2), argnums=wanted)

    text = lowered(attend("cudnn"), q, k, v, *extras)
    result = flashlift.stablehlo.fuse(text, gradients=gradient)
    assert result.fused_count == (2 if gradient else 1), result.candidates
    assert "__cudnn" not in result.module
    want = jax.tree.leaves(attend("xla")(*exact(q, k, v, *extras)))
    for got, expected in zip(run(result.module, q, k, v, *extras), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=4e-3 * max(1, float(jnp.max(jnp.abs(expected)))))


# Layout, lengths of queries and keys, key-value heads, the bias's batches and heads.
ODD_CASES = [("BNTH", 24, 40, 2, (1, 1)), ("BTNH", 40, 24, 4, (2, 1)), ("BNTH", 24, 24, 4, (1, 4))]


@pytest.mark.parametrize("layout, queries, keys, kv_heads, bias_sizes", ODD_CASES)
def test_layouts_lengths_and_shared_biases(layout, queries, keys, kv_heads, bias_sizes):
    """Causal, with gradients with respect to all operands; a shared bias gets the sum over those that share it."""
    rng = np.random.default_rng(0)

    def operand(length, heads):
        sizes = (BATCH, length, heads, DEPTH) if layout == "BTNH" else (BATCH, heads, length, DEPTH)
        return jnp.asarray(rng.normal(size=sizes), jnp.float16)

    operands = [operand(queries, HEADS), operand(keys, kv_heads), operand(keys, kv_heads)]
    operands.append(jnp.asarray(rng.normal(size=(*bias_sizes, queries, keys)), jnp.float16))

    def with_cudnn(q, k, v, bias):
        causal = cudnn.MaskType.CAUSAL
        return cudnn.dot_product_attention(q, k, v, bias, scale=0.2, mask_type=causal, qkv_layout=layout)

    def with_xla(q, k, v, bias):
        if layout == "BNTH":
            q, k, v = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
        out = jax.nn.dot_product_attention(q, k, v, bias, scale=0.2, is_causal=True)
        return jnp.swapaxes(out, 1, 2) if layout == "BNTH" else out

    def gradient_of(attend):
        return jax.grad(lambda *all: jnp.sum(jnp.sin(attend(*all).astype(jnp.float32))), argnums=(0, 1, 2, 3))

    result = flashlift.stablehlo.fuse(lowered(gradient_of(with_cudnn), *operands), gradients=True)
    assert "__cudnn" not in result.module, result.candidates
    want = gradient_of(with_xla)(*exact(*operands))
    for got, expected in zip(run(result.module, *operands), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=4e-3 * max(1, float(jnp.max(jnp.abs(expected)))))


@pytest.fixture(scope="module")
def causal_text():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudnn, "check_cudnn_version", lambda *_, **__: 91900)
        patch.setattr(cudnn, "check_compute_capability", lambda *_, **__: True)
        q = draw(BATCH, LENGTH, HEADS, DEPTH)
        return lowered(lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn"), q)


def changed(text, old, new):
    old, new = (one.replace('"', "\\22") for one in (old, new))
    assert text.count(old) == 1
    return text.replace(old, new)


STAYS = {
    ('"dropout_rate": 0.0', '"dropout_rate": 0.5'): "its dropout leaves out other keys than Flashlift's would",
    ('"dropout_rate": 0.0', '"dropout_rate": "0.5"'): "its dropout leaves out other keys than Flashlift's would",
    ('"dropout_rate": 0.0', '"dropout_rate": [0.5]'): "a dropout_rate that is not a number",
    ('"dropout_rate"', '"dropoutRate"'): "a field dropoutRate: only names in lower case are read",
    ('"fmha_scale"', '"scale"'): "has a field scale, which is not known",
    (f'"fmha_scale": {1 / DEPTH**0.5}, ', ""): "lacks fmha_scale",
    ('"mask_type": "CAUSAL"', '"mask_type": 2'): "a mask_type that is not a text",
    ('"mask_type": "CAUSAL"', '"mask_type": "ALIBI"'): "its mask_type is ALIBI",
    ('"is_paged_attention": false', '"is_paged_attention": 1'): "an is_paged_attention that is not true or false",
    (
        '"sliding_window_length": 0',
        '"sliding_window_length": 1.5',
    ): "a sliding_window_length that is not a whole number",
    ('"sliding_window_length": 0', '"sliding_window_length": 18446744073709551615'): "that is not a whole number",
    ('"seed": 42', '"soft_cap": 30'): "has a field soft_cap, which is not known",
    (
        '"mask_type": "CAUSAL"',
        '"is_causal_mask": true, "mask_type": "NO_MASK"',
    ): "its is_causal_mask and its mask_type NO_MASK contradict each other",
    (
        '"lhs_contracting_dimensions": ["3"], "rhs_contracting_dimensions": ["1"]',
        '"lhs_contracting_dimensions": ["3"], "rhs_contracting_dimensions": ["2"]',
    ): "by its bmm2_dot_dimension_numbers, its operands are neither",
    (
        '"lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "2"]',
        '"lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"]',
    ): "by its bmm2_dot_dimension_numbers, its operands are neither",
}


@pytest.mark.parametrize("change", STAYS)
def test_says_why_a_call_stays(change, causal_text):
    text = changed(causal_text, *change)
    result = flashlift.stablehlo.fuse(text)
    assert result.module == text
    assert STAYS[change].removeprefix("an ").removeprefix("a ") in result.candidates[0].reason


@pytest.mark.parametrize("scale", ["0.5", '"0.5"', '"5e-1"'])
def test_reads_numbers_that_are_texts(scale, causal_text):
    text = re.sub(r"fmha_scale\\22: [^,]*", lambda _: f"fmha_scale\\22: {scale}".replace('"', "\\22"), causal_text)
    assert "scale=0.5 " in flashlift.stablehlo.fuse(text).candidates[0].problem
