"""Plain jax.jit of sharded arrays on eight devices: each device runs the kernel on its own part."""

import jax
import jax.numpy as jnp
import pytest
from eight_devices import HEAD, run
from flashlift.jax import flash_attention

PROGRAM = """
from flashlift.jax import attention, flash_attention

def check(function, operands, specs, gathers=0):
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs, strict=True)]
    floats = [i for i, one in enumerate(operands) if one.dtype == jnp.float32]
    both = jax.jit(lambda *given: (function(*given), jax.grad(lambda *g: (function(*g) ** 2).sum(), floats)(*given)))
    text = both.lower(*placed).compile().as_text()
    assert (text.count("all-gather(") > 0) == (gathers > 0), text.count("all-gather(")
    got, expected = both(*placed), both(*operands)
    assert_close(got, expected)
    if not gathers:
        assert got[0].sharding.spec == specs[0], got[0].sharding

def attend(q, k, v, bias, sinks, ids):
    out, lse = flash_attention(q, k, v, bias, softmax_aux=sinks, q_segment_ids=ids, causal=True, return_lse=True)
    return out + jnp.moveaxis(lse, 1, 2)[..., None]

split, ids = P("data", None, "model"), jnp.sort(jnp.asarray(rng.integers(-1, 3, (4, 24)), jnp.int32))
check(attend, (normal(4, 24, 8, 8), normal(4, 24, 4, 8), normal(4, 24, 4, 8), normal(1, 8, 24, 24), normal(8, 1), ids),
      [split, split, split, P(None, "model"), P("model"), P("data")])
# One key-value head for all devices; a program that reads a table by its head, and one that computes with it.
one_head = normal(4, 24, 1, 8)
check(lambda q, k: flash_attention(q, k, k), (normal(4, 24, 8, 8), one_head), [split, P("data")])
# Dropout leaves out on each device what it leaves out on one.
def drop(q, k, v, seed):
    return flash_attention(q, k, v, dropout_prob=0.5, dropout_seed=seed, causal=True)

qkv, seed = (normal(4, 24, 8, 8), normal(4, 24, 4, 8), normal(4, 24, 4, 8)), jax.random.key_data(jax.random.key(5))
check(drop, (*qkv, seed), [split, split, split, P()])
check(drop, (*[normal(8, 24, 2, 8)] * 3, seed), [P(("data", "model"))] * 3 + [P()])
check(lambda q, k, seed: drop(q, k, k, seed), (qkv[0], one_head, seed), [split, P("data"), P()])
# As many devices as query heads, more than key-value heads: each uses one of those that it holds.
check(lambda q, k, seed: drop(q, k, k, seed), (qkv[0], normal(4, 24, 2, 8), seed), [split, P("data"), P()])
slopes = normal(8)
check(lambda q, slopes: attention(q, q, q, score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j)),
      (normal(4, 24, 8, 8), slopes), [split, P("model")])
# Programs that compute with the number of a batch or a head count in the whole; tables that they read by anything else
# are whole.
by_batch, by_head, either = normal(4), normal(8), normal(8)
def counted(q, k, v, by_batch, by_head, either):
    def score(s, b, h, i, j):
        s = s * (b + 1) + by_batch[b] * h + 0.1 * (h + 1) * (j - i)
        return s + by_head[7 - h] + by_head[h] + either[b] + either[(b * 2 + h) % 8]
    return attention(q, k, v, score_mod=score, mask_mod=lambda b, h, i, j: (j <= i + b) | (j == h))
for specs in ([split] * 3, [P("data")] * 3, [P(None, None, "model")] * 3, [P("model", None, "data")] * 3,
              [P(None, None, ("model", "data"))] + [P(None, None, "model")] * 2):
    check(counted, (*qkv, by_batch, by_head, either), [*specs, P(specs[0][0]), P(), P()])
check(lambda q, k, seed: flash_attention(q, k, k, dropout_prob=0.5, dropout_seed=seed, softmax_aux=by_head[:, None],
                                         score_mod=lambda s, b, h, i, j: s * (b - h)),
      (qkv[0], one_head, seed), [split, P("data"), P()])
check(lambda q: attention(q, q, q, "alibi causal"), (normal(4, 24, 8, 8),), [split])
# A small table may have as many elements as a device has batches.
check(lambda q, t: attention(q, q, q, score_mod=lambda s, b, h, i, j: s + t[b]), (qkv[0], normal(2)), [split, P()])
# Tables that are read more than once at a batch or a head; the first dimension is split, the others are whole.
for score, table in ((lambda t: lambda s, b, h, i, j: s + t[b, b] * j, normal(4, 4)),
                     (lambda t: lambda s, b, h, i, j: s + t[h, h] * j, normal(8, 8)),
                     (lambda t: lambda s, b, h, i, j: s + t[b, h, b] * t[b, 7 - h, b], normal(4, 8, 4)),
                     (lambda t: lambda s, b, h, i, j: s + t[h, b] * j, normal(8, 4))):
    check(lambda q, k, v, t: attention(q, k, v, score_mod=score(t)), (*qkv, table), [split, split, split, P()])
for text in ("score_mod(t: f32[heads,heads]) { %0 = load t[h, h]; %1 = mul score, %0; return %1 }",
             "score_mod(t: f32[batch,heads]) { %0 = load t[2, h]; %1 = mul score, %0; return %1 }"):
    check(lambda q, k, v, t: attention(q, k, v, text, captures=[t]),
          (*qkv, normal(8 if "heads,heads" in text else 4, 8)), [split, split, split, P()])
if sys.argv[1] == "shardy":
    text = "score_mod(t: f32[8]) { %0 = load t[h]; %1 = mul score, %0; return %1 }"
    check(lambda q, t: attention(q, q, q, text, captures=[t]), (normal(4, 24, 8, 8), slopes), [split, P("model")])
    # Data and tensor parallel training of a layer, as Flax's: the losses are those of one device.
    heads, depth, width = 8, 8, 32
    params = {"q": normal(width, heads, depth), "k": normal(width, heads, depth), "v": normal(width, heads, depth),
              "o": normal(heads, depth, width)}
    of_params = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model")}
    x = normal(4, 24, width)

    def loss(params, x):
        q, k, v = (jnp.einsum("bsw,whd->bshd", x, params[name]) * width**-0.5 for name in "qkv")
        out = flash_attention(q, k, v, causal=True)
        return jnp.mean((jnp.einsum("bshd,hdw->bsw", out, params["o"]) - x) ** 2)

    @jax.jit
    def step(params, x):
        value, slope = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.3 * g, params, slope)

    placed = {name: jax.device_put(one, NamedSharding(mesh, of_params[name])) for name, one in params.items()}
    placed_x = jax.device_put(x, NamedSharding(mesh, P("data")))
    assert "all-gather" not in step.lower(placed, placed_x).compile().as_text()
    for _ in range(3):
        mine, placed = step(placed, placed_x)
        theirs, params = step(params, x)
        assert_close(mine, theirs)
print("agree")
"""


BY_MESH = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import flashlift.jax
from flashlift.jax import MaskInfo, flash_attention

rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
q, k, v, slopes = normal(4, 16, 8, 8), normal(4, 16, 4, 8), normal(4, 16, 4, 8), normal(8)
ids = jnp.asarray(rng.integers(0, 3, (4, 16)), jnp.int32)
per_head = jnp.asarray(rng.random((4, 8, 16, 16)) < 0.7)
split = P("data", None, "model")
auto, explicit = (jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
                  for kind in (AxisType.Auto, AxisType.Explicit))

def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=1e-4)

def check(*operands, **arguments):
    expected = flash_attention(q, k, v, *operands, **arguments)
    specs = [split] * 3 + [P("data", "model"), P("model"), None, None]
    assert_close(flash_attention(q, k, v, *operands, **arguments, mesh=auto, in_specs=specs, out_specs=split), expected)
    # Arrays that lie on no mesh yet are split as the specs say.
    of_mesh = arguments | {"mesh": explicit, "in_specs": specs, "out_specs": split}
    by_specs = lambda *qkv: flash_attention(*qkv, *operands, **of_mesh)
    assert_close(by_specs(q, k, v), expected)
    assert_close(jax.jit(by_specs)(q, k, v), expected)
    with jax.set_mesh(explicit):
        placed = [jax.device_put(one, NamedSharding(explicit, split)) for one in (q, k, v)]
        assert_close(jax.jit(lambda *qkv: flash_attention(*qkv, *operands, **arguments))(*placed), expected)

by_rules = MaskInfo.from_segments(ids).apply_causal(jnp.asarray([1, 2, 0, 3]))
check(mask_info=by_rules, dropout_prob=0.3, dropout_seed=3)
check(mask_info=MaskInfo.from_attention_mask(per_head).apply_causal().apply_token_type_ids(ids))
check(attention_mask=ids > 0)
check(None, jnp.asarray([0, 5, 20, 24, 30]), q_segment_ids=ids)
# Functions count batches and heads in the whole.
check(score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j) + b, mask_mod=lambda b, h, i, j: i - j <= 4 + h)

# The module's wrapper is the same; specs by which a device would compute something else are refused.
kernel, alone = flashlift.jax.FlashAttention(), {"dropout_prob": 0.5, "dropout_seed": 3, "causal": True}
by_module = lambda **more: flashlift.jax.Executor()(kernel, q, k, v, mesh=auto, out_specs=split,
                                                   in_specs=[split] * 3 + [None] * 4, **more)
assert_close(by_module(**alone), flash_attention(q, k, v, **alone))
one_head = P("data")
for specs, out_spec, more, message in (
    ([P(None, "data")] + [P()] * 2, P(None, "data"), {"causal": True}, "query is split by length over data; "),
    ([P()] + [P(None, "data")] * 2, P(), {}, "key is split by length"),
    ([P(None, None, None, "data")] * 3, P(None, None, None, "data"), {}, "query is split by depth"),
    ([split, one_head, one_head], split, {}, "key is split by heads not at all; expected what query's are split over"),
    ([P("data"), P("model"), P("model")], P("data"), {}, "key is split by batches over model"),
    ([split] * 3, P("data"), {}, "the output is split by heads not at all"),
    ([P("rows")] * 3, P("rows"), {}, 'the spec of query names the axis "rows"; expected one of the mesh: data, model'),
):
    try:
        flash_attention(q, k, v, mesh=auto, in_specs=[*specs, None, None, None, None], out_specs=out_spec, **more)
    except flashlift.FlashliftError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
# Rows of queries that have no positions may be split.
rows = P(None, "data")
assert_close(flash_attention(q, k, v, mesh=auto, in_specs=[rows, P(), P(), None, None, None, None], out_specs=rows),
             flash_attention(q, k, v))

def loss(slopes, **of_mesh):
    out = flash_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j), **of_mesh)
    return (out**2).sum()

of_mesh = {"mesh": auto, "in_specs": [split] * 3 + [None] * 4, "out_specs": split}
assert_close(jax.grad(lambda slopes: loss(slopes, **of_mesh))(slopes), jax.grad(loss)(slopes))

# A fused function within shard_map: its results, and gradients, vary as its operands do.
attend = lambda q, k, v, s: jax.nn.dot_product_attention(q, k, v * s, is_causal=True)
fused = flashlift.jax.fuse(attend)
parts = jax.shard_map(fused, mesh=auto, in_specs=(split,) * 3 + (P(),), out_specs=split)
both = lambda f: jax.value_and_grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2, 3))(q, k, v, jnp.float32(0.5))
assert_close(both(parts), both(attend))
assert_close(both(jax.jit(parts)), both(attend))
assert fused.report.fused_count

# A training loop with dropout, table and slopes, each device with its own batches and heads: the losses of one device.
width = 16
weights = {"qkv": normal(3, width, 8, 8) / 4, "out": normal(8, 8, width) / 8, "slopes": slopes / 8, "table": normal(16)}
specs = {"qkv": P(None, None, "model"), "out": P("model"), "slopes": P("model"), "table": P()}
x = normal(4, 16, width)

def squares(weights, x, whole=lambda one: one, **dropout):
    q, k, v = jnp.einsum("bsw,nwhd->nbshd", x, weights["qkv"])
    bias = (weights["slopes"][:, None, None] * weights["table"])[None]
    bias = jnp.broadcast_to(bias, (1, bias.shape[1], 16, 16))
    out = flash_attention(q, k, v, bias, causal=True, **dropout)
    return ((whole(jnp.einsum("bshd,hdw->bsw", out, weights["out"])) - x) ** 2).mean()

def train(loss):
    def step(weights, x, number):
        value, slope = jax.value_and_grad(lambda weights: loss(weights, x, number))(weights)
        return value, jax.tree.map(lambda one, by: one - 0.3 * by, weights, slope)
    return jax.jit(step)

def losses_of(loss, weights, x):
    step, values = train(loss), []
    text = step.lower(weights, x, 0).compile().as_text()
    for number in range(3):
        value, weights = step(weights, x, number)
        values.append(float(value))
    return values, text

place = lambda one, spec: jax.device_put(one, NamedSharding(auto, spec))
placed = jax.tree.map(place, weights, specs), place(x, P("data"))

def by_parts(weights, x, step):
    sums = lambda one: jax.lax.psum(one, "model")
    part = lambda weights, x: jax.lax.pmean(squares(weights, x, sums), "data")
    return jax.shard_map(part, mesh=auto, in_specs=(specs, P("data")), out_specs=P())(weights, x)

drops = lambda weights, x, step: squares(weights, x, dropout_prob=0.2, dropout_seed=step)
for split_up, alone in ((drops, drops), (by_parts, lambda weights, x, step: squares(weights, x))):
    values, text = losses_of(split_up, *placed)
    assert "all-gather" not in text
    assert_close(values, losses_of(alone, weights, x)[0])
print("agree")
"""


EAGER = """
# Numbers of a function's own stay numbers where eager shard_map traces.
auto = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
table = normal(4)
mod = lambda s, b, h, i, j: s * (h % 2) + table[h // 2]
attend = lambda q: flashlift.jax.flash_attention(q, q, q, score_mod=mod)
q, split = normal(4, 24, 8, 8), P(("data", "model")[:1])
assert_close(jax.shard_map(attend, mesh=auto, in_specs=split, out_specs=split)(q), attend(q))
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
expected = attend(q)
with jax.set_mesh(explicit):
    placed = jax.device_put(q, NamedSharding(explicit, P("data", None, "model")))
    assert_close(attend(placed), expected)
print("agree")
"""

FEWER_HEADS = """
# On an explicit mesh with more devices than key-value heads, these are whole, or split over the first of query's axes.
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
attend = lambda q, k, v: flashlift.jax.flash_attention(q, k, v, causal=True)
both = jax.jit(lambda *given: (attend(*given), jax.grad(lambda *g: (attend(*g) ** 2).sum(), (0, 1, 2))(*given)))
qkv = normal(4, 24, 8, 8), normal(4, 24, 2, 8), normal(4, 24, 2, 8)
with jax.set_mesh(explicit):
    for of_query, of_keys in (
        (P("data", None, "model"), P("data")),
        (P(None, None, ("data", "model")), P(None, None, "data")),
        (P(None, None, ("data", "model")), P()),
        (P(None, None, "data"), P()),
    ):
        specs = of_query, of_keys, of_keys
        placed = [jax.device_put(x, NamedSharding(explicit, spec)) for x, spec in zip(qkv, specs, strict=True)]
        # Otherwise, keys are split over the first axes, too, and gradients by them are then made whole.
        assert of_keys == P() or "all-gather(" not in both.lower(*placed).compile().as_text()
        out, gradients = both(*placed)
        assert_close((out, gradients), both(*qkv))
        assert [jax.typeof(x) for x in (out, *gradients)] == [jax.typeof(x) for x in (placed[0], *placed)]
    try:
        attend(placed[0], *[jax.device_put(x, NamedSharding(explicit, P(None, None, "model"))) for x in (qkv[0],) * 2])
    except flashlift.FlashliftError as error:
        assert "key-value heads like query's or over the first of their axes" in str(error), error
    else:
        raise AssertionError("split over axes of its own")
print("agree")
"""

PARTS_OF_AXES = """
# Columns of the projections are split over more devices than there are key-value heads, or batches: XLA then splits
# heads and depth, or batches and length, each by a part of the same axis.
def layer(attend, x, of_q, of_k, of_v):
    x = x.reshape(2, 24, 32)
    q, k, v = ((x @ one).reshape(2, 24, -1, 8) for one in (of_q, of_k, of_v))
    return attend(q, k, v).reshape(2 * 24, 64)

given = normal(2 * 24, 32), normal(32, 64) / 6, normal(32, 16) / 6, normal(32, 16) / 6
plain = jax.nn.dot_product_attention
both = lambda f: lambda *g: (f(*g), jax.grad(lambda *g: (f(*g) ** 2).sum(), (0, 1, 2, 3))(*g))
expected = jax.jit(both(lambda *given: layer(plain, *given)))(*given)
fused = flashlift.jax.fuse(lambda *given: layer(plain, *given), strict=True)
for f in (lambda *given: layer(flashlift.jax.flash_attention, *given), fused):
    for specs in [P()] + [P(None, "model")] * 3, [P("model")] + [P()] * 3:
        placed = [place(one, spec) for one, spec in zip(given, specs, strict=True)]
        run = jax.jit(both(f)).lower(*placed).compile()
        assert_close(run(*placed), expected)
        assert specs[0] or "hq2 " in run.as_text(), "query heads are not split"
print("agree")
"""

SOME_AXES = """
# A shard_map over one axis: the other one has several devices, which split heads outside of it, or one.
plain = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)
given, split = [normal(8, 24, 4, 8) for _ in range(3)], P("data", None, "model")
both = lambda f: jax.value_and_grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2))
expected = both(plain)(*given)
for sizes in (2, 4), (8, 1):
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    placed = [jax.device_put(one, NamedSharding(mesh, split)) for one in given]
    for attend in (lambda *given: flashlift.jax.flash_attention(*given, causal=True), flashlift.jax.fuse(plain)):
        parts = jax.shard_map(attend, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        if sizes == (2, 4) and jax.__version_info__ < (0, 10) and sys.argv[1] == "gspmd":
            try:
                jax.jit(both(parts))(*placed)
            except flashlift.UnsupportedError as error:
                assert "which GSPMD of JAX before 0.10 cannot compile" in str(error)
            else:
                assert isinstance(attend, flashlift.jax.FusedFunction), "only unfused functions can be compiled"
            continue
        assert_close(jax.jit(both(parts))(*placed), expected)
        with mesh:
            assert_close(jax.jit(both(parts))(*placed), expected)
print("agree")
"""

PARTLY_MANUAL = """
# A shard_map over one axis of an explicit mesh: results and gradients have the types of their operands.
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
attend = lambda q, k, v, table: flashlift.jax.flash_attention(
    q, k, v, causal=True, score_mod=lambda s, b, h, i, j: s + table[j]
)
both = lambda f: lambda *given: (f(*given), jax.grad(lambda *g: (f(*g) ** 2).sum(), (0, 1, 2, 3))(*given))
given = normal(4, 24, 8, 8), normal(4, 24, 4, 8), normal(4, 24, 4, 8), normal(24)
expected = both(attend)(*given)
with jax.set_mesh(explicit):
    specs = (P("data", None, "model"),) * 3 + (P(),)
    placed = [jax.device_put(x, NamedSharding(explicit, spec)) for x, spec in zip(given, specs, strict=True)]
    for axis, of_part in ("data", P("data")), ("model", P(None, None, "model")):
        in_specs = (of_part,) * 3 + (P(),)
        parts = jax.jit(both(jax.shard_map(attend, in_specs=in_specs, out_specs=of_part, axis_names={axis})))
        found = parts(*placed)
        assert_close(found, expected)
        assert [jax.typeof(x) for x in jax.tree.leaves(found)] == [jax.typeof(x) for x in (placed[0], *placed)]
    # The same in a vmap, over queries alone and over all: whole batches, with heads whole and split, and with the
    # mapped dimension split.
    given = normal(3, 4, 24, 8, 8), normal(3, 4, 24, 4, 8), normal(3, 4, 24, 4, 8), normal(3, 24)
    for heads in None, "model":
        placed = [jax.device_put(x, NamedSharding(explicit, P(None, "data", None, heads))) for x in given[:3]]
        placed.append(jax.device_put(given[3], NamedSharding(explicit, P())))
        for axes in (0, 0, 0, 0), (0, None, None, None):
            of_one = lambda values: [x if axis == 0 else x[1] for x, axis in zip(values, axes, strict=True)]
            of_all = jax.vmap(attend, in_axes=axes)
            specs = [P(*[None] * (axis == 0), "data") for axis in axes[:3]] + [P()]
            parts = jax.shard_map(of_all, in_specs=tuple(specs), out_specs=specs[0], axis_names={"data"})
            found = jax.jit(both(parts))(*of_one(placed))
            assert_close(found, both(of_all)(*of_one(given)))
            expected_types = [jax.typeof(x) for x in (placed[0], *of_one(placed))]
            assert [jax.typeof(x) for x in jax.tree.leaves(found)] == expected_types
    given = *[normal(4, 4, 24, n, 8) for n in (8, 4, 4)], normal(24)
    placed = [jax.device_put(x, NamedSharding(explicit, P("model", "data"))) for x in given[:3]]
    placed.append(jax.device_put(given[3], NamedSharding(explicit, P())))
    of_all = jax.vmap(attend, in_axes=(0, 0, 0, None))
    by_data = P(None, "data")
    parts = jax.shard_map(of_all, in_specs=(*[by_data] * 3, P()), out_specs=by_data, axis_names={"data"})
    found = jax.jit(both(parts))(*placed)
    assert_close(found, both(of_all)(*given))
    assert [jax.typeof(x) for x in jax.tree.leaves(found)] == [jax.typeof(x) for x in (placed[0], *placed)]
print("agree")
"""

EXPORTED = """
# An exported function holds no part of this process, and runs on sharded arrays.
from jax import export
explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
attend = lambda q, k, v: flashlift.jax.flash_attention(q, k, v, causal=True)
both = lambda *given: (attend(*given), jax.grad(lambda *g: (attend(*g) ** 2).sum(), (0, 1, 2))(*given))
qkv = normal(4, 24, 8, 8), normal(4, 24, 4, 8), normal(4, 24, 4, 8)
of_type = lambda length, x, by: jax.ShapeDtypeStruct((4, length, *x.shape[2:]), x.dtype, sharding=by)
for of_mesh in (mesh, explicit):
    by = NamedSharding(of_mesh, P("data", None, "model"))
    placed = [jax.device_put(x, by) for x in qkv]
    for length in (24, *export.symbolic_shape("s")):
        types = [of_type(length, x, by) for x in qkv]
        stored = export.export(jax.jit(both), disabled_checks=flashlift.jax.export_checks())(*types).serialize()
        assert_close(jax.jit(export.deserialize(stored).call)(*placed), both(*qkv))
# Within shard_map, nothing is gathered.
by = NamedSharding(mesh, P("data", None, "model"))
parts = jax.jit(jax.shard_map(attend, mesh=mesh, in_specs=by.spec, out_specs=by.spec))
exported = export.export(parts, disabled_checks=flashlift.jax.export_checks())(*[of_type(24, x, by) for x in qkv])
call, placed = jax.jit(export.deserialize(exported.serialize()).call), [jax.device_put(x, by) for x in qkv]
assert_close(call(*placed), attend(*qkv))
assert "all-gather" not in call.lower(*placed).compile().as_text()
print("agree")
"""


def test_by_shardy():
    run(HEAD + PROGRAM, "shardy")


def test_by_gspmd():
    run(HEAD + PROGRAM, "gspmd")


def test_functions_in_eager_shard_map():
    run(HEAD + EAGER, "shardy")


def test_fewer_key_value_heads_than_devices():
    run(HEAD + FEWER_HEADS, "shardy")


def test_shard_map_over_some_axes_of_an_explicit_mesh():
    run(HEAD + PARTLY_MANUAL, "shardy")


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_parts_of_axes(partitioner):
    run(HEAD + PARTS_OF_AXES, partitioner)


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_shard_map_over_some_axes(partitioner):
    run(HEAD + SOME_AXES, partitioner)


def test_exported():
    run(HEAD + EXPORTED, "shardy")


def test_meshes_that_calls_are_given():
    run(BY_MESH)


def test_explicit_axes_of_one_device_split_nothing():
    mesh = jax.make_mesh((1, 1), ("batch", "length"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 2, 8))
    layer = lambda q, k, v: flash_attention(q, k, v, causal=True)
    layers = lambda q, k, v: jax.lax.scan(lambda x, _: (layer(x, k, v), None), q, length=2)[0].sum()
    step = jax.value_and_grad(layers, (0, 1, 2))
    with jax.set_mesh(mesh):
        by_length, whole = jax.P("batch", "length"), jax.P()
        got = step(
            *(jax.device_put(one, spec) for one, spec in zip((q, k, v), (by_length, whole, by_length), strict=True))
        )
    for one, expected in zip(*map(jax.tree.leaves, (got, step(q, k, v))), strict=True):
        assert jnp.allclose(one, expected, atol=1e-5)
