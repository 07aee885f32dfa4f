"""Compares the errors of f32 attention and its gradients with those of eager JAX, both against float64.

benchmarks/gradient_errors.py [--cases 200] [--seed 1]

Draws cases with sinks, a bias, grouped heads, causal masks and key lengths. Prints for each tensor the mean error in
units in the last place of its mean size, eager's and ours, and how ours compares: the median case and the worst one.
"""

import argparse
import collections

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")


def draw(rng):
    heads = int(rng.choice([1, 2, 4]))
    group = int(rng.choice([1, 1, 2, 4]))
    case = {
        "batch": int(rng.choice([1, 2])),
        "q_heads": heads * group,
        "kv_heads": heads,
        "q_len": int(rng.choice([16, 64, 200, 512])),
        "kv_len": int(rng.choice([16, 64, 200, 512])),
        "depth": int(rng.choice([16, 32, 64, 128])),
        "causal": bool(rng.random() < 0.4),
        "sinks": bool(rng.random() < 0.35),
        "bias": bool(rng.random() < 0.35),
        "lengths": bool(rng.random() < 0.35),
        "scale": float(rng.choice([0.0, 0.3, 1.0])),  # 0: 1 / sqrt(depth)
    }
    return case


def operands(case, rng):
    b, s, t, d = (case[name] for name in ("batch", "q_len", "kv_len", "depth"))
    shapes = {
        "q": (b, s, case["q_heads"], d),
        "k": (b, t, case["kv_heads"], d),
        "v": (b, t, case["kv_heads"], d),
    }
    if case["bias"]:
        shapes["bias"] = (1, case["q_heads"], s, t)
    if case["sinks"]:
        shapes["sinks"] = (case["q_heads"], 1)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    lengths = rng.integers(1, t + 1, b).astype(np.int32) if case["lengths"] else None
    d_out = rng.standard_normal((b, s, case["q_heads"], d)).astype(np.float32)
    return arrays, lengths, d_out


def kept(case, lengths):
    mask = np.ones((case["batch"], 1, case["q_len"], case["kv_len"]), bool)
    if case["causal"]:
        mask &= np.arange(case["q_len"])[:, None] >= np.arange(case["kv_len"])
    if lengths is not None:
        mask &= np.arange(case["kv_len"]) < lengths[:, None, None, None]
    return mask


def eager(case, mask, arrays):
    q, k, v = (arrays[name] for name in "qkv")
    group = case["q_heads"] // case["kv_heads"]
    k, v = (jnp.repeat(one, group, axis=2) for one in (k, v))
    scale = case["scale"] or case["depth"] ** -0.5
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.asarray(scale, q.dtype)
    if "bias" in arrays:
        s = s + arrays["bias"]
    s = jnp.where(mask, s, -jnp.inf)
    if "sinks" in arrays:
        sinks = jnp.broadcast_to(arrays["sinks"][None, :, None, :], (*s.shape[:3], arrays["sinks"].shape[-1]))
        p = jax.nn.softmax(jnp.concatenate([s, sinks], axis=-1), axis=-1)[..., : s.shape[-1]]
    else:
        p = jax.nn.softmax(s, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def ours(case, lengths, arrays):
    mask = None
    if lengths is not None:
        mask = jnp.arange(case["kv_len"])[None, None, None] < lengths[:, None, None, None]
    return flashlift.jax.flash_attention(
        arrays["q"],
        arrays["k"],
        arrays["v"],
        arrays.get("bias"),
        softmax_aux=arrays.get("sinks"),
        attention_mask=mask,
        softmax_scale=case["scale"] or None,
        causal=case["causal"],
    )


def results(function, arrays, d_out):
    @jax.jit
    def run(given):
        out, pull = jax.vjp(function, given)
        return {"out": out} | {f"d_{name}": one for name, one in pull(d_out)[0].items()}

    return {name: np.asarray(one, np.float64) for name, one in run(arrays).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", action="store_true", help="print the worst cases")
    options = parser.parse_args()
    errors = collections.defaultdict(list)
    for i in range(options.cases):
        rng = np.random.default_rng([options.seed, i])
        case = draw(rng)
        arrays, lengths, d_out = operands(case, rng)
        mask = kept(case, lengths)
        wide = {name: one.astype(np.float64) for name, one in arrays.items()}
        want = results(lambda given, c=case, m=mask: eager(c, m, given), wide, d_out.astype(np.float64))
        their = results(lambda given, c=case, m=mask: eager(c, m, given), arrays, d_out)
        own = results(lambda given, c=case, n=lengths: ours(c, n, given), arrays, d_out)
        for name, exact in want.items():
            unit = np.abs(exact).mean() * 2.0**-24
            of_eager, of_ours = (np.abs(one[name] - exact).mean() / unit for one in (their, own))
            errors[name].append((of_ours / max(of_eager, 1e-9), of_ours, of_eager, case))
    print(f"{'':8} {'eager':>8} {'ours':>8} {'median':>8} {'90 %':>8} {'worst':>8}   cases")
    for name, found in errors.items():
        ratios = np.array([one[0] for one in found])
        print(
            f"{name:8} {np.mean([one[2] for one in found]):8.2f} {np.mean([one[1] for one in found]):8.2f} "
            f"{np.median(ratios):8.2f} {np.quantile(ratios, 0.9):8.2f} {ratios.max():8.2f}   {len(found)}"
        )
    if options.worst:
        for name, found in errors.items():
            for ratio, of_ours, of_eager, case in sorted(found, key=lambda one: -one[0])[:4]:
                print(f"{name:8} {ratio:5.2f} {of_ours:6.2f} {of_eager:6.2f} {case}")


if __name__ == "__main__":
    main()
