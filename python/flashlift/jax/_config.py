"""Configurations of calls, their caches and their choice, with ejkernel's names.

A configuration never changes a result. Only a tuner measures.
"""

import contextlib
import contextvars
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from flashlift._errors import FlashliftError, InvalidArgumentError
from flashlift.jax._arguments.values import short

Key = tuple[str, str, str]
"""The device, the operation with its version, and what the call looks like."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FwdParams:
    """Tile sizes with ejkernel's names. They are accepted and stored; Flashlift's own tile sizes follow from shapes."""

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
    """The same for the backward pass."""


@dataclasses.dataclass(frozen=True)
class FlashAttentionConfig:
    """platform: as in flash_attention. implementation: a name from `flashlift.compile(...).considerations`, or None
    for the first that accepts the problem. If the named one refuses, the call raises its reason."""

    platform: str = "auto"
    backend: str = "any"
    fwd_params: FwdParams | None = None
    bwd_params: BwdParams | None = None
    implementation: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.platform, "value", self.platform), str):
            raise InvalidArgumentError(f'platform is {short(self.platform)}; expected a name, such as "auto" or "cpu"')
        for name, kind in (("fwd_params", FwdParams), ("bwd_params", BwdParams)):
            given = getattr(self, name)
            if isinstance(given, Mapping):
                object.__setattr__(self, name, kind(**given))
            elif given is not None and not dataclasses.is_dataclass(given):
                raise InvalidArgumentError(
                    f"{name} is {short(given)}; expected {kind.__name__}, a dict of its fields, or None"
                )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FlashAttentionConfig":
        if not isinstance(data, Mapping):
            raise InvalidArgumentError(f"the configuration is {short(data)}; expected a dict, as to_dict gives it")
        return cls(**data)

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, s: str) -> "FlashAttentionConfig":
        return cls.from_dict(json.loads(s))


def check_config(cfg: Any) -> tuple[str | None, str | None]:
    """The platform and the implementation of a configuration, ours or ejkernel's."""
    if not hasattr(cfg, "platform") or not hasattr(cfg, "fwd_params"):
        raise InvalidArgumentError(f"cfg is {short(cfg)}; expected a FlashAttentionConfig")
    platform = getattr(cfg.platform, "value", cfg.platform)
    return (None if platform == "auto" else platform), getattr(cfg, "implementation", None)


class ConfigCache:
    """A cache of configurations in memory."""

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
    """A cache of configurations in a JSON file that processes share. A file that cannot be read counts as empty. A
    path that ends in .json names the file; by default it is the operation's file in the folder of Flashlift's
    caches."""

    def __init__(
        self,
        opname: str | os.PathLike[str],
        path: str | os.PathLike[str] | None = None,
        loader: Callable[[Any], Any] | None = None,
        dumper: Callable[[Any], Any] | None = None,
        cfg_type: type | None = None,
    ) -> None:
        of_type = FlashAttentionConfig if cfg_type is None else cfg_type
        if path is None:
            path = opname if Path(opname).suffix == ".json" else _caches_folder() / f"{opname}.json"
        self._path = Path(path)
        if self._path.is_dir():
            raise InvalidArgumentError(
                f"path is {self._path}, a folder; expected a file, such as {self._path}/tuned.json"
            )
        self._load = loader or (lambda fields: of_type(**fields))
        self._dump = dumper or dataclasses.asdict

    def get(self, device: str, op_id: str, call_key: str) -> Any:
        found = self._read().get(_joined(device, op_id, call_key))
        try:
            return None if found is None else self._load(found)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None  # written by another version

    def put(self, device: str, op_id: str, call_key: str, cfg: Any) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A separate lock file, because the file itself is replaced.
        with open(self._path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self._read() | {_joined(device, op_id, call_key): self._dump(cfg)}
            text = json.dumps(entries)  # before a file is created, which an error would leave behind
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as new:
                new.write(text)
            os.replace(new.name, self._path)

    def _read(self) -> dict[str, Any]:
        try:
            entries = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError):  # RecursionError: deeply nested lists
            return {}
        return entries if isinstance(entries, dict) else {}


def _caches_folder() -> Path:
    """As cache_folder() in src/support/private_folder.cpp."""
    if folder := os.environ.get("FLASHLIFT_CACHE_DIR"):
        if not os.path.isabs(folder):
            raise InvalidArgumentError(f"FLASHLIFT_CACHE_DIR is {folder}; expected an absolute path")
        return Path(folder)
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".cache") / "flashlift"


def _joined(device: str, op_id: str, call_key: str) -> str:
    return "|".join((device, op_id, call_key))


_overlays: contextvars.ContextVar[tuple[Mapping[Key, Any], ...]] = contextvars.ContextVar("overlays", default=())


@contextlib.contextmanager
def overlay_cache(mapping: Mapping[Key, Any]) -> Iterator[None]:
    """A context in which these configurations precede stored ones."""
    if not isinstance(mapping, Mapping):
        raise InvalidArgumentError(
            f"mapping is {short(mapping)}; expected a dict of configurations by (device, op_id@vN, call_key), as "
            "on_event tells them"
        )
    token = _overlays.set((mapping, *_overlays.get()))
    try:
        yield
    finally:
        _overlays.reset(token)


@dataclasses.dataclass
class AutotunePolicy:
    """allow_autotune: whether a tuner may measure if nothing is stored; off by default, and with
    cache_miss_fallback="heuristics". validate_backward: also measure the gradient, and skip candidates without one."""

    allow_autotune: bool = False
    allow_heuristics: bool = True
    cache_miss_fallback: str = "autotune"
    validate_backward: bool = False

    def __post_init__(self) -> None:
        if self.cache_miss_fallback not in ("autotune", "heuristics"):
            raise InvalidArgumentError(
                f'cache_miss_fallback is {self.cache_miss_fallback!r}; expected "autotune" or "heuristics"'
            )


class Tuner:
    """Measures candidates on the operands of a call, each `iters` times after `warmup` times."""

    def __init__(self, warmup: int = 1, iters: int = 3) -> None:
        for name, count, least in (("warmup", warmup, 0), ("iters", iters, 1)):
            if not isinstance(count, int) or count < least:
                raise InvalidArgumentError(f"{name} is {short(count)}; expected an integer, at least {least}")
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
        """The candidate whose function, created by `make`, is the fastest; candidates that fail are skipped."""
        measured: list[tuple[float, int, Any]] = []
        for candidate in candidates:
            with contextlib.suppress(FlashliftError, jax.errors.JaxRuntimeError):
                measured.append((self.measure(make(candidate), *args, **kwargs), len(measured), candidate))
        if not measured:
            raise InvalidArgumentError("no candidate ran; expected one at least")
        return min(measured)[2]


@dataclasses.dataclass(frozen=True)
class Invocation:
    """One call for which a configuration is chosen."""

    op_id: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch_axes: Mapping[str, int] | None = None
    override_cfg: Any = None
    stamp: bool = True
    method: str | None = None
    mesh: Any = None
    in_specs: Any = None
    out_specs: Any = None
    check_vma: bool = False

    @property
    def call_key(self) -> str:
        """16 hexadecimal digits of all shapes, dtypes and plain arguments."""
        given = dict(enumerate(self.args)) | dict(self.kwargs) | {"batch_axes": self.batch_axes, "method": self.method}
        text = "; ".join(f"{name}={_looks(given[name])}" for name in sorted(given, key=str) if given[name] is not None)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def make_key(self, key_builder: Callable[["Invocation"], str] | None = None) -> str:
        """The key from a custom function, or call_key."""
        return self.call_key if key_builder is None else key_builder(self)


def _looks(value: Any) -> str:
    leaves = jax.tree.leaves(value)
    return ",".join(f"{one.dtype}{list(one.shape)}" if hasattr(one, "shape") else repr(one) for one in leaves)


class ConfigSelectorChain:
    """Chooses a configuration by override, overlay, memory, disk, an explicit tuner, heuristics, in this order, and
    reports to `on_event` which one it was. An override is not stored. persist_autotune: store measured results on
    disk, too; forbid_reautotune: measure nothing twice, even after the cache was cleared."""

    def __init__(
        self,
        cache: ConfigCache | None = None,
        policy: AutotunePolicy | None = None,
        tuner: Tuner | None = None,
        persistent: PersistentCache | None = None,
        persist_autotune: bool = True,
        on_event: Callable[..., None] | None = None,
        forbid_reautotune: bool = True,
    ) -> None:
        self.cache = cache if cache is not None else ConfigCache()
        self.policy = policy or AutotunePolicy()
        self.tuner = tuner
        self.persistent = persistent
        self.persist_autotune = persist_autotune
        self.on_event = on_event
        self.forbid_reautotune = forbid_reautotune
        self._tuned: set[Key] = set()

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
        if self.tuner is not None and self._may_tune(key) and not _is_traced(inv):
            with_gradient = self.policy.validate_backward and not _forward_only.get()

            def function_of(cfg: Any) -> Callable[..., Any]:
                run = functools.partial(kernel.run, cfg=cfg)
                return _with_gradient(run) if with_gradient else run

            chosen = self.tuner.autotune(function_of, inv.args, inv.kwargs, kernel.candidate_cfgs(inv))
            self._remember(key, chosen)
            return self._told("autotune", key, chosen)
        if self.policy.allow_heuristics:
            chosen = kernel.heuristic_cfg(inv)
            self.cache.put(*key, chosen)
            return self._told("heuristics", key, chosen)
        raise RuntimeError(
            f"no configuration for {key}: none is remembered, and the policy allows neither a tuner nor heuristics"
        )

    def _may_tune(self, key: Key) -> bool:
        asked_for = self.policy.allow_autotune and self.policy.cache_miss_fallback == "autotune"
        return asked_for and not (self.forbid_reautotune and key in self._tuned)

    def _remember(self, key: Key, cfg: Any) -> None:
        self._tuned.add(key)
        self.cache.put(*key, cfg)
        if self.persistent is not None and self.persist_autotune:
            self.persistent.put(*key, cfg)

    def _told(self, event: str, key: Key, cfg: Any) -> Any:
        if self.on_event is not None:
            self.on_event(event, device=key[0], op_id=key[1], call_key=key[2], cfg=cfg)
        return cfg


@contextlib.contextmanager
def policy_override(selector: ConfigSelectorChain, **updates: Any) -> Iterator[None]:
    """A context in which the selector's policy has other values."""
    before = selector.policy
    selector.policy = dataclasses.replace(before, **updates)
    try:
        yield
    finally:
        selector.policy = before


_forward_only: contextvars.ContextVar[bool] = contextvars.ContextVar("forward_only", default=False)


@contextlib.contextmanager
def forward_autotune_only() -> Iterator[None]:
    """A context in which tuners measure no gradients, for any policy."""
    token = _forward_only.set(True)
    try:
        yield
    finally:
        _forward_only.reset(token)


def _with_gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and the gradient of its sum by all arrays of floats."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        floats = [
            i for i, one in enumerate(leaves) if hasattr(one, "dtype") and jnp.issubdtype(one.dtype, jnp.floating)
        ]

        def loss(parts: list[Any]) -> Any:
            by_place = dict(enumerate(leaves)) | dict(zip(floats, parts, strict=True))
            own_args, own_kwargs = jax.tree.unflatten(tree, list(by_place.values()))
            return sum(one.sum() for one in jax.tree.leaves(run(*own_args, **own_kwargs)))

        return jax.value_and_grad(loss)([leaves[i] for i in floats])

    return call


def device_kind() -> str:
    device = jax.devices()[0]
    return f"{device.platform}|{device.device_kind}"


def _is_traced(inv: Invocation) -> bool:
    return any(isinstance(one, jax.core.Tracer) for one in jax.tree.leaves((inv.args, dict(inv.kwargs))))
