"""A test for each rule of docs/design.md, "Lifting", in both directions: what must be fused and is the same, and what would
break the rule, which must stay as it was or stay arithmetic. Everything is compared with what XLA makes of the original."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flashlift.jax

LOWEST = float(np.finfo(np.float32).min)
B, H, S, T, D = 2, 2, 8, 12, 8


def qkv(size=1.0, dtype=jnp.float32):
    rng = np.random.default_rng(7)

    def draw(*shape):
        return jnp.asarray(np.round(4 * rng.standard_normal(shape)) / 4, dtype)

    return size * draw(B, H, S, D), draw(B, H, T, D), draw(B, H, T, D)


def products(q, k):
    return jnp.einsum("bhqd,bhkd->bhqk", q, k)


def weigh(p, v):
    return jnp.einsum("bhqk,bhkd->bhqd", p, v)


def attention(mask):
    """Softmax attention whose scores go through `mask(scores, *more)`."""
    return lambda q, k, v, *more: weigh(jax.nn.softmax(mask(products(q, k) / 4, *more), -1), v)


def fused(function, *arguments, gradients=False, tolerance=2e-5):
    """Compares with XLA; gives the report's candidates, and the module's problems as one text."""
    if gradients:
        forward = function

        def function(*given):
            floats = [i for i, x in enumerate(given) if jnp.issubdtype(x.dtype, jnp.floating)][:3]

            def of_floats(*some):
                full = list(given)
                for i, x in zip(floats, some, strict=True):
                    full[i] = x
                return forward(*full)

            out, pullback = jax.vjp(of_floats, *(given[i] for i in floats))
            return out, pullback(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape).astype(out.dtype))

    mine = flashlift.jax.fuse(function)
    got, want = jax.tree.leaves(mine(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments))
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(np.nan_to_num(other)).max()))
    return mine.report.candidates, str(mine.report)


def assert_fused(function, *arguments, **options):
    candidates, report = fused(function, *arguments, **options)
    assert any(candidate.fused for candidate in candidates), report
    return report


def assert_left_alone(function, *arguments, words=""):
    candidates, report = fused(function, *arguments)
    assert candidates, report
    assert not any(candidate.fused for candidate in candidates), report
    assert words in report, report


# --- Tables that the score indexes ---

TABLE = jnp.asarray(np.random.default_rng(3).standard_normal(16), jnp.float32)


def entry(s):
    return jnp.clip((2 * s).astype(jnp.int32) + 8, 0, 15)


@pytest.mark.parametrize(
    "mask",
    [
        lambda s, table: table[entry(s)],
        lambda s, table: s + table[entry(s)],
        lambda s, table: 3 * s + table[entry(s)],
        lambda s, table: jnp.where(s > 0, s, table[entry(s)]),
        lambda s, table: s + table[entry(s + table[entry(2 * s)])],
        lambda s, table: s * table[entry(s)],
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_scores_in_the_index_of_a_table_are_scaled_once(mask, gradients):
    assert_fused(attention(mask), *qkv(), TABLE, gradients=gradients)


def test_scores_beside_a_maximum_of_theirs_do_not_hang_the_compiler():
    fused(attention(lambda s: s * jax.lax.stop_gradient(s.max(-1, keepdims=True))), *qkv())


# --- Guards of the divisor ---

KEEP = jnp.asarray(np.random.default_rng(5).random((B, 1, S, T)) > 0.5).at[0, 0, 2].set(False)


def divided(
    maximum=lambda s: s.max(-1, keepdims=True), guard=lambda z: z, mask=lambda s: s, of=lambda e: e, after=lambda p: p
):
    """after(of(exp(s - maximum(s))) / guard(its sum))."""

    def function(q, k, v):
        s = mask(products(q, k) / 4)
        e = of(jnp.exp(s - maximum(s)))
        return weigh(after(e / guard(e.sum(-1, keepdims=True))), v)

    return function


GUARDS = {
    "maximum": lambda z: jnp.maximum(z, 1e-7),
    "large maximum": lambda z: jnp.maximum(z, 0.5),
    "added": lambda z: z + 1e-9,
    "of zero": lambda z: jnp.where(z == 0, 1.0, z),
    "of a small one": lambda z: jnp.where(z < 1e-6, 1.0, z),
    "of a positive one": lambda z: jnp.where(z > 0, z, 1e-6),
    "clipped": lambda z: jnp.clip(z, 1e-6, 1e30),
}
MASKS = {
    "nothing": lambda s: s,
    "infinite": lambda s: jnp.where(KEEP, s, -jnp.inf),
    "lowest": lambda s: jnp.where(KEEP, s, LOWEST),
    "above": lambda s: s + 200,
}
MAXIMA = {
    "own": lambda s: s.max(-1, keepdims=True),
    "finite": lambda s: (lambda m: jnp.where(jnp.isfinite(m), m, 0.0))(s.max(-1, keepdims=True)),
    "from the lowest": lambda s: jnp.maximum(s.max(-1, keepdims=True), LOWEST),
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("mask", MASKS)
def test_guards_of_a_sum_of_at_least_one_are_left_out(guard, mask):
    for maximum in MAXIMA.values():
        if mask != "infinite" or maximum is not MAXIMA["own"]:
            assert_fused(divided(maximum, GUARDS[guard], MASKS[mask]), *qkv())


def test_guards_are_left_out_of_gradients_too():
    for guard in GUARDS.values():
        assert_fused(divided(guard=guard, mask=MASKS["lowest"]), *qkv(), gradients=True)


OTHER_MAXIMA = {
    "none": lambda s: 0.0,
    "less": lambda s: s.max(-1, keepdims=True) + 16,
    "more": lambda s: s.max(-1, keepdims=True) - 16,
    "of the unmasked": lambda s: (s + 100).max(-1, keepdims=True),
    "and zero": lambda s: jnp.maximum(s.max(-1, keepdims=True), 120.0),
    "mean": lambda s: s.mean(-1, keepdims=True),
    "of absolutes": lambda s: jnp.abs(s).max(-1, keepdims=True) + 120,
    "twice": lambda s: 2 * s.max(-1, keepdims=True),
    "rounded": lambda s: (s.astype(jnp.bfloat16).max(-1, keepdims=True)).astype(jnp.float32),
}


@pytest.mark.parametrize("maximum", OTHER_MAXIMA)
@pytest.mark.parametrize("guard", ["maximum", "added", "of zero", "of a positive one", "clipped"])
def test_guards_that_may_act_stay(maximum, guard):
    if (maximum, guard) == ("none", "added"):
        return  # a number added to a sum of what is not shifted is a sink
    assert_left_alone(divided(OTHER_MAXIMA[maximum], GUARDS[guard]), *qkv(40.0), words="guard")


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e-2, 0.5])
def test_numbers_that_are_added_to_the_sum_and_count_stay(size):
    assert_left_alone(divided(guard=lambda z: z + size), *qkv())


def test_a_maximum_of_more_keys_than_are_summed_guards_nothing():
    kept = divided(guard=GUARDS["added"], of=lambda e: jnp.where(KEEP, e, 0.0))
    assert_left_alone(kept, *qkv(40.0), words="guard")


def test_without_guards_any_shift_cancels_and_the_report_says_what_is_better():
    for maximum in ("less", "more", "mean"):
        report = assert_fused(divided(OTHER_MAXIMA[maximum]), *qkv())
        assert "finite where the module's exponentials overflow" in report
    assert "overflow" not in assert_fused(divided(), *qkv())


@pytest.mark.parametrize("after", [jnp.nan_to_num, lambda p: jnp.where(jnp.isnan(p), 0.0, p)])
def test_probabilities_are_cleaned_of_nan_where_rows_are_empty_alone(after):
    assert_fused(divided(mask=MASKS["infinite"], after=after), *qkv())
    assert_left_alone(divided(OTHER_MAXIMA["none"], after=after), *qkv(), words="guard")


def test_rows_set_to_zero_by_their_sum():
    def zeroed(maximum):
        def function(q, k, v):
            s = products(q, k)
            e = jnp.exp(s - maximum(s))
            z = e.sum(-1, keepdims=True)
            return weigh(jnp.where(z > 0, e / z, 0.0), v)

        return function

    assert_fused(zeroed(MAXIMA["own"]), *qkv())
    assert_left_alone(zeroed(OTHER_MAXIMA["none"]), *qkv(), words="guard")


def test_guards_with_sinks():
    sinks = jnp.asarray([0.5, -2.0], jnp.float32)[:, None, None]

    def function(counts_sinks):
        def attend(q, k, v, sinks):
            s = products(q, k) / 4
            m = jnp.maximum(s.max(-1, keepdims=True), sinks) if counts_sinks else s.max(-1, keepdims=True)
            e = jnp.exp(s - m)
            return weigh(e / jnp.maximum(e.sum(-1, keepdims=True) + jnp.exp(sinks - m), 1e-6), v)

        return attend

    for counts_sinks in (False, True):
        assert_fused(function(counts_sinks), *qkv(), sinks)


def test_a_sink_in_the_maximum_that_is_not_summed_keeps_the_guard():
    def attend(q, k, v):
        s = products(q, k) / 4
        m = jnp.maximum(s.max(-1, keepdims=True), 150.0)
        e = jnp.exp(s - m)
        return weigh(e / jnp.maximum(e.sum(-1, keepdims=True), 1e-6), v)

    assert_left_alone(attend, *qkv(), words="guard")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_guards_in_sixteen_bits(dtype):
    for guard in ("maximum", "added", "of zero"):
        assert_fused(divided(guard=GUARDS[guard]), *qkv(dtype=dtype), tolerance=3e-2)
