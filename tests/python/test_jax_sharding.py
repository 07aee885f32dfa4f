"""Plain jax.jit of sharded arrays on eight devices: every device runs the kernel on what it holds."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from flashlift.jax import attention, flash_attention

if sys.argv[1] == "gspmd":
    jax.config.update("jax_use_shardy_partitioner", False)
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=1e-4)

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
slopes = normal(8)
check(lambda q, slopes: attention(q, q, q, score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j)),
      (normal(4, 24, 8, 8), slopes), [split, P("model")])
if sys.argv[1] == "shardy":
    text = "score_mod(t: f32[8]) { %0 = load t[h]; %1 = mul score, %0; return %1 }"
    check(lambda q, t: attention(q, q, q, text, captures=[t]), (normal(4, 24, 8, 8), slopes), [split, P("model")])
    check(lambda q: attention(q, q, q, "alibi"), (normal(4, 24, 8, 8),), [split], gathers=1)
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


def on_eight_devices(*arguments):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "agree\n", done.stderr


def test_by_shardy():
    on_eight_devices("shardy")


def test_by_gspmd():
    on_eight_devices("gspmd")


FUSED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import flashlift.jax

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
split = NamedSharding(mesh, P("data", None, "model"))

def attend(q):
    q = jax.lax.with_sharding_constraint(q, split)
    return jax.nn.dot_product_attention(q, q, q)

q = jnp.asarray(np.random.default_rng(0).standard_normal((4, 24, 8, 8)), jnp.float32)
fused = flashlift.jax.fuse(attend)
np.testing.assert_allclose(fused(q), jax.jit(attend)(q), atol=1e-6)
assert "8 devices" in fused.report.reason, fused.report
"""


def test_fuse_leaves_what_is_constrained_to_several_devices():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", FUSED], env=environment, check=True)
