"""Counts the fused attentions in models of several frameworks: forward passes and training steps of Flax, Equinox,
Haiku and Keras, with dropout and checkpointing, and transformers' models through torchax.

scripts/test_frameworks.py BUILD [--only WORD] [--write FILE]

The frameworks go to a folder under BUILD/versions. Models are small and their weights random: what is fused does not
hang on either. --write puts the table into FILE between the lines that name this script.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    "flax",
    "msgpack",
    "rich",
    "treescope",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "typing_extensions",
    "absl-py",
]
PACKAGES += [
    "optax",
    "pyyaml",
    "equinox",
    "jaxtyping",
    "wadler_lindig",
    "dm-haiku",
    "jmp",
    "tabulate",
    "keras",
    "namex",
]
PACKAGES += ["h5py", "optree", "torchax", "orbax-checkpoint", "etils"]

B, S, E, HEADS, LAYERS = 2, 16, 32, 4, 2
RATE = 0.1


# --- Models: each gives (name, forward function, training step, arguments of both) ---


def step_of(apply):
    """The loss, and its gradients with respect to the first argument."""
    import jax

    return jax.value_and_grad(lambda weights, *rest: (apply(weights, *rest).astype("float32") ** 2).mean())


def flax_linen(wanted):
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    class Block(nn.Module):
        dtype: jnp.dtype
        broadcast: bool

        @nn.compact
        def __call__(self, x, train):
            attention = nn.MultiHeadDotProductAttention(
                HEADS, dropout_rate=RATE, broadcast_dropout=self.broadcast, dtype=self.dtype
            )
            mask = nn.make_causal_mask(jnp.ones((B, S)))
            x = x + attention(nn.LayerNorm()(x), mask=mask, deterministic=not train)
            return x + nn.Dense(E)(nn.gelu(nn.Dense(2 * E)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        remat: object = None
        dtype: jnp.dtype = jnp.float32
        broadcast: bool = False

        @nn.compact
        def __call__(self, x, train):
            block = Block if self.remat is None else nn.remat(Block, static_argnums=(2,), policy=self.remat[0])
            for _ in range(LAYERS):
                x = block(self.dtype, self.broadcast)(x, train)
            return x

    x, key = jnp.ones((B, S, E)), jax.random.key(0)
    policies = jax.checkpoint_policies
    for name, model in (
        ("Flax linen, causal", Model()),
        ("Flax linen, bf16", Model(dtype=jnp.bfloat16)),
        ("Flax linen, `broadcast_dropout`", Model(broadcast=True)),
        ("Flax linen, `nn.remat`", Model(remat=(None,))),
        ("Flax linen, `checkpoint_dots`", Model(remat=(policies.checkpoint_dots,))),
        (
            "Flax linen, `checkpoint_dots_with_no_batch_dims`",
            Model(remat=(policies.checkpoint_dots_with_no_batch_dims,)),
        ),
    ):
        weights = model.init({"params": key, "dropout": key}, x, False)

        def forward(weights, x, key, model=model):
            return model.apply(weights, x, False)

        def train(weights, x, key, model=model):
            return model.apply(weights, x, True, rngs={"dropout": key})

        yield name, forward, step_of(train), (weights, x, key)


def flax_nnx(wanted):
    import jax.numpy as jnp
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention = nnx.MultiHeadAttention(HEADS, E, dropout_rate=RATE, decode=False, rngs=rngs)
            self.norm, self.other_norm = nnx.LayerNorm(E, rngs=rngs), nnx.LayerNorm(E, rngs=rngs)
            self.wide, self.narrow = nnx.Linear(E, 2 * E, rngs=rngs), nnx.Linear(2 * E, E, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(jnp.ones((B, S))))
            return x + self.narrow(nnx.gelu(self.wide(self.other_norm(x))))

    class Model(nnx.Module):
        def __init__(self, rngs, remat):
            self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
            self.remat = remat

        def __call__(self, x):
            for block in self.blocks:
                x = nnx.remat(lambda block, x: block(x))(block, x) if self.remat else block(x)
            return x

    x = jnp.ones((B, S, E))
    for name, remat in (("Flax nnx, causal", False), ("Flax nnx, `nnx.remat`", True)):
        graph, weights, others = nnx.split(Model(nnx.Rngs(0), remat), nnx.Param, ...)

        def apply(weights, others, x, train, graph=graph):
            model = nnx.merge(graph, weights, others, copy=True)
            model.train() if train else model.eval()
            return model(x)

        def forward(weights, others, x, apply=apply):
            return apply(weights, others, x, False)

        def train(weights, others, x, apply=apply):
            return apply(weights, others, x, True)

        yield name, forward, step_of(train), (weights, others, x)


def equinox(wanted):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 3 * LAYERS)

    class Model(eqx.Module):
        attentions: list
        wide: list
        narrow: list

        def __init__(self):
            self.attentions = [eqx.nn.MultiheadAttention(HEADS, E, dropout_p=RATE, key=key) for key in keys[:LAYERS]]
            self.wide = [eqx.nn.Linear(E, 2 * E, key=key) for key in keys[LAYERS : 2 * LAYERS]]
            self.narrow = [eqx.nn.Linear(2 * E, E, key=key) for key in keys[2 * LAYERS :]]

        def __call__(self, x, key, train, remat):
            for i in range(LAYERS):
                attention = lambda x, key, i=i: self.attentions[i](
                    x, x, x, mask=jnp.tril(jnp.ones((S, S), bool)), key=key, inference=not train
                )
                x = x + (eqx.filter_checkpoint(attention) if remat else attention)(x, jax.random.fold_in(key, i))
                x = x + jax.vmap(lambda x, i=i: self.narrow[i](jax.nn.gelu(self.wide[i](x))))(x)
            return x

    weights, static = eqx.partition(Model(), eqx.is_array)
    x = jnp.ones((B, S, E))
    for name, remat in (("Equinox, causal, under `vmap`", False), ("Equinox, `filter_checkpoint`", True)):

        def apply(weights, x, key, train, remat=remat):
            model = eqx.combine(weights, static)
            return jax.vmap(lambda x, key: model(x, key, train, remat))(x, jax.random.split(key, B))

        def forward(weights, x, key, apply=apply):
            return apply(weights, x, key, False)

        def train(weights, x, key, apply=apply):
            return apply(weights, x, key, True)

        yield name, forward, step_of(train), (weights, x, jax.random.key(1))


def haiku(wanted):
    import haiku as hk
    import jax
    import jax.numpy as jnp

    def by_hand(x, mask, train):
        q, k, v = (hk.Linear(E)(x).reshape(B, S, HEADS, E // HEADS) for _ in range(3))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (E // HEADS) ** 0.5
        p = jax.nn.softmax(jnp.where(mask, s, -1e30))
        p = hk.dropout(hk.next_rng_key(), RATE, p) if train else p
        return hk.Linear(E)(jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(B, S, E))

    def own(x, mask, train):
        return hk.MultiHeadAttention(HEADS, E // HEADS, w_init=hk.initializers.VarianceScaling(2.0))(x, x, x, mask)

    x, key = jnp.ones((B, S, E)), jax.random.key(0)
    for name, attention, remat in (
        ("Haiku `MultiHeadAttention`, causal", own, False),
        ("Haiku, attention by hand with `hk.dropout`", by_hand, False),
        ("Haiku, the same under `hk.remat`", by_hand, True),
    ):

        def model(x, train, attention=attention, remat=remat):
            mask = jnp.tril(jnp.ones((1, 1, S, S), bool))
            for _ in range(LAYERS):
                block = lambda x: x + attention(x, mask, train)
                x = hk.remat(block)(x) if remat else block(x)
                x = x + hk.Linear(E)(jax.nn.gelu(hk.Linear(2 * E)(x)))
            return x

        transformed = hk.transform(model)
        weights = transformed.init(key, x, False)

        def forward(weights, key, x, transformed=transformed):
            return transformed.apply(weights, key, x, False)

        def train(weights, key, x, transformed=transformed):
            return transformed.apply(weights, key, x, True)

        yield name, forward, step_of(train), (weights, key, x)


def keras(wanted):
    os.environ["KERAS_BACKEND"] = "jax"
    import jax.numpy as jnp
    import keras as keras_package

    layers = keras_package.layers
    x = jnp.ones((B, S, E))
    for name, options in (
        ("Keras `MultiHeadAttention`, causal", {"use_causal_mask": True}),
        ("Keras `MultiHeadAttention`", {}),
        ("Keras `GroupQueryAttention`, causal", {"use_causal_mask": True}),
    ):
        given = keras_package.Input((S, E), batch_size=B)
        y = given
        for _ in range(LAYERS):
            if "Group" in name:
                attention = layers.GroupQueryAttention(E // HEADS, HEADS, HEADS // 2, dropout=RATE)
            else:
                attention = layers.MultiHeadAttention(HEADS, E // HEADS, dropout=RATE)
            y = y + attention(layers.LayerNormalization()(y), y, **options)
            y = y + layers.Dense(E)(layers.Dense(2 * E, activation="gelu")(y))
        model = keras_package.Model(given, y)
        weights = [each.value for each in model.trainable_variables]
        others = [each.value for each in model.non_trainable_variables]

        def forward(weights, others, x, model=model):
            return model.stateless_call(weights, others, x, training=False)[0]

        def train(weights, others, x, model=model):
            return model.stateless_call(weights, others, x, training=True)[0]

        yield name, forward, step_of(train), (weights, others, x)


def load_torchax():
    """torchax, whose tables name a few overloads that newer versions of PyTorch have dropped."""
    from torch._ops import OpOverloadPacket

    found = OpOverloadPacket.__getattr__

    def lenient(packet, name):
        try:
            return found(packet, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return found(packet, packet.overloads()[0])

    OpOverloadPacket.__getattr__ = lenient
    try:
        torchax = importlib.import_module("torchax")
        return torchax, torchax.default_env()
    finally:
        OpOverloadPacket.__getattr__ = found


def transformers(wanted):
    os.environ["HF_HUB_OFFLINE"] = "1"
    import jax
    import jax.numpy as jnp
    import torch
    import transformers as hf

    small = {"vocab_size": 64, "hidden_size": E, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    small |= {"intermediate_size": 2 * E, "max_position_embeddings": 64}
    shared = small | {"num_key_value_heads": HEADS // 2, "head_dim": E // HEADS}
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    picture = small | {"image_size": 16, "patch_size": 4}
    encoder = {"d_model": E, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS}
    encoder |= {"decoder_attention_heads": HEADS, "encoder_ffn_dim": 2 * E, "decoder_ffn_dim": 2 * E}
    tokens, pixels = {"input_ids": torch.ones(B, S, dtype=torch.int64)}, {"pixel_values": torch.ones(B, 3, 16, 16)}
    padded = tokens | {"attention_mask": torch.ones(B, S, dtype=torch.int64)}
    both = tokens | {"decoder_input_ids": torch.ones(B, S, dtype=torch.int64)}
    models = {
        "BERT": lambda: (hf.BertModel, hf.BertConfig(**small), padded),
        "GPT-2": lambda: (hf.GPT2Model, hf.GPT2Config(vocab_size=64, n_embd=E, n_layer=LAYERS, n_head=HEADS), tokens),
        "Llama": lambda: (hf.LlamaModel, hf.LlamaConfig(**shared), padded),
        "Mistral": lambda: (hf.MistralModel, hf.MistralConfig(**shared, sliding_window=8), tokens),
        "Qwen3": lambda: (hf.Qwen3Model, hf.Qwen3Config(**shared), tokens),
        "Gemma 2": lambda: (hf.Gemma2Model, hf.Gemma2Config(**shared, **windows), tokens),
        "Phi": lambda: (hf.PhiModel, hf.PhiConfig(**small), tokens),
        "T5": lambda: (
            hf.T5Model,
            hf.T5Config(vocab_size=64, d_model=E, d_kv=E // HEADS, d_ff=2 * E, num_layers=LAYERS, num_heads=HEADS),
            both,
        ),
        "BART": lambda: (hf.BartModel, hf.BartConfig(vocab_size=64, max_position_embeddings=64, **encoder), both),
        "DeBERTa v2": lambda: (
            hf.DebertaV2Model,
            hf.DebertaV2Config(
                **small, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=32
            ),
            padded,
        ),
        "BLOOM": lambda: (
            hf.BloomModel,
            hf.BloomConfig(vocab_size=64, hidden_size=E, n_layer=LAYERS, n_head=HEADS),
            padded,
        ),
        "GPT-NeoX": lambda: (hf.GPTNeoXModel, hf.GPTNeoXConfig(**small), tokens),
        "ViT": lambda: (hf.ViTModel, hf.ViTConfig(**picture), pixels),
        "Whisper": lambda: (
            hf.WhisperModel,
            hf.WhisperConfig(vocab_size=64, num_mel_bins=8, max_source_positions=S, pad_token_id=0, **encoder),
            {"input_features": torch.ones(B, 8, 2 * S), "decoder_input_ids": both["decoder_input_ids"]},
        ),
    }
    torchax, environment = load_torchax()
    of_own = {"Gemma 2", "DeBERTa v2", "BLOOM"}  # attention of their own alone
    for name, build in models.items():
        for attention in ["eager"] if name in of_own else ["sdpa", "eager"] if name in {"BERT", "Llama"} else ["sdpa"]:
            label = f"{name} through torchax, {attention}"
            if not wanted(label):
                continue
            try:
                kind, config, inputs = build()
                config.use_cache = False
                config._attn_implementation = attention
                torch.manual_seed(0)
                model = kind(config).eval()
                tensors = [*model.named_parameters(), *model.named_buffers()]
                weights = {n: jnp.asarray(w.detach().numpy()) for n, w in tensors}
                given = {n: jnp.asarray(x.numpy()) for n, x in inputs.items()}
            except Exception as error:
                yield label, error, error, ()
                continue

            def forward(weights, given, model=model):
                with environment:
                    view = torchax.interop.torch_view
                    out = torch.func.functional_call(model, view(weights), (), view(given))
                    return torchax.interop.jax_view(out[0])

            def step(weights, given, forward=forward):
                floats = {n: w for n, w in weights.items() if jnp.issubdtype(w.dtype, jnp.floating)}
                rest = {n: w for n, w in weights.items() if n not in floats}
                return jax.value_and_grad(lambda floats: (forward(floats | rest, given) ** 2).mean())(floats)

            yield label, forward, step, (weights, given)


FRAMEWORKS = [flax_linen, flax_nnx, equinox, haiku, keras, transformers]


# --- The table ---


def counts(function, arguments, is_step):
    """The number of fused attentions in the function's module, as a table cell, and the reasons for the others."""
    import flashlift.stablehlo
    import jax

    text = jax.jit(function).lower(*arguments).as_text()
    result = flashlift.stablehlo.fuse(text, gradients=True)
    reasons = {re.sub(r" at \S+:\d+:\d+", "", each.reason) for each in result.candidates if not each.fused}
    backward = len(re.findall(r"\bflashlift\.attention_backward\b", result.module))
    cell = f"{result.fused_count} of {len(result.candidates)}"
    return f"{cell}; {backward} backward" if is_step else cell, sorted(reasons)


def rows(only):
    frameworks = [each for each in FRAMEWORKS if each.__name__ == only]

    def wanted(name):
        return not only or frameworks or only.lower() in name.lower()

    for framework in frameworks or FRAMEWORKS:
        for name, forward, step, arguments in framework(wanted):
            if not wanted(name):
                continue
            cells, reasons = [], []
            for is_step, function in enumerate((forward, step)):
                try:
                    if isinstance(function, Exception):
                        raise function
                    cell, why = counts(function, arguments, is_step)
                    reasons += [each for each in why if each not in reasons]
                except Exception as error:
                    cell = f"not lowered: {type(error).__name__}"
                    print(f"{name}: {str(error)[:500]}", file=sys.stderr, flush=True)
                cells.append(cell)
            yield name, *cells, "; ".join(reasons)


def versions():
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "equinox", "dm-haiku", "keras", "torchax"))


def write(path, lines):
    begin, end = "<!-- scripts/test_frameworks.py -->", "<!-- end of scripts/test_frameworks.py -->"
    text = path.read_text()
    if begin not in text or end not in text:
        sys.exit(f"error: {path} has no lines {begin} and {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    path.write_text(before + "\n".join([begin, *lines, end]) + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", help="models whose name holds this, or one framework's")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    folder = options.build.resolve() / "versions" / "frameworks"
    if str(folder) not in sys.path:
        if not folder.exists():
            python = options.build.resolve() / "venv" / "bin" / "python"
            install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *PACKAGES]
            subprocess.run(install, check=True)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    lines = ["| model | forward | training step | what stays |", "| --- | --- | --- | --- |"]
    for row in rows(options.only):
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    lines += ["", f"With {versions()}."]
    if options.write:
        write(options.write, lines)


if __name__ == "__main__":
    main()
