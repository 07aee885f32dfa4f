"""Attention in modules with annotations that split their tensors over devices. tests/python/test_pjrt.py runs some of
them.
"""

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = '  sdy.mesh @mesh = <["data"=2, "model"=2]>\n'
QKV, PLANE = "tensor<4x4x8x16xf32>", "tensor<4x4x8x8xf32>"


def sdy(sharding):
    return lambda result, value, type_: f"{result} = sdy.sharding_constraint {value} <@mesh, {sharding}> : {type_}"


def gspmd(sharding):
    return lambda result, value, type_: (
        f'{result} = stablehlo.custom_call @Sharding({value}) {{backend_config = "", mhlo.sharding = "{sharding}"}} '
        f": ({type_}) -> {type_}"
    )


def attention(annotate=None, partitions=1, q="", mesh=MESH, after="", k=""):
    """With an annotation on scores, probabilities and output, and one of the same kind on the first argument."""
    annotate = annotate or (lambda result, value, type_: f"{result} = stablehlo.optimization_barrier {value} : {type_}")
    return f"""
module @m attributes {{mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = 1 : i32}} {{
{mesh}  func.func public @main(%q: {QKV} {q}, %k: {QKV} {k}, %v: {QKV}) -> {QKV} {{
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3]
      : ({QKV}, {QKV}) -> {PLANE}
    {annotate("%1", "%0", PLANE)}
    %2 = stablehlo.exponential %1 : {PLANE}
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [3]
      : ({PLANE}, tensor<f32>) -> tensor<4x4x8xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> {PLANE}
    %5 = stablehlo.divide %2, %4 : {PLANE}
    {annotate("%6", "%5", PLANE)}
    %7 = stablehlo.dot_general %6, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]
      : ({PLANE}, {QKV}) -> {QKV}
    {annotate("%8", "%7", QKV)}
    {after}
    return %8 : {QKV}
  }}
}}
"""


def fuse(module):
    result = flashlift.stablehlo.fuse(module)
    assert len(result.candidates) == 1
    return result


def argument(sharding):
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


SPLIT = '[{"data"}, {"model"}, {}, {}]'


@pytest.mark.parametrize("annotate", [sdy(SPLIT), gspmd("{devices=[2,2,1,1]<=[4]}")], ids=["sdy", "gspmd"])
def test_one_partition(annotate):
    """With one partition the annotations have no effect. The output's annotation is kept."""
    result = fuse(attention(annotate))
    assert result.fused_count == 1
    assert result.module.count("flashlift.attention") == 1
    assert result.module.count('"sdy.sharding_constraint"') + result.module.count('"Sharding"') == 1
    assert "manual_computation" not in result.module


@pytest.mark.parametrize("sharding", [SPLIT, '[{"data", ?}, {"model", ?}p1, {?}, {}]'])
@pytest.mark.parametrize("how", ["annotations", "argument"])
def test_batches_and_heads(sharding, how):
    """The call moves into a manual computation, where each device has its own batches and heads."""
    if how == "annotations":
        after = f"%9 = sdy.sharding_constraint %q <@mesh, {sharding}> : {QKV}"
        result = fuse(attention(sdy(sharding), partitions=4, after=after))
    else:
        result = fuse(attention(partitions=4, q=argument(sharding)))
    assert result.fused_count == 1
    (line,) = (line for line in result.module.splitlines() if "flashlift.attention" in line)
    assert "attn b2 hq2 hkv2 sq8 skv8 dqk16 dv16" in line and "-> tensor<2x2x8x16xf32>" in line
    (line,) = (line for line in result.module.splitlines() if "sdy.manual_computation" in line)
    assert line.count(f"<@mesh, {SPLIT}>") == 4 and 'manual_axes{"data", "model"}' in line


def test_one_axis():
    result = fuse(attention(partitions=4, q=argument('[{}, {"data", "model"}, {}, {}]')))
    assert "attn b4 hq1 hkv1" in result.module


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"k": argument('[{}, {}, {"data"}, {}]')}, 'its keys are split along their sequence over the axes "data"'),
        ({"q": argument('[{}, {}, {"model"}, {}]'), "k": argument('[{}, {}, {"data"}, {}]')},
         "its keys are split along"),
        ({"q": argument('[{}, {}, {"data"}, {}]'), "k": argument('[{"data"}, {}, {}, {}]')},
         'the axis "data" splits batches of one operand and queries of another'),
        ({"q": argument('[{}, {}, {}, {"model"}]')}, 'its queries are split along their depth over the axes "model"'),
        ({}, "does not say that its queries, keys or values are split by batches or heads"),
        ({"q": argument('[{"data":(1)2}, {}, {}, {}]')}, "over whole axes of a mesh with a name"),
        ({"q": argument(SPLIT).replace("@mesh", 'mesh<["data"=2, "model"=2]>')}, "over whole axes of a mesh with a"),
        ({"q": argument(SPLIT), "mesh": '  sdy.mesh @mesh = <["data"=3, "model"=2]>\n', "partitions": 6},
         "has 4 batches that 3 devices cannot share evenly"),
        ({"mesh": "", "annotate": gspmd("{devices=[2,2,1,1]<=[4]}")}, "XLA cannot split a custom call; use Shardy"),
    ],
)  # fmt: skip
def test_stays(options, reason):
    module = attention(**{"partitions": 4, **options})
    result = fuse(module)
    assert result.module == module
    assert reason in result.candidates[0].reason


@pytest.mark.parametrize("k", ["", argument('[{}, {}, {"data"}, {}]')])
def test_queries(k):
    """Each device has its queries and all keys; if the keys are split like the queries, the partitioner gathers
    them."""
    result = fuse(attention(None, 4, argument('[{}, {"model"}, {"data"}, {}]'), k=k))
    assert result.fused_count == 1
    (line,) = (line for line in result.module.splitlines() if "sdy.manual_computation" in line)
    assert line.count('<@mesh, [{}, {"model"}, {"data"}, {}]>') == 2  # queries and output
    assert line.count('<@mesh, [{}, {"model"}, {}, {}]>') == 2
    assert "attn b4 hq2 hkv2 sq4 skv8" in result.module


def test_keys_split_by_depth_where_queries_are_split_by_heads():
    """As the projection of a key-value head that all query heads share. The partitioner gathers such keys."""
    by_depth = argument('[{"data"}, {}, {}, {"model"}]')
    result = fuse(attention(partitions=4, q=argument(SPLIT), k=by_depth))
    assert result.fused_count == 1
    assert "attn b2 hq2 hkv2" in result.module
    # Not if nothing else is split over these devices: they share the work of each head.
    result = fuse(attention(partitions=4, q=argument('[{"data"}, {}, {}, {}]'), k=by_depth))
    assert 'its keys are split along their depth over the axes "model"' in result.candidates[0].reason


@pytest.mark.parametrize("sharding", [SPLIT, '[{}, {"data"}, {}, {}]', '[{}, {"data", "model"}, {}, {}]'])
def test_key_value_heads_that_devices_cannot_share_evenly(sharding):
    """Each is repeated, so that a device has the heads that its queries read."""
    plain = attention(partitions=4, q=argument(sharding)).replace("tensor<4x4x8", "tensor<4x12x8")
    heads, keys = "tensor<4x12x8x16xf32>", "tensor<4x3x8x16xf32>"
    wider = "".join(
        f"""    %{name}3 = stablehlo.broadcast_in_dim %few_{name}, dims = [0, 1, 3, 4]
      : ({keys}) -> tensor<4x3x4x8x16xf32>
    %{name} = stablehlo.reshape %{name}3 : (tensor<4x3x4x8x16xf32>) -> {heads}
"""
        for name in "kv"
    )
    module = plain.replace(f"%k: {heads} , %v: {heads}", f"%few_k: {keys}, %few_v: {keys}")
    module = module.replace("    %0 = ", wider + "    %0 = ", 1)
    result = fuse(module)
    assert result.fused_count == 1, result.candidates
    assert ("hq3 hkv3" if '{"data", "model"}' in sharding else "hq6 hkv3") in result.module


def test_one_tensor_at_two_places_of_a_batch():
    """Of bias[b, b], a device has its own rows and all columns, which it indexes by the batch of the whole."""
    gather = f"""%i = stablehlo.iota dim = 0 : tensor<4x2xi32>
    %g = "stablehlo.gather"(%bias, %i) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1],
      start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = true, slice_sizes = array<i64: 1, 1>}}>
      : (tensor<4x4xf32>, tensor<4x2xi32>) -> tensor<4xf32>
    %everywhere = stablehlo.broadcast_in_dim %g, dims = [0] : (tensor<4xf32>) -> {PLANE}
    %biased = stablehlo.add %1, %everywhere : {PLANE}
    %2 = stablehlo.exponential %biased"""
    module = attention(partitions=4, q=argument('[{"data"}, {}, {}, {}]'))
    module = module.replace(f"%v: {QKV})", f"%v: {QKV}, %bias: tensor<4x4xf32>)")
    result = fuse(module.replace("%2 = stablehlo.exponential %1", gather))
    assert "first_b: i32[1]" in result.module and "stablehlo.constant" in result.module
    assert "dense<[0, 2]> : tensor<2xi32>" in result.module
    assert 'captures = "arg3 first_b"' in result.module and "arg3: f32[2,4]" in result.module


def test_one_batch_is_not_shared():
    """Otherwise only one device of two would have it."""
    result = fuse(attention(None, 4, argument(SPLIT)).replace("tensor<4x4x8", "tensor<1x4x8"))
    assert "attn b1 hq2 hkv2" in result.module and '[{}, {"model"}, {}, {}]' in result.module


def test_more_devices_than_a_number_can_say():
    mesh = '  sdy.mesh @mesh = <["data"=4294967296, "more"=4294967296]>\n'
    (candidate,) = fuse(attention(None, 4, argument('[{"data", "more"}, {}, {}, {}]'), mesh)).candidates
    assert "devices cannot share evenly" in candidate.reason


def test_composite_is_partitioned_as_before():
    result = flashlift.stablehlo.fuse(attention(partitions=4), fuse_as="composite")
    assert result.fused_count == 1


def test_shards_of_gspmd():
    """What shard_map gives without Shardy: the same on each device."""
    module = attention(partitions=4, mesh="")
    names = "qkv"
    shards = "\n".join(
        f'%{name} = stablehlo.custom_call @SPMDFullToShardShape(%whole_{name}) {{mhlo.sharding = "{{manual}}"}} '
        f": (tensor<8x8x8x16xf32>) -> {QKV}"
        for name in names
    )
    for name in names:
        module = module.replace(f"%{name}: {QKV}", f"%whole_{name}: tensor<8x8x8x16xf32>")
    module = module.replace("    %0 = ", shards + "\n    %0 = ", 1)
    assert fuse(module).fused_count == 1
    assert fuse(module.replace("{manual}", "{devices=[2,1,1,1,2]<=[4] last_tile_dims={manual}}")).fused_count == 0


def test_manual_computations_in_each_other():
    """Together they are over all axes, so that each device runs the attention on its own tensors."""
    text = attention(partitions=4)
    body = text[text.index("    %0 =") : text.index("    return")].replace("4x4", "2x2")
    half, part = QKV.replace("4x4", "2x4"), QKV.replace("4x4", "2x2")
    batches, heads = '<@mesh, [{"data"}, {}, {}, {}]>', '<@mesh, [{}, {"model"}, {}, {}]>'
    module = f"""
module @m attributes {{mhlo.num_partitions = 4 : i32}} {{
{MESH}  func.func public @main(%whole_q: {QKV}, %whole_k: {QKV}, %whole_v: {QKV}) -> {QKV} {{
    %out = sdy.manual_computation(%whole_q, %whole_k, %whole_v) in_shardings=[{batches}, {batches}, {batches}]
      out_shardings=[{batches}] manual_axes={{"data"}} (%half_q: {half}, %half_k: {half}, %half_v: {half}) {{
      %inner = sdy.manual_computation(%half_q, %half_k, %half_v) in_shardings=[{heads}, {heads}, {heads}]
        out_shardings=[{heads}] manual_axes={{"model"}} (%q: {part}, %k: {part}, %v: {part}) {{
{body}
        sdy.return %8 : {part}
      }} : ({half}, {half}, {half}) -> {half}
      sdy.return %inner : {half}
    }} : ({QKV}, {QKV}, {QKV}) -> {QKV}
    return %out : {QKV}
  }}
}}
"""
    assert fuse(module).fused_count == 1
    (candidate,) = fuse(module.replace('"model"=2]', '"model"=2, "third"=2]').replace("= 4 :", "= 8 :")).candidates
    assert "over only some of the mesh's axes" in candidate.reason


@pytest.mark.parametrize(
    ("of_argument", "inside"),
    [
        (SPLIT, ""),
        ('[{"data"}, {}, {}, {}]', '[{?}, {"model", ?}, {?}, {?}]'),
        (SPLIT, "[{?}, {?}, {?}, {?}]"),
    ],
)
def test_manual_computation_over_some_axes(of_argument, inside):
    """The call is split over the other axes, as arguments or constraints within say."""
    text = attention(partitions=4)
    body = text[text.index("    %0 =") : text.index("    return")].replace("4x4", "2x4")
    half, batches = QKV.replace("4x4", "2x4"), '<@mesh, [{"data", ?}, {?}, {?}, {?}]>'
    if inside:
        body = f"%by = sdy.sharding_constraint %q <@mesh, {inside}> : {half}\n" + body.replace("%q", "%by")
    module = f"""
module @m attributes {{mhlo.num_partitions = 4 : i32}} {{
{MESH}  func.func public @main(%whole_q: {QKV} {argument(of_argument)},
      %whole_k: {QKV}, %whole_v: {QKV}) -> {QKV} {{
    %out = sdy.manual_computation(%whole_q, %whole_k, %whole_v) in_shardings=[{batches}, {batches}, {batches}]
      out_shardings=[{batches}] manual_axes={{"data"}} (%q: {half}, %k: {half}, %v: {half}) {{
{body}
      sdy.return %8 : {half}
    }} : ({QKV}, {QKV}, {QKV}) -> {QKV}
    return %out : {QKV}
  }}
}}
"""
    result = fuse(module)
    assert result.fused_count == 1 and "attn b2 hq2 hkv2" in result.module
    (line,) = (line for line in result.module.splitlines() if 'manual_axes{"model"}' in line)
    assert line.count('<@mesh, [{}, {"model"}, {}, {}]>') == 4


@pytest.mark.parametrize("checkpoint", [lambda f: f, jax.checkpoint], ids=["stored", "checkpoint"])
@pytest.mark.parametrize(
    "of_x, of_weights, shape",
    [
        (P("data"), P(), "b1 hq4 hkv4 sq8"),
        (P(None, "data"), P(), "b4 hq4 hkv4 sq2"),
        (P(), P(None, None, None, "data"), "b4 hq1 hkv1 sq8"),
    ],
    ids=["batches", "queries", "heads"],
)
def test_gradients_of_loops_over_layers(of_x, of_weights, shape, checkpoint):
    """The backward loop reads stored tensors, which start as zeros, and slices of all layers' weights."""
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def layer(x, weights):
        q, k, v = jnp.einsum("bse,nehd->nbhsd", x, weights)
        p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k))
        return x + jnp.einsum("bhqk,bhkd->bqhd", p, v).reshape(x.shape), None

    def loss(weights, x):
        return jnp.sum(jnp.sin(jax.lax.scan(checkpoint(layer), x, weights)[0]))

    shapes = [
        jax.ShapeDtypeStruct(sizes, "float32", sharding=NamedSharding(mesh, spec))
        for sizes, spec in [((2, 3, 16, 4, 4), of_weights), ((4, 8, 16), of_x)]
    ]
    module = jax.jit(jax.grad(loss)).trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()
    result = flashlift.stablehlo.fuse(module, gradients=True)
    assert [(each.fused, " lse" in each.problem) for each in result.candidates] == [(True, False), (True, True)], result
    assert result.module.count(f"attn {shape}") == 3, "two forward passes and a backward pass"


def test_gradients_of_loops_on_explicit_meshes():
    """JAX annotates what the loops count, store and read."""
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))

    def layer(x, weights):
        q, k, v = (jnp.einsum("bse,ehd->bhsd", x, weight) for weight in weights)
        p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k))
        return x + jnp.einsum("bhqk,bhkd->bqhd", p, v).reshape(x.shape), None

    def loss(weights, x):
        return jnp.sum(jnp.sin(jax.lax.scan(layer, x, weights)[0]))

    shapes = [
        jax.ShapeDtypeStruct(sizes, "float32", sharding=NamedSharding(mesh, spec))
        for sizes, spec in [((4, 3, 16, 4, 4), P()), ((4, 8, 16), P("data"))]
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(jax.grad(loss)).trace(*shapes).lower(lowering_platforms=("cpu",))
    module = lowered.as_text()
    assert "tensor<4x4x4x8x8xf32>" in module, "the scores of all layers"
    result = flashlift.stablehlo.fuse(module, gradients=True)
    found = [(each.fused, " lse" in each.problem) for each in result.candidates]
    assert found == [(True, False), (True, True)], result
    assert "4x4x8x8xf32>" not in result.module
    assert result.module.count('manual_axes{"data"}') == 3, "two forward passes and a backward pass"


def test_annotations_that_are_still_read():
    """Scores that another operation also reads keep their annotation, and the attention stays unfused."""
    module = (
        attention(sdy(SPLIT), partitions=1)
        .replace(f"return %8 : {QKV}", f"%9 = stablehlo.sine %1 : {PLANE}\n return %8, %9 : {QKV}, {PLANE}")
        .replace(f"-> {QKV} {{\n", f"-> ({QKV}, {PLANE}) {{\n")
    )
    assert fuse(module).module == module
