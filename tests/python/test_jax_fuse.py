"""flashlift.jax.fuse finds and fuses the attention in JAX functions."""

import copy
import functools
import pickle
import re
import threading

import flashlift
import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

RNG = np.random.default_rng(3)


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.normal(size=shape), dtype)


def attention(q, k, v, *, causal=False, scale=None):
    """[batch, length, heads, depth]"""
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def block(params, x, mask):
    """Attention between projections, with trees as arguments and result."""
    heads = (*x.shape[:2], 4, 8)
    q, k, v = (jnp.reshape(x @ params[name], heads) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    scores = jnp.where(mask[:, None, None, :], scores, -1e30)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return {"out": x + out.reshape(x.shape) @ params["o"], "norm": jnp.linalg.norm(out)}


def block_arguments(batch=2, length=24):
    params = {name: normal(32, 32) * 0.2 for name in "qkvo"}
    mask = jnp.arange(length) < jnp.asarray([length, length // 2][:batch])[:, None]
    return params, normal(batch, length, 32), mask


def assert_same(ours, theirs, atol=3e-6):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.weak_type == other.weak_type
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), atol=atol, rtol=1e-5)


def test_fuses_and_reports():
    q, k, v = normal(2, 33, 4, 16), normal(2, 33, 2, 16), normal(2, 33, 2, 16)
    fused = flashlift.jax.fuse(lambda q, k, v: attention(q, k, v, causal=True))
    with pytest.raises(flashlift.FlashliftError, match="not been called"):
        fused.report  # noqa: B018
    assert_same(fused(q, k, v), attention(q, k, v, causal=True))
    report = fused.report
    assert report.fused_count == len(report.problems) == 1 and report.reason == ""
    candidate = next(one for one in report.candidates if one.fused)
    assert "hq4 hkv2" in candidate.problem and "mask_mod" in candidate.mask_mod and candidate.reason
    assert "flashlift.attention" in report.module and "flashlift.attention" not in report.original
    assert "1 of 1 candidates fused" in str(report)
    flashlift.compile(report.problems[0])  # the text is a problem


def test_trees_and_keyword_arguments():
    params, x, mask = block_arguments()
    fused = flashlift.jax.fuse(block)
    assert_same(fused(params, x, mask), jax.jit(block)(params, x, mask))
    assert fused.report.fused_count == 1
    assert_same(fused(params, mask=mask, x=x), jax.jit(block)(params, x, mask))
    assert fused.__name__ == "block"


def test_each_shape_is_fused_once():
    traced = []

    def function(q, k, v):
        traced.append(q.shape)
        return attention(q, k, v)

    fused = flashlift.jax.fuse(function)
    for length in (16, 40, 16):
        q = normal(1, length, 2, 8)
        assert_same(fused(q, q, q), attention(q, q, q))
        assert f"sq{length}" in fused.report.problems[0] or f"s{length}" in fused.report.problems[0]
    assert traced == [(1, 16, 2, 8), (1, 40, 2, 8)]


def test_static_arguments():
    q = normal(1, 16, 2, 8)

    def function(q, causal, *, scale):
        return attention(q, q, q, causal=causal, scale=scale)

    fused = flashlift.jax.fuse(function, static_argnums=1, static_argnames="scale")
    for causal in (True, False):
        for scale in (0.5, 1.0):
            assert_same(fused(q, causal, scale=scale), function(q, causal, scale=scale))
            assert ("mask_mod" in fused.report.problems[0]) == causal
    assert_same(fused(q, causal=True, scale=1.0), function(q, True, scale=1.0))
    assert_same(fused(q, scale=1.0, causal=True), function(q, True, scale=1.0))


def test_a_decorator_with_options():
    @flashlift.jax.fuse(static_argnames="causal", strict=True)
    def function(q, causal):
        return attention(q, q, q, causal=causal)

    q = normal(1, 16, 2, 8)
    assert_same(function(q, causal=True), attention(q, q, q, causal=True))
    with pytest.raises(flashlift.InvalidArgumentError, match="type NoneType; expected a function"):
        flashlift.jax.fuse(None, strict=True)


def test_static_arguments_that_are_equal():
    q = normal(1, 16, 2, 8)

    def function(q, which):
        return attention(q, q, q) * {bool: 2.0, int: 3.0, float: 4.0}[type(which)]

    fused = flashlift.jax.fuse(function, static_argnums=-1)
    for which in (1, True, 1.0, 1):
        assert_same(fused(q, which), function(q, which))
    more = flashlift.jax.fuse(lambda q, *others: attention(q, q, q) * others[1], static_argnums=2)
    assert_same(more(q, q, 3), attention(q, q, q) * 3, atol=1e-5)


def test_settings_of_jax_that_change():
    q = normal(1, 16, 2, 8)
    fused = flashlift.jax.fuse(lambda q: attention(q, q, q) * jnp.arange(8).astype(float))
    assert fused(q).dtype == jnp.float32
    with jax.enable_x64(True):
        assert fused(q).dtype == jnp.float64
    assert fused(q).dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnums": 5}, "static_argnums has 5; the function takes 2 arguments by position"),
        ({"static_argnums": -3}, "static_argnums has -3; the function takes 2"),
        ({"static_argnums": "causal"}, "static_argnums is 'causal' .*; expected integers and names"),
        ({"static_argnames": "casual"}, "static_argnames has casual; the function takes causal, q"),
        ({"strict": "yes"}, "strict is 'yes'; expected True or False"),
    ],
)
def test_options_that_name_nothing(options, message):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        flashlift.jax.fuse(lambda q, causal: attention(q, q, q, causal=causal), **options)


def test_a_static_argument_that_is_no_constant():
    fused = flashlift.jax.fuse(lambda q, scales: attention(q, q, q, scale=scales[0]), static_argnums=1)
    with pytest.raises(
        flashlift.InvalidArgumentError, match="unhashable type: 'list'; expected one that can be hashed"
    ):
        fused(normal(1, 16, 2, 8), [0.5])


def test_inside_jit_and_grad():
    q = normal(1, 16, 2, 8)
    fused = flashlift.jax.fuse(lambda q: attention(q, 2 * q, q, causal=True))
    plain = lambda q: attention(q, 2 * q, q, causal=True)
    assert_same(jax.jit(lambda q: 3 * fused(q) + 1)(q), 3 * plain(q) + 1, atol=1e-5)
    assert fused.report.fused_count == 1
    assert_same(jax.grad(lambda q: fused(q).sum())(q), jax.grad(lambda q: plain(q).sum())(q), atol=1e-5)
    text = jax.jit(fused).lower(q).compile().as_text()
    assert "flashlift.attention" in text


def squares(f):
    return lambda *given: (f(*given) ** 2).sum()


def of_query(f, given):
    return lambda q: f(q, *given[1:])


def repeated(f, given):
    return lambda q: jax.lax.fori_loop(0, 3, lambda _, c: f(c, *given[1:]), q)


def batch_of_query(f, given):
    return lambda q: jax.vmap(f, (0, None, None))(q, *given[1:])


@pytest.mark.filterwarnings("ignore:flashlift.jax computes")
@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, given, along: jax.jvp(f, given, along),
        lambda f, given, along: jax.jit(lambda *some: jax.jvp(f, some, along))(*given),
        lambda f, given, along: jax.jvp(of_query(f, given), given[:1], along[:1]),
        lambda f, given, along: jax.jvp(jax.checkpoint(f), given, along),
        lambda f, given, along: jax.jvp(repeated(f, given), given[:1], along[:1]),
        lambda f, given, along: jax.jvp(batch_of_query(f, given), (jnp.stack(given),), (jnp.stack(along),)),
        lambda f, given, along: jax.linearize(f, *given)[1](*along),
        lambda f, given, along: jax.linear_transpose(jax.linearize(f, *given)[1], *given)(along[0]),
        lambda f, given, along: jax.vmap(jax.linearize(of_query(f, given), given[0])[1])(jnp.stack(along)),
        lambda f, given, along: jax.jacfwd(f)(*given),
        lambda f, given, along: jax.hessian(of_query(squares(f), given))(given[0]),
        lambda f, given, along: jax.jacfwd(jax.jacfwd(of_query(squares(f), given)))(given[0]),
        lambda f, given, along: jax.jacrev(jax.jacfwd(of_query(squares(f), given)))(given[0]),
        lambda f, given, along: jax.jvp(jax.grad(squares(f), (0, 1, 2)), given, along),
        lambda f, given, along: jax.hessian(squares(batch_of_query(f, given)))(jnp.stack(given[:2])),
        lambda f, given, along: jax.grad(squares(jax.vmap(f, (1, None, 0))), (0, 1, 2))(
            jnp.stack(along, 1), given[1], jnp.stack(given)
        ),
    ],
)
def test_forward_mode(derivative):
    given, along = tuple(normal(1, 6, 2, 4) for _ in "qkv"), tuple(normal(1, 6, 2, 4) for _ in "qkv")
    function = lambda q, k, v: attention(q, k, v, causal=True)
    fused = flashlift.jax.fuse(function, strict=True)
    assert_same(derivative(fused, given, along), derivative(function, given, along), 1e-5)


def test_forward_mode_says_that_it_needs_memory():
    q = normal(1, 6, 2, 4)

    def some_model(q):
        return attention(q, q, q)

    with pytest.warns(UserWarning, match="forward-mode derivatives of some_model by plain maths"):
        jax.jvp(flashlift.jax.fuse(some_model), (q,), (q,))


def test_gradients_are_computed_of_what_is_differentiated_alone():
    given = [normal(1, 16, 2, 8) for _ in "qkv"]

    def two(q, k, v):
        return attention(q, k, v), attention(k, q, v), jnp.arange(3), jax.random.key(3)

    fused = flashlift.jax.fuse(two)
    for numbers in (0, (1, 2)):
        gradient = lambda f: jax.jit(jax.grad(lambda *some: (f(*some)[0] ** 2).sum(), numbers))
        assert_same(gradient(fused)(*given), gradient(two)(*given), atol=1e-5)
        text = gradient(fused).lower(*given).as_text()
        count = 1 if numbers == 0 else 2
        calls = [line for line in text.splitlines() if "@flashlift.attention_backward" in line]
        assert len(calls) == 1, "the gradient of an unused result is computed"
        assert len(re.search(r'gradients = "([\d ]*)"', calls[0]).group(1).split()) == count


def test_named_axes_outside_of_the_function():
    x = normal(3, 1, 16, 2, 8)
    for function in (
        lambda x: jax.lax.psum(attention(x, x, x), "i"),
        lambda x: attention(x, x, x) * jax.lax.axis_index("i"),
    ):
        fused = flashlift.jax.fuse(function)
        mapped = lambda f: jax.vmap(f, axis_name="i")
        assert_same(mapped(fused)(x), mapped(function)(x), atol=1e-5)
        assert "axis" in fused.report.reason
    with pytest.raises(NameError, match="is not defined"):
        flashlift.jax.fuse(lambda x: attention(x, x, missing))(x[0])  # noqa: F821


def test_what_a_trace_depends_on_besides_arguments():
    x = normal(1, 16, 2, 8)
    function = lambda x: attention(x, x, x) * jax.lax.axis_size("i")
    fused = flashlift.jax.fuse(function)
    for size in (2, 3):
        mapped = lambda f: jax.vmap(lambda i: f(x) * i, axis_name="i")(jnp.ones(size))
        assert_same(mapped(fused), mapped(function), atol=1e-5)
    noisy = lambda x: attention(x, x, x) + jax.random.normal(jax.random.PRNGKey(0), x.shape)
    fused = flashlift.jax.fuse(noisy)
    for partitionable in (True, False):
        with jax.threefry_partitionable(partitionable):
            assert_same(fused(x), noisy(x), atol=1e-5)


def test_batching():
    q, k = normal(3, 1, 16, 2, 8), normal(1, 16, 2, 8)
    function = lambda q, k: attention(q, k, k, causal=True)
    fused = flashlift.jax.fuse(function)
    batched = jax.vmap(fused, in_axes=(0, None))
    assert_same(batched(q, k), jax.vmap(function, in_axes=(0, None))(q, k))
    assert fused.report.fused_count == 1
    assert_same(jax.jit(batched)(q, k), jax.vmap(function, in_axes=(0, None))(q, k))
    twice, k_twice = normal(2, 3, 1, 16, 2, 8), normal(2, 3, 1, 16, 2, 8)
    nested = lambda f: jax.vmap(jax.vmap(f))
    assert_same(nested(fused)(twice, k_twice), nested(function)(twice, k_twice))
    assert fused.report.fused_count == 1 and "_fuse.py" not in str(fused.report)
    loss = lambda f: jax.grad(lambda k: jax.vmap(f, in_axes=(0, None))(q, k).sum())
    assert_same(loss(fused)(k), loss(function)(k), atol=1e-5)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda f, q, k: jax.grad(squares(jax.vmap(f)), (0, 1))(q, k),
        lambda f, q, k: jax.jit(jax.grad(squares(jax.vmap(f, (None, 1))), (0, 1)))(q[0], jnp.moveaxis(k, 0, 1)),
        lambda f, q, k: jax.grad(squares(jax.vmap(jax.vmap(f))), (0, 1))(q[None], k[None]),
    ],
)
def test_gradients_of_batches_with_a_gradient_of_their_own(gradient):
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, d_x: (jnp.clip(d_x, -0.01, 0.01),))  # and no forward mode
    function = lambda q, k: attention(clipped(q), k, k)
    q, k = normal(3, 1, 16, 2, 8), normal(3, 1, 16, 2, 8)
    fused = flashlift.jax.fuse(function, strict=True)
    assert_same(gradient(fused, q, k), gradient(function, q, k), atol=1e-5)


@pytest.mark.filterwarnings("ignore:flashlift.jax computes")
@pytest.mark.parametrize("axes", [0, (0, None, 0), (0, None, None)])
def test_results_that_a_batch_shares(axes):
    def function(x, factor):
        return attention(x, x, x) * factor, 2 * factor, jnp.int32(3)

    fused = flashlift.jax.fuse(function, strict=True)
    x, factor = normal(3, 1, 16, 2, 8), jnp.float32(2)
    mapped = lambda f: jax.vmap(f, (0, None), axes)
    of_factor = lambda f: lambda factor: mapped(f)(x, factor)[:2]
    loss = lambda f: lambda factor: sum((one**2).sum() for one in of_factor(f)(factor))
    for result in (
        lambda f: mapped(f)(x, factor),
        lambda f: jax.jit(mapped(f))(x, factor),
        lambda f: jax.jvp(of_factor(f), (factor,), (factor,)),
        lambda f: jax.value_and_grad(loss(f))(factor),
    ):
        assert_same(result(fused), result(function), atol=1e-5)


def test_weak_types_and_scalars():
    q = normal(1, 16, 2, 8)

    def function(q, factor):
        return attention(q, q, q) * factor, factor + 1

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q, 2.0), jax.jit(function)(q, 2.0))
    assert_same(fused(q, jnp.float32(2.0)), jax.jit(function)(q, jnp.float32(2.0)))
    assert_same(fused(q, 2), jax.jit(function)(q, 2))


def test_prng_keys_among_arguments_and_results():
    q = normal(1, 16, 2, 8)

    def function(q, key):
        kept = jax.random.bernoulli(key, 0.5, q.shape)
        return attention(q, q, q) * kept, jax.random.split(key)

    fused = flashlift.jax.fuse(function)
    loss = lambda f: jax.grad(lambda *given: f(*given)[0].sum())
    for key in (jax.random.key(1), jax.random.key(2, impl="rbg"), jax.random.PRNGKey(3)):
        ours, theirs = fused(q, key), function(q, key)
        assert_same(ours[0], theirs[0])
        assert fused.report.fused_count == 1
        assert ours[1].dtype == theirs[1].dtype and (ours[1] == theirs[1]).all()
        assert_same(loss(fused)(q, key), loss(function)(q, key))


def test_methods():
    q = normal(1, 16, 2, 8)

    class Model:
        def __init__(self, factor):
            self.factor = factor

        @functools.partial(flashlift.jax.fuse, static_argnums=0)
        def attend(self, q):
            return attention(q, q, q) * self.factor

    for factor in (2.0, 3.0):
        assert_same(Model(factor).attend(q), factor * attention(q, q, q))
    assert Model.attend.report.fused_count == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(copied):
    q = normal(1, 16, 2, 8)
    fused = copied(flashlift.jax.fuse(attention, static_argnames="causal", strict=True))
    assert_same(fused(q, q, q, causal=True), attention(q, q, q, causal=True))
    assert "mask_mod" in fused.report.problems[0]


def test_a_function_that_calls_itself():
    q = normal(1, 16, 2, 8)

    @functools.partial(flashlift.jax.fuse, static_argnums=1)
    def layers(q, count):
        out = attention(q, q, q)
        return out if count == 1 else layers(out, count - 1)

    # In a thread, since a failure is a thread that waits for itself.
    results = []
    thread = threading.Thread(target=lambda: results.append(layers(q, 2)), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert results, "the call has not returned"
    out = attention(q, q, q)
    assert_same(results[0], attention(out, out, out))


@pytest.mark.parametrize(
    ("arguments", "by_name", "argument"),
    [((3, "silu"), {}, r"\[1\] is 'silu'"), ((), {"x": 3, "to": [jax.nn.silu]}, r"\['to'\]\[0\] is <")],
)
def test_arguments_that_are_no_arrays(arguments, by_name, argument):
    fused = flashlift.jax.fuse(lambda x, to: x)
    for call in (fused, fused.analyze):
        with pytest.raises(TypeError, match=argument + ".*expected an array.*static_argnames"):
            call(*arguments, **by_name)


def test_bfloat16():
    q, k, v = (normal(1, 64, 2, 16, dtype=jnp.bfloat16) for _ in range(3))
    fused = flashlift.jax.fuse(attention, strict=True)
    assert_same(fused(q, k, v), attention(q, k, v), atol=2e-2)


def test_many_layers_in_a_scan():
    params, x, mask = block_arguments()
    stacked = jax.tree.map(lambda one: jnp.stack([one, one * 0.5, -one]), params)

    def model(stacked, x, mask):
        return jax.lax.scan(lambda x, params: (block(params, x, mask)["out"], None), x, stacked)[0]

    fused = flashlift.jax.fuse(model)
    assert_same(fused(stacked, x, mask), jax.jit(model)(stacked, x, mask), atol=1e-5)
    assert fused.report.fused_count == 1


def test_large_arrays_from_outside_are_no_text():
    q, weights = normal(1, 16, 2, 8), normal(80, 1000)

    def function(q):
        return attention(q, q, q) * jnp.where(weights > 0, weights, 0.5).mean()

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q), function(q))
    assert fused.report.fused_count == 1 and len(fused.report.module) < weights.nbytes
    gradient = lambda f: jax.jit(jax.grad(lambda q: (f(q) ** 2).sum()))
    np.testing.assert_allclose(gradient(fused)(q), gradient(function)(q), rtol=1e-3)
    batch = jnp.stack([q, 2 * q])
    assert_same(jax.vmap(fused)(batch), jax.vmap(function)(batch))


def test_large_arrays_of_an_inner_jit_are_no_text():
    q, weights, more = normal(1, 16, 2, 8), normal(80, 1000), np.ones((80, 1000), np.float32)

    @jax.jit
    def inner(q):
        return attention(q, q, q) * jnp.where(weights > 0, weights, 0.5).mean(), q

    @jax.jit
    def outer(q, k):
        out, same = inner(q)
        return out + (k * more.mean() if k.ndim else 0), same

    def function(q):
        out, same = outer(q, q)
        return outer(out, same)[0], same, 1.0

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q), jax.jit(function)(q))
    assert fused.report.fused_count == 2 and len(fused.report.original) < weights.nbytes
    gradient = lambda f: jax.jit(jax.grad(lambda q: (f(q)[0] ** 2).sum()))
    np.testing.assert_allclose(gradient(fused)(q), gradient(function)(q), rtol=1e-3, atol=1e-5)


def test_a_mask_is_proved_beside_a_bias_from_outside():
    q, bias = normal(1, 250, 2, 8), normal(250, 250)
    keep = np.tril(np.ones((250, 250), bool))

    def function(q):
        scores = jnp.where(keep, jnp.einsum("bqhd,bkhd->bhqk", q, q) + bias, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), q)

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q), function(q))
    assert "mask_mod" in fused.report.candidates[0].problem


def test_large_arrays_from_outside_of_what_stays_unfused():
    x, weights = normal(80), normal(80, 1000)
    for function in (
        lambda x: {"out": x @ weights},
        lambda x: {"out": x @ weights + jax.pure_callback(lambda: np.float32(2), jax.ShapeDtypeStruct((), "float32"))},
    ):
        fused = flashlift.jax.fuse(function)
        assert_same(fused(x), function(x), atol=1e-4)
        assert fused.report.fused_count == 0 and fused.report.reason


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad])
def test_arrays_of_a_transformation_around(transformation):
    q = normal(1, 16, 2, 8)
    reports = []

    def outer(factor):
        fused = flashlift.jax.fuse(lambda q: attention(q * factor, q, q))
        result = fused(q).sum()
        reports.append(fused.report)
        return result

    plain = lambda factor: attention(q * factor, q, q).sum()
    assert_same(transformation(outer)(1.5), transformation(plain)(1.5))
    assert reports[0].fused_count == 0 and "expected such arrays among its arguments" in reports[0].reason


def test_what_stays_unfused_is_left_to_jax():
    """The operations of jax.jit(function), also with respect to gradients: tests of modules that must stay unfused need
    no comparison of results."""
    q = normal(1, 8, 2, 8)

    def function(q):
        p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, q) / 4)
        return jnp.einsum("bhqk,bkhd->bqhd", p.at[..., 0].multiply(2.0), q) ** 2, p.sum()

    both = lambda q: jax.vjp(function, q)[1]((q, 1.0))
    for one in (function, both):
        fused = flashlift.jax.fuse(one)
        assert str(jax.make_jaxpr(fused)(q)) == str(jax.make_jaxpr(jax.jit(one))(q))
        assert fused.report.candidates and fused.report.fused_count == 0, fused.report
        assert fused.report.module == fused.report.original
        for got, want in zip(jax.tree.leaves(fused(q)), jax.tree.leaves(jax.jit(one)(q)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_nothing_to_fuse():
    x = normal(4, 4)
    fused = flashlift.jax.fuse(lambda x: {"y": x @ x})
    assert_same(fused(x), {"y": x @ x})
    assert fused.report.fused_count == 0 and "no attention" in fused.report.reason
    assert fused.report.module == fused.report.original
    with pytest.raises(flashlift.UnsupportedError, match="0 of 0"):
        flashlift.jax.fuse(lambda x: x @ x, strict=True)(x)


def test_probabilities_used_elsewhere_stay():
    q = normal(1, 16, 8)

    def function(q):
        probabilities = jax.nn.softmax(q @ q.swapaxes(1, 2), -1)
        return probabilities @ q, probabilities

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q), jax.jit(function)(q))
    assert fused.report.fused_count == 0
    assert all(not one.fused and one.reason for one in fused.report.candidates)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_cannot_be_exported_runs_as_it_was(ordered):
    q = normal(1, 16, 2, 8)
    seen = []

    def function(q):
        jax.debug.callback(lambda x: seen.append(float(x)), q[0, 0, 0, 0], ordered=ordered)
        return attention(q, q, q)

    fused = flashlift.jax.fuse(function)
    assert_same(fused(q), attention(q, q, q))
    jax.effects_barrier()
    assert len(seen) == 1 and "fuse a part without them" in fused.report.reason
    with pytest.raises(flashlift.UnsupportedError, match=r"jax\.debug\.print"):
        flashlift.jax.fuse(function, strict=True)(q)


def test_beside_calls_that_are_fused_already():
    """Beside calls of flash_attention, and of fuse itself."""
    qkv = normal(2, 33, 4, 16), normal(2, 33, 4, 16), normal(2, 33, 4, 16)
    of_call = lambda q, k, v: flashlift.jax.flash_attention(q, k, v, causal=True)
    of_fuse = flashlift.jax.fuse(lambda q, k, v: attention(q, k, v, causal=True))
    expected = attention(attention(*qkv, causal=True), *qkv[1:])
    gradient = lambda f: jax.grad(lambda *qkv: jnp.sin(f(*qkv)).sum(), argnums=(0, 1, 2))(*qkv)
    for first in of_call, of_fuse:
        fused = flashlift.jax.fuse(lambda q, k, v, first=first: attention(first(q, k, v), k, v))
        assert_same(fused(*qkv), expected)
        assert fused.report.fused_count == 1
        assert len(re.findall(r'[@"]flashlift\.attention[("]', fused.report.module)) == 2
        wanted = gradient(lambda q, k, v: attention(attention(q, k, v, causal=True), k, v))
        assert_same(gradient(fused), wanted, atol=2e-5)


def test_errors_of_the_function_are_its_own():
    with pytest.raises(TypeError):
        flashlift.jax.fuse(attention)("text", "text", "text")
    with pytest.raises(ZeroDivisionError):
        flashlift.jax.fuse(lambda x: x / (1 // 0))(normal(2))


def test_another_platform():
    """A function is fused again for a platform other than JAX's default one."""
    shape = jax.ShapeDtypeStruct((1, 4, 2, 8), "float32")
    fused = flashlift.jax.fuse(lambda q: jax.nn.dot_product_attention(q, q, q))

    def calls(function, *platforms):
        lowered = jax.jit(function).trace(shape).lower(lowering_platforms=platforms)
        return lowered.as_text().count("@flashlift.attention(")

    assert calls(fused, "cuda") == 1
    assert calls(jax.grad(lambda q: fused(q).sum()), "cpu", "cuda") == 2
    with pytest.raises(flashlift.UnsupportedError, match="compiled for tpu, and Flashlift's handlers are for cpu"):
        calls(fused, "cpu", "tpu")
    traced = jax.jit(flashlift.jax.fuse(lambda q: jax.nn.dot_product_attention(q, q, q))).trace(shape)
    with jax.enable_x64(True), pytest.raises(flashlift.UnsupportedError, match="within another mesh or other settings"):
        traced.lower(lowering_platforms=("cuda",))


def test_analyze_runs_nothing():
    shape = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    report = flashlift.jax.fuse(lambda q: attention(q, q, q)).analyze(shape)
    assert report.fused_count == 1 and "s4096" in report.problems[0].replace("sq", "s")


def test_arguments_in_place_of_the_function():
    with pytest.raises(flashlift.InvalidArgumentError, match=r"an object of type ArrayImpl; expected a function"):
        flashlift.jax.fuse(jnp.ones(3))
