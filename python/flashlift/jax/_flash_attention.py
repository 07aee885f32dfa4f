"""Attention in JAX by the names that its features have elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax import _arguments as arguments
from flashlift.jax._arguments.seeds import SeedOfPart, seed_of_part
from flashlift.jax._attention import attention
from flashlift.jax._config import check_config
from flashlift.jax._mask_info import masks_of
from flashlift.jax._mask_rules import Rule, both, check_rules, keeps_by
from flashlift.jax._mods import capped_before, counted_from
from flashlift.jax._sharding import check_specs, first_of_part, whole


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    cum_seqlens_q: jax.Array | None = None,
    cum_seqlens_k: jax.Array | None = None,
    softmax_aux: jax.Array | None = None,
    block_tables: jax.Array | None = None,
    *,
    mask_info: Any = None,
    attention_mask: jax.Array | None = None,
    softmax_scale: float | None = None,
    dropout_prob: float | None = None,
    causal: bool | str = False,
    dropout_seed: jax.Array | int | None = None,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    logits_soft_cap: float | None = None,
    normalize_output: bool = True,
    precision: jax.lax.PrecisionLike = None,
    logits_dtype: DTypeLike | None = jnp.float32,
    q_segment_ids: jax.Array | None = None,
    kv_segment_ids: jax.Array | None = None,
    platform: str | None = None,
    cfg: Any = None,
    mesh: jax.sharding.Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    empty_rows: str = "zero",
    return_lse: bool = False,
    deterministic_gradients: bool = True,
    mask: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = False,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    module: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
    is_causal: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(cap(scale query keyᵀ + bias) where kept) value as one fused kernel, with gradients.

    query: [batch, q_len, q_heads, depth]; key: [batch, kv_len, kv_heads, depth]; value: [batch, kv_len, kv_heads, value
        depth], where kv_heads divides q_heads. All three are float32, bfloat16 or float16, of the same type.
    bias: added to the scaled scores; broadcasts to [batch, q_heads, q_len, kv_len].
    attention_mask: booleans or integers; a value other than 0 keeps the key: [batch, kv_len], or a shape that
        broadcasts to [batch, q_heads, q_len, kv_len].
    mask_info: a MaskInfo, Flashlift's or ejkernel's, instead of attention_mask and segment ids.
    score_mod, mask_mod: functions of (score, b, h, q, kv) and (b, h, q, kv) in jax.numpy, applied after all other
        scores and masks; arrays that they read from outside have gradients.
    softmax_scale: 1/sqrt(depth) by default.
    causal: keeps keys up to the query's position. Positions count from the beginning, or with "bottom_right" from the
        end.
    sliding_window: the number of positions to the left and to the right of the query that are kept; a single number
        sets both, 0 keeps the query's own position, and None for one side keeps all positions there. With
        causal="bottom_right", it counts from the end, too.
    cum_seqlens_q, cum_seqlens_k: int32 [sequences + 1], for sequences packed one after the other in a batch of 1;
        causal and sliding_window then count within each. In a larger batch, each sequence begins its own batch, and
        positions after its length are padding. The values are checked if they are known when the call is traced.
    q_segment_ids, kv_segment_ids: integers [batch, length]; a query sees the keys of its own segment. Negative ones are
        padding: such queries and keys take part in nothing. kv_segment_ids are the query's by default.
    logits_soft_cap: c, for c tanh(score / c) after the bias.
    softmax_aux: sinks, [q_heads, n], or [n] for all heads: logits that take part in the softmax and have no value. NaN
        and infinities in bias and softmax_aux give the same as in softmax; the contents of masked keys and values have
        no effect.
    dropout_prob: drops each key of a row with this probability; None and 0.0 drop none.
    dropout_seed: a key of jax.random, its uint32 [2] or an integer, traced or not. The dropped keys depend on the seed
        alone. With dropout_prob=0.0, as in evaluation, it has no effect; without dropout_prob it is an error.
    normalize_output: False leaves out the division by the softmax's sum, exp(score - largest); its gradient uses plain
        maths.
    logits_dtype: the type to which scale query keyᵀ is rounded; sums, and everything else, are float32.
    precision: any value is satisfied, since products have Precision.HIGHEST.
    platform: None, "auto" or "xla" run wherever JAX runs the call; "cpu" or "cuda" are an error elsewhere. Tile sizes
        follow from shapes, and kernels are cached in memory and on disk.
    cfg: a FlashAttentionConfig, which may name an implementation.
    block_tables: refused; flashlift.compile supports pages.
    mesh, in_specs, out_specs: all three or none; the call then runs within jax.shard_map. in_specs are, as in ejkernel,
        those of query, key, value, bias, softmax_aux, cum_seqlens_q and cum_seqlens_k; masks and segments are split
        like the query, and dropout drops the same keys as on one device.
    empty_rows: the output of a query without keys: "zero", "uniform" (the mean of value; its sum with
        normalize_output=False) or "nan".
    return_lse: also return float32 [batch, q_heads, q_len], the logarithm of each row's sum of exponentials.
    deterministic_gradients: False lets the query's gradient have other bits in each run where that is faster: on Hopper
        GPUs, for long sequences and a depth of at most 192. (Flax's `deterministic` is another thing.)

    The other arguments have Flax's names, so that you can pass `attention_fn=flash_attention` in linen and nnx.

    mask: attention_mask, which may be floats 0.0 and 1.0; is_causal: causal; dropout_rate, dropout_rng: dropout_prob,
        dropout_seed; deterministic: no dropout; dtype: casts query, key and value first.
    broadcast_dropout: accepted and ignored: each batch and head drops its own keys.
    module, which requests the weights, and custom products (*_einsum): refused.

    Gradients with respect to query, key, value, bias and softmax_aux, through both results. Errors:
    InvalidArgumentError for arguments that are wrong or contradict each other, UnsupportedError if no implementation
    supports the call.
    """
    if mesh is not None or in_specs is not None or out_specs is not None:
        own = {name: one for name, one in locals().items() if name not in ("mesh", "in_specs", "out_specs")}
        return _within_shard_map(mesh, in_specs, out_specs, own)
    if block_tables is not None:
        raise UnsupportedError(
            "block_tables was given, but flash_attention has no pages; use flashlift.compile with page_size=N"
        )
    implementation = None
    if cfg is not None:
        of_cfg, implementation = check_config(cfg)
        platform = of_cfg if platform is None else platform
    arguments.check_platform(platform)
    arguments.check_precision(precision)
    rules: tuple[Rule, ...] = ()
    if mask_info is not None:
        given = {"attention_mask": attention_mask, "mask": mask, "q_segment_ids": q_segment_ids}
        _check_alone("mask_info", given | {"kv_segment_ids": kv_segment_ids})
        attention_mask, q_segment_ids, kv_segment_ids, rules = masks_of(mask_info)
    if module is not None:
        raise UnsupportedError("module requests the attention weights, which are never stored; leave sow_weights out")
    if qk_attn_weights_einsum is not None or attn_weights_value_einsum is not None:
        raise UnsupportedError("a custom einsum was given, but the kernel computes the products; leave *_einsum out")
    if arguments.check_flag("is_causal", is_causal):
        if isinstance(causal, str):
            raise InvalidArgumentError(f'causal is "{causal}" and is_causal is given; expected one of them')
        causal = True
    query, key, value = _cast(query, key, value, dtype)
    arguments.check_operands(("query", "key", "value"), query, key, value, "bshd")
    check_rules(rules, query, key)
    rate, seed = _dropout(dropout_prob, dropout_seed, dropout_rate, dropout_rng, deterministic)
    words = [arguments.logits_word(logits_dtype), arguments.empty_rows_word(empty_rows)]
    words += arguments.band_words(causal, sliding_window)
    captures: dict[str, jax.Array] = {}
    if softmax_scale is not None:
        words.append(arguments.scale_word(softmax_scale))
    if bias is not None:
        dtype_name, captures["bias"] = arguments.bias_plane(arguments.as_bias(bias), query, key)
        words.append(f"bias={dtype_name}")
    if rate > 0:
        words.append(f"dropout={rate!r}")
    words += ["lse"] * arguments.check_flag("return_lse", return_lse)
    words += ["unnormalized"] * (not arguments.check_flag("normalize_output", normalize_output))
    words += ["nondeterministic"] * (not arguments.check_flag("deterministic_gradients", deterministic_gradients))

    packed, segments = _sequences(cum_seqlens_q, cum_seqlens_k, q_segment_ids, kv_segment_ids, causal, query, key)
    if packed is not None:
        words.append("cu_seqlens")
        captures["cu_seqlens_q"], captures["cu_seqlens_kv"] = packed
    if segments is not None:
        words.append("segment_ids")
        captures["q_segments"], captures["kv_segments"] = segments
    kept = _mask(attention_mask, mask, query, key)
    if kept is not None:
        words.append("mask=bool")
        captures["mask"] = kept
    if softmax_aux is not None:
        softmax_aux = arguments.check_sinks(
            "softmax_aux", arguments.as_array("softmax_aux", softmax_aux), query.shape[2]
        )
    if logits_soft_cap is not None:
        cap = arguments.cap_program(logits_soft_cap)
        if score_mod is None:
            words.append(cap)
        else:
            score_mod = capped_before(score_mod, float(logits_soft_cap))
    features = " ".join(filter(None, words))
    return attention(
        query,
        key,
        value,
        features,
        captures=captures,
        sinks=softmax_aux,
        dropout_seed=seed,
        implementation=implementation,
        score_mod=score_mod,
        mask_mod=both(keeps_by(jax.tree.map(whole, rules)), mask_mod),
    )


def _check_alone(name: str, others: Mapping[str, Any]) -> None:
    twice = [other for other, one in others.items() if one is not None]
    if twice:
        raise InvalidArgumentError(f"{name} and {', '.join(twice)} are given; expected one of them")


# In ejkernel's order.
_SPLIT = ("query", "key", "value", "bias", "softmax_aux", "cum_seqlens_q", "cum_seqlens_k")
# Operands that are split like the query, with the letters of their dimensions.
_SPLIT_ALIKE = {"attention_mask": "bh", "mask": "bh", "q_segment_ids": "b", "kv_segment_ids": "b"}


def _within_shard_map(
    mesh: jax.sharding.Mesh | None,
    in_specs: Sequence[PartitionSpec | None] | None,
    out_specs: PartitionSpec | None,
    given: dict[str, Any],
) -> jax.Array | tuple[jax.Array, jax.Array]:
    if mesh is None or in_specs is None or out_specs is None:
        three = (("mesh", mesh), ("in_specs", in_specs), ("out_specs", out_specs))
        missing = ", ".join(name for name, one in three if one is None)
        raise InvalidArgumentError(f"{missing} is missing; expected mesh, in_specs and out_specs, or none of them")
    if len(in_specs) != len(_SPLIT):
        raise InvalidArgumentError(f"in_specs are {len(in_specs)}; expected {len(_SPLIT)}: of {', '.join(_SPLIT)}")
    check_specs(mesh, dict(zip(_SPLIT, in_specs, strict=True)), out_specs, given, positional(given))
    of_query = (*(in_specs[0] or ()), None, None, None)
    axes = {"b": of_query[0], "h": of_query[2]}
    specs: dict[str, Any] = {name: spec or PartitionSpec() for name, spec in zip(_SPLIT, in_specs, strict=True)}

    def alike(array: Any, letters: str) -> PartitionSpec:
        return PartitionSpec(
            *(axes[one] if size > 1 else None for one, size in zip(letters, array.shape, strict=False))
        )

    rules: Any = ()
    if given["mask_info"] is not None:
        _check_alone("mask_info", {name: given[name] for name in _SPLIT_ALIKE})
        mask, of_q, of_kv, rules = masks_of(given["mask_info"])
        check_rules(rules, given["query"], given["key"])
        given = given | {"attention_mask": mask, "q_segment_ids": of_q, "kv_segment_ids": of_kv, "mask_info": None}
    if given["cum_seqlens_q"] is not None and given["query"].shape[0] != 1:
        ids = _sequences(
            given["cum_seqlens_q"], given["cum_seqlens_k"], given["q_segment_ids"], given["kv_segment_ids"],
            given["causal"], given["query"], given["key"],
        )[1]  # fmt: skip
        of_ids = dict(zip(("q_segment_ids", "kv_segment_ids"), ids or (), strict=True))
        given = given | of_ids | {"cum_seqlens_q": None, "cum_seqlens_k": None}
    operands = {name: given[name] for name in _SPLIT if given[name] is not None}
    for name, letters in _SPLIT_ALIKE.items():
        if given[name] is not None:
            operands[name] = jnp.asarray(given[name])
            specs[name] = alike(operands[name], letters if operands[name].ndim == len("bhqk") else "b")
    operands["rules"] = rules
    specs["rules"] = jax.tree.map(lambda one: alike(one, "bh" if one.ndim == len("bhqk") else "b"), rules)
    mods = {name: given[name] for name in ("score_mod", "mask_mod") if given[name] is not None}
    of_dropout = ("dropout_prob", "dropout_seed", "dropout_rate", "dropout_rng", "deterministic")
    rate, seed = _dropout(*(given[name] for name in of_dropout))
    if seed is not None:
        operands["seed"] = arguments.seed_words(seed)
        specs["seed"] = PartitionSpec()
        given = given | {"dropout_prob": rate, "dropout_rng": None, "dropout_rate": 0.0}
    rest = {name: one for name, one in given.items() if name not in operands and name not in mods}

    def run(parts: dict[str, Any]) -> jax.Array | tuple[jax.Array, jax.Array]:
        own = dict(parts)
        rules, words = own.pop("rules"), own.pop("seed", None)
        sizes = dict(zip("bshd", own["query"].shape, strict=True))
        if words is not None:
            own["dropout_seed"] = seed_of_part(words, axes, sizes)
        first = first_of_part(axes, sizes)
        counted = {name: counted_from(name, one, first) for name, one in mods.items()}
        mask_mod = both(keeps_by(rules), counted.pop("mask_mod", None))
        return flash_attention(**(rest | own | counted | {"mask_mod": mask_mod}))

    of_out = (*out_specs, None, None, None)
    results = (out_specs, PartitionSpec(of_out[0], of_out[2], of_out[1])) if given["return_lse"] else out_specs
    named = {name: specs[name] for name in operands}
    if AxisType.Explicit in mesh.axis_types:
        # In this case shard_map requires the types of the specs.
        operands = jax.tree.map(lambda one, spec: jax.reshard(one, NamedSharding(mesh, spec)), operands, named)
    split = jax.shard_map(run, mesh=mesh, in_specs=(named,), out_specs=results)
    out: jax.Array | tuple[jax.Array, jax.Array] = split(operands)
    return out


# Arguments that count queries from the first one, or have a row for each query.
_POSITIONAL = (
    *("causal", "sliding_window", "mask_info", "cum_seqlens_q", "cum_seqlens_k", "score_mod", "mask_mod"),
    *("dropout_prob", "dropout_rate", "attention_mask", "mask", "q_segment_ids"),
)


def positional(given: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name in _POSITIONAL
        if (one := given.get(name)) is not None and not (isinstance(one, int | float) and not one)
    ]


def _cast(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, dtype: DTypeLike | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    named = (("query", query), ("key", key), ("value", value))
    arrays = (arguments.as_array(name, one) for name, one in named)
    if dtype is not None:
        arguments.check_dtype("dtype", dtype)
    q, k, v = arrays if dtype is None else (one.astype(dtype) for one in arrays)
    return q, k, v


def _dropout(
    prob: float | None,
    seed: SeedOfPart | jax.Array | int | None,
    flax_rate: float,
    flax_key: jax.Array | None,
    deterministic: bool | None,
) -> tuple[float, SeedOfPart | jax.Array | int | None]:
    """The rate, and the seed if the rate is not 0."""
    rates = (
        arguments.dropout_rate("dropout_prob", 0.0 if prob is None else prob),
        arguments.dropout_rate("dropout_rate", flax_rate),
    )
    if all(rates) and rates[0] != rates[1]:
        raise InvalidArgumentError(
            f"dropout_prob is {rates[0]} and dropout_rate {rates[1]}; they are the same: expected one of them"
        )
    # Flax passes None if the argument is not given.
    if deterministic is not None and arguments.check_flag("deterministic", deterministic):
        return 0.0, None
    if not any(rates):
        if seed is not None and prob is None:
            raise InvalidArgumentError(
                "dropout_seed was given without dropout_prob, so that nothing is dropped; expected both, or "
                "dropout_prob=0.0 to drop nothing in this call"
            )
        return 0.0, None
    given = flax_key if seed is None else seed
    if given is None or (seed is not None and flax_key is not None):
        came = "neither" if given is None else "both"
        raise InvalidArgumentError(
            f"dropout needs a seed, and {came} of dropout_seed and dropout_rng came; expected a dropout_seed, a key of "
            "jax.random or an integer, another one for each step, or Flax's dropout_rng in its place"
        )
    return max(rates), given


def _sequences(
    cum_q: jax.Array | None,
    cum_k: jax.Array | None,
    q_ids: jax.Array | None,
    kv_ids: jax.Array | None,
    causal: bool | str,
    query: jax.Array,
    key: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array] | None, tuple[jax.Array, jax.Array] | None]:
    """The ends of packed sequences, and the segment ids; a padded batch is also expressed by segment ids."""
    ends = None
    if cum_q is not None or cum_k is not None:
        ends = arguments.sequence_ends(cum_q, cum_k, query, key)
    ids = None
    if q_ids is not None or kv_ids is not None:
        ids = arguments.segment_pair(q_ids, kv_ids, query, key)
    if ends is not None and query.shape[0] != 1:
        if causal == "bottom_right":
            raise UnsupportedError(
                'causal is "bottom_right" with cum_seqlens of a padded batch; pack the sequences into a batch of 1'
            )
        own = arguments.padded_ids(ends[0], query.shape[1]), arguments.padded_ids(ends[1], key.shape[1])
        if ids is not None:
            own = jnp.where(own[0] < 0, -1, ids[0]), jnp.where(own[1] < 0, -1, ids[1])
        ids = own
        ends = None
    return ends, None if ids is None else arguments.keep_padding_apart(*ids)


def _mask(
    attention_mask: jax.Array | None, flax_mask: jax.Array | None, query: jax.Array, key: jax.Array
) -> jax.Array | None:
    if attention_mask is not None and flax_mask is not None:
        raise InvalidArgumentError("attention_mask and mask are given; they are the same: expected one of them")
    if attention_mask is not None:
        return arguments.mask_plane("attention_mask", arguments.as_array("attention_mask", attention_mask), query, key)
    if flax_mask is None:
        return None
    return arguments.mask_plane("mask", arguments.as_flax_mask(flax_mask), query, key)
