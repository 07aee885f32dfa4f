"""Attention over eight devices, as people split it, in JAX on the first platform of JAX_PLATFORMS: prints the largest
difference of each program from the same one on one device of the platform cpu, relative to the largest number there, as
JSON. With the argument "gspmd", GSPMD partitions them."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

if "gspmd" in sys.argv[1:]:
    jax.config.update("jax_use_shardy_partitioner", False)
# XLA takes half as long to compile, and the programs run only once.
QUICK = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
BATCH, LENGTH, HEADS, DEPTH, WIDTH = 4, 32, 8, 16, 64
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
HEADS_SPLIT = P("data", None, "model", None)


def constrain(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def causal(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def by_hand(q, k, v, annotate=lambda x, *_: x):
    """With annotations on every value between the operands and the output."""
    scores = annotate(jnp.einsum("bqhd,bkhd->bhqk", q, k) / DEPTH**0.5, "data", "model", None, None)
    probabilities = annotate(jax.nn.softmax(scores, axis=-1), "data", "model", None, None)
    return annotate(jnp.einsum("bhqk,bkhd->bqhd", probabilities, v), *HEADS_SPLIT)


def annotated(q, k, v):
    return by_hand(*(constrain(x, *HEADS_SPLIT) for x in (q, k, v)), constrain)


def gradient_of(function):
    def loss_gradient(*arguments):
        wanted = tuple(range(len(arguments)))
        return jax.grad(lambda *all: jnp.sum(jnp.sin(function(*all).astype(jnp.float32))), wanted)(*arguments)

    return loss_gradient


def placed_gradient(*arguments):
    """GSPMD would split two heads over four devices, which JAX refuses as the sharding of a result."""
    return tuple(constrain(each, "data") for each in gradient_of(causal)(*arguments))


def layer(annotate):
    def apply(x, wq, wk, wv, wo):
        q, k, v = (annotate(jnp.einsum("bse,ehd->bshd", x, w), *HEADS_SPLIT) for w in (wq, wk, wv))
        return annotate(jnp.einsum("bshd,hde->bse", causal(q, k, v), wo), "data", None, None)

    return apply


def unchanged(x, *_):
    return x


def slopes(q, k, v, table):
    """A bias with a slope per head, computed from a tensor and positions."""
    distance = jnp.arange(LENGTH)[None, :] - jnp.arange(LENGTH)[:, None]
    bias = (table[:, None, None] * distance)[None]
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True)


def biased(q, k, v, bias):
    return jax.nn.dot_product_attention(q, k, v, bias=bias)


def sunk(q, k, v, sinks):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DEPTH**0.5
    sinks = jnp.broadcast_to(sinks[None, :, None, None], (BATCH, HEADS, LENGTH, 1))
    probabilities = jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)


def alibi(q, k, v):
    """Slopes computed from head indices, and a window that widens with the batch index."""
    distance = jnp.arange(LENGTH)[None, :] - jnp.arange(LENGTH)[:, None]
    slope = 2.0 ** -(jnp.arange(HEADS, dtype=jnp.float32) + 1)
    window = (8 + jnp.arange(BATCH))[:, None, None, None]
    mask = (distance <= 0)[None, None] & (-distance[None, None] < window)
    return jax.nn.dot_product_attention(q, k, v, bias=(slope[:, None, None] * distance)[None], mask=mask)


def sunk_and_counted(q, k, v, sinks):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DEPTH**0.5
    scores += 0.01 * (jnp.arange(HEADS)[:, None, None] * jnp.arange(LENGTH))
    sinks = jnp.broadcast_to(sinks[None, :, None, None], (q.shape[0], HEADS, LENGTH, 1))
    probabilities = jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)


def shared_keys(q, k, v):
    """All batches read the same keys and values."""
    return jnp.einsum("bhqk,khd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,khd->bhqk", q, k) / 4, axis=-1), v)


RNG = np.random.default_rng(1)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


QKV = [draw(BATCH, LENGTH, HEADS, DEPTH) for _ in range(3)]
GROUPED = [QKV[0], *(draw(BATCH, LENGTH, 4, DEPTH) for _ in range(2))]
HALVED = [QKV[0], *(draw(BATCH, LENGTH, 2, DEPTH) for _ in range(2))]
SHARED = [QKV[0], *(draw(BATCH, LENGTH, 1, DEPTH) for _ in range(2))]
SHARED_KEYS = [QKV[0], *(draw(LENGTH, HEADS, DEPTH) for _ in range(2))]
WEIGHTS = [*(draw(WIDTH, HEADS, DEPTH) / 8 for _ in range(3)), draw(HEADS, DEPTH, WIDTH) / 8]
LAYER = [draw(BATCH, LENGTH, WIDTH), *WEIGHTS]
LAYER_OF_ONE_HEAD = [*LAYER[:2], *(draw(WIDTH, 1, DEPTH) / 8 for _ in range(2)), LAYER[4]]
SLOPES = 0.5 ** np.arange(1, HEADS + 1, dtype=np.float32)
THREE = (HEADS_SPLIT,) * 3
ONE_HEAD = (HEADS_SPLIT, P("data"), P("data"))
split_map = jax.shard_map(causal, mesh=mesh, in_specs=THREE, out_specs=HEADS_SPLIT)


def nested_map(q, k, v):
    """Batches by one shard_map, and heads by another one in it."""
    heads, batches = P(None, None, "model"), P("data")
    inner = jax.shard_map(causal, in_specs=(heads,) * 3, out_specs=heads, axis_names={"model"})
    return jax.shard_map(inner, mesh=mesh, in_specs=(batches,) * 3, out_specs=batches, axis_names={"data"})(q, k, v)


def some(function, wanted=1):
    """Batches by shard_map; the partitioner splits the rest over the other axis."""
    batches = P("data")

    def mapped(q, k, v, *rest):
        specs, result = (*(batches,) * 3, *(P() for _ in rest)), (batches,) * wanted if wanted > 1 else batches
        part = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=result, axis_names={"data"})
        return part(q, k, v, *rest)

    return mapped


def constrained(q, k, v):
    """Constraints over the axis that is not manual."""
    return causal(*(jax.lax.with_sharding_constraint(x, P(None, None, "model")) for x in (q, k, v)))


# name: the partitioned program, the same program without a mesh, the arguments, how the arguments are partitioned
PROGRAMS = {
    "arguments": (causal, causal, QKV, THREE),
    "grouped": (causal, causal, GROUPED, THREE),
    "shared_head": (causal, causal, SHARED, ONE_HEAD),
    "two_heads": (causal, causal, HALVED, ONE_HEAD),
    "annotated": (annotated, by_hand, QKV, (P(), P(), P())),
    "gradient": (gradient_of(annotated), gradient_of(by_hand), QKV, THREE),
    "shard_map": (split_map, causal, QKV, THREE),
    "nested_shard_map": (nested_map, causal, QKV, THREE),
    "shard_map_gradient": (gradient_of(split_map), gradient_of(causal), QKV, THREE),
    "layer": (layer(constrain), layer(unchanged), LAYER,
              (P("data"), *(P(None, "model"),) * 3, P("model"))),
    # The same devices split activations by their sequence, or by batches, and weights by heads.
    "sequence_parallel": (gradient_of(layer(unchanged)), gradient_of(layer(unchanged)), LAYER,
                          (P("data", "model"), *(P(None, "model"),) * 3, P("model"))),
    "sequence_parallel_shared_head": (layer(unchanged), layer(unchanged), LAYER_OF_ONE_HEAD,
                                      (P("data", "model"), P(None, "model"), P(), P(), P("model"))),
    "split_weights": (gradient_of(layer(unchanged)), gradient_of(layer(unchanged)), LAYER,
                      (P("model"), *(P(None, ("data", "model")),) * 3, P("model"))),
    "slopes": (slopes, slopes, [*QKV, SLOPES], (*THREE, P("model"))),
    # Gradients that are sums over several devices.
    "shared_head_gradient": (gradient_of(causal), gradient_of(causal), SHARED, ONE_HEAD),
    "two_heads_gradient": (placed_gradient, gradient_of(causal), HALVED, ONE_HEAD),
    "shared_head_bf16": (gradient_of(causal), gradient_of(causal), [jnp.bfloat16(x) for x in SHARED], ONE_HEAD),
    "shared_keys": (gradient_of(shared_keys), gradient_of(shared_keys), SHARED_KEYS,
                    (HEADS_SPLIT, P(None, "model"), P(None, "model"))),
    "slopes_gradient": (gradient_of(slopes), gradient_of(slopes), [*QKV, SLOPES], (*THREE, P("model"))),
    "bias_of_heads": (gradient_of(biased), gradient_of(biased), [*QKV, draw(1, HEADS, LENGTH, LENGTH)],
                      (*THREE, P(None, "model"))),
    "bias_of_batches": (gradient_of(biased), gradient_of(biased), [*QKV, draw(BATCH, 1, LENGTH, LENGTH)],
                        (*THREE, P("data"))),
    "bias_of_all": (gradient_of(biased), gradient_of(biased), [*QKV, draw(1, 1, LENGTH, LENGTH)], (*THREE, P())),
    "sinks_gradient": (gradient_of(sunk), gradient_of(sunk), [*QKV, draw(HEADS)], (*THREE, P("model"))),
    # Programs that count positions or heads of the whole tensor.
    "alibi": (gradient_of(alibi), gradient_of(alibi), QKV, THREE),
    "counted_sinks": (gradient_of(sunk_and_counted), gradient_of(sunk_and_counted), [*QKV, draw(HEADS)],
                      (*THREE, P("model"))),
    # Queries split along their sequence.
    "sequence": (causal, causal, QKV, (P(None, "data"),) * 3),
    "rows": (gradient_of(causal), gradient_of(causal), QKV, (P("data", "model"), P("data"), P("data"))),
    "rows_of_all": (gradient_of(alibi), gradient_of(alibi), QKV, (P(None, ("data", "model")), P(), P())),
    "rows_of_a_bias": (gradient_of(biased), gradient_of(biased), [*QKV, draw(1, HEADS, LENGTH, LENGTH)],
                       (P("data", "model"), P("data"), P("data"), P(None, None, "model"))),
    # shard_map over some axes, and the others by the partitioner.
    "some_axes": (some(causal), causal, QKV, THREE),
    "some_axes_constrained": (some(constrained), causal, QKV, (P("data"),) * 3),
    "some_axes_gradient": (some(gradient_of(causal), 3), gradient_of(causal), GROUPED, THREE),
    "gradient_of_some_axes": (gradient_of(some(causal)), gradient_of(causal), GROUPED, THREE),
    "some_axes_counted": (some(sunk_and_counted), sunk_and_counted, [*QKV, draw(HEADS)], (*THREE, P("model"))),
    # Attentions that stay unfused.
    "keys": (causal, causal, QKV, (P("data"), P("data", "model"), P("data", "model"))),
    "unknown": (causal, causal, QKV, (P(), P(), P())),
    "some_axes_unknown": (some(causal), causal, QKV, (P("data"),) * 3),
}  # fmt: skip


def main():
    found = {}
    for name, (program, plain, arguments, specs) in PROGRAMS.items():
        placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(arguments, specs, strict=True)]
        program.__name__ = name
        split = jax.tree.leaves(jax.jit(program, compiler_options=QUICK)(*placed))
        on_one = jax.device_put(arguments, jax.devices("cpu")[0])
        whole = jax.tree.leaves(jax.jit(plain, compiler_options=QUICK)(*on_one))
        pairs = [[np.asarray(each, np.float64) for each in pair] for pair in zip(split, whole, strict=True)]
        found[name] = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
