"""Attention over four devices, as people split it, in JAX on the first platform of JAX_PLATFORMS: prints the largest
difference of each program from the same one on one device of the platform cpu, as JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, LENGTH, HEADS, DEPTH, WIDTH = 4, 32, 4, 16, 64
mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
HEADS_SPLIT = P("data", None, "model", None)


def constrain(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def causal(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def by_hand(q, k, v, annotate=lambda x, *_: x):
    """With annotations on all that stands between the operands and the output."""
    scores = annotate(jnp.einsum("bqhd,bkhd->bhqk", q, k) / DEPTH**0.5, "data", "model", None, None)
    probabilities = annotate(jax.nn.softmax(scores, axis=-1), "data", "model", None, None)
    return annotate(jnp.einsum("bhqk,bkhd->bqhd", probabilities, v), *HEADS_SPLIT)


def annotated(q, k, v):
    return by_hand(*(constrain(x, *HEADS_SPLIT) for x in (q, k, v)), constrain)


def gradient_of(function):
    def loss_gradient(q, k, v):
        return jax.grad(lambda *qkv: jnp.sum(jnp.sin(function(*qkv))), argnums=(0, 1, 2))(q, k, v)

    return loss_gradient


def layer(annotate):
    def apply(x, wq, wk, wv, wo):
        q, k, v = (annotate(jnp.einsum("bse,ehd->bshd", x, w), *HEADS_SPLIT) for w in (wq, wk, wv))
        return annotate(jnp.einsum("bshd,hde->bse", causal(q, k, v), wo), "data", None, None)

    return apply


def slopes(q, k, v, table):
    """A bias of each head's own, from a tensor and by positions."""
    distance = jnp.arange(LENGTH)[None, :] - jnp.arange(LENGTH)[:, None]
    bias = (table[:, None, None] * distance)[None]
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True)


RNG = np.random.default_rng(1)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


QKV = [draw(BATCH, LENGTH, HEADS, DEPTH) for _ in range(3)]
GROUPED = [QKV[0], *(draw(BATCH, LENGTH, 2, DEPTH) for _ in range(2))]
SHARED = [QKV[0], *(draw(BATCH, LENGTH, 1, DEPTH) for _ in range(2))]
WEIGHTS = [*(draw(WIDTH, HEADS, DEPTH) / 8 for _ in range(3)), draw(HEADS, DEPTH, WIDTH) / 8]
THREE = (HEADS_SPLIT,) * 3
ONE_HEAD = (HEADS_SPLIT, P("data"), P("data"))
split_map = jax.shard_map(causal, mesh=mesh, in_specs=THREE, out_specs=HEADS_SPLIT)

# name: split program, the same without a mesh, arguments, how these are split
PROGRAMS = {
    "arguments": (causal, causal, QKV, THREE),
    "grouped": (causal, causal, GROUPED, THREE),
    "shared_head": (causal, causal, SHARED, ONE_HEAD),
    "annotated": (annotated, by_hand, QKV, (P(), P(), P())),
    "gradient": (gradient_of(annotated), gradient_of(by_hand), QKV, THREE),
    "shard_map": (split_map, causal, QKV, THREE),
    "shard_map_gradient": (gradient_of(split_map), gradient_of(causal), QKV, THREE),
    "layer": (layer(constrain), layer(lambda x, *_: x), [draw(BATCH, LENGTH, WIDTH), *WEIGHTS],
              (P("data"), *(P(None, "model"),) * 3, P("model"))),
    "slopes": (slopes, slopes, [*QKV, np.float32([0.5, 0.25, 0.125, 0.0625])], (*THREE, P("model"))),
    # Those that stay.
    "sequence": (causal, causal, QKV, (P(None, "data"),) * 3),
    "unknown": (causal, causal, QKV, (P(), P(), P())),
}  # fmt: skip


def main():
    found = {}
    for name, (program, plain, arguments, specs) in PROGRAMS.items():
        placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(arguments, specs, strict=True)]
        program.__name__ = name
        split = jax.tree.leaves(jax.jit(program)(*placed))
        whole = jax.tree.leaves(jax.jit(plain)(*jax.device_put(arguments, jax.devices("cpu")[0])))
        found[name] = max(
            float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in zip(split, whole, strict=True)
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
