"""Compares a Flax training step split over devices with Flashlift's attention, cuDNN's and Flax's own.

    python benchmarks/gpu/sharded_training.py [--devices N] [--length N] [--batch N] [--heads N] [--depth N]
        [--layers N] [--steps N] [--dtype bfloat16|float32] [--attention NAME]...

Each attention trains the same model on one device, then with the batch split over all devices (plain jit, and
shard_map), and with the heads split over all (plain jit). Prints the median time of a step, how far the last loss is
from that of one device, and how many collectives of the compiled step gather a tensor of four or more dimensions, as
q, k and v are. Exits with 1 where Flashlift's step gathers one, or its loss is off by more than the dtype explains.

With JAX_PLATFORMS=cpu and XLA_FLAGS=--xla_force_host_platform_device_count=8 it runs without a GPU.
"""

import argparse
import functools
import re
import statistics
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flashlift.jax import flax_attention_fn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

WORDS = 256


def cudnn(query, key, value, **_):
    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")


def flax_own(query, key, value, dtype=None, **_):
    length = query.shape[-3]
    keep = jnp.tril(jnp.ones((length, length), bool))
    return nn.dot_product_attention(query, key, value, mask=keep[None, None], dtype=dtype)


ATTENTIONS = {
    "flashlift": functools.partial(flax_attention_fn, is_causal=True),
    "cudnn": cudnn,
    "flax": flax_own,
}


class Model(nn.Module):
    heads: int
    depth: int
    layers: int
    dtype: jnp.dtype
    attention: str

    @nn.compact
    def __call__(self, tokens):
        width = self.heads * self.depth
        x = nn.Embed(WORDS, width, dtype=self.dtype)(tokens)
        x += nn.Embed(tokens.shape[1], width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        for layer in range(self.layers):
            attention = nn.MultiHeadDotProductAttention(
                self.heads, dtype=self.dtype, attention_fn=ATTENTIONS[self.attention], deterministic=True
            )
            x += attention(nn.LayerNorm(dtype=self.dtype)(x))
            hidden = nn.Dense(4 * width, dtype=self.dtype, name=f"up_{layer}")(nn.LayerNorm(dtype=self.dtype)(x))
            x += nn.Dense(width, dtype=self.dtype, name=f"down_{layer}")(nn.gelu(hidden))
        return nn.Dense(WORDS, dtype=self.dtype, name="words")(nn.LayerNorm(dtype=self.dtype)(x))


def spec_of(path, leaf):
    """As in Megatron: weights that produce heads and hidden units are split by their results, weights that read them by
    their operands."""
    names = "/".join(str(getattr(key, "key", key)) for key in path)
    if re.search(r"(query|key|value)/kernel", names):
        return P(None, "model", None)
    if re.search(r"(query|key|value)/bias", names):
        return P("model", None)
    if re.search(r"out/kernel", names):
        return P("model", None, None)
    if re.search(r"up_\d+/kernel", names):
        return P(None, "model")
    if re.search(r"up_\d+/bias", names):
        return P("model")
    if re.search(r"down_\d+/kernel", names):
        return P("model", None)
    return P(*[None] * leaf.ndim)


class Training:
    """The model, and the state from which its steps start."""

    def __init__(self, options, attention):
        self.options = options
        self.model = Model(options.heads, options.depth, options.layers, jnp.dtype(options.dtype), attention)
        rng = np.random.default_rng(0)
        # Each word follows from the two before it, so there is something to learn.
        words = [rng.integers(0, WORDS, (options.batch, 2))]
        for _ in range(options.length - 1):
            words.append((3 * words[-1][:, -1:] + words[-1][:, :1] + 1) % WORDS)
        self.tokens = np.concatenate(words, 1).astype(np.int32)[:, : options.length + 1]
        self.optimizer = optax.adamw(1e-3)
        self.weights = jax.jit(self.model.init)(jax.random.key(0), jnp.asarray(self.tokens[:, :-1]))

    def loss(self, weights, tokens):
        logits = self.model.apply(weights, tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(self, weights, state, tokens):
        loss, gradients = jax.value_and_grad(self.loss)(weights, tokens)
        updates, state = self.optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    def step_in_shard_map(self, mesh):
        def step(weights, state, tokens):
            def loss(weights):
                return jax.lax.pmean(self.loss(weights, tokens), "data")

            loss, gradients = jax.value_and_grad(loss)(weights)
            updates, state = self.optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state, loss

        return jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P())

    def run(self, mesh, weight_specs, step):
        """The loss after all steps, the median time of a step in ms, and its number of gathers of four dimensions."""
        place = lambda tree, specs: jax.tree.map(
            lambda one, spec: jax.device_put(one, NamedSharding(mesh, spec)), tree, specs
        )
        weights = place(self.weights, weight_specs)
        state = jax.jit(self.optimizer.init)(weights)
        tokens = jax.device_put(self.tokens, NamedSharding(mesh, P("data", None)))
        compiled = jax.jit(step).lower(weights, state, tokens).compile()
        gathers = len(re.findall(r"= \(?\w+\[\d+,\d+,\d+,\d+[^=]*all-gather", compiled.as_text()))
        times = []
        for _ in range(self.options.steps):
            begin = time.perf_counter()
            weights, state, loss = jax.block_until_ready(compiled(weights, state, tokens))
            times.append((time.perf_counter() - begin) * 1e3)
        return float(loss), statistics.median(times[1:] or times), gathers


def mesh_of(data, model):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def layouts(training, count):
    whole = jax.tree.map(lambda one: P(*[None] * one.ndim), training.weights)
    by_heads = jax.tree_util.tree_map_with_path(spec_of, training.weights)
    data = mesh_of(count, 1)
    yield "one device", mesh_of(1, 1), whole, training.step
    yield "batch, jit", data, whole, training.step
    yield "batch, shard_map", data, whole, training.step_in_shard_map(data)
    yield "heads, jit", mesh_of(1, count), by_heads, training.step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=0, help="how many to use; all where it is left out")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--attention", choices=ATTENTIONS, action="append")
    options = parser.parse_args()
    count = options.devices or jax.device_count()
    if options.batch % count or options.heads % count:
        parser.error(f"a batch of {options.batch} and {options.heads} heads do not divide among {count} devices")
    print(f"{count} x {jax.devices()[0].device_kind}")
    failed = False
    for attention in options.attention or ATTENTIONS:
        training = Training(options, attention)
        losses = []
        for name, mesh, specs, step in layouts(training, count):
            loss, ms, gathers = training.run(mesh, specs, step)
            losses.append(loss)
            off = abs(loss - losses[0]) / losses[0]
            # Sums over devices are rounded in another order, and steps follow one another.
            bad = attention == "flashlift" and (gathers > 0 or off > (2e-2 if options.dtype == "bfloat16" else 1e-3))
            failed |= bad
            print(
                f"{attention:9} {name:16} {ms:9.2f} ms a step, loss {loss:.5f} (off by {off:.1e}), {gathers} gathers"
                + ("  WRONG" if bad else ""),
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
