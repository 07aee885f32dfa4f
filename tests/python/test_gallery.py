"""Every block of the gallery runs, and computes the same as unfused maths with the functions of the PyTorch block.

`make test` runs a few of them; `make test-gallery` all, which takes half a minute.
"""

import sys
from pathlib import Path

import flashlift
import flashlift.jax
import flashlift.torch
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gallery"))

import pages
from entries import ENTRIES

FEW = [entry for entry in ENTRIES if entry.name in ("sinks", "natten", "jagged")]
by_name = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


class Recorder:
    """Replaces a front end's function, and records the arguments and result of the last call."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *operands, **options):
        self.operands, self.options = operands, options
        self.result = self.function(*operands, **options)
        return self.result


def run(code, module, name, monkeypatch):
    recorder = Recorder(getattr(module, name))
    monkeypatch.setattr(module, name, recorder)
    names = {}
    exec(compile(code, "block", "exec"), names)
    return recorder, names


def unfused(options, q, k, v):
    """In double precision, with all scores in memory."""
    shape = (1, q.shape[1], q.shape[2], k.shape[2])
    place = [torch.arange(size).reshape([-1 if i == j else 1 for j in range(4)]) for i, size in enumerate(shape)]
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if "score_mod" in options:
        scores = options["score_mod"](scores, *place)
    keep = torch.ones((), dtype=torch.bool)
    if "mask_mod" in options:
        keep = options["mask_mod"](*place)
    if "cu_seqlens" in options:
        sequence = [torch.bucketize(one.int(), options["cu_seqlens"], right=True) for one in place[2:]]
        keep = keep & (sequence[0] == sequence[1])
    scores = scores.masked_fill(~keep, -torch.inf)
    if "sinks" in options:
        sinks = options["sinks"].double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v.double()
    return scores.softmax(-1) @ v.double()


def assert_near(got, want):
    assert np.abs(np.asarray(got, np.float64) - want.numpy()).max() < 2e-5


def check(entry, problems, monkeypatch):
    flex, names = run(entry.torch, flashlift.torch, "flex_attention", monkeypatch)
    want = unfused(flex.options, *flex.operands)
    assert_near(flex.result, want)

    jax, _ = run(entry.jax, flashlift.jax, "flash_attention", monkeypatch)
    q, k, v = (torch.from_numpy(np.asarray(one).swapaxes(1, 2).copy()) for one in jax.operands)
    assert_near(np.asarray(jax.result).swapaxes(1, 2), unfused(flex.options, q, k, v))

    arrays = [one.numpy() for one in flex.operands]
    sinks = {"sinks": flex.options["sinks"].numpy()[:, None]} if "sinks" in flex.options else {}
    of_cpp = flashlift.compile(problems[entry.name])
    captures = {name: names[name].numpy() for name in of_cpp.captures}
    assert_near(of_cpp(*arrays, captures=captures, **sinks), want)
    if entry.words:
        assert_near(flashlift.compile(pages.in_words(entry, problems[entry.name]))(*arrays, **sinks), want)


def test_a_few_compute_the_same_in_every_language(monkeypatch):
    problems = pages.problems_of_cpp(FEW)
    for entry in FEW:
        check(entry, problems, monkeypatch)


@pytest.fixture(scope="module")
def problems():
    return pages.problems_of_cpp(ENTRIES)


@pytest.mark.gallery
@by_name
def test_every_language_computes_the_same(entry, problems, monkeypatch):
    check(entry, problems, monkeypatch)


@by_name
def test_blocks_are_short(entry):
    for code in (entry.torch, entry.jax, entry.cpp):
        lines = [one for one in code.splitlines() if one.strip()]
        assert len(lines) <= 16, code


@by_name
def test_the_page_has_the_blocks(entry):
    page = (pages.FOLDER / f"{entry.name}.md").read_text()
    for part in (entry.title, entry.about, entry.torch, entry.jax, entry.cpp, entry.words):
        assert part in page, "run make gallery"
    assert f"({entry.name}.md)" in (pages.FOLDER / "README.md").read_text()


@pytest.mark.gallery
def test_the_pages_are_up_to_date():
    assert pages.stale() == []
