"""A problem as separate fields, and its text."""

import ctypes
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashlift._errors import InvalidArgumentError
from flashlift._library import c_text, check, core, whole_number

# The word of each size: either one field for both sizes, or one field for each.
_SIZES = {
    "b": ("batch",),
    "h": ("q_heads", "kv_heads"),
    "hq": ("q_heads",),
    "hkv": ("kv_heads",),
    "s": ("q_len", "kv_len"),
    "sq": ("q_len",),
    "skv": ("kv_len",),
    "d": ("head_dim", "value_dim"),
    "dqk": ("head_dim",),
    "dv": ("value_dim",),
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention problem. str() gives its text, which docs/problem.md describes.

    words: every word that is not a size or the dtype, with its value: True for a word without a value, a number, two
    numbers, or a text: {"causal": True, "window": (128, 0), "softcap": 30.0, "out": "f32"}.
    score_mod, mask_mod: programs as text.
    Each value must be a single word or program. Only compiling reports other errors in them.
    """

    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    batch: int = 1
    dtype: str = "f32"
    words: Mapping[str, Any] = field(default_factory=dict)
    score_mod: str | None = None
    mask_mod: str | None = None

    def __post_init__(self) -> None:
        for name, *_ in _SIZES.values():
            whole_number(getattr(self, name), name, 0, 2**63 - 1)
        if not isinstance(self.words, Mapping):
            raise InvalidArgumentError(f'words is {self.words!r}; expected a dictionary, such as {{"causal": True}}')
        if not isinstance(self.dtype, str):
            raise InvalidArgumentError(f"dtype is {self.dtype!r}; expected the text f32, bf16 or f16")
        words = [_word(name, value) for name, value in self.words.items()]
        for word in filter(None, [*self._sizes(), self.dtype, *words]):
            if not re.fullmatch(r"[^\s(){}]+", word):
                raise InvalidArgumentError(f"{word!r} is not a word of a problem: a word has no spaces and no brackets")
        for name, program in {"score_mod": self.score_mod, "mask_mod": self.mask_mod}.items():
            pattern = rf"\s*{name}\s*\([^{{}}]*\)\s*{{[^{{}}]*}}\s*"
            if program is not None and not (isinstance(program, str) and re.fullmatch(pattern, program)):
                raise InvalidArgumentError(f"{name} is {program!r}; expected one program, `{name}(...) {{ ... }}`")

    @classmethod
    def parse(cls, text: str, **fields: Any) -> "Problem":
        """Reads a problem's text. fields: sizes and a dtype that the text leaves out."""
        read = _read(core().flashlift_problem_read, text)
        given = {name: size for word, size in read["sizes"].items() for name in _SIZES[word]}
        if read["dtype"] is not None:
            given["dtype"] = read["dtype"]
        twice = sorted(given.keys() & fields.keys())
        if twice:
            raise InvalidArgumentError(f'the text "{text}" gives {", ".join(twice)}; expected a text without')
        given |= fields
        missing = [one.name for one in dataclasses.fields(cls) if one.name not in given and _is_required(one)]
        if missing:
            raise InvalidArgumentError(f'the text "{text}" lacks {", ".join(missing)}; see docs/problem.md')
        return cls(**given, words=_words(read), score_mod=read["score_mod"], mask_mod=read["mask_mod"])

    def __str__(self) -> str:
        words = (_word(name, value) for name, value in self.words.items())
        return " ".join(filter(None, ["attn", *self._sizes(), self.dtype, *words, self.score_mod, self.mask_mod]))

    def _sizes(self) -> list[str]:
        return [f"{word}{getattr(self, _SIZES[word][0])}" for word in ("b", "hq", "hkv", "sq", "skv", "dqk", "dv")]

    def __hash__(self) -> int:
        return hash(str(self))

    def expanded(self) -> "Problem":
        """The same problem, with each word that names a feature replaced by its program."""
        read = _read(core().flashlift_problem_expand, str(self))
        programs = {"score_mod": read["score_mod"], "mask_mod": read["mask_mod"]}
        return dataclasses.replace(self, words=_words(read), **programs)

    def with_words(self, **words: Any) -> "Problem":
        """The same problem with these words, or with other values of them; False removes a word."""
        return dataclasses.replace(self, words={**self.words, **words})


def _read(function: Any, text: str) -> dict[str, Any]:
    library = core()
    handle = ctypes.c_void_p()
    check(library, function(c_text(text, "text"), ctypes.byref(handle)))
    try:
        read: dict[str, Any] = json.loads(library.flashlift_problem_json(handle))
    finally:
        library.flashlift_problem_destroy(handle)
    return read


def _words(read: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in read["words"].items()}


def _is_required(one: dataclasses.Field) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def _word(name: str, value: Any) -> str:
    if value is False or value is None:
        return ""
    if value is True:
        return name
    return f"{name}={','.join(map(str, value)) if isinstance(value, tuple | list) else value}"
