"""A test for each rule of docs/design.md, "Lifting", in both directions: modules that must be fused, and modules that
would break the rule, and must stay unfused or stay arithmetic. All results are compared with XLA's of the original.
"""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def fused(function, *arguments, gradients=False, tolerance=2e-5, whole=True):
    """Compares with XLA if anything is fused; returns the report's candidates, and the module's problems as one text.

    XLA may compute a score twice and round it differently, and then finds no score that equals its row's maximum. Such
    functions are compared with XLA's results for one operation after the other: whole=False.
    """
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
    report = mine.analyze(*arguments)
    if report.fused_count == 0:  # what would run is jax.jit(function) (test_what_stays_unfused_is_left_to_jax)
        return report.candidates, str(report)
    theirs = jax.jit(function) if whole else function
    got, want = jax.tree.leaves(mine(*arguments)), jax.tree.leaves(theirs(*arguments))
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(
            one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(np.nan_to_num(other)).max())
        )
    return report.candidates, str(report)


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


# --- Numbers of the key that are added apart ---

APART = {
    "behind the maximum": lambda s, bias: jnp.exp(s - s.max(-1, keepdims=True) + bias),
    "before the maximum": lambda s, bias: jnp.exp(bias + (s - s.max(-1, keepdims=True))),
    "factor": lambda s, bias: jnp.exp(s - s.max(-1, keepdims=True)) * jnp.exp(bias),
    "divisor": lambda s, bias: jnp.exp(s - s.max(-1, keepdims=True)) / jnp.exp(-bias),
    "behind a scale": lambda s, bias: jnp.exp2(1.4 * (s - s.max(-1, keepdims=True) + bias)),
}
SOME = jnp.asarray(np.random.default_rng(5).random((S, T)) > 0.4).at[2].set(False)
ROW_OF_KEYS = jnp.linspace(-1.0, 1.0, T)


def sees_itself():
    return jnp.arange(T) <= jnp.arange(S)[:, None]


def apart(how, mask, bias=lambda *more: jnp.cos(jnp.arange(T, dtype=jnp.float32))):
    def function(q, k, v, *more):
        e = APART[how](mask(products(q, k) / 4, *more), bias(*more))
        return weigh(e / e.sum(-1, keepdims=True), v)

    return function


@pytest.mark.parametrize("how", APART)
@pytest.mark.parametrize("low", [-1e9, LOWEST])
def test_a_bias_apart_from_a_mask_by_a_large_number_stays(how, low):
    """In a row that is masked as a whole, the scores minus their maximum are 0, and the bias decides."""
    words = "add the bias to the scores first"
    assert_left_alone(apart(how, lambda s, keep: jnp.where(keep, s, low)), *qkv(), SOME, words=words)
    assert_left_alone(apart(how, lambda s, mask: s + mask), *qkv(), jnp.where(SOME, 0, low), words=words)


@pytest.mark.parametrize("how", APART)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_bias_apart_where_no_row_is_masked_whole(how, gradients):
    assert_fused(apart(how, lambda s: s), *qkv(), gradients=gradients)
    assert_fused(apart(how, lambda s, b: s, lambda b: b), *qkv(), ROW_OF_KEYS, gradients=gradients)
    assert_fused(apart(how, lambda s: jnp.where(sees_itself(), s, -1e9)), *qkv(), gradients=gradients)
    assert_fused(apart(how, lambda s: jnp.where(sees_itself(), s, -jnp.inf)), *qkv(), gradients=gradients)


def test_a_bias_that_the_scores_know_beside_a_mask_by_a_large_number():
    for low in (-1e9, LOWEST):
        mask = lambda s, keep, low=low: jnp.where(keep, s, low) + jnp.cos(jnp.arange(T, dtype=jnp.float32))
        assert_fused(attention(mask), *qkv(), SOME)


@pytest.mark.parametrize("scaled", [lambda x: x / 0.5, lambda x: 2 * x / 0.7, lambda x: x * 3])
def test_scores_that_are_scaled_behind_the_maximum(scaled):
    def function(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(scaled(s - s.max(-1, keepdims=True)))
        return weigh(e / e.sum(-1, keepdims=True), v)

    assert_fused(function, *qkv(), gradients=True)


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


def divided_with_log_sum_exp(guard, of_log, mask=lambda s: s, maximum=MAXIMA["finite"]):
    def function(q, k, v):
        s = mask(products(q, k) / 4)
        m = maximum(s)
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        return weigh(e / guard(z), v), m + jnp.log(of_log(z))

    return function


@pytest.mark.parametrize("guard", GUARDS)
def test_guards_are_left_out_of_the_log_sum_exp_too(guard):
    for mask in (MASKS["nothing"], MASKS["lowest"], MASKS["above"]):
        assert_fused(divided_with_log_sum_exp(GUARDS[guard], GUARDS[guard], mask), *qkv())


@pytest.mark.parametrize(
    ("guard", "of_log", "mask", "maximum"),
    [
        (lambda z: z, GUARDS["large maximum"], MASKS["nothing"], MAXIMA["finite"]),  # nothing checks the maximum
        (lambda z: z, GUARDS["large maximum"], MASKS["nothing"], lambda s: s.max(-1, keepdims=True) + 16),
        (lambda z: z, lambda z: jnp.maximum(z, 2.0), MASKS["nothing"], MAXIMA["finite"]),
        (GUARDS["added"], lambda z: z + 1e-3, MASKS["nothing"], MAXIMA["finite"]),
        (GUARDS["added"], GUARDS["added"], MASKS["infinite"], MAXIMA["finite"]),  # log(1e-9) in rows without keys
    ],
)
def test_guards_of_the_log_sum_exp_that_may_act_stay(guard, of_log, mask, maximum):
    assert_left_alone(divided_with_log_sum_exp(guard, of_log, mask, maximum), *qkv(10.0))


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
    words = "rounds scores" if maximum == "rounded" else "guard"  # whatever the guard, a fused call would not round
    assert_left_alone(divided(OTHER_MAXIMA[maximum], GUARDS[guard]), *qkv(40.0), words=words)


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


@pytest.mark.parametrize(
    ("divisor", "stays"),
    [
        (lambda t: jnp.where(t > 0.5, 1.0, 0.0), True),  # 0 or NaN
        (lambda t: t, True),  # NaN where it is 0
        (lambda t: jnp.where(jnp.arange(S)[:, None] < 6, 1.0, 0.0), True),
        (lambda t: jnp.where(t > 0.5, 1.0, 2.0), False),
    ],
)
def test_what_rows_without_keys_give_is_the_same_for_all_of_them(divisor, stays):
    def function(q, k, v, t):
        s = jnp.where(KEEP, products(q, k) / 4, -jnp.inf)
        m = s.max(-1, keepdims=True)
        e = jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0.0))
        z = e.sum(-1, keepdims=True)
        return weigh(e / jnp.where(z == 0, divisor(t), z), v)

    t = jnp.asarray(np.random.default_rng(3).integers(0, 2, (B, H, S, 1)), jnp.float32)
    if stays:
        assert_left_alone(function, *qkv(), t, words="a row without any key")
    else:
        assert_fused(function, *qkv(), t)


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


BIASES = {
    "plain": jnp.asarray(np.random.default_rng(8).standard_normal((B, 1, S, T)), jnp.float32),
    "-inf": jnp.zeros((B, 1, S, T)).at[1, 0, 3].set(-jnp.inf).at[0, 0, 1, :4].set(-jnp.inf),
    "+inf": jnp.zeros((B, 1, S, T)).at[1, 0, 3, 2].set(jnp.inf),
    "NaN": jnp.zeros((B, 1, S, T)).at[1, 0, 3, 2].set(jnp.nan),
}


def set_to_zero(condition, mask=lambda s, *more: s):
    """Probabilities of masked scores, set to 0 in rows where `condition(sum, maximum)` is false."""

    def function(q, k, v, *more):
        s = mask(products(q, k) / 4, *more)
        m = s.max(-1, keepdims=True)
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        return weigh(jnp.where(condition(z, m), e / z, 0.0), v)

    return function


CONDITIONS_THAT_NO_NAN_FULFILS = {
    "a positive sum": lambda z, m: z > 0,
    "a finite maximum": lambda z, m: jnp.isfinite(m),
    "a maximum above -inf": lambda z, m: m > -jnp.inf,
}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("condition", CONDITIONS_THAT_NO_NAN_FULFILS.values(), ids=CONDITIONS_THAT_NO_NAN_FULFILS)
def test_rows_that_a_bias_makes_nan_are_set_to_zero_by_what_no_nan_fulfils(condition, bias):
    zeroed = set_to_zero(condition, lambda s, bias: s + bias)
    assert_left_alone(zeroed, *qkv(), BIASES[bias], words="compare with ==")
    of_constant = set_to_zero(condition, lambda s: s + BIASES[bias])
    if bias == "plain":
        assert_fused(of_constant, *qkv())
    else:
        assert_left_alone(of_constant, *qkv(), words="compare with ==")


COUNTS = jnp.asarray(np.random.default_rng(9).integers(0, 3, (B, 1, S, T)), jnp.int32).at[0, 0, 1].set(0)
MADE_OF_INTEGERS = {
    "a quotient": lambda s, n: s + 1 / n.astype(jnp.float32),
    "divided scores": lambda s, n: s / n.astype(jnp.float32),
    "a logarithm": lambda s, n: s + jnp.log(n.astype(jnp.float32) - 1),
}


@pytest.mark.parametrize("score", MADE_OF_INTEGERS.values(), ids=MADE_OF_INTEGERS)
def test_integers_make_scores_infinite_or_nan(score):
    """No tensor of floats contains such a number, but scores do: an operation that clears NaN clears more than empty
    rows."""
    cleaned = lambda q, k, v, n: weigh(jnp.nan_to_num(jax.nn.softmax(score(products(q, k), n), -1)), v)
    assert_left_alone(cleaned, *qkv(), COUNTS, words="NaN among the probabilities")
    assert_fused(lambda q, k, v, n: weigh(jax.nn.softmax(score(products(q, k), n), -1), v), *qkv(), COUNTS)
    finite = lambda q, k, v, n: weigh(jnp.nan_to_num(jax.nn.softmax(jnp.where(n > 0, products(q, k), -jnp.inf), -1)), v)
    assert_fused(finite, *qkv(), COUNTS)


@pytest.mark.parametrize("lowest", [1e3, 0.0])
def test_the_log_sum_exp_of_rows_that_a_condition_on_scores_empties(lowest):
    """In such rows, XLA's log-sum-exp is -inf, and its output NaN."""

    def both(q, k, v):
        s = jnp.where(products(q, k) > lowest, products(q, k), -jnp.inf)
        return weigh(jax.nn.softmax(s, -1), v), jax.nn.logsumexp(s, -1)

    assert_fused(both, *qkv())
    assert np.isneginf(np.asarray(flashlift.jax.fuse(both)(*qkv())[1])).any() == (lowest > 0)


@pytest.mark.parametrize("low", [LOWEST, -1e9])
def test_the_lowest_number_added_to_a_score_is_finite(low):
    """Therefore no row is empty, and a select for dropout clears no NaN."""
    kept = jnp.asarray(np.random.default_rng(10).random((B, 1, S, T)) > 0.4).at[0, 0, 2].set(False)

    def both(q, k, v, kept, bits):
        s = products(q, k) + jnp.where(kept, 0.0, low)
        return weigh(jnp.where(bits, jax.nn.softmax(s, -1) / 0.7, 0.0), v), jax.nn.logsumexp(s, -1)

    assert_fused(both, *qkv(), kept, jnp.asarray(np.random.default_rng(11).random((B, H, S, T)) > 0.3))


@pytest.mark.parametrize("bias", BIASES)
def test_rows_set_to_zero_by_what_nan_fulfils_stay_nan(bias):
    for condition in (lambda z, m: z != 0, lambda z, m: m != -jnp.inf):
        assert_fused(set_to_zero(condition, lambda s, bias: s + bias), *qkv(), BIASES[bias])


def masked_again(by, more_scores):
    def function(q, k, v, keep, bias):
        s = more_scores(products(q, k) / 4, keep, bias)
        return weigh(by(jax.nn.softmax(s, -1), keep), v)

    return function


@pytest.mark.parametrize(
    ("by", "check"),
    [
        (lambda p, keep: jnp.where(keep, p, 0.0), assert_left_alone),
        (lambda p, keep: jnp.where(keep.any(-1, keepdims=True), p, 0.0), assert_fused),
    ],
    ids=["where the key is kept", "where the row has one"],
)
def test_rows_that_data_empties_give_what_rows_that_the_mask_empties_give(by, check):
    """Such a row is NaN if a bias of -inf empties it, and 0 if the mask does."""
    inside = masked_again(by, lambda s, keep, bias: jnp.where(keep, s + bias, -jnp.inf))
    outside = masked_again(by, lambda s, keep, bias: jnp.where(keep, s, -jnp.inf) + bias)
    for function in (inside, outside):
        check(function, *qkv(), KEEP, BIASES["-inf"])
    without_bias = masked_again(by, lambda s, keep, bias: jnp.where(keep, s, -jnp.inf))
    with_constant = masked_again(by, lambda s, keep, bias: jnp.where(keep, s + BIASES["plain"], -jnp.inf))
    for function in (without_bias, with_constant):
        assert_fused(function, *qkv(), KEEP, BIASES["plain"])


@pytest.mark.parametrize("bias", BIASES)
def test_rows_in_which_the_mask_surely_keeps_a_key_are_emptied_by_data_alone(bias):
    """A causal mask is applied a second time: the mask sets no row to 0, and a row is NaN if the bias leaves it no
    key."""

    def function(q, k, v, bias):
        s = products(q, k) / 4
        keep = jnp.arange(s.shape[-2])[:, None] >= jnp.arange(s.shape[-1])
        return weigh(jnp.where(keep, jax.nn.softmax(jnp.where(keep, s + bias, -jnp.inf), -1), 0.0), v)

    assert_fused(function, *qkv(), BIASES[bias])


def test_floats_that_a_condition_alone_reads_are_no_part_of_the_score():
    chosen = set_to_zero(lambda z, m: z > 0, lambda s, bias: jnp.where(bias > 0, s, -jnp.inf))
    for bias in BIASES.values():
        assert_fused(chosen, *qkv(), bias)
        again = masked_again(lambda p, keep: jnp.where(keep, p, 0.0), lambda s, *_: jnp.where(bias > 0, s, -1e9))
        assert_fused(again, *qkv(), KEEP, bias)


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


# --- Numbers of a row that are subtracted ---


def largest(s):
    return s.max(-1, keepdims=True)


def reduced(operation, start):
    return lambda s: jax.lax.reduce(s, np.float32(start), operation, (3,))[..., None]


FEW = jnp.asarray(np.random.default_rng(6).random((S, T)) > 0.5).at[2].set(False)
NUMBERS_OF_ROWS = {
    "minimum": lambda s: s.min(-1, keepdims=True),
    "mean": lambda s: s.mean(-1, keepdims=True),
    "half of the maximum": lambda s: largest(s) / 2,
    "clipped": lambda s: jnp.clip(largest(s), -5, 5),
    "log-sum-exp": lambda s: jax.nn.logsumexp(s, -1, keepdims=True),
}
NO_NUMBERS = {
    "logarithm": lambda s: jnp.log(largest(s)),
    "root": lambda s: jnp.sqrt(largest(s)),
    "quotient": lambda s: largest(s) / (largest(s) - s.mean(-1, keepdims=True) - 0.5),
    "infinite": lambda s: jnp.maximum(largest(s), jnp.inf),
    "minimum from -inf": reduced(jax.lax.min, -np.inf),
    "maximum from inf": reduced(jax.lax.max, np.inf),
    "maximum of fewer keys": lambda s: largest(jnp.where(FEW, s, -jnp.inf)),
    "minimum of fewer keys": lambda s: jnp.where(FEW, s, -jnp.inf).min(-1, keepdims=True),
}


@pytest.mark.parametrize("name", [*NUMBERS_OF_ROWS, *NO_NUMBERS])
def test_what_is_subtracted_from_a_row_cancels_where_it_is_a_number(name):
    def attend(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(s - (NUMBERS_OF_ROWS | NO_NUMBERS)[name](s))
        return weigh(e / e.sum(-1, keepdims=True), v)

    if name in NUMBERS_OF_ROWS:
        assert_fused(attend, *qkv())
    else:
        assert_left_alone(attend, *qkv(), words="" if name == "logarithm" else "may be infinite or NaN")


# --- Finite masks ---


def distance():
    """From each query to each key, where the last query is at the last key; 0 occurs once in each row."""
    return jnp.arange(S)[:, None] + (T - S) - jnp.arange(T)[None]


def causal():
    return distance() >= 0


PADDED = (jnp.arange(T) >= jnp.asarray([5, T])[:, None])[:, None, None]  # the second batch has no key at all
SEGMENTS = jnp.asarray(np.random.default_rng(2).integers(0, 3, (B, T)), jnp.int32)
BIAS = jnp.where(PADDED, 0.0, LOWEST)
SLOPES = jnp.asarray([0.5, 0.25], jnp.float32)[:, None, None]


def where(keep, low):
    return lambda s, *more: jnp.where(keep(), s, low)


def masks_by_condition(report):
    """Whether keys are left out, instead of getting very negative scores."""
    return "with a mask_mod" in report


LEFT_OUT = {
    "causal": (where(causal, -1e9), ()),
    "causal, lowest": (where(causal, LOWEST), ()),
    "causal, -1e30": (where(causal, -1e30), ()),
    "causal, 0.7": (where(causal, 0.7 * LOWEST), ()),
    "causal, added": (lambda s: s + jnp.where(causal(), 0, LOWEST), ()),
    "causal, -1e9 added": (lambda s: s + (1 - causal().astype(jnp.float32)) * -1e9, ()),
    "causal, of capped scores": (lambda s: jnp.where(causal(), 30 * jnp.tanh(s / 30), -200.0), ()),
    "window": (where(lambda: jnp.abs(distance()) < 3, LOWEST), ()),
    "causal, then a window": (lambda s: jnp.where(abs(distance()) < 3, jnp.where(causal(), s, -1e9), LOWEST), ()),
    "causal, of ALiBi": (lambda s, slopes: jnp.where(causal(), s - slopes * distance(), LOWEST), (SLOPES,)),
    "causal, with ALiBi behind": (lambda s: jnp.where(causal(), s, -1e9) - jnp.abs(distance()) / 2, ()),
    "keys": (lambda s, keep: jnp.where(keep, s, LOWEST), (PADDED,)),
    "keys, -1e9": (lambda s, keep: jnp.where(keep, s, -1e9), (PADDED,)),
    "keys, added": (lambda s, keep: s + jnp.where(keep, 0, -1e30), (PADDED,)),
    "keys and causal": (lambda s, keep: jnp.where(keep & causal(), s, LOWEST), (PADDED,)),
    "two in a row": (lambda s, keep: jnp.where(keep, jnp.where(causal(), s, LOWEST), LOWEST), (PADDED,)),
    "the outer of two": (lambda s, keep: jnp.where(keep, jnp.where(causal(), s, -1e9), LOWEST), (PADDED,)),
    "segments": (
        lambda s, ids: jnp.where((ids[:, :S, None] == ids[:, None])[:, None], s, -1e10),
        (SEGMENTS,),
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("gradients", [False, True])
def test_finite_masks_that_leave_keys_out(name, gradients):
    mask, more = LEFT_OUT[name]
    if gradients and name == "keys, added":
        return  # the gradient of a row that is masked wholly is not none: it stays arithmetic
    report = assert_fused(attention(mask), *qkv(), *more, gradients=gradients)
    assert masks_by_condition(report), report


ARITHMETIC = {
    "two in a row": (lambda s, keep: jnp.where(causal(), jnp.where(keep, s, LOWEST), -1e9), (PADDED,)),
    "a mask over a bias": (lambda s, bias: jnp.where(causal(), s + bias, LOWEST), (BIAS,)),
    "a mask beside a bias": (lambda s, bias: s + bias + jnp.where(causal(), 0, LOWEST), (BIAS,)),
    "a weaker mask over a bias": (lambda s, bias: jnp.where(causal(), s + bias, 0.7 * LOWEST), (BIAS,)),
    "two added": (lambda s, keep: s + jnp.where(keep, 0, LOWEST) + jnp.where(causal(), 0, LOWEST), (PADDED,)),
    "scores beyond it": (lambda s: jnp.where(causal(), 2.0**17 * s, -35000.0), ()),
    "scores beyond -1e9": (lambda s: jnp.where(causal(), 2.0**34 * s, -1e9), ()),
    "steep ALiBi": (lambda s: jnp.where(causal(), s - 1e9 * jnp.abs(distance() + 30), -1e9), ()),
    "a weak one": (where(causal, -1e4), ()),
    "a weak one, added": (lambda s: s + jnp.where(causal(), 0, -1e4), ()),
    "no row": (lambda s: s + jnp.where(distance() > 4, 0, -1e6), ()),
    "data added to it": (lambda s, keep, bias: jnp.where(keep, s, LOWEST) + bias, (PADDED, SLOPES * distance())),
    "capped too far": (lambda s: jnp.where(causal(), 300 * jnp.tanh(s / 300), -200.0), ()),
    "with a sink": (lambda s, keep: jnp.where(keep, s, -1e9), (PADDED,)),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("gradients", [False, True])
def test_finite_masks_that_stay_arithmetic(name, gradients):
    mask, more = ARITHMETIC[name]
    function = attention(mask)
    if name == "with a sink":
        more = (*more, jnp.asarray([-1e30, 0.5], jnp.float32)[:, None, None])

        def function(q, k, v, keep, sinks):
            s = jnp.concatenate([mask(products(q, k) / 4, keep), jnp.broadcast_to(sinks, (B, H, S, 1))], -1)
            return weigh(jax.nn.softmax(s, -1)[..., :-1], v)

    report = assert_fused(function, *qkv(), *more, gradients=gradients)
    assert not masks_by_condition(report), report


@pytest.mark.parametrize("low", [-1e4, -35000.0, -1e6, -1e9, -1e30, LOWEST, -np.inf])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_scores_of_any_size_under_a_mask(low, size):
    if size * 100 < 1e8 or low == -np.inf or low < -1e8:
        assert_fused(attention(where(causal, low)), *qkv(size))


@pytest.mark.parametrize("gradients", [False, True])
def test_left_padding_as_jax_masks_it(gradients):
    bias = jnp.broadcast_to(jnp.where(jnp.arange(T) >= 5, 0, LOWEST), (B, 1, T, T))

    def attend(q, k, v, bias):
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True)

    q, k, v = (jnp.asarray(np.random.default_rng(i).standard_normal((B, T, H, D)), jnp.float32) for i in range(3))
    assert_fused(attend, q, k, v, bias, gradients=gradients)


def test_finite_masks_under_a_subtracted_log_sum_exp():
    """exp(s - logsumexp(s)): beside a masked maximum, the logarithm of the sum is lost in f32."""

    def attend(mask):
        def function(q, k, v, *more):
            s = mask(products(q, k) / 4, *more)
            return weigh(jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)

        return function

    def log_softmax(q, k, v, keep):
        return weigh(jnp.exp(jax.nn.log_softmax(jnp.where(keep, products(q, k) / 4, -1e9))), v)

    nothing = jnp.zeros((B, H, S, T), bool)
    assert_fused(attend(where(causal, -1e9)), *qkv())  # each row keeps its own key
    assert_fused(attend(lambda s, keep: jnp.where(keep, s, -jnp.inf)), *qkv(), PADDED)
    assert_fused(log_softmax, *qkv(), nothing)
    for mask in (lambda s, keep: jnp.where(keep, s, -1e9), lambda s, keep: s + jnp.where(keep, 0, LOWEST)):
        assert_left_alone(attend(mask), *qkv(), nothing, words="their sum's logarithm is rounded away")
    for low in (LOWEST, -1e9):
        bias = jnp.zeros((B, 1, S, T)).at[0, 0, 2].set(low)
        assert_left_alone(attend(lambda s, bias: s + bias), *qkv(), bias, words="a tensor that may hold one")
        assert_left_alone(attend(lambda s, bias=bias: s + bias), *qkv(), words="a tensor that may hold one")
        assert_fused(attention(lambda s, bias: s + bias), *qkv(), bias)
    assert_fused(attend(lambda s: 30 * s - jnp.arange(T) / 4), *qkv())


def test_the_log_sum_exp_of_finite_masks():
    def attend(mask):
        def function(q, k, v, *more):
            s = mask(products(q, k) / 4, *more)
            return weigh(jax.nn.softmax(s, -1), v), jax.nn.logsumexp(s, -1)

        return function

    assert masks_by_condition(assert_fused(attend(where(causal, -1e9)), *qkv()))
    assert not masks_by_condition(assert_fused(attend(lambda s, keep: jnp.where(keep, s, -1e9)), *qkv(), PADDED))


# --- Gradients in rows without keys, by each part of a condition ---


@pytest.mark.parametrize("left_out", [None, 0, 1])
@pytest.mark.parametrize("join", [lambda x, y: x & y, lambda x, y: y & x, lambda x, y: ~(~x | ~y)])
def test_gradients_masked_by_a_part_of_the_mask_stay(join, left_out):
    """In a row that the other part of the mask leaves without keys, the scores would have a gradient."""
    rng = np.random.default_rng(11)
    parts = rng.random((2, S, T)) > 0.3
    parts[0, 2], parts[1, 3] = False, False

    def of_mask(one, other):
        return (join(one, other), other, one)[0 if left_out is None else 1 + left_out]

    @jax.custom_vjp
    def attend(q, k, v, one, other):
        return forward(q, k, v, one, other)[0]

    def forward(q, k, v, one, other):
        p = jax.nn.softmax(jnp.where(join(one, other), products(q, k) / 4, -1e9), -1)
        return weigh(p, v), (q, k, v, one, other, p)

    def backward(saved, d_out):
        q, k, v, one, other, p = saved
        d_p = jnp.einsum("bhqd,bhkd->bhqk", d_out, v)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True)) / 4
        d_s = jnp.where(of_mask(one, other), d_s, 0)
        d_k, d_v = (jnp.einsum("bhqk,bhqd->bhkd", *some) for some in ((d_s, q), (p, d_out)))
        return jnp.einsum("bhqk,bhkd->bhqd", d_s, k), d_k, d_v, None, None

    attend.defvjp(forward, backward)
    candidates, report = fused(attend, *qkv(), *jnp.asarray(parts), gradients=True)
    assert any(each.fused for each in candidates) == (left_out is None), report


def test_products_between_that_are_read_or_not():
    """A product of the scores, beside them on the way to the probabilities, is read or cut away."""

    def beside(cut):
        def function(q, k, v):
            s = products(q, k) / 4
            joined = jnp.concatenate([s, jnp.einsum("bhqk,bhkd->bhqd", s, v)], -1)
            return weigh(jax.nn.softmax(cut(joined), -1), v)

        return function

    assert_fused(beside(lambda joined: joined[..., :T]), *qkv())
    assert_left_alone(beside(lambda joined: joined[..., :T] + joined[..., T:].sum(-1, keepdims=True)), *qkv())


def test_products_of_a_residual_stream():
    """Of many products behind the probabilities the last one is the scores: it stands between these and the others."""

    def function(q, k, v):
        x = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
        for _ in range(3):
            x = x + jnp.tanh(jnp.einsum("bhqk,bhkl->bhql", x, jnp.einsum("bhkd,bhld->bhkl", k, v)))
        return weigh(jax.nn.softmax(x, -1), v)

    assert_fused(function, *qkv())
