"""How a call is to run, and where that is remembered: ejkernel's configurations, caches and choice.

A configuration never changes a result. Nothing is measured unless a tuner is asked for.
"""

import contextlib
import contextvars
import dataclasses
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from flashlift._errors import FlashliftError, InvalidArgumentError
from flashlift.jax._arguments.values import short

Key = tuple[str, str, str]
"""The device, the operation with its version, and what the call looks like."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FwdParams:
    """Tiles, as ejkernel names them. They are taken and kept; Flashlift's follow from shapes."""

    q_blocksize: int | None = None
    kv_blocksize: int | None = None
    blocksize_m: int | None = None
    blocksize_k: int | None = None
    blocksize_n: int | None = None
    blocksize_heads: int | None = None
    blocksize_keys: int | None = None
    num_key_splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BwdParams(FwdParams):
    """The same of the backward pass."""


@dataclasses.dataclass(frozen=True)
class FlashAttentionConfig:
    """platform: as flash_attention takes it. implementation: one of those that `flashlift.compile(...).considerations`
    names, or None for the first that accepts the problem; another one is an error with its reason."""

    fwd_params: FwdParams | None = None
    bwd_params: BwdParams | None = None
    platform: str = "auto"
    backend: str = "any"
    implementation: str | None = None

    def __post_init__(self) -> None:
        for name, kind in (("fwd_params", FwdParams), ("bwd_params", BwdParams)):
            if isinstance(getattr(self, name), Mapping):
                object.__setattr__(self, name, kind(**getattr(self, name)))


def check_config(cfg: Any) -> tuple[str | None, str | None]:
    """The platform and the implementation of a configuration, ours or ejkernel's."""
    if not hasattr(cfg, "platform") or not hasattr(cfg, "fwd_params"):
        raise InvalidArgumentError(f"cfg is {short(cfg)}; expected a FlashAttentionConfig")
    platform = getattr(cfg.platform, "value", cfg.platform)
    return (None if platform == "auto" else platform), getattr(cfg, "implementation", None)


class ConfigCache:
    """Configurations in memory."""

    def __init__(self) -> None:
        self._entries: dict[Key, Any] = {}

    def get(self, device: str, op_id: str, call_key: str) -> Any:
        return self._entries.get((device, op_id, call_key))

    def put(self, device: str, op_id: str, call_key: str, cfg: Any) -> None:
        self._entries[device, op_id, call_key] = cfg

    def clear(self) -> None:
        self._entries.clear()

    def size(self) -> int:
        return len(self._entries)

    def keys(self) -> list[Key]:
        return list(self._entries)


class PersistentCache:
    """Configurations in a JSON file that processes share. A file that cannot be read holds none."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        loader: Callable[[Any], Any] | None = None,
        dumper: Callable[[Any], Any] | None = None,
        cfg_type: type = FlashAttentionConfig,
    ) -> None:
        self._path = Path(path)
        self._load = loader or (lambda fields: cfg_type(**fields))
        self._dump = dumper or dataclasses.asdict

    def get(self, device: str, op_id: str, call_key: str) -> Any:
        found = self._read().get(_joined(device, op_id, call_key))
        try:
            return None if found is None else self._load(found)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None  # of another version

    def put(self, device: str, op_id: str, call_key: str, cfg: Any) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A lock of its own: the file itself is replaced.
        with open(self._path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self._read() | {_joined(device, op_id, call_key): self._dump(cfg)}
            text = json.dumps(entries)  # before a file is made, which an error would leave behind
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as new:
                new.write(text)
            os.replace(new.name, self._path)

    def _read(self) -> dict[str, Any]:
        try:
            entries = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError):  # the last of lists in lists in lists
            return {}
        return entries if isinstance(entries, dict) else {}


def _joined(device: str, op_id: str, call_key: str) -> str:
    return "|".join((device, op_id, call_key))


_overlays: contextvars.ContextVar[tuple[Mapping[Key, Any], ...]] = contextvars.ContextVar("overlays", default=())


@contextlib.contextmanager
def overlay_cache(mapping: Mapping[Key, Any]) -> Iterator[None]:
    """Within it, these configurations go before remembered ones."""
    token = _overlays.set((mapping, *_overlays.get()))
    try:
        yield
    finally:
        _overlays.reset(token)


@dataclasses.dataclass
class AutotunePolicy:
    """allow_autotune: whether a tuner may measure where nothing is remembered; it is off unless asked for."""

    allow_autotune: bool = False
    allow_heuristics: bool = True
    cache_miss_fallback: str = "heuristics"
    validate_backward: bool = False


class Tuner:
    """Measures candidates on the operands of a call, each `iters` times after `warmup` times."""

    def __init__(self, warmup: int = 1, iters: int = 3) -> None:
        self.warmup, self.iters = warmup, iters

    def measure(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        """The shortest time of a call in seconds."""
        times = []
        for _ in range(self.warmup + self.iters):
            start = time.perf_counter()
            jax.block_until_ready(function(*args, **kwargs))
            times.append(time.perf_counter() - start)
        return min(times[self.warmup :])

    def autotune(
        self, make: Callable[[Any], Callable[..., Any]], args: Any, kwargs: Any, candidates: Iterable[Any]
    ) -> Any:
        """The candidate whose function, made by `make`, is the fastest; one that fails is left out."""
        measured: list[tuple[float, int, Any]] = []
        for candidate in candidates:
            with contextlib.suppress(FlashliftError, jax.errors.JaxRuntimeError):
                measured.append((self.measure(make(candidate), *args, **kwargs), len(measured), candidate))
        if not measured:
            raise InvalidArgumentError("no candidate ran; expected one at least")
        return min(measured)[2]


@dataclasses.dataclass(frozen=True)
class Invocation:
    """One call on its way to a configuration."""

    op_id: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    override_cfg: Any = None
    method: str | None = None
    mesh: Any = None
    in_specs: Any = None
    out_specs: Any = None
    check_vma: bool = False

    @property
    def call_key(self) -> str:
        """16 hexadecimal digits of all shapes, dtypes and plain arguments."""
        given = dict(enumerate(self.args)) | dict(self.kwargs)
        text = "; ".join(f"{name}={_looks(given[name])}" for name in sorted(given, key=str) if given[name] is not None)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _looks(value: Any) -> str:
    leaves = jax.tree.leaves(value)
    return ",".join(f"{one.dtype}{list(one.shape)}" if hasattr(one, "shape") else repr(one) for one in leaves)


class ConfigSelectorChain:
    """Chooses by override, overlay, memory, disk, an explicit tuner, heuristics, in this order, and tells `on_event`
    which it was. An override is not remembered."""

    def __init__(
        self,
        cache: ConfigCache | None = None,
        policy: AutotunePolicy | None = None,
        tuner: Tuner | None = None,
        persistent: PersistentCache | None = None,
        on_event: Callable[..., None] | None = None,
    ) -> None:
        self.cache = cache if cache is not None else ConfigCache()
        self.policy = policy or AutotunePolicy()
        self.tuner = tuner
        self.persistent = persistent
        self.on_event = on_event

    def choose(self, inv: Invocation, kernel: Any) -> Any:
        key = (device_kind(), f"{kernel.op_id}@v{kernel.version}", inv.call_key)
        chosen: Any = inv.override_cfg
        if chosen is not None:
            return self._told("override", key, chosen)
        for overlay in _overlays.get():
            if key in overlay:
                return self._told("overlay_hit", key, overlay[key])
        chosen = self.cache.get(*key)
        if chosen is not None:
            return self._told("cache_hit", key, chosen)
        chosen = None if self.persistent is None else self.persistent.get(*key)
        if chosen is not None:
            self.cache.put(*key, chosen)
            return self._told("persistent_hit", key, chosen)
        if self.policy.allow_autotune and self.tuner is not None and not _is_traced(inv):
            chosen = self.tuner.autotune(
                lambda cfg: lambda *args, **kwargs: kernel.run(*args, **kwargs, cfg=cfg),
                inv.args,
                inv.kwargs,
                kernel.candidate_cfgs(inv),
            )
            self._remember(key, chosen)
            return self._told("autotune", key, chosen)
        if self.policy.allow_heuristics:
            chosen = kernel.heuristic_cfg(inv)
            self.cache.put(*key, chosen)
            return self._told("heuristics", key, chosen)
        raise RuntimeError(
            f"no configuration for {key}: none is remembered, and the policy allows neither a tuner nor heuristics"
        )

    def _remember(self, key: Key, cfg: Any) -> None:
        self.cache.put(*key, cfg)
        if self.persistent is not None:
            self.persistent.put(*key, cfg)

    def _told(self, event: str, key: Key, cfg: Any) -> Any:
        if self.on_event is not None:
            self.on_event(event, device=key[0], op_id=key[1], call_key=key[2], cfg=cfg)
        return cfg


@contextlib.contextmanager
def policy_override(selector: ConfigSelectorChain, **updates: Any) -> Iterator[None]:
    """Within it, the selector's policy has other values."""
    before = selector.policy
    selector.policy = dataclasses.replace(before, **updates)
    try:
        yield
    finally:
        selector.policy = before


def device_kind() -> str:
    device = jax.devices()[0]
    return f"{device.platform}|{device.device_kind}"


def _is_traced(inv: Invocation) -> bool:
    return any(isinstance(one, jax.core.Tracer) for one in jax.tree.leaves((inv.args, dict(inv.kwargs))))
