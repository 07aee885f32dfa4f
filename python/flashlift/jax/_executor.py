"""Flash attention as a module and its executor, with ejkernel's names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

import flashlift
from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift._problem import Problem
from flashlift._tune import Tuned
from flashlift.jax._arguments import check_operands, check_platform, seed_words, short
from flashlift.jax._arguments.seeds import seed_of_part
from flashlift.jax._call import DTYPES, sizes_of
from flashlift.jax._config import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    FlashAttentionConfig,
    Invocation,
    PersistentCache,
    Tuner,
    check_config,
)
from flashlift.jax._flash_attention import flash_attention, positional
from flashlift.jax._mods import counted_from
from flashlift.jax._sharding import check_specs, first_of_part
from flashlift.jax._tune import tune

Result = jax.Array | tuple[jax.Array, jax.Array]


class FlashAttention:
    """flash_attention as a module. A configuration, which an Executor chooses, determines how it runs."""

    op_id = "flash_attention"
    version = "1"

    def run(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        attention_mask: jax.Array | None = None,
        bias: jax.Array | None = None,
        softmax_scale: float | None = None,
        dropout_prob: float | None = None,
        causal: bool | str = False,
        dropout_seed: jax.Array | int | None = None,
        cum_seqlens_q: jax.Array | None = None,
        cum_seqlens_k: jax.Array | None = None,
        sliding_window: int | tuple[int | None, int | None] | None = None,
        logits_soft_cap: float | None = None,
        softmax_aux: jax.Array | None = None,
        normalize_output: bool = True,
        precision: jax.lax.PrecisionLike = None,
        logits_dtype: DTypeLike | None = jnp.float32,
        platform: str | None = None,
        *,
        q_segment_ids: jax.Array | None = None,
        kv_segment_ids: jax.Array | None = None,
        block_tables: jax.Array | None = None,
        cfg: FlashAttentionConfig | None = None,
        **others: Any,
    ) -> Result:
        """flash_attention with ejkernel's order of arguments. others: its other keyword arguments."""
        return flash_attention(
            query,
            key,
            value,
            bias,
            cum_seqlens_q,
            cum_seqlens_k,
            softmax_aux,
            block_tables,
            attention_mask=attention_mask,
            softmax_scale=softmax_scale,
            dropout_prob=dropout_prob,
            causal=causal,
            dropout_seed=dropout_seed,
            sliding_window=sliding_window,
            logits_soft_cap=logits_soft_cap,
            normalize_output=normalize_output,
            precision=precision,
            logits_dtype=logits_dtype,
            platform=platform,
            q_segment_ids=q_segment_ids,
            kv_segment_ids=kv_segment_ids,
            cfg=cfg,
            **others,
        )

    def get_impl(self, cfg: FlashAttentionConfig) -> Callable[..., Result]:
        """The function that runs with this configuration."""
        platform, _ = check_config(cfg)
        try:
            check_platform(platform)
        except UnsupportedError as error:
            raise InvalidArgumentError(f"no implementation: {error}") from error
        return functools.partial(self.run, cfg=cfg)

    def heuristic_cfg(self, inv: Invocation) -> FlashAttentionConfig:
        """The default configuration, which leaves the choice to the library."""
        return FlashAttentionConfig()

    heuristic_cfg_gpu = heuristic_cfg_tpu = heuristic_cfg_xla = heuristic_cfg

    def candidate_cfgs(self, inv: Invocation) -> list[FlashAttentionConfig]:
        """One for each implementation that accepts such shapes, the library's own choice first."""
        given = inspect.signature(FlashAttention.run).bind(self, *inv.args, **inv.kwargs).arguments
        query, key, value = given["query"], given["key"], given["value"]
        check_operands(("query", "key", "value"), query, key, value, "bshd")
        dtype = {name: text for text, name in DTYPES.items()}[query.dtype.name]
        problem = Problem.parse("attn", dtype=dtype, **sizes_of("bshd", query, key, value))
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        considered = (line.split(": ") for line in flashlift.compile(problem, device=device).considerations)
        return [FlashAttentionConfig(implementation=name) for name, verdict, *_ in considered if verdict == "accepted"]

    candidate_cfgs_gpu = candidate_cfgs_tpu = candidate_cfgs_xla = candidate_cfgs
    candidate_cfgs_shard_map = candidate_cfgs_shard_map_gpu = candidate_cfgs_shard_map_tpu = candidate_cfgs
    candidate_cfgs_shard_map_xla = candidate_cfgs

    def create_shard_map_wrapper(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        attention_mask: jax.Array | None = None,
        bias: jax.Array | None = None,
        *,
        mesh: jax.sharding.Mesh,
        in_specs: Sequence[PartitionSpec | None],
        out_specs: PartitionSpec,
        check_vma: bool = True,
        **arguments: Any,
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A function within jax.shard_map, and the arrays to call it with: query, key, value, bias, softmax_aux,
        cum_seqlens_q, cum_seqlens_k, attention_mask, q_segment_ids, kv_segment_ids, with None for arrays that are
        not given. in_specs: one for each, or for the first seven; the rest is then split like the query."""
        names = ["query", "key", "value", "bias", "softmax_aux", "cum_seqlens_q", "cum_seqlens_k", "attention_mask"]
        names += ["q_segment_ids", "kv_segment_ids"]
        given = {"query": query, "key": key, "value": value, "bias": bias, "attention_mask": attention_mask}
        operands = tuple(given[name] if name in given else arguments.pop(name, None) for name in names)
        specs = tuple(in_specs)
        if len(specs) not in (7, len(names)):
            raise InvalidArgumentError(
                f"in_specs are {len(specs)}; expected 7, of query, key, value, bias, softmax_aux, cum_seqlens_q and "
                f"cum_seqlens_k, or {len(names)}, with attention_mask, q_segment_ids and kv_segment_ids"
            )
        if len(specs) == 7:
            axes = (*(specs[0] or ()), None, None, None)
            has_heads = attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[1] > 1
            specs += (PartitionSpec(axes[0], axes[2] if has_heads else None), *[PartitionSpec(axes[0])] * 2)

        by_name = dict(zip(names, operands, strict=True))
        check_specs(mesh, dict(zip(names, specs, strict=True)), out_specs, by_name, positional(by_name | arguments))
        query_axes = (*(specs[0] or ()), None, None, None)

        def run(*parts: Any) -> Any:
            """Programs and dropout use batch and head indices of the whole."""
            own = dict(zip(names, parts, strict=True)) | arguments
            axes = {"b": query_axes[0], "h": query_axes[2]}
            sizes = dict(zip("bshd", own["query"].shape, strict=True))
            if own.get("dropout_prob") and own.get("dropout_seed") is not None:
                own["dropout_seed"] = seed_of_part(seed_words(own["dropout_seed"]), axes, sizes)
            for name in ("score_mod", "mask_mod"):
                if own.get(name) is not None:
                    own[name] = counted_from(name, own[name], first_of_part(axes, sizes))
            return self.run(**own)

        both = zip(operands, specs, strict=True)
        wanted = tuple(None if one is None else spec or PartitionSpec() for one, spec in both)
        return jax.shard_map(run, mesh=mesh, in_specs=wanted, out_specs=out_specs, check_vma=check_vma), operands


class Executor:
    """Runs a module with the configuration that a chooser finds."""

    def __init__(self, chooser: ConfigSelectorChain | None = None, stamp_prefix: str | None = None) -> None:
        """stamp_prefix exists for compatibility with ejkernel and has no effect."""
        if chooser is not None and not hasattr(chooser, "choose"):
            raise InvalidArgumentError(f"chooser is {short(chooser)}; expected a ConfigSelectorChain, or None")
        self.chooser = chooser if chooser is not None else ConfigSelectorChain()

    def __call__(
        self,
        kernel: Any,
        *args: Any,
        cfg: Any = None,
        _cfg: Any = None,
        method: str | None = None,
        mesh: Any = None,
        in_specs: Any = None,
        out_specs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """method="shard_map": each device runs its part, as the specs define it."""
        override = _cfg if cfg is None else cfg
        chosen = self.choose_config(kernel, *args, cfg=override, **kwargs)
        if method not in (None, "shard_map"):
            raise InvalidArgumentError(f'method is "{method}"; expected None or "shard_map"')
        if method is None and (mesh, in_specs, out_specs) == (None, None, None):
            return kernel.run(*args, **kwargs, cfg=chosen)
        if mesh is None or in_specs is None or out_specs is None:
            raise InvalidArgumentError("mesh, in_specs and out_specs go together; expected all three")
        run, operands = kernel.create_shard_map_wrapper(
            *args, **kwargs, cfg=chosen, mesh=mesh, in_specs=in_specs, out_specs=out_specs
        )
        return run(*operands)

    def choose_config(self, kernel: Any, *args: Any, cfg: Any = None, **kwargs: Any) -> Any:
        """The configuration with which a call would run."""
        if isinstance(kernel, type) or not hasattr(kernel, "op_id") or not hasattr(kernel, "run"):
            raise InvalidArgumentError(f"kernel is {short(kernel)}; expected a module, such as FlashAttention()")
        return self.chooser.choose(Invocation(kernel.op_id, args, kwargs, override_cfg=cfg), kernel)

    def tune(
        self, kernel: Any, *args: Any, seconds: float = 2.0, policy: str | None = None, **kwargs: Any
    ) -> list[Tuned]:
        """Also measures tiles, splits and threads for the kernels of such a call, and stores the results for all of
        Flashlift's front ends; see flashlift.jax.tune."""
        arrays = {name: one for name, one in kwargs.items() if hasattr(one, "shape")}
        plain = {name: one for name, one in kwargs.items() if name not in arrays}
        run = jax.jit(lambda args, arrays: kernel.run(*args, **arrays, **plain))
        return tune(run, args, arrays, seconds=seconds, policy=policy)

    def compile(self, kernel: Any, *args: Any, cfg: Any = None, **kwargs: Any) -> Any:
        """The call compiled for arrays like these."""
        chosen = self.choose_config(kernel, *args, cfg=cfg, **kwargs)
        arrays = {name: one for name, one in kwargs.items() if hasattr(one, "shape")}
        plain = {name: one for name, one in kwargs.items() if name not in arrays}
        run = jax.jit(lambda args, arrays: kernel.run(*args, **arrays, **plain, cfg=chosen))
        compiled = run.lower(args, arrays).compile()
        return lambda *args, **arrays: compiled(args, arrays)


def create_default_executor(
    persistent_cache_path: str | None = None,
    enable_autotuning: bool = False,
    warmup_iterations: int = 2,
    timing_iterations: int = 5,
) -> Executor:
    """An executor that stores configurations in memory, and in a file if one is named. enable_autotuning: calls with
    arrays (not traced ones) measure the candidates if nothing is stored."""
    return Executor(
        ConfigSelectorChain(
            cache=ConfigCache(),
            policy=AutotunePolicy(allow_autotune=enable_autotuning),
            tuner=Tuner(warmup=warmup_iterations, iters=timing_iterations),
            persistent=None
            if persistent_cache_path is None
            else PersistentCache(FlashAttention.op_id, persistent_cache_path),
        )
    )
