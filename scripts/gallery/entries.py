"""The pages of the gallery: the same attention in PyTorch, JAX and C++.

Blocks of a page compute one thing, and tests hold them to it. They share names of captured tensors, whose values do not
depend on chance. The C++ block makes `problem`, of which pages take the text and the picture.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    name: str
    """The page's file name."""
    title: str
    about: str
    torch: str
    jax: str
    cpp: str
    words: str = ""
    """The same in words of a problem, where there are any."""
    picture: str = ""
    """A problem of the same mask for the picture, where the block's own reads tensors."""
    on_gpu: str = ""
    on_cpu: str = ""
    """What benchmarks/results call a measurement beside FlexAttention, of this kind if not of this size."""


TORCH_INPUTS = "q, k, v = torch.randn(3, 1, 8, 1024, 64)\n"
JAX_INPUTS = "q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 1024, 8, 64))\n"


def torch_block(code, arguments, inputs=TORCH_INPUTS):
    head = "import torch\nfrom flashlift.torch import flex_attention\n\n"
    return f"{head}{code}{inputs}out = flex_attention(q, k, v{arguments})\n"


def jax_block(code, arguments, inputs=JAX_INPUTS):
    jnp = "import jax.numpy as jnp\n" if "jnp." in code + arguments else ""
    head = f"import jax\n{jnp}from flashlift.jax import flash_attention\n\n"
    return f"{head}{code}{inputs}out = flash_attention(q, k, v{arguments})\n"


def cpp_block(code, q_len=1024, kv_len=1024, more="", scale="0.125f"):
    sizes = f".q_heads = 8, .kv_heads = 8, .q_len = {q_len}, .kv_len = {kv_len}, {more}.scale = {scale}"
    attention = "auto attention = flashlift::Attention::compile(problem);\n"
    return f"using flashlift::Expr;\nflashlift::Problem problem{{{sizes}}};\n{code}{attention}"


def mask(body):
    """A C++ mask_mod of one expression, or of a body in braces."""
    body = body if body.startswith("{") else f"{{ return {body}; }}"
    return f"problem.mask_mod = *flashlift::trace_mask_mod([&](Expr b, Expr h, Expr q, Expr kv) {body});\n"


def score(body):
    body = body if body.startswith("{") else f"{{ return {body}; }}"
    return (
        f"problem.score_mod = *flashlift::trace_score_mod([&](Expr score, Expr b, Expr h, Expr q, Expr kv) {body});\n"
    )


CAUSAL_PYTHON = "def causal(b, h, q, kv):\n    return q >= kv\n\n"
CAUSAL_CPP = mask("kv <= q")

EAGLE3 = """def eagle3(b, h, q, kv):
    return (q >= kv) | ((kv >= 512) & ((kv - q) % 512 == 0))

"""

TREE = """def tree(b, h, q, kv):  # the parent of node i is (i + 1) // 2 - 1
    seen = kv < 896
    for up in range(7):
        seen = seen | ((q + 1) >> up == kv - 895)
    return seen

"""

BLOCK_DIFFUSION = """def block_diffusion(b, h, q, kv, n=512, size=64):
    clean_q, clean_kv = q >= n, kv >= n
    block_q, block_kv = q % n // size, kv % n // size
    own = (block_q == block_kv) & (clean_q == clean_kv)
    return own | (clean_kv & ((block_q > block_kv) | (clean_q & (block_q == block_kv))))

"""

VIDEO = """def frames(b, h, q, kv, tokens=64, window=4):
    frame_q, frame_kv = q // tokens, kv // tokens
    return (frame_kv <= frame_q) & (frame_q - frame_kv < window)

"""

NATTEN = """def start(x, size=32, width=7):
    return {clip}(x - width // 2, 0, size - width)

def neighbours(b, h, q, kv):
    y, x = kv // 32 - start(q // 32), kv % 32 - start(q % 32)
    return (y >= 0) & (y < 7) & (x >= 0) & (x < 7)

"""

BIG_BIRD = """def big_bird(b, h, q, kv, size=64):
    block_q, block_kv = q // size, kv // size
    everywhere = (block_q == 0) | (block_kv == 0)
    near = abs(block_q - block_kv) <= 1
    return everywhere | near | ((7 * block_q + 3 * block_kv) % 11 == 0)

"""

T5 = """def t5(score, b, h, q, kv):
    distance = {maximum}
    far = 16 + (({log}(({maximum_1}) / 16) / 2.0794415 * 16){to_int})
    bucket = {where}
    return score + table[bucket, h]

"""

SWIN = """def window(b, h, q, kv):  # 8 by 8 of a 32 by 32 image, shifted by 4
    row = (q // 32 + 4) // 8 == (kv // 32 + 4) // 8
    return row & ((q % 32 + 4) // 8 == (kv % 32 + 4) // 8)

def position(score, b, h, q, kv):
    return score + table[h, (q // 32 - kv // 32) % 15, (q % 32 - kv % 32) % 15]

"""

ENTRIES = [
    Entry(
        "causal",
        "Causal",
        "Each token sees itself and all earlier tokens: every decoder. Half of the tiles are never computed.",
        torch_block(CAUSAL_PYTHON, ", mask_mod=causal"),
        jax_block("", ", causal=True"),
        cpp_block(CAUSAL_CPP),
        words="causal",
        on_gpu="causal",
        on_cpu="causal",
    ),
    Entry(
        "sliding_window",
        "Sliding window",
        "Each token sees the last 256 tokens, including itself: Mistral, and every other layer of Gemma. Time grows "
        "with the length and not with its square.",
        torch_block("def window(b, h, q, kv):\n    return (q >= kv) & (q - kv < 256)\n\n", ", mask_mod=window"),
        jax_block("", ", causal=True, sliding_window=(255, 0)"),
        cpp_block(mask("kv <= q && q - kv < 256")),
        words="causal window=255,0",
        on_gpu="window 1024",
        on_cpu="window 256",
    ),
    Entry(
        "sinks",
        "Sinks",
        "Each head has one learned logit that takes part in the softmax and has no value, so that a head may attend "
        "to nothing: gpt-oss, together with a window of 128.",
        torch_block(
            "def window(b, h, q, kv):\n    return (q >= kv) & (q - kv < 128)\n\nsinks = torch.linspace(-1, 1, 8)\n",
            ", mask_mod=window, sinks=sinks",
        ),
        jax_block(
            "sinks = jnp.linspace(-1, 1, 8)[:, None]\n", ", causal=True, sliding_window=(127, 0), softmax_aux=sinks"
        ),
        cpp_block(mask("kv <= q && q - kv < 128") + "problem.sinks = 1;\n"),
        words="causal window=127,0 sinks=1",
    ),
    Entry(
        "alibi",
        "ALiBi",
        "Scores decrease with the distance, at a different rate in each head: BLOOM, MPT. Positions cost nothing else.",
        torch_block(
            "slopes = torch.exp2(-torch.arange(1.0, 9.0))\n\n"
            "def alibi(score, b, h, q, kv):\n    return score + slopes[h] * (kv - q)\n\n" + CAUSAL_PYTHON,
            ", score_mod=alibi, mask_mod=causal",
        ),
        jax_block(
            "slopes = 2.0 ** -jnp.arange(1.0, 9.0)\n\n"
            "def alibi(score, b, h, q, kv):\n    return score + slopes[h] * (kv - q)\n\n",
            ", score_mod=alibi, causal=True",
        ),
        cpp_block(
            'flashlift::Captured slopes("slopes", flashlift::DType::kF32, {8});\n'
            + score("score + slopes(h) * (kv - q)")
            + CAUSAL_CPP
            + "problem.captures = {slopes.capture()};\n"
        ),
        words="causal alibi",
        on_gpu="ALiBi and causal",
        on_cpu="ALiBi",
    ),
    Entry(
        "soft_cap",
        "Soft cap",
        "Scores are limited to ±30 smoothly: Gemma 2, Grok. It takes one `tanh` per score, which vector code computes.",
        torch_block(
            "def cap(score, b, h, q, kv):\n    return 30 * torch.tanh(score / 30)\n\n" + CAUSAL_PYTHON,
            ", score_mod=cap, mask_mod=causal",
        ),
        jax_block("", ", causal=True, logits_soft_cap=30.0"),
        cpp_block(score("30.0 * tanh(score / 30.0)") + CAUSAL_CPP),
        words="causal softcap=30",
        on_gpu="softcap and causal",
        on_cpu="softcap",
    ),
    Entry(
        "documents",
        "Documents",
        "Documents are packed into one sequence without padding; tokens see only their own document. Training of "
        "most models.",
        torch_block(
            "document = torch.arange(4, dtype=torch.int32).repeat_interleave(256)\n\n"
            "def own(b, h, q, kv):\n    return (q >= kv) & (document[q] == document[kv])\n\n",
            ", mask_mod=own",
        ),
        jax_block(
            "document = jnp.repeat(jnp.arange(4, dtype=jnp.int32), 256)[None]\n",
            ", causal=True, q_segment_ids=document",
        ),
        cpp_block(
            'flashlift::Captured document("document", flashlift::DType::kI32, {1024});\n'
            + mask("kv <= q && document(q) == document(kv)")
            + "problem.captures = {document.capture()};\n"
        ),
        words="causal documents=4",
        picture="causal documents=4",
        on_gpu="8 documents and causal",
        on_cpu="4 documents",
    ),
    Entry(
        "prefix",
        "Prefix",
        "A prompt of 256 tokens is visible to all tokens, in both directions; the rest is causal: T5's prefix LM, "
        "PaliGemma.",
        torch_block("def prefix(b, h, q, kv):\n    return (q >= kv) | (kv < 256)\n\n", ", mask_mod=prefix"),
        jax_block("def prefix(b, h, q, kv):\n    return (q >= kv) | (kv < 256)\n\n", ", mask_mod=prefix"),
        cpp_block(mask("kv <= q || kv < 256")),
        words="causal prefix=256",
        on_gpu="prefix-LM 2048",
    ),
    Entry(
        "eagle3",
        "Eagle3",
        "Training of a draft model for speculative decoding, unrolled for three steps. Each step appends keys"
        " of its own, of which a query sees the one at its position. See also "
        "[examples/eagle3](../../examples/eagle3/eagle3.py).",
        torch_block(
            EAGLE3,
            ", mask_mod=eagle3",
            "q = torch.randn(1, 8, 512, 64)\nk, v = torch.randn(2, 1, 8, 4 * 512, 64)\n",
        ),
        jax_block(
            EAGLE3,
            ", mask_mod=eagle3",
            "q = jax.random.normal(jax.random.key(0), (1, 512, 8, 64))\n"
            "k, v = jax.random.normal(jax.random.key(1), (2, 1, 4 * 512, 8, 64))\n",
        ),
        cpp_block(mask("kv <= q || (kv >= 512 && (kv - q) % 512 == 0)"), q_len=512, kv_len=2048),
        on_gpu="Eagle3",
    ),
    Entry(
        "tree",
        "Tree",
        "A tree of 128 draft tokens after 896 tokens of context, verified by one call: Medusa, SpecInfer. A node "
        "sees the context and its ancestors. The tree here is binary; for any other one, use a captured table "
        "`ancestor[q, kv - 896]`.",
        torch_block(TREE, ", mask_mod=tree", "q = torch.randn(1, 8, 128, 64)\nk, v = torch.randn(2, 1, 8, 1024, 64)\n"),
        jax_block(
            TREE,
            ", mask_mod=tree",
            "q = jax.random.normal(jax.random.key(0), (1, 128, 8, 64))\n"
            "k, v = jax.random.normal(jax.random.key(1), (2, 1, 1024, 8, 64))\n",
        ),
        cpp_block(
            mask(
                "{\n  Expr seen = kv < 896;\n"
                "  for (int up = 0; up < 7; ++up) seen = seen || (q + 1) >> up == kv - 895;\n  return seen;\n}"
            ),
            q_len=128,
        ),
    ),
    Entry(
        "block_diffusion",
        "Block diffusion",
        "Text is generated block by block, each by diffusion (BD3-LM). In training, 512 noisy tokens come before "
        "the same 512 clean tokens: a noisy block sees itself and the clean blocks before it, a clean block sees "
        "the clean blocks up to itself.",
        torch_block(BLOCK_DIFFUSION, ", mask_mod=block_diffusion"),
        jax_block(BLOCK_DIFFUSION, ", mask_mod=block_diffusion"),
        cpp_block(
            mask(
                "{\n  Expr clean_q = q >= 512, clean_kv = kv >= 512;\n"
                "  Expr block_q = q % 512 / 64, block_kv = kv % 512 / 64;\n"
                "  Expr own = block_q == block_kv && clean_q == clean_kv;\n"
                "  return own || (clean_kv && (block_q > block_kv || (clean_q && block_q == block_kv)));\n}"
            )
        ),
    ),
    Entry(
        "video",
        "Video blocks",
        "Frames of 64 tokens: a token sees all tokens of its own frame and of the three frames before it. World "
        "models and streaming video models.",
        torch_block(VIDEO, ", mask_mod=frames"),
        jax_block(VIDEO, ", mask_mod=frames"),
        cpp_block(mask("kv / 64 <= q / 64 && q / 64 - kv / 64 < 4")),
    ),
    Entry(
        "natten",
        "Neighbourhood in 2-D",
        "Each pixel of a 32 by 32 image sees the 7 by 7 pixels around it, or at the border the nearest such square: "
        "NATTEN.",
        torch_block(NATTEN.format(clip="torch.clamp"), ", mask_mod=neighbours"),
        jax_block(NATTEN.format(clip="jnp.clip"), ", mask_mod=neighbours"),
        cpp_block(
            "auto start = [](Expr x) { return min(max(x - 3, 0), 25); };\n"
            + mask(
                "{\n  Expr y = kv / 32 - start(q / 32), x = kv % 32 - start(q % 32);\n"
                "  return y >= 0 && y < 7 && x >= 0 && x < 7;\n}"
            )
        ),
    ),
    Entry(
        "dilated",
        "Dilated window",
        "Every fourth of the last 512 tokens: Longformer's upper layers, dilated NATTEN. No tile is full, and none "
        "beyond the window is visited.",
        torch_block(
            "def dilated(b, h, q, kv):\n    return (q >= kv) & (q - kv < 512) & ((q - kv) % 4 == 0)\n\n",
            ", mask_mod=dilated",
        ),
        jax_block(
            "def dilated(b, h, q, kv):\n    return (q - kv) % 4 == 0\n\n",
            ", mask_mod=dilated, causal=True, sliding_window=(511, 0)",
        ),
        cpp_block(mask("kv <= q && q - kv < 512 && (q - kv) % 4 == 0")),
        words="causal window=511,0 dilated=4",
    ),
    Entry(
        "big_bird",
        "BigBird",
        "Blocks of 64: the first block sees all and is seen by all, each block sees its neighbours, and some random "
        "others (here by a formula): BigBird and similar sparse attention.",
        torch_block(BIG_BIRD, ", mask_mod=big_bird"),
        jax_block(BIG_BIRD, ", mask_mod=big_bird"),
        cpp_block(
            mask(
                "{\n  Expr block_q = q / 64, block_kv = kv / 64;\n"
                "  Expr everywhere = block_q == 0 || block_kv == 0, near = abs(block_q - block_kv) <= 1;\n"
                "  return everywhere || near || (7 * block_q + 3 * block_kv) % 11 == 0;\n}"
            )
        ),
    ),
    Entry(
        "t5",
        "T5's bias",
        "A learned bias that depends on the distance, with 32 buckets whose size grows with the distance: T5's "
        "decoder. The kernel reads the table for each score, and the table has a gradient; no N by N bias is "
        "created.",
        torch_block(
            "table = torch.linspace(-1, 1, 32 * 8).sin().reshape(32, 8)\n\n"
            + T5.format(
                maximum="torch.clamp(q - kv, min=0)",
                maximum_1="torch.clamp(distance, min=1)",
                log="torch.log",
                to_int=".int()",
                where="torch.where(distance < 16, distance, torch.clamp(far, max=31))",
            )
            + CAUSAL_PYTHON,
            ", score_mod=t5, mask_mod=causal",
        ),
        jax_block(
            "table = jnp.sin(jnp.linspace(-1, 1, 32 * 8)).reshape(32, 8)\n\n"
            + T5.format(
                maximum="jnp.maximum(q - kv, 0)",
                maximum_1="jnp.maximum(distance, 1)",
                log="jnp.log",
                to_int=".astype(int)",
                where="jnp.where(distance < 16, distance, jnp.minimum(far, 31))",
            ),
            ", score_mod=t5, causal=True",
        ),
        cpp_block(
            'flashlift::Captured table("table", flashlift::DType::kF32, {32, 8});\n'
            + score(
                "{\n  Expr distance = max(q - kv, 0);\n"
                "  Expr far = 16 + to(flashlift::Type::kI32, log(max(distance, 1) / 16.0) / 2.0794415 * 16);\n"
                "  return score + table(select(distance < 16, distance, min(far, 31)), h);\n}"
            )
            + CAUSAL_CPP
            + "problem.captures = {table.capture()};\n"
        ),
        picture="causal",
    ),
    Entry(
        "swin",
        "Swin",
        "Shifted windows of 8 by 8 in an image of 32 by 32, with a learned bias for the relative position. Pixels "
        "are not moved: no roll, no partition, no padding, one call for the image.",
        torch_block(
            "table = torch.linspace(-1, 1, 8 * 15 * 15).sin().reshape(8, 15, 15)\n\n" + SWIN,
            ", score_mod=position, mask_mod=window",
        ),
        jax_block(
            "table = jnp.sin(jnp.linspace(-1, 1, 8 * 15 * 15)).reshape(8, 15, 15)\n\n" + SWIN,
            ", score_mod=position, mask_mod=window",
        ),
        cpp_block(
            'flashlift::Captured table("table", flashlift::DType::kF32, {8, 15, 15});\n'
            + mask("(q / 32 + 4) / 8 == (kv / 32 + 4) / 8 && (q % 32 + 4) / 8 == (kv % 32 + 4) / 8")
            + score("score + table(h, mod(q / 32 - kv / 32, 15), mod(q % 32 - kv % 32, 15))")
            + "problem.captures = {table.capture()};\n"
        ),
    ),
    Entry(
        "mla",
        "MLA's shapes",
        "Multi-head latent attention of DeepSeek, expanded for training and prefill: queries and keys have a depth "
        "of 192, of which 64 encode the position, values a depth of 128.",
        torch_block(
            CAUSAL_PYTHON,
            ", mask_mod=causal",
            "q, k = torch.randn(2, 1, 8, 1024, 192)\nv = torch.randn(1, 8, 1024, 128)\n",
        ),
        jax_block(
            "",
            ", causal=True",
            "q, k = jax.random.normal(jax.random.key(0), (2, 1, 1024, 8, 192))\n"
            "v = jax.random.normal(jax.random.key(1), (1, 1024, 8, 128))\n",
        ),
        cpp_block(CAUSAL_CPP, more=".head_dim = 192, .value_dim = 128, ", scale="0.0721687836f"),
        words="dqk192 dv128 causal",
    ),
    Entry(
        "differential",
        "Differential attention",
        "The difference of two softmaxes over the same values, which cancels their common part (Differential "
        "Transformer). One call for all 8 heads, which form 4 pairs, with values of twice the depth.",
        torch_block(
            CAUSAL_PYTHON,
            ", mask_mod=causal",
            "q, k = torch.randn(2, 1, 8, 1024, 64)\nv = torch.randn(1, 4, 1024, 128).repeat_interleave(2, dim=1)\n",
        )
        + "out = out[:, 0::2] - 0.8 * out[:, 1::2]\n",
        jax_block(
            "",
            ", causal=True",
            "q, k = jax.random.normal(jax.random.key(0), (2, 1, 1024, 8, 64))\n"
            "v = jax.random.normal(jax.random.key(1), (1, 1024, 4, 128)).repeat(2, axis=2)\n",
        )
        + "out = out[:, :, 0::2] - 0.8 * out[:, :, 1::2]\n",
        cpp_block(CAUSAL_CPP, more=".value_dim = 128, ") + "// out of head 2h - 0.8 * out of head 2h + 1\n",
        words="dqk64 dv128 causal",
    ),
    Entry(
        "streaming_llm",
        "StreamingLLM",
        "The first four tokens, to which every head attends strongly, and the last 256: endless text in a cache of "
        "constant size.",
        torch_block(
            "def streaming(b, h, q, kv):\n    return (q >= kv) & ((q - kv < 256) | (kv < 4))\n\n",
            ", mask_mod=streaming",
        ),
        jax_block(
            "def streaming(b, h, q, kv):\n    return (q >= kv) & ((q - kv < 256) | (kv < 4))\n\n",
            ", mask_mod=streaming",
        ),
        cpp_block(mask("kv <= q && (q - kv < 256 || kv < 4)")),
    ),
    Entry(
        "jagged",
        "Jagged sequences",
        "Sequences of 300, 212 and 512 tokens, one after the other in one tensor, each causal: variable-"
        "length calls of FlashAttention (`cu_seqlens`) and nested tensors. Nothing is padded.",
        torch_block(
            CAUSAL_PYTHON + "ends = torch.tensor([0, 300, 512, 1024], dtype=torch.int32)\n",
            ", mask_mod=causal, cu_seqlens=ends",
        ),
        jax_block(
            "ends = jnp.array([0, 300, 512, 1024], dtype=jnp.int32)\n",
            ", causal=True, cum_seqlens_q=ends, cum_seqlens_k=ends",
        ),
        cpp_block(
            'flashlift::Captured ends("ends", flashlift::DType::kI32, {flashlift::kAnySize});\n'
            + mask("kv <= q && ends.search(q) == ends.search(kv)")
            + "problem.captures = {ends.capture()};\n"
        ),
        picture="causal mask_mod() { %0 = ge q, 300; %1 = ge kv, 300; %2 = eq %0, %1; "
        "%3 = ge q, 512; %4 = ge kv, 512; %5 = eq %3, %4; %6 = and %2, %5; return %6 }",
    ),
]
