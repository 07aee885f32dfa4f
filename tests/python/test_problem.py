"""flashlift.Problem: a problem in fields, and its text."""

import dataclasses
import json

import flashlift
import numpy as np
import pytest
from flashlift._library import core

SIZES = {"q_heads": 4, "kv_heads": 2, "q_len": 8, "kv_len": 16, "head_dim": 8, "value_dim": 4}


def test_text_and_fields_are_the_same():
    text = "attn b2 hq4 hkv2 sq8 skv16 dqk8 dv4 bf16 out=f32 causal window=3,0 softcap=2.5 lse sinks=2"
    problem = flashlift.Problem.parse(text)
    assert problem == flashlift.Problem(
        **SIZES,
        batch=2,
        dtype="bf16",
        words={"causal": True, "window": (3, 0), "softcap": 2.5, "out": "f32", "lse": True, "sinks": 2},
    )
    assert flashlift.compile(problem).problem == flashlift.compile(text).problem
    assert flashlift.Problem.parse(str(problem)) == problem
    assert hash(flashlift.Problem.parse(str(problem))) == hash(problem)


def test_every_word_that_the_tables_have_is_read_and_written():
    base = flashlift.Problem(**SIZES, dtype="bf16")
    for row in json.loads(core().flashlift_problem_words()):
        if row["group"] in ("sizes", "programs"):
            continue
        for example in row["examples"]:
            problem = flashlift.Problem.parse(f"attn bf16 {example}", **SIZES)
            assert list(problem.words) == [row["name"]]
            assert flashlift.Problem.parse(str(problem)) == problem == flashlift.Problem.parse(f"{base} {example}")


def test_programs_stand_at_the_end():
    program = "mask_mod(t: bool[16]) { %0 = load t[kv]; return %0 }"
    problem = flashlift.Problem(**SIZES, words={"causal": True}, mask_mod=program)
    assert str(problem).endswith(f" causal {program}")
    assert flashlift.compile(problem).captures == ["t"]
    assert flashlift.Problem.parse(str(problem)).mask_mod == program


def test_words_are_added_and_taken_away():
    problem = flashlift.Problem(**SIZES).with_words(causal="bottom_right", lse=True)
    assert str(problem).endswith("f32 causal=bottom_right lse")
    assert str(problem.with_words(lse=False)).endswith("f32 causal=bottom_right")
    assert dataclasses.replace(problem, q_len=3).q_len == 3


def test_the_canonical_text_of_a_compiled_problem_is_read():
    attention = flashlift.compile("attn h2 s8 d8 alibi documents=2")
    problem = flashlift.Problem.parse(attention.problem)
    assert problem.score_mod.startswith("score_mod() {") and list(problem.words) == ["scale"]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("attn h2 s8 d8 causall", {}, "did you mean `causal`"),
        ("attn h2 s8 d8 window=x", {}, "`window` expects"),
        ("attn h2 s8", {}, "lacks head_dim, value_dim"),
        ("attn h2 s8 d8", {"q_len": 3}, "gives q_len; expected a text without"),
        ("h2 s8 d8", {}, "starts with `attn`"),
        ("attn h2 s8 d8\0", {}, "text"),
    ],
)
def test_what_is_wrong_is_said(text, fields, message):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        flashlift.Problem.parse(text, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q_heads": 1.5}, "q_heads is 1.5; expected a whole number"),
        ({"q_heads": True}, "q_heads is True; expected a whole number"),
        ({"kv_len": "8 lse"}, "kv_len is '8 lse'; expected a whole number"),
        ({"batch": -1}, "batch is -1; expected a whole number from 0"),
        ({"head_dim": 2**70}, "head_dim is 1180591620717411303424; expected a whole number from 0"),
        ({"value_dim": None}, "value_dim is None; expected a whole number"),
        ({"dtype": np.float32}, "dtype is .*float32.*; expected the text f32, bf16 or f16"),
        ({"words": ["causal"]}, r"words is \['causal'\]; expected a dictionary, such as {\"causal\": True}"),
        ({"score_mod": abs}, "score_mod is .*abs.*; expected one program"),
        ({"mask_mod": ""}, "mask_mod is ''; expected one program"),
    ],
)
def test_a_field_is_of_its_own_kind(fields, message):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        flashlift.Problem(**{**SIZES, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "f32 lse"},
        {"words": {"softcap": "30 lse"}},
        {"words": {"causal\nlse": True}},
        {"words": {"window": np.array([128, 0])}},
        {"words": {"out": "f32 mask_mod() { %0 = le kv, q; return %0 }"}},
        {"score_mod": "lse"},
        {"score_mod": "mask_mod() { %0 = le kv, q; return %0 }"},
        {"score_mod": "score_mod() { return score } mask_mod() { %0 = le kv, q; return %0 }"},
    ],
)
def test_a_field_holds_one_word_or_one_program(fields):
    with pytest.raises(flashlift.InvalidArgumentError, match="not a word of a problem|expected one program"):
        flashlift.Problem(**{**SIZES, **fields})
