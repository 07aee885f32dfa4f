"""Training of Flax's linen over eight devices, by data and by heads: the losses are those of one device, and there are
no gathers. Prints the number of each kind of collective in a step.
"""

import re

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

HEADS, WIDTH, LENGTH = 8, 32, 24
COLLECTIVES = "all-gather all-reduce all-to-all collective-permute reduce-scatter".split()
MASK = nn.make_causal_mask(jnp.ones((1, LENGTH)))
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


class Model(nn.Module):
    options: dict
    reduce: bool = False  # within shard_map: sums over the devices that hold the other heads

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            heads = HEADS // mesh.shape["model"] if self.reduce else HEADS
            shape = {"num_heads": heads, "qkv_features": heads * 8, "deterministic": True, "use_bias": False}
            given = jax.lax.pcast(x, "model", to="varying") if self.reduce else x
            out = nn.MultiHeadDotProductAttention(**shape, out_features=WIDTH, **self.options)(given, given, mask=MASK)
            x = nn.LayerNorm()(x + (jax.lax.psum(out, "model") if self.reduce else out))
        return x


def spec_of(path, _):
    names = [one.key for one in path]
    return P("model") if "out" in names else P(None, "model") if "kernel" in names else P()


def loss_of(model):
    return lambda weights, x: ((model.apply(weights, x) - 1) ** 2).mean()


def train(loss, weights, x):
    def step(weights, x):
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda one, by: one - 0.3 * by, weights, slopes)

    step, losses = jax.jit(step), []
    text = step.lower(weights, x).compile().as_text()
    for _ in range(3):
        value, weights = step(weights, x)
        losses.append(float(value))
    found = {one: len(re.findall(rf" {one}(?:-start)?\(", text)) for one in COLLECTIVES}
    return losses, found, text.count('custom_call_target="flashlift.attention')


def main():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, LENGTH, WIDTH)), jnp.float32)
    plain, ours = {}, {"attention_fn": flashlift.jax.flax_attention_fn}
    weights = Model(plain).init(jax.random.key(0), x)
    expected, _, _ = train(loss_of(Model(plain)), weights, x)

    specs = jax.tree_util.tree_map_with_path(spec_of, weights)
    place = lambda one, spec: jax.device_put(one, NamedSharding(mesh, spec))
    placed = jax.tree.map(place, weights, specs), place(x, P("data"))

    def mapped(options):
        part = lambda weights, x: jax.lax.pmean(loss_of(Model(options, reduce=True))(weights, x), "data")
        return jax.shard_map(part, mesh=mesh, in_specs=(specs, P("data")), out_specs=P())

    # The gradient of a shard_map is another shard_map, so that both passes are found only if the function inside is
    # fused.
    fused = flashlift.jax.fuse(lambda q, k, v, mask: nn.dot_product_attention(q, k, v, mask=mask), strict=True)
    inner = {"attention_fn": lambda q, k, v, mask=None, **_: fused(q, k, v, mask)}
    programs = {
        "flax_attention_fn": loss_of(Model(ours)),
        "fuse": flashlift.jax.fuse(loss_of(Model(plain)), strict=True),
        "flax_attention_fn in shard_map": mapped(ours),
        "fuse in shard_map": mapped(inner),
    }
    for name, loss in programs.items():
        losses, found, calls = train(loss, *placed)
        print(f"{name}: {found}, {calls} calls")
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert calls >= 4 and not found["all-gather"] and not found["all-to-all"], name


if __name__ == "__main__":
    main()
