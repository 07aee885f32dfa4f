"""jax.export of attention with unknown batches and lengths, including gradients."""

import subprocess
import sys

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


def same_when_exported(function, shapes, *given):
    exported = export.export(jax.jit(function), disabled_checks=flashlift.jax.export_checks())(*shapes)
    for one in given:
        got, expected = exported.call(*one), function(*one)
        for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)


def of_sizes(names, *dims, dtype=jnp.float32):
    """dims: for each operand, a text with the names of its sizes."""
    scope = dict(zip(names.replace(",", " ").split(), export.symbolic_shape(names), strict=True))
    return [
        jax.ShapeDtypeStruct(tuple(int(one) if one.isdigit() else scope[one] for one in text.split()), dtype)
        for text in dims
    ]


def test_programs_of_arrays_of_any_size():
    def attend(q, k, table, of_distance):
        score = lambda s, b, h, i, j: s + table[b, h, j % 3] + table[0, h, -1] + of_distance[h, i - j]
        return flash_attention(q, k, k, score_mod=score, mask_mod=lambda b, h, i, j: i + 3 >= j)

    gradients = jax.grad(lambda *given: jnp.sin(attend(*given)).sum(), argnums=range(4))
    shapes = of_sizes("b, s, t, n", "b s 4 8", "b t 2 8", "b 4 n", "4 s")
    given = [
        [normal(b, s, 4, 8), normal(b, t, 2, 8), normal(b, 4, n), normal(4, s)]
        for b, s, t, n in ((2, 5, 7, 3), (1, 12, 9, 6), (1, 1, 1, 1))
    ]
    same_when_exported(attend, shapes, *given)
    same_when_exported(gradients, shapes, *given)


def test_batches_of_calls_of_any_size():
    """Also for programs that compute with the batch index."""
    attend = jax.vmap(lambda q, k: flash_attention(q, k, k, causal=True))
    by_batch = jax.vmap(lambda q, k: flash_attention(q, k, k, score_mod=lambda s, b, h, i, j: s * (b + 1)))
    given = normal(3, 2, 7, 4, 8), normal(3, 2, 7, 2, 8)
    for function in (attend, by_batch):
        same_when_exported(function, of_sizes("n, b, s", "n b s 4 8", "n b s 2 8"), given)
        same_when_exported(function, of_sizes("b, s", "3 b s 4 8", "3 b s 2 8"), given)


def test_cumulative_lengths_of_any_size():
    attend = lambda q, k, ends: flash_attention(q, k, k, None, ends, ends, causal=True)
    ends = of_sizes("m", "m", dtype=jnp.int32)
    packed = normal(1, 11, 4, 8), normal(1, 11, 2, 8)
    same_when_exported(attend, [*shapes(1, 11)[:2], *ends], (*packed, jnp.asarray([0, 4, 11], jnp.int32)))
    batch, length = export.symbolic_shape("b, s")
    padded = [*shapes(batch, length)[:2], jax.ShapeDtypeStruct((batch + 1,), jnp.int32)]
    given = normal(3, 11, 4, 8), normal(3, 11, 2, 8), jnp.asarray([0, 4, 4, 15], jnp.int32)
    same_when_exported(attend, padded, given, (*packed, jnp.asarray([0, 4], jnp.int32)))
    known = lambda q, k: attend(q, k, jnp.asarray([0, 4, 4, 15], jnp.int32))
    (length,) = export.symbolic_shape("s")
    same_when_exported(known, shapes(3, length)[:2], given[:2])


IN_ANOTHER_PROCESS = """
import sys
import jax, numpy as np
from jax import export
{head}
exported = export.deserialize(open(sys.argv[1], "rb").read())
given = list(np.load(sys.argv[2]).values())
loss = lambda *given: jax.numpy.sin(exported.call(*given)).sum()
np.savez(sys.argv[3], exported.call(*given), *jax.grad(loss, argnums=range(len(given)))(*given))
"""


def plain(q, k, v):
    scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


@pytest.mark.parametrize("function", [attend, flashlift.jax.fuse(plain)], ids=["attend", "fused"])
def test_serialized_for_another_process(tmp_path, function):
    """With the gradient. A process that does not know the call gets XLA's error, and never another result."""
    given = [normal(2, 16, 4, 8) for _ in range(3)]
    exported = export.export(jax.jit(function), disabled_checks=flashlift.jax.export_checks())(*given)
    assert "flashlift.attention" in exported.mlir_module()
    names = [tmp_path / one for one in ("exported", "given.npz", "got.npz")]
    names[0].write_bytes(exported.serialize(vjp_order=1))
    np.savez(names[1], *given)

    def run(head):
        program = IN_ANOTHER_PROCESS.format(head=head)
        return subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=False)

    without = run("")
    assert without.returncode != 0 and "flashlift.attention" in without.stderr
    done = run("import flashlift.jax; flashlift.jax.register()")
    assert done.returncode == 0, done.stderr
    gradient = jax.grad(lambda *given: jnp.sin(function(*given)).sum(), argnums=range(3))(*given)
    for got, expected in zip(np.load(names[2]).values(), [function(*given), *gradient], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_platforms():
    """Both platforms that have handlers, and no other."""
    given = [normal(2, 16, heads, 8) for heads in (4, 2, 2)]
    alike = [normal(2, 16, 4, 8) for _ in range(3)]

    def exported(*platforms, function=attend, given=given):
        checks = flashlift.jax.export_checks()
        return export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(*given)

    np.testing.assert_allclose(exported("cpu", "cuda").call(*given), attend(*given), atol=1e-6)
    fused = exported("cpu", "cuda", function=flashlift.jax.fuse(plain), given=alike)
    np.testing.assert_allclose(fused.call(*alike), plain(*alike), atol=1e-5)
    gradient = jax.grad(lambda *given: jnp.sin(fused.call(*given)).sum())(*alike)
    np.testing.assert_allclose(gradient, jax.grad(lambda *given: jnp.sin(plain(*given)).sum())(*alike), atol=1e-5)
    with pytest.raises(
        flashlift.UnsupportedError, match="compiled for tpu, and Flashlift's handlers are for cpu and cuda"
    ):
        exported("tpu")


def test_sizes_that_kernels_are_made_for():
    for shape, what in (("2 7 4 d", "depth"), ("2 7 h 8", "heads")):
        one = of_sizes(shape[-1] if what == "depth" else "h", shape)
        with pytest.raises(flashlift.UnsupportedError, match=f"of {what} that jax.export does not know yet"):
            export.export(jax.jit(lambda q: flash_attention(q, q, q)))(*one)


def test_names_of_residuals():
    """The residuals that a policy of jax.checkpoint can save: then there is no second forward call."""
    names = jax.checkpoint_policies.save_only_these_names("flashlift_out", "flashlift_lse")
    q, k, v = (normal(1, 16, 2, 8) for _ in range(3))

    def calls(policy):
        loss = jax.checkpoint(lambda q: jnp.sin(flash_attention(q, k, v)).sum(), policy=policy)
        return jax.jit(jax.value_and_grad(loss)).lower(q).as_text().count("@flashlift.attention(")

    assert (calls(names), calls(jax.checkpoint_policies.nothing_saveable)) == (1, 2)
