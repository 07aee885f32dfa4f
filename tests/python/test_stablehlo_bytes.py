"""Modules as bytes: the output of jax.export, and MLIR bytecode."""

import io

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

SHAPE = (1, 64, 2, 16)


def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def with_key(q, key):
    keep = jax.random.bernoulli(key, 0.9, q.shape)
    return attention(jnp.where(keep, q, 0.0), q, q)


@pytest.fixture(scope="module")
def lowered():
    return jax.jit(attention).lower(*[jax.ShapeDtypeStruct(SHAPE, jnp.float32)] * 3)


def bytecode(text):
    with mlir.make_ir_context():
        written = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(written)
        return written.getvalue()


def fused_as_text(module):
    result = flashlift.stablehlo.fuse(module, emit="text")
    assert result.fused_count == 1
    return [candidate.problem for candidate in result.candidates]


def test_bytes_are_fused_as_the_text_is(lowered):
    text = lowered.as_text()
    problems = fused_as_text(text)
    assert fused_as_text(bytecode(text)) == problems
    assert fused_as_text(export.export(jax.jit(attention))(*lowered.in_avals[0]).mlir_module_serialized) == problems
    for version in ("0.9.0", "1.0.0", "1.5.0", "1.9.0", stablehlo.get_current_version()):
        assert fused_as_text(stablehlo.serialize_portable_artifact_str(text, version)) == problems, version


@pytest.mark.parametrize("form", ["bytecode", "vhlo", "vhlo=1.3.0", "vhlo=1.9.0", "vhlo=1.17.0"])
def test_jax_reads_each_form(lowered, form):
    result = flashlift.stablehlo.fuse(lowered.as_text(), emit=form)
    assert isinstance(result.module, bytes)
    with mlir.make_ir_context():
        if form == "bytecode":
            module = ir.Module.parse(result.module)
        else:
            module = ir.Module.parse(stablehlo.deserialize_portable_artifact_str(result.module))
        assert "@flashlift.attention" in str(module)


def test_a_module_comes_back_in_the_form_it_came_in(lowered):
    text = lowered.as_text()
    old = stablehlo.serialize_portable_artifact_str(text, "1.9.0")
    assert b"StableHLO_v1.9.0" in flashlift.stablehlo.fuse(old).module
    # The call's dictionary is there from 1.3.0 on.
    oldest = stablehlo.serialize_portable_artifact_str(text, "0.9.0")
    assert b"StableHLO_v1.3.0" in flashlift.stablehlo.fuse(oldest).module
    assert isinstance(flashlift.stablehlo.fuse(text).module, str)
    nothing = bytecode("module {}")
    assert flashlift.stablehlo.fuse(nothing).module == nothing


def test_a_typed_key_brings_sdy():
    key = jax.eval_shape(lambda: jax.random.key(0))
    text = jax.jit(with_key).lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32), key).as_text()
    assert "sdy.sharding_constraint" in text
    assert flashlift.stablehlo.fuse(text).fused_count == 1
    assert flashlift.stablehlo.fuse(bytecode(text), emit="vhlo").fused_count == 1


def test_errors(lowered):
    damaged = "<module>: MLIR bytecode: byte 20: expected .* cut off or damaged"
    with pytest.raises(flashlift.InvalidArgumentError, match=damaged):
        flashlift.stablehlo.fuse(bytecode(lowered.as_text())[:20])
    with pytest.raises(flashlift.InvalidArgumentError, match="expected text, bytecode, vhlo or vhlo=VERSION"):
        flashlift.stablehlo.fuse("module {}", emit="hlo")
    with pytest.raises(flashlift.UnsupportedError, match="ask for VHLO of version 1.3.0 or a later one"):
        flashlift.stablehlo.fuse(lowered.as_text(), emit="vhlo=1.0.0")
