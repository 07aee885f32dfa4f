"""Fused functions in plain jax.jit of sharded arrays on eight devices: each device runs the kernels on its own part."""

import pytest
from eight_devices import HEAD, run

CALLS = """
def check(function, operands, specs, result=None, gathers=0, in_double=None):
    placed = [place(one, spec) for one, spec in zip(operands, specs, strict=True)]
    floats = [i for i, one in enumerate(operands) if one.dtype == jnp.float32]
    fused = flashlift.jax.fuse(function, strict=True)
    of = lambda f: jax.jit(lambda *given: (f(*given), jax.grad(lambda *g: (f(*g) ** 2).sum(), floats)(*given)))
    both = of(fused)
    text = both.lower(*placed).compile().as_text()
    found = text.count("all-gather(") + text.count("all-to-all(")
    assert (found > 0) == (gathers > 0), found
    assert text.count('custom_call_target="flashlift.attention') >= 2
    got = both(*placed)
    # Beside unfused maths in double precision: gradients of squares are large sums, whose rounding XLA's have, too.
    with jax.enable_x64(True):
        exact = of(in_double or function)(*[np.float64(one) if one.dtype == jnp.float32 else one for one in operands])
    for ours, theirs, right in zip(*map(jax.tree.leaves, (got, of(function)(*operands), exact)), strict=True):
        error = lambda one: np.max(np.abs(np.float64(one) - right))
        assert error(ours) <= 4 * error(theirs) + 1e-6 * np.max(np.abs(right)), (error(ours), error(theirs))
    if not gathers:
        assert got[0].sharding.spec == (specs[0] if result is None else result), got[0].sharding

dot = jax.nn.dot_product_attention
split, q, k, v = P("data", None, "model"), normal(4, 24, 8, 8), normal(4, 24, 8, 8), normal(4, 24, 8, 8)
causal = lambda q, k, v: dot(q, k, v, is_causal=True)
for by in (split, P("data"), P(None, None, "model")):
    check(causal, (q, k, v), [by] * 3)
if sys.argv[1] == "gspmd":
    print("agree")
    sys.exit()
# Fewer key-value heads than query heads, as many of them as devices, fewer, and one.
four, two, one = normal(4, 24, 4, 8), normal(4, 24, 2, 8), normal(4, 24, 1, 8)
check(causal, (q, four, four), [split] * 3)
check(causal, (q, two, two), [split, P("data"), P("data")])
check(causal, (q, one, one), [split, P("data"), P("data")])
# What scores read is split by its own indices.
ids = jnp.sort(jnp.asarray(rng.integers(0, 3, (4, 24)), jnp.int32))
def packed(q, k, v, bias, ids, lengths):
    mask = (ids[:, None, :, None] == ids[:, None, None, :])
    return dot(q, k, v, bias, mask, key_value_seq_lengths=lengths, query_seq_lengths=lengths)
# By hand: in double precision, JAX 0.9's function masks with -inf, and a query without keys is NaN.
def packed_by_hand(q, k, v, bias, ids, lengths):
    k, v = (jnp.repeat(one, 8 // one.shape[2], 2) for one in (k, v))
    ids = jnp.where(jnp.arange(24) < lengths[:, None], ids, -1)
    keep = ((ids[:, :, None] == ids[:, None, :]) & (ids >= 0)[:, None, :])[:, None]
    scores = jnp.where(keep, jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5 + bias, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, jax.nn.softmax(scores), 0), v)
lengths = jnp.asarray([24, 7, 1, 13], jnp.int32)
check(packed, (q, k, v, normal(1, 8, 24, 24), ids, lengths),
      [split, split, split, P(None, "model"), P("data"), P("data")], in_double=packed_by_hand)
check(packed, (q, four, four, normal(4, 1, 24, 24), ids, lengths),
      [split, split, split, P("data"), P("data"), P("data")], in_double=packed_by_hand)
def slopes(q, k, v, table):
    distance = jnp.arange(24)[None, :] - jnp.arange(24)[:, None]
    return dot(q, k, v, (table[:, None, None] * distance)[None])
check(slopes, (q, k, v, normal(8)), [split, split, split, P("model")])
# Scores that compute with the number of a head, one table for every two heads, and sinks.
def counted(q, k, v, table, sinks):
    distance = jnp.arange(24)[None, :] - jnp.arange(24)[:, None]
    slope = 2.0 ** -(jnp.arange(8) + 1.0) + table[jnp.arange(8) // 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + slope[:, None, None] * distance
    sinks = jnp.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.concatenate([scores, sinks], -1))[..., :-1], v)
check(counted, (q, k, v, normal(4), normal(8)), [split, split, split, P(), P("model")])
# A mask of dropout, in heads before lengths, by hand.
def dropped(q, k, v, keep):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, weights / 0.5, 0), v)
check(dropped, (q, k, v, jnp.asarray(rng.random((4, 8, 24, 24)) < 0.5)), [split, split, split, P("data", "model")])
# Layers in a loop, and a batch of calls.
def layers(x, weights):
    @jax.checkpoint
    def layer(x, weight):
        return causal(x @ weight, x, x) + x, None
    return jax.lax.scan(layer, x, weights)[0]
check(layers, (0.1 * q, normal(3, 8, 8) / 3), [split, P()])
check(lambda q, k, v: jax.vmap(causal)(q, k, v), (normal(2, 4, 24, 8, 8),) * 3, [P("data", None, None, "model")] * 3)
check(jax.vmap(causal), [normal(3, 4, 24, 8, 8) for _ in "qkv"], [P(None, *split)] * 3)
check(jax.vmap(causal), [normal(2, 4, 24, 8, 8) for _ in "qkv"], [P("data", "model")] * 3)
# Scores that compute with the number of a batch, of one dimension and of several.
def numbered(q, k, v):
    batch, head = (jnp.arange(size).reshape(-1, *[1] * n) for size, n in ((q.shape[0], 3), (q.shape[2], 2)))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 * (batch + 1) + 0.1 * head
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores * (head + 1)), v)
check(numbered, (q, k, v), [split] * 3)
def numbered_twice(q, k, v):
    b, c, h = (jnp.arange(q.shape[at]).reshape(-1, *[1] * n) for at, n in ((0, 4), (1, 3), (3, 2)))
    scores = jnp.einsum("bcqhd,bckhd->bchqk", q, k) * 0.3 * (b + 1) * (c + 2) * (h + 1)
    return jnp.einsum("bchqk,bckhd->bcqhd", jax.nn.softmax(scores), v)
for by in (P("data", "model"), P("model", "data"), P(None, "model"), P(None, "data", None, "model"), P("data")):
    check(numbered_twice, [normal(4, 4, 12, 4, 8) for _ in "qkv"], [by] * 3)
# Lengths that are split are gathered; values stay right.
check(causal, (q, k, v), [P("data", "model")] * 3, gathers=1)
print("agree")
"""

LOOP = """
# A layer of Flax's shape, data and tensor parallel: the losses of one device, and nothing is gathered.
width = 32
weights = {"qkv": normal(3, width, 8, 8) / 6, "out": normal(8, 8, width) / 8, "scale": normal(width)}
specs = {"qkv": P(None, None, "model"), "out": P("model"), "scale": P()}
x = normal(8, 24, width)

def attend(q, k, v):
    weights = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
    weights = jnp.where(jnp.tril(jnp.ones((24, 24), bool)), weights, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(weights, axis=-1), v)

def squares(weights, x, annotate=lambda one, *_: one):
    q, k, v = (annotate(one, "data", None, "model") for one in
               jnp.einsum("bsw,nwhd->nbshd", x * weights["scale"], weights["qkv"]))
    out = annotate(attend(q, k, v), "data", None, "model")
    return ((annotate(jnp.einsum("bshd,hdw->bsw", out, weights["out"]), "data") - x) ** 2).mean()

def by_mesh(weights, x):
    return squares(weights, x, lambda one, *spec: jax.lax.with_sharding_constraint(one, NamedSharding(mesh, P(*spec))))

def losses_of(loss, weights, x):
    def step(weights, x):
        value, slope = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda one, by: one - 0.3 * by, weights, slope)
    step, values = jax.jit(step), []
    text = step.lower(weights, x).compile().as_text()
    for _ in range(3):
        value, weights = step(weights, x)
        values.append(float(value))
    return values, text

expected, _ = losses_of(squares, weights, x)
placed = jax.tree.map(place, weights, specs), place(x, P("data"))
for loss in (squares, by_mesh):
    fused = flashlift.jax.fuse(loss, strict=True)
    values, text = losses_of(fused, *placed)
    assert "all-gather" not in text and "all-to-all" not in text
    assert 'custom_call_target="flashlift.attention_backward"' in text
    assert_close(values, expected)
# A whole step fused, and one that its caller jits not at all.
both = flashlift.jax.fuse(jax.value_and_grad(by_mesh), strict=True)
assert_close(both(*placed), jax.value_and_grad(squares)(weights, x))
assert_close(both(weights, x), jax.value_and_grad(squares)(weights, x))
# Explicit shardings: results, and gradients, have the types that they have unfused.
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
causal = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)
gradient_of = lambda f: jax.grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2))
qkv = [normal(4, 24, 8, 8) for _ in "qkv"]
with jax.set_mesh(explicit):
    typed = [jax.device_put(one, NamedSharding(explicit, P("data", None, "model"))) for one in qkv]
    for of in (lambda f: f, gradient_of):
        fused = of(flashlift.jax.fuse(causal, strict=True))
        found, expected = (jax.jit(one)(*typed) for one in (fused, of(causal)))
        assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, expected)
        assert "all-gather" not in jax.jit(fused).lower(*typed).compile().as_text()
        assert_close(fused(*typed), expected)
    # Of a split batch of calls, with queries of their own whose tangent all of them share.
    batch = lambda f: lambda q, k, shared: jax.vmap(f)(q + shared, k, k * shared)
    given = [jax.device_put(one, NamedSharding(explicit, P("data"))) for one in qkv[:2]] + [normal(24, 8, 8)]
    both = flashlift.jax.fuse(causal, strict=True), causal
    found, expected = (jax.jit(gradient_of(batch(f)))(*given) for f in both)
    assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, expected)
    assert_close(found, expected)
print("agree")
"""

# Arguments that nothing splits: only the constraints on queries, keys and values say how the call is.
CONSTRAINTS = """
def check(project, weights, x):
    spec = P("data", None, "model")
    by = lambda one: jax.lax.with_sharding_constraint(one, NamedSharding(mesh, spec))
    def function(x, weights):
        return jax.nn.dot_product_attention(*(by(project(x, one)) for one in weights), is_causal=True)
    fused = flashlift.jax.fuse(function, strict=True)
    text = jax.jit(fused).lower(x, weights).compile().as_text()
    assert "f32[2,6,1,8]" in next(line for line in text.splitlines() if "flashlift.attention" in line), text
    assert "all-gather(" not in text
    got = jax.jit(fused)(x, weights)
    assert got.sharding.spec == spec, got.sharding
    assert_close(got, function(x, weights))

x = normal(4, 6, 32)
check(lambda x, one: jnp.einsum("bsm,mhd->bshd", x, one), [normal(32, 4, 8) / 6 for _ in "qkv"], x)
check(lambda x, one: (x @ one).reshape(4, 6, 4, 8), [normal(32, 32) / 6 for _ in "qkv"], x)
check(lambda x, one: one, [normal(4, 6, 4, 8) for _ in "qkv"], x)
print("agree")
"""

# A scalar operand has a dimension of its own in a call that XLA can split.
SCALAR = """
def scaled(x, t):
    s = jnp.einsum("bhqd,bhkd->bhqk", x, x) * t
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s), x)
data = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
mapped = lambda f: jax.shard_map(f, mesh=data, in_specs=(P("data"), P()), out_specs=P("data"))
gradients = lambda f: jax.grad(lambda x, t: (mapped(f)(x, t) ** 2).sum(), (0, 1))
x = normal(2, 2, 4, 8)
fused = flashlift.jax.fuse(scaled, strict=True)
for of in (lambda f: f, jax.jit):
    assert_close(of(gradients(fused))(x, 0.5), gradients(scaled)(x, 0.5))
print("agree")
"""

# Functions that are fused within shard_map, and name the mesh that the caller has set.
WITHIN = """
def causal(q, k, v, w):
    s = jnp.einsum("bqhd,bkhd->bhqk", q @ w, k)
    s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
qkvw = [*(normal(4, 6, 4, 8) for _ in "qkv"), normal(8, 8)]
gradients = lambda f: jax.grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2, 3))
for axis_types in ((AxisType.Auto,) * 2, (AxisType.Auto, AxisType.Explicit)):
    mixed = jax.make_mesh((2, 4), ("data", "model"), axis_types=axis_types)
    spec = P("data", None, "model")
    for is_checked in (True, False):
        fused = flashlift.jax.fuse(causal, strict=True)
        mapped = jax.shard_map(
            fused, mesh=mixed, in_specs=(spec, spec, spec, P()), out_specs=spec, check_vma=is_checked
        )
        with jax.set_mesh(mixed):
            placed = [jax.device_put(one, NamedSharding(mixed, spec)) for one in qkvw[:3]]
            placed.append(jax.device_put(qkvw[3], NamedSharding(mixed, P())))
            assert_close(jax.jit(mapped)(*placed), causal(*qkvw))
            assert_close(jax.jit(gradients(mapped))(*placed), gradients(causal)(*qkvw))
# JAX cannot export what explicit axes split within a shard_map over other axes.
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(explicit):
    placed = [jax.device_put(one, NamedSharding(explicit, spec)) for one in qkvw[:3]]
    placed.append(jax.device_put(qkvw[3], NamedSharding(explicit, P())))
    some = {"axis_names": {"data"}, "in_specs": (P("data"),) * 3 + (P(),), "out_specs": P("data")}
    fused, strict = flashlift.jax.fuse(causal), flashlift.jax.fuse(causal, strict=True)
    assert_close(jax.jit(jax.shard_map(fused, **some))(*placed), causal(*qkvw))
    assert "expected all axes of the mesh in its axis_names" in fused.report.reason, fused.report
    try:
        jax.jit(jax.shard_map(strict, **some))(*placed)
        raise AssertionError("expected an error")
    except flashlift.UnsupportedError:
        pass
explicit = jax.make_mesh((8, 1), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(explicit):
    placed = [jax.device_put(one, NamedSharding(explicit, P("model"))) for one in qkvw]
    some = {"axis_names": {"data"}, "in_specs": (P(),) * 4, "out_specs": P()}
    fused = flashlift.jax.fuse(causal)
    assert_close(jax.jit(jax.shard_map(fused, **some))(*placed), causal(*qkvw))
    assert "expected all axes of the mesh in its axis_names" in fused.report.reason, fused.report
print("agree")
"""

# The gradient of shard_map is two manual computations. Both together call the forward pass once, and with
# jax.checkpoint twice.
AROUND = """
def causal(q, k, v, w, bias):
    q, k, v = (jax.nn.gelu(one @ w) for one in (q, k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)
    return jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v) @ w)
def normed(q, k, v, w, bias):
    out = causal(q, k, v, w, bias)
    return out / jax.lax.pmean((out**2).mean(), ("data", "model"))
def normed_alone(q, k, v, w, bias):
    out = causal(q, k, v, w, bias)
    return out / (out**2).mean()
def direct(q, k, v, w, bias):  # of whose results the backward pass reads none
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
def capped(q, k, v, w, bias):  # whose backward pass also reads the slopes of the scores
    s = 3 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3) + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
def layers(function):
    return lambda q, k, v, w, bias: function(q, k, function(q, k, v, w, bias), w, bias)
spec = P("data", None, "model")
given = [*(normal(4, 6, 4, 8) for _ in "qkv"), normal(8, 8), normal(1, 4, 6, 6)]
placed = [place(one, by) for one, by in zip(given, (spec, spec, spec, P(), P(None, "model")), strict=True)]
gradients = lambda f: jax.value_and_grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2, 3, 4))
specs = {"in_specs": (spec, spec, spec, P(), P(None, "model")), "out_specs": spec}
for inside, alone, is_checked in (
    (causal, causal, True), (causal, causal, False), (normed, normed_alone, True), (direct, direct, True),
    (capped, capped, True),
):
    mapped = jax.shard_map(inside, mesh=mesh, check_vma=is_checked, **specs)
    checkpointed = 2 if inside in (direct, capped) else 3
    for of, count, forward in ((lambda f: f, 2, 1), (layers, 4, 2), (jax.checkpoint, checkpointed, 2)):
        fused = flashlift.jax.fuse(gradients(of(mapped)), strict=True)
        assert_close(fused(*placed), gradients(of(alone))(*given))
        assert fused.report.fused_count == count, fused.report
        assert fused.report.module.count('call_target_name = "flashlift.attention"') == forward, fused.report.module
print("agree")
"""

# Functions that call flash_attention beside attention that is found.
BESIDE = """
def twice(q, k, v):
    q = flashlift.jax.flash_attention(q, k, v, causal=True, dropout_prob=0.5, dropout_seed=3, softmax_aux=sinks)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)
sinks, spec = normal(8, 2), P("data", None, "model")
by_mesh = lambda q, k, v: twice(jax.lax.with_sharding_constraint(q, NamedSharding(mesh, spec)), k, v)
gradients = lambda f: jax.grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2))
qkv = normal(4, 24, 8, 8), normal(4, 24, 4, 8), normal(4, 24, 4, 8)
placed = [place(one, spec) for one in qkv]
for function in (twice, by_mesh):
    for of in (lambda f: f, gradients):
        fused = jax.jit(of(flashlift.jax.fuse(function, strict=True)))
        assert_close(fused(*placed), of(twice)(*qkv))
        assert "all-gather" not in fused.lower(*placed).compile().as_text()
print("agree")
"""


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_calls(partitioner):
    run(HEAD + CALLS, partitioner)


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_constraints_on_operands(partitioner):
    run(HEAD + CONSTRAINTS, partitioner)


def test_within_shard_map_of_a_mesh_that_is_set():
    run(HEAD + WITHIN, "shardy")


def test_gradients_of_shard_map():
    run(HEAD + AROUND, "shardy")


def test_gradient_of_a_scalar_in_shard_map():
    run(HEAD + SCALAR, "shardy")


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_beside_calls_of_flash_attention(partitioner):
    run(HEAD + BESIDE, partitioner)


def test_training():
    run(HEAD + LOOP, "shardy")
