"""Ways to write attention in JAX, beyond those of libraries. Each function returns a function and its arguments. All of
them must be found and fused, with the same results; see test_spellings.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

R = np.random.default_rng(1)
CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def f32(*shape):
    return jnp.asarray(R.standard_normal(shape), jnp.float32)


def qkv(B=2, H=4, Hk=4, S=20, T=24, D=16, Dv=16, lay="bshd", dt=jnp.float32):
    """q, k and v of these sizes, laid out as B, S, H, D or B, H, S, D."""

    def shape(h, s, d):
        return (B, s, h, d) if lay == "bshd" else (B, h, s, d)

    return [jnp.asarray(R.standard_normal(x), dt) for x in (shape(H, S, D), shape(Hk, T, D), shape(Hk, T, Dv))]


@case
def logsumexp_softmax():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        p = jnp.exp(s - jax.scipy.special.logsumexp(s, axis=-1, keepdims=True))
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v)


@case
def softmax_where():
    q, k, v = qkv()
    m = jnp.asarray(R.random((2, 1, 20, 24)) > 0.3)

    def f(q, k, v, m):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        p = jax.nn.softmax(s, axis=-1, where=m)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v, m)


@case
def softmax_where_inf():
    q, k, v = qkv()
    m = jnp.asarray(R.random((2, 1, 20, 24)) > 0.3)

    def f(q, k, v, m):
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, -jnp.inf)
        p = jax.nn.softmax(s, axis=-1, where=m)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v, m)


@case
def off_by_one():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        m = jnp.maximum(s.max(-1, keepdims=True), 0.0)
        e = jnp.exp(s - m)
        return jnp.einsum("bhqk,bkhd->bqhd", e / (jnp.exp(-m) + e.sum(-1, keepdims=True)), v)

    return f, (q, k, v)


@case
def swin_v2_cosine():
    q, k, v = qkv(T=20)
    ls = f32(4, 1, 1)
    tab = f32(39 * 2, 4)
    idx = jnp.asarray(R.integers(0, 78, (20, 20)))

    def f(q, k, v, ls, tab, idx):
        n = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        s = jnp.einsum("bqhd,bkhd->bhqk", n(q), n(k)) * jnp.exp(jnp.minimum(ls, 4.6))
        b = 16 * jax.nn.sigmoid(tab[idx.reshape(-1)].reshape(20, 20, 4).transpose(2, 0, 1))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s + b[None], -1), v)

    return f, (q, k, v, ls, tab, idx)


@case
def swin_window_mask():
    q = f32(6, 3, 16, 8)
    k = f32(6, 3, 16, 8)
    v = f32(6, 3, 16, 8)
    mask = f32(2, 16, 16)
    bias = f32(3, 16, 16)

    def f(q, k, v, mask, bias):
        s = (q * 8**-0.5) @ k.swapaxes(-1, -2) + bias[None]
        s = (s.reshape(3, 2, 3, 16, 16) + mask[None, :, None]).reshape(6, 3, 16, 16)
        return jax.nn.softmax(s, -1) @ v

    return f, (q, k, v, mask, bias)


@case
def transformer_xl():
    q, k, v = qkv(T=20)
    u = f32(4, 16)
    w = f32(4, 16)
    r = f32(20, 4, 16)

    def f(q, k, v, u, w, r):
        ac = jnp.einsum("bqhd,bkhd->bhqk", q + u, k)
        bd = jnp.einsum("bqhd,khd->bhqk", q + w, r)
        # rel shift
        b, h, a, c = bd.shape
        bd = jnp.pad(bd, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(b, h, c + 1, a)[:, :, 1:].reshape(b, h, a, c)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax((ac + bd) * 0.25, -1), v)

    return f, (q, k, v, u, w, r)


@case
def deberta_like():
    q, k, v = qkv(T=20)
    pk = f32(40, 4, 16)

    def f(q, k, v, pk):
        c = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        c2p = jnp.einsum("bqhd,rhd->bhqr", q, pk)
        rel = jnp.clip(jnp.arange(20)[:, None] - jnp.arange(20)[None] + 20, 0, 39)
        c = c + jnp.take_along_axis(c2p, jnp.broadcast_to(rel[None, None], (2, 4, 20, 20)), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(c / 7.0, -1), v)

    return f, (q, k, v, pk)


@case
def gqa_tile():
    q, k, v = qkv(Hk=2)

    def f(q, k, v):
        k = jnp.tile(k, (1, 1, 2, 1))
        v = jnp.tile(v, (1, 1, 2, 1))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def gqa_repeat_bhsd():
    q, k, v = qkv(Hk=2, lay="bhsd")

    def f(q, k, v):
        k = jnp.repeat(k, 2, 1)
        v = jnp.repeat(v, 2, 1)
        s = q @ k.swapaxes(2, 3) * 0.25
        s = jnp.where(jnp.arange(20)[:, None] >= jnp.arange(24)[None] - 4, s, jnp.finfo(s.dtype).min)
        return jax.nn.softmax(s, -1) @ v

    return f, (q, k, v)


@case
def gqa_group_q_bkgsd():
    q = f32(2, 2, 3, 20, 16)
    k = f32(2, 2, 24, 16)
    v = f32(2, 2, 24, 8)

    def f(q, k, v):
        s = jnp.einsum("bkgsd,bktd->bkgst", q, k) * 0.25
        s = jnp.where(jnp.tril(jnp.ones((20, 24), bool), 4), s, -1e9)
        return jnp.einsum("bkgst,bkte->bskge", jax.nn.softmax(s, -1), v).reshape(2, 20, 48)

    return f, (q, k, v)


@case
def mla_192_128():
    q = f32(1, 10, 2, 48)
    k = f32(1, 10, 2, 32)
    kr = f32(1, 10, 1, 16)
    v = f32(1, 10, 2, 32)

    def f(q, k, kr, v):
        kk = jnp.concatenate([k, jnp.broadcast_to(kr, (1, 10, 2, 16))], -1)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, kk) * 48**-0.5
        s = jnp.where(jnp.arange(10)[:, None] < jnp.arange(10)[None], -jnp.inf, s)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, kr, v)


@case
def mla_split_scores():
    q = f32(1, 10, 2, 32)
    qr = f32(1, 10, 2, 16)
    k = f32(1, 10, 2, 32)
    kr = f32(1, 10, 16)
    v = f32(1, 10, 2, 32)

    def f(q, qr, k, kr, v):
        s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.einsum("bqhd,bkd->bhqk", qr, kr)) * 48**-0.5
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, qr, k, kr, v)


@case
def gpt2_where_causal_then_mask():
    q, k, v = qkv(T=20, lay="bhsd")
    am = jnp.asarray(R.integers(0, 2, (2, 20)))

    def f(q, k, v, am):
        s = q @ k.swapaxes(-1, -2) / jnp.sqrt(jnp.float32(16))
        c = jnp.tril(jnp.ones((1, 1, 20, 20), jnp.uint8)).astype(bool)
        s = jnp.where(c, s, jnp.finfo(jnp.float32).min)
        s = s + (1.0 - am[:, None, None, :].astype(jnp.float32)) * -10000.0
        return jax.nn.softmax(s, -1) @ v

    return f, (q, k, v, am)


@case
def llama_additive_4d():
    q, k, v = qkv(T=20, lay="bhsd")
    am = jnp.asarray(R.integers(0, 2, (2, 20)))

    def f(q, k, v, am):
        s = q @ k.swapaxes(-1, -2) * 0.25
        mn = jnp.finfo(jnp.float32).min
        c = jnp.triu(jnp.full((20, 20), mn), 1)[None, None]
        pad = (c + am[:, None, None, :]) == 0
        mask = jnp.where(pad, mn, c)
        s = s + mask
        p = jax.nn.softmax(s.astype(jnp.float32), -1).astype(q.dtype)
        return (p @ v).swapaxes(1, 2).reshape(2, 20, 64)

    return f, (q, k, v, am)


@case
def bf16_f32softmax():
    q, k, v = qkv(dt=jnp.bfloat16)

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        p = jax.nn.softmax(s.astype(jnp.float32), -1).astype(jnp.bfloat16)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v)


@case
def f16_upcast_all():
    q, k, v = qkv(dt=jnp.float16)

    def f(q, k, v):
        q, k, v = [x.astype(jnp.float32) for x in (q, k, v)]
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v).astype(jnp.float16)

    return f, (q, k, v)


@case
def sliding_and_sinks_tokens():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        i = jnp.arange(20)[:, None]
        j = jnp.arange(20)[None]
        m = ((i - j < 8) & (j <= i)) | (j < 4)
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def block_diag():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        i = jnp.arange(20)[:, None] // 5
        j = jnp.arange(20)[None] // 5
        s = jnp.where(i == j, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def dilated():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        i = jnp.arange(20)[:, None]
        j = jnp.arange(20)[None]
        m = ((i - j) % 3 == 0) & (i >= j)
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def eagle3():
    q, k, v = qkv(S=12, T=36)
    L = jnp.asarray([12, 7])

    def f(q, k, v, L):
        qi = jnp.arange(12)[None, :, None]
        ki = jnp.arange(36)[None, None]
        c = (qi >= ki) & (ki < L[:, None, None])
        suf = (ki >= 12) & ((ki % 12) < L[:, None, None]) & ((ki - qi) % 12 == 0)
        s = jnp.where((c | suf)[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, L)


@case
def multi_sinks():
    q, k, v = qkv(T=20)
    sk = f32(4, 3)

    def f(q, k, v, sk):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        logits = jnp.concatenate([jnp.broadcast_to(sk[None, :, None], (2, 4, 20, 3)), s], -1)
        p = jax.nn.softmax(logits, -1)[..., 3:]
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v, sk)


@case
def learned_head_scale():
    q, k, v = qkv()
    g = f32(4)

    def f(q, k, v, g):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jax.nn.softplus(g)[None, :, None, None]
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, g)


@case
def exp2_softmax():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (0.25 * 1.44269504)
        e = jnp.exp2(s - s.max(-1, keepdims=True))
        return jnp.einsum("bhqk,bkhd->bqhd", e, v) / e.sum(-1).transpose(0, 2, 1)[..., None]

    return f, (q, k, v)


@case
def recip_mul():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
        return jnp.einsum("bhqk,bkhd->bqhd", e * (1 / e.sum(-1, keepdims=True)), v)

    return f, (q, k, v)


@case
def divide_after_recip_mul():
    q, k, v = qkv(lay="bhsd")

    def f(q, k, v):
        s = q @ k.swapaxes(2, 3) * 0.25
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return (e @ v) * (1 / e.sum(-1, keepdims=True))

    return f, (q, k, v)


@case
def scores_transposed():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bkhd,bqhd->bkqh", k, q) * 0.25
        p = jax.nn.softmax(s, axis=1)
        return jnp.einsum("bkqh,bkhd->bqhd", p, v)

    return f, (q, k, v)


@case
def linen_dpa_bias_dtype():
    q, k, v = qkv()
    b = f32(1, 4, 20, 24)

    def f(q, k, v, b):
        s = jnp.einsum("...qhd,...khd->...hqk", q / jnp.sqrt(16.0), k) + b
        s = jnp.where(jnp.ones((2, 1, 20, 24), bool), s, jnp.finfo(s.dtype).min)
        return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(s).astype(q.dtype), v)

    return f, (q, k, v, b)


@case
def decode_gqa_bhsd():
    q, k, v = qkv(S=1, Hk=2, H=6, lay="bhsd")
    p = jnp.int32(9)

    def f(q, k, v, p):
        k = jnp.repeat(k, 3, 1)
        v = jnp.repeat(v, 3, 1)
        s = q @ k.swapaxes(2, 3) * 0.25
        s = jnp.where(jnp.arange(24) <= p, s, -jnp.inf)
        return jax.nn.softmax(s, -1) @ v

    return f, (q, k, v, p)


@case
def decode_no_q_axis():
    q = f32(2, 4, 16)
    k = f32(2, 24, 4, 16)
    v = f32(2, 24, 4, 16)
    L = jnp.asarray([5, 24])

    def f(q, k, v, L):
        s = jnp.einsum("bhd,bthd->bht", q, k) * 0.25
        s = jnp.where(jnp.arange(24)[None, None] < L[:, None, None], s, -1e30)
        return jnp.einsum("bht,bthd->bhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, L)


@case
def dyn_window_offset():
    q, k, v = qkv(T=24)
    off = jnp.int32(4)

    def f(q, k, v, off):
        i = jnp.arange(20)[:, None] + off
        j = jnp.arange(24)[None]
        s = jnp.where((j <= i) & (i - j < 6), jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, off)


@case
def relpos_dynslice_table():
    q, k, v = qkv(T=20)
    tab = f32(4, 39)

    def f(q, k, v, tab):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        idx = jnp.arange(20)[None] - jnp.arange(20)[:, None] + 19
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s + tab[:, idx], -1), v)

    return f, (q, k, v, tab)


@case
def softcap_then_mask_mul():
    q, k, v = qkv(T=20)
    m = jnp.asarray(R.random((2, 20)) > 0.3)

    def f(q, k, v, m):
        s = 30 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 / 30)
        e = jnp.exp(s - s.max(-1, keepdims=True)) * m[:, None, None].astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)

    return f, (q, k, v, m)


@case
def safe_zero_rows():
    q, k, v = qkv(T=20)
    m = jnp.asarray(R.random((2, 1, 20, 20)) > 0.9)

    def f(q, k, v, m):
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -jnp.inf)
        p = jax.nn.softmax(s, -1)
        p = jnp.where(m.any(-1, keepdims=True), p, 0.0)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v, m)


@case
def nan_to_num():
    q, k, v = qkv(T=20)
    m = jnp.asarray(R.random((2, 1, 20, 20)) > 0.9)

    def f(q, k, v, m):
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -jnp.inf)
        p = jnp.nan_to_num(jax.nn.softmax(s, -1))
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return f, (q, k, v, m)


@case
def maximum_tiny_denominator():
    q, k, v = qkv(T=20)
    m = jnp.asarray(R.random((2, 1, 20, 20)) > 0.9)

    def f(q, k, v, m):
        s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -jnp.inf)
        mx = s.max(-1, keepdims=True)
        mx = jnp.where(jnp.isfinite(mx), mx, 0)
        e = jnp.exp(s - mx)
        return jnp.einsum("bhqk,bkhd->bqhd", e / jnp.maximum(e.sum(-1, keepdims=True), 1e-9), v)

    return f, (q, k, v, m)


@case
def eps_denominator():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return jnp.einsum("bhqk,bkhd->bqhd", e / (e.sum(-1, keepdims=True) + 1e-9), v)

    return f, (q, k, v)


@case
def cached_concat_kv():
    q = f32(2, 3, 4, 16)
    k = f32(2, 3, 4, 16)
    v = f32(2, 3, 4, 16)
    ck = f32(2, 10, 4, 16)
    cv = f32(2, 10, 4, 16)

    def f(q, k, v, ck, cv):
        k = jnp.concatenate([ck, k], 1)
        v = jnp.concatenate([cv, v], 1)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = jnp.where(jnp.arange(13)[None] <= jnp.arange(3)[:, None] + 10, s, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, ck, cv)


@case
def fused_qkv_split_heads():
    x = f32(2, 20, 3 * 64)

    def f(x):
        q, k, v = jnp.split(x, 3, -1)
        h = lambda t: t.reshape(2, 20, 4, 16).transpose(0, 2, 1, 3)
        q, k, v = h(q), h(k), h(v)
        s = q @ k.swapaxes(2, 3) / 4.0
        return (jax.nn.softmax(s, -1) @ v).transpose(0, 2, 1, 3).reshape(2, 20, 64)

    return f, (x,)


@case
def q_len_one_mha():
    q, k, v = qkv(S=1)

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def x_shared_qkv():
    x = f32(2, 20, 16)

    def f(x):
        return jax.nn.softmax(x @ x.swapaxes(1, 2) / 4, -1) @ x

    return f, (x,)


@case
def batch_mask_only():
    q = f32(20, 4, 16)
    k = f32(24, 4, 16)
    v = f32(24, 4, 16)
    m = jnp.asarray(R.random((3, 24)) > 0.4)

    def f(q, k, v, m):
        def one(m):
            s = jnp.einsum("qhd,khd->hqk", q, k) * 0.25
            return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(m[None, None], s, -1e30), -1), v)

        return jax.vmap(one)(m)

    return f, (q, k, v, m)


@case
def int64ish_arange_f():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        i = jnp.arange(20, dtype=jnp.float32)
        d = jnp.abs(i[:, None] - i[None])
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 - 0.1 * d
        s = jnp.where(d <= 6.0, s, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def eye_excluded():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = jnp.where(jnp.eye(20, dtype=bool), -5e4, s)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def gaussian_bias():
    q, k, v = qkv()
    width = f32(4)

    def f(q, k, v, width):
        d = (jnp.arange(20)[:, None] - jnp.arange(24)[None]).astype(jnp.float32)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = s - jnp.square(d * width[:, None, None]) + jax.scipy.special.erf(d / 4)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, width)


@case
def squared_scores():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.square(s), -1), v)

    return f, (q, k, v)


@case
def topk_mask_scores():
    q, k, v = qkv(T=24)

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = jnp.where(s > 0.5, s, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def rope_inside():
    q, k, v = qkv(T=20)

    def f(q, k, v):
        t = jnp.arange(20)[:, None] * jnp.exp(-jnp.arange(8) / 8.0)[None]
        c, s_ = jnp.cos(t)[None, :, None], jnp.sin(t)[None, :, None]
        rot = lambda x: jnp.concatenate([x[..., :8] * c - x[..., 8:] * s_, x[..., 8:] * c + x[..., :8] * s_], -1)
        s = jnp.einsum("bqhd,bkhd->bhqk", rot(q), rot(k)) * 0.25
        s = jnp.where(jnp.tril(jnp.ones((20, 20), bool)), s, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


@case
def jaxnn_lse_mask():
    q, k, v = qkv()

    def f(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, return_residual=True)

    return f, (q, k, v)


@case
def lse_manual_bhq():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        lse = jax.nn.logsumexp(s, -1)
        return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - lse[..., None]), v), lse

    return f, (q, k, v)


@case
def output_gated():
    q, k, v = qkv()
    g = f32(2, 20, 4, 16)

    def f(q, k, v, g):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v) * jax.nn.sigmoid(g)

    return f, (q, k, v, g)


def beside_a_sink(q, k, v, sink):
    """A softmax over the keys and one further logit per head."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    logits = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None], (2, 4, 20, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, -1)[..., :-1], v)


@case
def sinks_bf16():
    q, k, v = qkv(dt=jnp.bfloat16)
    return beside_a_sink, (q, k, v, f32(4).astype(jnp.bfloat16))


@case
def sinks_computed():
    q, k, v = qkv()
    return lambda q, k, v, sink: beside_a_sink(q, k, v, jnp.tanh(sink) * 2), (q, k, v, f32(4))


@case
def zero_logit_padded():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.pad(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, ((0, 0), (0, 0), (0, 0), (1, 0)))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1)[..., 1:], v)

    return f, (q, k, v)


@case
def one_added_to_the_sum():
    q, k, v = qkv()

    def f(q, k, v):
        e = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25)
        return jnp.einsum("bhqk,bkhd->bqhd", e / (1 + e.sum(-1, keepdims=True)), v)

    return f, (q, k, v)


@case
def keys_of_an_image():
    q = f32(2, 20, 4, 16)
    k = f32(2, 4, 6, 4, 16)
    v = f32(2, 6, 4, 4, 8)

    def f(q, k, v):
        p = jax.nn.softmax(jnp.einsum("bqhd,bxyhd->bhqxy", q, k) * 0.25, (-1, -2))
        return jnp.einsum("bhqxy,byxhd->bqhd", p, v)

    return f, (q, k, v)


@case
def biases_of_rows_and_columns():
    q, k, v = qkv()
    rows = f32(20, 4)
    columns = f32(20, 6)

    def f(q, k, v, rows, columns):
        s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25).reshape(2, 4, 20, 4, 6)
        s = (s + rows[:, :, None] + columns[:, None]).reshape(2, 4, 20, 24)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v, rows, columns)


@case
def biases_of_queries_with_tables():
    q, k, v = qkv()
    rows = f32(4, 16)
    columns = f32(6, 16)

    def f(q, k, v, rows, columns):
        s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25).reshape(2, 4, 20, 4, 6)
        s = s + jnp.einsum("bqhd,xd->bhqx", q, rows)[..., None] + jnp.einsum("bqhd,yd->bhqy", q, columns)[..., None, :]
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s.reshape(2, 4, 20, 24), -1), v)

    return f, (q, k, v, rows, columns)


@case
def keys_in_another_order():
    q, k, v = qkv()

    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = s.reshape(2, 4, 20, 4, 6).swapaxes(3, 4).reshape(2, 4, 20, 24)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (q, k, v)


# Near misses: each differs from attention in one thing, and must stay unfused.
NEAR_MISSES = {}


def near_miss(change):
    """`change(s, v, ...)` computes the output from the scores [b, h, q, k] and the values [b, k, h, d]."""

    def make():
        q, k, v = qkv(T=20)

        def f(q, k, v):
            return change(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, v)

        return f, (q, k, v)

    NEAR_MISSES[change.__name__] = make
    return change


def weigh(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@near_miss
def other_shift_above_than_below(s, v):
    m = s.max(-1, keepdims=True)
    return weigh(jnp.exp(s - m) / jnp.exp(s - m / 2).sum(-1, keepdims=True), v)


@near_miss
def other_temperature_above_than_below(s, v):
    return weigh(jnp.exp(s) / jnp.exp(2 * s).sum(-1, keepdims=True), v)


@near_miss
def rows_scaled(s, v):
    return weigh(jax.nn.softmax(s, -1) * s.max(-1, keepdims=True), v)


@near_miss
def scaled_by_the_square_of_the_sum(s, v):
    e = jnp.exp(s)
    return weigh(e / e.sum(-1, keepdims=True) ** 2, v)


@near_miss
def mixed_heads(s, v):
    return weigh(jax.nn.softmax(s + s[:, ::-1], -1), v)


@near_miss
def neighbouring_scores(s, v):
    return weigh(jax.nn.softmax(s + jnp.roll(s, 1, -1), -1), v)


@near_miss
def sum_of_half_the_keys(s, v):
    e = jnp.exp(s)
    return weigh(e / e[..., :10].sum(-1, keepdims=True), v)


@near_miss
def reversed_probabilities(s, v):
    return weigh(jax.nn.softmax(s, -1)[..., ::-1], v)


@near_miss
def transposed_probabilities(s, v):
    return weigh(jax.nn.softmax(s, -1).swapaxes(2, 3), v)


@near_miss
def sparsified_probabilities(s, v):
    p = jax.nn.softmax(s, -1)
    return weigh(jnp.where(p > 0.05, p, 0.0), v)


@near_miss
def rows_dropped_for_another_reason(s, v):
    return weigh(jnp.where(s.max(-1, keepdims=True) > 1.0, jax.nn.softmax(s, -1), 0.0), v)


@near_miss
def sums_over_both_axes(s, v):
    e = jnp.exp(s)
    return weigh(e / e.sum((-1, -2), keepdims=True), v)


@near_miss
def large_number_added_to_the_sum(s, v):
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return weigh(e / (e.sum(-1, keepdims=True) + 1e-3), v)


@near_miss
def log_probabilities(s, v):
    return weigh(jax.nn.log_softmax(s, -1), v)


@near_miss
def one_added_to_the_sum_of_shifted(s, v):
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return weigh(e / (e.sum(-1, keepdims=True) + 1), v)


@near_miss
def sink_of_each_query(s, v):
    sink = jnp.broadcast_to(jnp.arange(20.0)[:, None] / 5, (2, 4, 20, 1))
    return weigh(jax.nn.softmax(jnp.concatenate([s, sink], -1), -1)[..., :-1], v)


@near_miss
def padded_and_shifted(s, v):
    p = jax.nn.softmax(jnp.pad(s, ((0, 0), (0, 0), (0, 0), (1, 0))), -1)
    return weigh(p[..., :-1], v)


@near_miss
def normalised_over_columns_alone(s, v):
    p = jax.nn.softmax(s.reshape(2, 4, 20, 4, 5), -1)
    return weigh(p.reshape(s.shape), v)


@near_miss
def keys_mixed_after_the_softmax(s, v):
    e = jnp.exp(s)
    p = e / e.reshape(2, 4, 20, 4, 5).swapaxes(3, 4).reshape(s.shape)[..., :10].sum(-1, keepdims=True)
    return weigh(p, v)


@near_miss
def rows_and_columns_of_the_keys_added(s, v):
    t = s.reshape(2, 4, 20, 4, 5)
    return weigh(jax.nn.softmax((t + t.sum(-1, keepdims=True)).reshape(s.shape), -1), v)
