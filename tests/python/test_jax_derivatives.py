"""Derivatives that no kernel computes: forward mode, second derivatives, and those of unnormalized outputs."""

import itertools
import json

import flashlift
import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift._library import core
from flashlift._problem import Problem
from flashlift.jax import flash_attention
from flashlift.jax._call import Call, captured_names
from flashlift.jax._plain import plain as written_out
from flashlift.jax._primitive import _warn_of_plain_maths
from test_jax_flash_attention import plain
from test_jax_gradients import assert_gradients, normal

pytestmark = pytest.mark.filterwarnings("ignore:flashlift.jax computes")


def operands():
    return normal(1, 9, 4, 8), normal(1, 7, 2, 8), normal(1, 7, 2, 5), normal(1, 4, 9, 7), normal(4, 2)


def mine(q, k, v, bias, sinks):
    return flash_attention(q, k, v, bias, softmax_aux=sinks, logits_soft_cap=2.0, return_lse=True)


def theirs(q, k, v, bias, sinks):
    return plain(q, k, v, bias, sinks, scale=8**-0.5, cap=2.0)


def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=2e-4)


def test_forward_mode():
    given, tangents = operands(), operands()
    assert_close(jax.jvp(mine, given, tangents), jax.jvp(theirs, given, tangents))
    linear = jax.linearize(lambda q: mine(q, *given[1:]), given[0])[1]
    assert_close(linear(tangents[0]), jax.jvp(lambda q: theirs(q, *given[1:]), given[:1], tangents[:1])[1])
    some = lambda function: jax.jit(jax.jacfwd(lambda sinks: function(*given[:4], sinks)))
    assert_close(some(mine)(given[4]), some(theirs)(given[4]))


def test_second_derivatives():
    given, directions = operands(), operands()

    def loss(function):
        return lambda *given: sum(jnp.sum(jnp.sin(one)) for one in function(*given))

    def along(function):
        slope = jax.grad(loss(function), argnums=range(5))
        return lambda *given: sum(jnp.vdot(d, g) for d, g in zip(directions, slope(*given), strict=True))

    over_reverse = lambda function: jax.jit(jax.grad(along(function), argnums=range(5)))(*given)
    assert_close(over_reverse(mine), over_reverse(theirs))
    forward = lambda function: jax.jvp(jax.grad(loss(function), argnums=range(5)), given, directions)
    assert_close(forward(mine), forward(theirs))
    hessian = lambda function: jax.hessian(lambda sinks: loss(function)(*given[:4], sinks))(given[4])
    assert_close(hessian(mine), hessian(theirs))


def test_unnormalized():
    """The largest score of a row, which is subtracted from all, has a gradient too."""
    for sinks in (None, normal(4, 2)):
        q, k, v, bias, _ = operands()
        extra = () if sinks is None else (sinks,)
        assert_gradients(
            lambda q, k, v, bias, *sinks: flash_attention(
                q, k, v, bias, None, None, *sinks, normalize_output=False, causal=True
            ),
            lambda q, k, v, bias, *sinks: plain(
                q, k, v, bias, *sinks, scale=8**-0.5, normalize=False, keep=jnp.tril(jnp.ones((9, 7), bool))
            )[0],
            (q, k, v, bias, *extra),
        )


def test_one_warning_says_what_is_slow():
    _warn_of_plain_maths.cache_clear()
    given = tuple(normal(1, 5, 1, 8) for _ in range(3))  # what is compiled already has been warned of
    with pytest.warns(UserWarning, match="forward-mode derivatives of attention by plain maths") as warnings:
        jax.jvp(flash_attention, given, given)
        jax.jvp(flash_attention, given, given)
    assert len(warnings) == 1


def test_dropout_is_refused():
    q, k, v = operands()[:3]
    with pytest.raises(flashlift.UnsupportedError, match="expected reverse mode, once"):
        jax.jvp(lambda q: flash_attention(q, k, v, dropout_prob=0.1, dropout_seed=1), (q,), (q,))


WORDS = [
    "causal window=3,1", "causal=bottom_right dilated=2 prefix=1", "documents=2 alibi", "softcap=3 logits=bf16",
    "empty_rows=uniform window=0 key_lengths", "segment_ids bias=f16 mask=i32", "cu_seqlens causal",
    "score_mod(t: f32[5,7]) { %0 = load t[h, kv]; %1 = sub q, kv; %2 = abs %1; %3 = to_f32 %2; %4 = expm1 %0; "
    "%5 = select true, %4, %3; %6 = pow 2.0, %5; %7 = sub score, %6; return %7 } "
    "mask_mod(t: f32[5,7]) { %0 = xor q, kv; %1 = shr %0, 1; %2 = mod %1, 2; %3 = lt %2, 1; return %3 }",
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_the_plain_maths_are_the_kernels(words):
    draw = np.random.default_rng(0)
    given = {
        "key_lengths": np.int32([4]),
        "q_segments": draw.integers(0, 2, (1, 9), dtype=np.int32),
        "kv_segments": draw.integers(0, 2, (1, 7), dtype=np.int32),
        "bias": draw.normal(size=(1, 4, 1, 7)).astype(np.float16),
        "mask": draw.integers(0, 2, (1, 1, 9, 7), dtype=np.int32),
        "cu_seqlens_q": np.int32([0, 4, 9]),
        "cu_seqlens_kv": np.int32([0, 1, 7]),
        "t": draw.normal(size=(5, 7)).astype(np.float32),
    }
    q, k, v = operands()[:3]
    sizes = {"q_heads": 4, "kv_heads": 2, "q_len": 9, "kv_len": 7, "head_dim": 8, "value_dim": 5}
    problem = Problem.parse(f"attn lse {words}", dtype="f32", **sizes)
    names = captured_names(problem)
    captures = [jnp.asarray(given[name]) for name in names]
    fused = flashlift.jax.attention(q, k, v, f"lse {words}", captures=captures)
    for one, other in itertools.zip_longest(fused, written_out(Call(problem, "bshd", names), q, k, v, *captures)):
        np.testing.assert_allclose(one, other, atol=2e-5 if "bf16" not in words else 2e-2)


def test_the_plain_maths_have_every_operation():
    operands = dict.fromkeys(("arithmetic", "function", "predicate"), ("%x", "0.3"))  # in the domain of each
    operands |= dict.fromkeys(("integer", "bits", "comparison"), ("q", "kv"))
    rows = [row for row in json.loads(core().flashlift_operations()) if row["kind"] in operands]
    steps = ["%x = sigmoid score", "%sum0 = mul %x, 0.0"]
    for i, row in enumerate(rows):
        given = ", ".join(operands[row["kind"]][: row["operands"]])
        steps += [f"%y{i} = {row['name']} {given}", f"%f{i} = to_f32 %y{i}", f"%sum{i + 1} = add %sum{i}, %f{i}"]
    program = f"score_mod() {{ {'; '.join(steps)}; return %sum{len(rows)} }}"
    q, k, v = normal(1, 5, 1, 8), normal(1, 5, 1, 8), normal(1, 5, 1, 8)
    sizes = {"q_heads": 1, "kv_heads": 1, "q_len": 5, "kv_len": 5, "head_dim": 8, "value_dim": 8}
    problem = Problem.parse(f"attn lse {program}", dtype="f32", **sizes)
    out, lse = flashlift.jax.attention(q, k, v, f"lse {program}")
    assert len(rows) > 30 and jnp.isfinite(lse).all()
    assert_close((out, lse), tuple(written_out(Call(problem, "bshd", []), q, k, v)))
