"""Finds attention in a StableHLO module, given as text or bytes, and replaces it.

result = flashlift.stablehlo.fuse(text)
for candidate in result.candidates:
    print(candidate.fused, candidate.reason)
"""

import ctypes
import json
from dataclasses import dataclass
from typing import Literal

from flashlift._errors import InvalidArgumentError
from flashlift._library import FuseOptions, c_text, check, stablehlo

FuseAs = Literal["custom_call", "composite"]
_AS = {"custom_call": 0, "composite": 1}
_BYTECODE = b"ML\xefR"


@dataclass(frozen=True)
class Candidate:
    """One place that looked like attention, fused or not."""

    location: str
    """"file:line:column", or the source location that the module carries."""
    function: str
    """The function that it stands in, "main" as a rule."""
    fused: bool
    reason: str
    """Why not; for a fused one, what was recognised."""
    problem: str = ""
    """Fused only: the problem as one line of text, programs included."""
    score_mod: str = ""
    mask_mod: str = ""


@dataclass(frozen=True)
class FuseResult:
    module: str | bytes
    """The new module, str where it is text and bytes otherwise; the one given when nothing was fused and no
    other form was asked for."""
    candidates: tuple[Candidate, ...]

    @property
    def fused_count(self) -> int:
        return sum(candidate.fused for candidate in self.candidates)


def fuse(
    module: str | bytes,
    *,
    fuse_as: FuseAs = "custom_call",
    name: str = "<module>",
    gradients: bool = False,
    emit: str = "",
) -> FuseResult:
    """Finds attention in a module and replaces each one by a fused call.

    module: StableHLO text, pretty or generic; MLIR bytecode; or VHLO (a portable artifact, as jax.export writes it).
    Its first bytes determine which.
    fuse_as: "custom_call" needs Flashlift's handler to run the module (flashlift.jax.register); "composite" keeps the
    original as its decomposition, so that the module runs anywhere.
    gradients: if the module also contains the gradient of an attention, fuse both; the backward pass becomes a custom
    call as well. Otherwise both stay unfused.
    emit: the form of the new module: "text", "bytecode" (MLIR's, of StableHLO), "vhlo=1.9.0" (a portable artifact of
    that version of StableHLO), "vhlo" (of the oldest version that can represent it) or "" (the form of the input).
    Raises InvalidArgumentError with line and column, or the byte, for an invalid module. An attention that cannot be
    proved stays unfused, with a reason.
    """
    if fuse_as not in _AS:
        raise InvalidArgumentError(f'fuse_as is "{fuse_as}"; expected one of {", ".join(_AS)}')
    if gradients and fuse_as == "composite":
        raise InvalidArgumentError('gradients=True with fuse_as="composite": gradients are fused as custom calls only')
    library = stablehlo()
    given = module if isinstance(module, bytes) else c_text(module, "module")
    options = FuseOptions(
        ctypes.sizeof(FuseOptions), _AS[fuse_as], c_text(name, "name"), gradients, c_text(emit, "emit")
    )
    fused = ctypes.c_void_p()
    check(library, library.flashlift_stablehlo_fuse(given, len(given), options, ctypes.byref(fused)))
    try:
        size = ctypes.c_size_t()
        address = library.flashlift_fused_module(fused, ctypes.byref(size))
        result = ctypes.string_at(address, size.value)
        report = json.loads(library.flashlift_fused_report(fused))
    finally:
        library.flashlift_fused_destroy(fused)
    is_text = not result.startswith(_BYTECODE)
    return FuseResult(result.decode() if is_text else result, tuple(_candidate(entry) for entry in report))


def _candidate(entry: dict) -> Candidate:
    known = {name: entry[name] for name in Candidate.__dataclass_fields__ if entry.get(name) is not None}
    return Candidate(**known)
