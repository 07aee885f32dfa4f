"""score_mod and mask_mod as Python functions, compared with the same over whole arrays in jax.numpy, including
gradients.
"""

import functools

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import attention
from test_jax_gradients import assert_gradients, normal

B, S, T, H, D = 2, 17, 23, 4, 8
AT = dict(zip("bhqk", np.ix_(range(B), range(H), range(S), range(T)), strict=True))
DOCUMENTS = jnp.sort(jnp.asarray(np.random.default_rng(0).integers(0, 3, (B, T)), jnp.int32))


def plain(q, k, v, score=lambda s, b, h, q, kv: s, keep=lambda b, h, q, kv: True):
    at = [jnp.asarray(AT[one], jnp.int32) for one in "bhqk"]
    s = score(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, *at)
    s = jnp.where(keep(*at), s, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


def check(score, keep=None, *arrays):
    mine = lambda q, k, v, *arrays: attention(
        q, k, v, score_mod=score and score(*arrays), mask_mod=keep and keep(*arrays)
    )
    theirs = lambda q, k, v, *arrays: plain(
        q, k, v, *([score(*arrays)] if score else []), **({"keep": keep(*arrays)} if keep else {})
    )
    given = (normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D), *arrays)
    np.testing.assert_allclose(mine(*given), theirs(*given), atol=1e-5)
    assert_gradients(mine, theirs, given)


def test_captured_arrays_have_gradients():
    def score(bias, slopes, temperature):
        halved = slopes / 2  # of no coordinate: computed before the call
        return lambda s, b, h, q, kv: (
            jnp.tanh(s * jnp.exp(temperature)) + bias[h, q - kv + T - 1] - halved[h] * jnp.abs(q - kv)
        )

    check(score, None, normal(H, S + T), jnp.ones(H), jnp.float32(0.3))


OF_NUMPY = np.linspace(-1, 1, H * T, dtype=np.float32).reshape(H, T)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: s + OF_NUMPY[h, kv],
        lambda s, b, h, q, kv: s + OF_NUMPY[h][kv],
        functools.partial(lambda tables, s, b, h, q, kv: s + tables["one"][0][h, kv], {"one": [OF_NUMPY]}),
        lambda s, b, h, q, kv, table=OF_NUMPY: s + (lambda at: table[h, at])(kv),
    ],
    ids=["global", "row", "partial", "default"],
)
def test_tables_of_numpy_are_refused_as_jax_does(mod):
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    message = r"score_mod reads the value of a position.*a table of numpy's as jnp.asarray\(table\)\[h, kv\]"
    for run in (attention, jax.jit(attention, static_argnames="score_mod")):
        with pytest.raises(ValueError, match=message):
            run(*given, score_mod=mod)


def test_numbers_and_rows_of_numpy():
    """numpy arrays that are not indexed by a position work like JAX's."""
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    got = attention(*given, score_mod=lambda s, b, h, q, kv: s * OF_NUMPY[1, 2] + jnp.asarray(OF_NUMPY)[h, kv])
    of_jax = jnp.asarray(OF_NUMPY)
    expected = attention(*given, score_mod=lambda s, b, h, q, kv: s * of_jax[1, 2] + of_jax[h, kv])
    np.testing.assert_array_equal(got, expected)


def test_masks():
    def keep():
        return lambda b, h, q, kv: (DOCUMENTS[b, q] == DOCUMENTS[b, kv]) & ((q >= kv) | (kv < 2))

    check(None, keep)


def test_rows_of_arrays():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    row_first = attention(*given, mask_mod=lambda b, h, q, kv: DOCUMENTS[b][kv] > DOCUMENTS[:, 3][b])
    np.testing.assert_array_equal(
        row_first, attention(*given, mask_mod=lambda b, h, q, kv: DOCUMENTS[b, kv] > DOCUMENTS[b, 3])
    )


def test_operations():
    def score(table):
        def mod(s, b, h, q, kv):
            far = jnp.where((q + kv) % 3 == 0, s**2, jax.nn.sigmoid(s))
            near = jnp.clip(s, -1.0, table[kv].astype(jnp.float32)) * jnp.float32(q // 2)
            return far + near / (1 + kv)

        return mod

    check(score, lambda table: lambda b, h, q, kv: jnp.logical_xor(q >= kv, h < 2), normal(T))


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x * 4) / 4


straight_through.defjvp(lambda values, tangents: (straight_through(*values), 2 * tangents[0]))


@jax.custom_vjp
def reversed_product(x, y):
    return x * y


reversed_product.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, g: (-g * kept[1], 3 * g))


def elementwise(mod):
    """Applies a mod with control flow on scalars to whole arrays."""
    return jnp.vectorize(mod, signature="(),(),(),(),()->()")


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: s * jax.lax.stop_gradient(s),
        lambda s, b, h, q, kv: straight_through(s) + kv,
        lambda s, b, h, q, kv: straight_through(jnp.where(q >= kv, s, -jnp.inf)),
        lambda s, b, h, q, kv: reversed_product(s, jnp.sin(s)),
        lambda s, b, h, q, kv: jax.nn.relu6(s) + jnp.logaddexp(s, 0.0),
    ],
    ids=["stop_gradient", "custom_jvp", "infinite", "custom_vjp", "jax_own"],
)
def test_gradients_of_its_own(mod):
    check(lambda: mod, None)


def test_forward_derivative_of_its_own():
    q, k, v = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    mod = lambda s, b, h, q, kv: straight_through(s) + kv
    slopes = [
        jax.jvp(lambda q, of=of: of(q, k, v).sum(), (q,), (q,))[1]
        for of in (lambda *qkv: attention(*qkv, score_mod=mod), lambda *qkv: plain(*qkv, mod))
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-4)


def test_gradients_of_its_own_by_captured_arrays():
    def score(table, factor):
        before = straight_through(table)

        def mod(s, b, h, q, kv):
            product = reversed_product(s, jnp.broadcast_to(factor, jnp.shape(s)))
            return product + before[kv] + straight_through(table[q])

        return mod

    check(score, None, normal(T), jnp.float32(0.7))


@pytest.mark.parametrize(
    "function",
    [
        jax.nn.relu,
        jax.nn.relu6,
        jax.nn.softplus,
        lambda x: jax.scipy.special.xlogy(x, 2.5),
        lambda x: jax.scipy.special.xlog1py(x, 2.5),
        lambda x: jnp.ldexp(x + 1, 2),
        jnp.sinc,
    ],
    ids=["relu", "relu6", "softplus", "xlogy", "xlog1py", "ldexp", "sinc"],
)
def test_gradients_that_jax_defines_for_its_own_functions(function):
    """At 0, where a parameter may start, and from bits, which have no slope."""
    check(lambda table: lambda s, b, h, q, kv: s + function(table[h, kv]) * q, None, jnp.zeros((H, T)))


@pytest.mark.parametrize("exponent", [-(2**31), -300, -120, 0, 3, 130, 2**31 - 1])
def test_powers_of_two(exponent):
    """With an exponent that the program reads, beyond the exponents of floats, too."""
    numbers = jnp.float32([1.5, -0.75, 2.0**-100, 0.0, jnp.inf, jnp.nan])
    q = jnp.zeros((1, 1, len(numbers), 8))
    exponents = jnp.full(len(numbers), exponent, jnp.int32)
    mod = lambda s, b, h, i, j: jnp.ldexp(numbers[i], exponents[i])
    scores = flashlift.jax.attention(q, q[:, :, :1], q[:, :, :1], "lse", layout="bhsd", score_mod=mod)[1][0, 0]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(scores, np.ldexp(numbers, exponent), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: jax.lax.cond(q > kv, lambda x: x, lambda x: x * 2, s),
        lambda s, b, h, q, kv: jax.lax.switch((q + kv) % 3, [lambda x: x, lambda x: x * 2, lambda x: -x], s),
        lambda s, b, h, q, kv: jnp.select([q > kv, q == kv], [s, s * 2], s * 3),
        lambda s, b, h, q, kv: jax.lax.fori_loop(0, 3, lambda i, x: x + jnp.where(kv == i, 1.0, 0.0), s),
        lambda s, b, h, q, kv: s + jnp.stack([q, kv, h]).max() * 0.1 + jnp.array([q, kv]).sum() * 0.1,
        lambda s, b, h, q, kv: s + 2.0**-h + jnp.power(2.0, -h) * (q - kv),
        lambda s, b, h, q, kv: s + (q >= kv) * 0.5 - (q < kv) * 2,
        lambda s, b, h, q, kv: jnp.arctan(s) + jnp.sinh(s) - jnp.cosh(s * 0.5),
        lambda s, b, h, q, kv: jax.nn.gelu(s, approximate=False) + jax.lax.erfc(s),
    ],
    ids=["cond", "switch", "select", "fori_loop", "stack", "integer_powers", "booleans", "functions", "erfc"],
)
def test_control_flow_and_kinds_of_numbers(mod):
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    mine = lambda q, k, v: attention(q, k, v, score_mod=mod)
    theirs = lambda q, k, v: plain(q, k, v, elementwise(mod))
    np.testing.assert_allclose(mine(*given), theirs(*given), atol=1e-5)
    assert_gradients(mine, theirs, given)


def test_sinh_keeps_its_digits_near_zero():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    mine = attention(*given, score_mod=lambda s, b, h, q, kv: jnp.sinh(s * 1e-5) * 1e5)
    np.testing.assert_allclose(mine, attention(*given), atol=1e-5)


def test_keys_and_signatures():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    noise = lambda key: jax.random.normal(key)
    got = attention(*given, score_mod=lambda s, b, h, q, kv: s * noise(jax.random.key(0)))
    np.testing.assert_allclose(got, plain(*given, lambda s, *_: s * noise(jax.random.key(0))), atol=1e-5)
    with pytest.raises(flashlift.UnsupportedError, match="score_mod converts to uint32; expected"):
        attention(*given, score_mod=lambda s, b, h, q, kv: s + noise(jax.random.fold_in(jax.random.key(0), q)))
    with pytest.raises(ValueError, match=r"mask_mod is a function of \(q, kv\); expected one of \(b, h, q, kv\)"):
        attention(*given, mask_mod=lambda q, kv: q >= kv)


def test_numbers_of_python_where_jax_has_64_bits():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    score = lambda s, b, h, q, kv: s * 2.5 + q * 0.5 - (q - kv) / 3
    expected = plain(*given, score)
    with jax.enable_x64(True):
        np.testing.assert_allclose(attention(*given, score_mod=score), expected, atol=1e-5)
        with pytest.raises(flashlift.UnsupportedError, match="converts to float64; expected float32"):
            attention(*given, score_mod=lambda s, b, h, q, kv: s.astype(jnp.float64) * 2)


def test_what_is_taken_of_arrays():
    check(lambda t: lambda s, b, h, q, kv: s + jnp.take(t, kv) - t.at[q].get(mode="clip"), None, normal(T))
    ends = jnp.array([0, 5, 9, S])
    keep = lambda b, h, q, kv: jnp.searchsorted(ends, q, side="right") == jnp.searchsorted(ends, kv, side="right")
    check(None, lambda: keep)
    check(lambda: lambda s, b, h, q, kv: s + jnp.searchsorted(ends, q))
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    short = normal(T // 2)
    beyond = attention(*given, score_mod=lambda s, b, h, q, kv: jnp.nan_to_num(s + jnp.take(short, kv)))
    filled = jnp.concatenate([short, jnp.full(T, jnp.nan)])
    np.testing.assert_allclose(beyond, plain(*given, lambda s, b, h, q, kv: jnp.nan_to_num(s + filled[kv])), atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool"])
def test_integers_that_are_taken_out_of_bounds(dtype):
    short = jnp.asarray(np.random.default_rng(1).integers(0, 2, T - 6), dtype)
    check(None, lambda: lambda b, h, q, kv: jnp.take(short, kv) != jnp.take(short, q))


INTEGERS = {
    name: jnp.asarray(np.random.default_rng(2).integers(low, high, 64, np.int64, endpoint=True), name)
    for name, low, high in (
        ("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767), ("int32", -(2**31), 2**31 - 1),
    )
}  # fmt: skip
FLOATS = jnp.asarray(np.random.default_rng(3).standard_normal(64) * 300, jnp.float32)


def same_numbers(function):
    """Compares a function of a position: the log-sum-exp of a row with one key is its score."""
    one = jnp.zeros((1, 1, 1, D), jnp.float32)
    score = lambda s, b, h, q, kv: jnp.asarray(function(q)).astype(jnp.float32)
    _, got = attention(jnp.zeros((1, 64, 1, D), jnp.float32), one, one, "lse", score_mod=score)
    np.testing.assert_array_equal(got[0, 0], jax.vmap(function)(jnp.arange(64, dtype=jnp.int32)).astype(jnp.float32))


OF_TWO = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: jnp.abs(x),
    "not": lambda x, y: ~x,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << (y & 15),
    "shr": lambda x, y: x >> (y & 15),
    "shr_bits": lambda x, y: jax.lax.shift_right_logical(x, y & 15),
    "shr_sign": lambda x, y: jax.lax.shift_right_arithmetic(x, y & 15),
    "shl_beyond": lambda x, y: x << y,
    "div": lambda x, y: jax.lax.div(x, y | 1),
    "floor_div": lambda x, y: x // (y | 1),
    "mod": lambda x, y: x % (y | 1),
    "square": lambda x, y: jnp.square(x),
    "cube": lambda x, y: x**3,
    "power_0": lambda x, y: jax.lax.integer_pow(x, 0),
    "power": lambda x, y: jnp.power(x, y & 7),
    "less": lambda x, y: x - y < y,
    "max": lambda x, y: jnp.maximum(x + y, y),
    "clamp": lambda x, y: jax.lax.clamp(x.dtype.type(3), x + y, x.dtype.type(90)),
    "of_a_row": lambda x, y: jnp.stack([x + y, x - y, y]).max(),
    "loop": lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: c * x.dtype.type(3) + y, x),
    "where": lambda x, y: jnp.where(x < y, x - y, x + y),
}


@pytest.mark.parametrize("operation", OF_TWO)
def test_narrow_integers_wrap(operation):
    def of(name):
        return lambda q: OF_TWO[operation](INTEGERS[name][q], INTEGERS[name][63 - q])

    for name in INTEGERS:
        same_numbers(of(name))


def test_narrow_integers_that_are_most_negative():
    least = jnp.full(64, -128, jnp.int8)
    for function in OF_TWO["abs"], OF_TWO["neg"], lambda x, y: jax.lax.div(x, jnp.int8(-1)):
        same_numbers(lambda q, function=function: function(least[q], least[q]))


def test_random_narrow_integers():
    numbers = np.random.default_rng(4)

    def drawn(depth, name):
        """A function of a position that gives a number of this type."""
        if depth == 0:
            return lambda q: INTEGERS[name][q]
        from_ = numbers.choice(list(INTEGERS))
        left = drawn(depth - 1, from_)
        right = drawn(numbers.integers(depth), name)
        operation = OF_TWO[numbers.choice([one for one in OF_TWO if one != "less"])]
        return lambda q: operation(left(q).astype(name), right(63 - q))

    for _ in range(20):
        same_numbers(drawn(3, numbers.choice(list(INTEGERS))))


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16", "int32", "bool", "float16", "bfloat16"])
def test_conversions_of_numbers(to):
    for name in INTEGERS:
        same_numbers(lambda q, name=name: INTEGERS[name][q].astype(to))
    same_numbers(lambda q: FLOATS[q].astype(to))
    same_numbers(lambda q: q.astype(to) * FLOATS[:1].astype(to)[0])
    for beyond in (3480.7, -3480.7, np.nan, np.inf):
        same_numbers(lambda q, beyond=beyond: q * 0 + (jnp.float32(1.0) * beyond).astype("uint8"))


def test_integers_of_64_bits():
    with jax.enable_x64(True):
        wide = INTEGERS["int32"].astype(jnp.int64) * 2**31
        same_numbers(lambda q: (wide[q] + wide[63 - q]) >> 33)
        for to in INTEGERS:
            same_numbers(lambda q, to=to: (wide[q] >> 29).astype(to))
        same_numbers(lambda q: jnp.take(INTEGERS["uint8"], wide[q] >> 57, mode="clip") + jnp.argmax(jnp.stack([q > 3])))


@pytest.mark.parametrize("compare", ["lt", "le", "gt", "ge", "max", "min"])
def test_order_of_booleans(compare):
    same_numbers(lambda q: getattr(jax.lax, compare)(INTEGERS["int8"][q] > 0, INTEGERS["uint8"][q] > 100))
    same_numbers(lambda q: jnp.stack([q > 3, q > INTEGERS["int8"][q]]).max())


def test_unsigned_integers_that_programs_do_not_have():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    table = INTEGERS["uint8"]
    with pytest.raises(flashlift.UnsupportedError, match="score_mod converts to uint32; expected float32.*int64 or"):
        attention(*given, score_mod=lambda s, b, h, q, kv: s + jnp.stack([table[q], table[kv]]).sum())
    for dtype in ("uint16", "uint32"):
        with pytest.raises(flashlift.UnsupportedError, match=f"reads an array of {dtype}; expected .*: cast it"):
            attention(*given, score_mod=lambda s, b, h, q, kv, dtype=dtype: s + table.astype(dtype)[kv])


def test_what_is_computed_again_in_the_backward_pass():
    check(lambda t: lambda s, b, h, q, kv: jax.checkpoint(lambda x, y: jnp.sin(x) * y)(s, t[kv]), None, normal(T))


def test_scores_of_integers():
    """They become floats, as in jax.numpy."""
    check(lambda: lambda s, b, h, q, kv: (q - kv) * h)
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    np.testing.assert_allclose(attention(*given, score_mod=lambda *_: 3), plain(*given, lambda s, *_: 0 * s), atol=1e-5)
    check(lambda: lambda s, b, h, q, kv: INTEGERS["uint8"][q] - INTEGERS["uint8"][kv])


def test_names_of_the_features_are_taken():
    """Arrays that functions read have names of their own in the problem."""
    q, k, v = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    factors, keep = normal(H), jnp.arange(T) % 3
    mask = "mask_mod(s0: i32[kv_len]) { %0 = load s0[kv]; %1 = lt %0, 2; return %1 }"
    score = lambda s, b, h, q, kv: s * factors[h]
    got = attention(q, k, v, mask, captures={"s0": keep}, score_mod=score)
    np.testing.assert_allclose(got, plain(q, k, v, score, lambda b, h, q, kv: keep[kv] < 2), atol=1e-5)


def test_without_jit():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    mod = lambda s, b, h, q, kv: s * 2
    with jax.disable_jit():
        alone = attention(*given, score_mod=mod)
    np.testing.assert_allclose(alone, attention(*given, score_mod=mod), atol=1e-6)


def test_transformations():
    q, k, v = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)

    def of(bias, q):
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])

    biases = normal(3, H, S, T)
    expected = jnp.stack([of(bias, q) for bias in biases])
    np.testing.assert_allclose(jax.jit(jax.vmap(of, (0, None)))(biases, q), expected, atol=1e-5)
    slope = jax.vmap(jax.grad(lambda bias, q: of(bias, q).sum()), (0, None))
    np.testing.assert_allclose(slope(biases, q)[1], jax.grad(lambda bias: of(bias, q).sum())(biases[1]), atol=1e-5)


def loops_within_loops(s, b, h, q, kv):
    def loop(step):
        return lambda x: jax.lax.fori_loop(0, 256, lambda i, x: step(x), x)

    return loop(loop(loop(loop(lambda x: x * 1.5 + 1.0))))(s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score_mod": 3}, "score_mod is 3; expected a function of"),
        (
            {"score_mod": lambda s, b, h, q, kv: s > 0},
            r"score_mod returns bool\[\]; expected one scalar, the new score",
        ),
        ({"score_mod": lambda s, b, h, q, kv: True}, r"returns bool\[\]; .* what keeps or masks keys is a mask_mod"),
        ({"mask_mod": lambda b, h, q, kv: q}, r"mask_mod returns int32\[\]; expected one scalar, a bool"),
        ({"score_mod": lambda s, b, h, q, kv: s + DOCUMENTS[b].sum()}, "score_mod computes reduce_sum"),
        ({"score_mod": lambda s, b, h, q, kv: (s + DOCUMENTS[b])[q]}, "expected scalars"),
        ({"score_mod": lambda s, b, h, q, kv: jax.lax.lgamma(s)}, "score_mod computes lgamma"),
        ({"score_mod": lambda s, b, h, q, kv: None}, "score_mod returns nothing; expected one scalar"),
        ({"score_mod": lambda s, b, h, q, kv: s + jnp.take(DOCUMENTS, b, axis=0)[kv]}, "fills rows that it reads"),
        ({"score_mod": lambda s, b, h, q, kv: s + [1.0, 2.0][h]}, "reads the value of a position"),
        ({"score_mod": lambda s, b, h, q, kv: np.tanh(s)}, "np.tanh as jnp.tanh"),
        ({"mask_mod": lambda b, h, q, kv: q >= kv and h > 0}, "mask_mod reads the value.* `and` as &"),
        (
            {"score_mod": lambda s, b, h, q, kv: jax.lax.fori_loop(0, 300, lambda i, x: x * 2, s)},
            "a loop of 300 steps; expected",
        ),
        ({"score_mod": loops_within_loops}, "a program has at most 4096 nodes, and this function records more"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        attention(normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D), **arguments)
