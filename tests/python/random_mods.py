"""Draws mods for flex_attention as Python programs, and compares attention with them with that of single scores.

    build/venv/bin/python tests/python/random_mods.py [--first N] [--count N] [--compiled]

Prints the program of each pair of mods that is refused or that disagrees. A number alone makes a pair again.

Programs choose by integers, truth values and elements of tables only, which are exact: by floats, a choice could differ
between two machines. Floats stay small, so that no difference of large ones loses their digits.
"""

import argparse
import itertools
import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from flashlift.torch import flex_attention
from torch.nn.attention.flex_attention import AuxRequest

# i, f, b: an integer, a float, a truth value that the program has. n, x: numbers. d: a divisor. I, F, B: an element of
# a table.
INTEGERS = (
    "{i} + {i}", "{i} - {i}", "{i} * {n}", "{n} - {i}", "-{i}", "~{i}", "{i}.abs()", "torch.sign({i})", "{i} // {d}",
    "{i} % {d}", "torch.div({i}, {d}, rounding_mode='trunc')", "torch.fmod({i}, {d})", "torch.floor_divide({i}, {d})",
    "{i} & {i}", "{i} | {n}", "{i} ^ {i}", "{i} << 2", "{i} >> 1", "torch.minimum({i}, {i})", "torch.maximum({i}, {i})",
    "{i}.clamp(-3, 9)", "torch.where({b}, {i}, {i})", "{b}.long()", "{b} * {i}", "{i} + {b}", "{i}.to(torch.int16)",
    "{i}.to(torch.int8)", "{I}", "{I}", "{I}",
)  # fmt: skip
FLOATS = (
    "0.5 * ({f} + {f})", "{f} - {f} * {x}", "{f} * torch.tanh({f})", "{f} / (1 + {f}.abs())", "{x} - {f}",
    "({i} / {d}).clamp(-3, 3)", "torch.tanh({i} * 0.25)", "torch.sigmoid({f})", "torch.erf({f})", "torch.relu({f})",
    "torch.exp(-{f}.abs())", "torch.exp2(-({i}.abs() + 1) * 0.5)", "torch.log({f}.abs() + 0.5)",
    "torch.sqrt({f}.abs() + 0.5)", "torch.rsqrt({f}.square() + 1)", "torch.minimum({f}, {f})", "{f}.clamp(-1, 1.5)",
    "torch.where({b}, {f}, {f})", "torch.where({b}, {f}, {x})", "F.softplus({f})", "F.silu({f})", "F.gelu({f})",
    "{f}.masked_fill({b}, 1.5)", "{b} * {f}", "torch.lerp({f}.float(), {f}.float(), 0.3)", "torch.atan({f}) ** 2",
    "{F}", "{F}", "{F}", "{F}", "{F}",
)  # fmt: skip
CHOICES = (
    "{i} < {i}", "{i} <= {n}", "{i} >= {i}", "{i} != {n}", "{i} == {i}", "{b} & {b}", "{b} | {b}", "{b} ^ {b}", "~{b}",
    "torch.logical_not({b})", "torch.logical_and({b}, {b})", "torch.where({b}, {b}, {b})", "{i}.bool()", "{B}", "{B}",
    "({i} <= {i}) & ({i} < {i} + 4)", "torch.isin({i}, torch.tensor([1, 3, 4]))", "{F} > 0.3",
)  # fmt: skip
RULES = {"i": INTEGERS, "f": FLOATS, "b": CHOICES}
TABLES = {
    "I": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    "F": (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "B": (torch.bool,),
}
SIZES = ((1, 2, 5, 7), (2, 2, 4, 6), (2, 1, 9, 3), (1, 3, 1, 17), (1, 1, 7, 19))  # batch, heads, queries, keys
DEPTH = 8


@dataclass
class Mod:
    function: Callable
    text: str
    learned: list[torch.Tensor]  # the captured tensors that require a gradient


class _Program:
    def __init__(self, rng: random.Random, is_mask: bool):
        self.rng = rng
        self.generator = torch.Generator().manual_seed(rng.randrange(2**31))
        self.values = {"i": ["b", "h", "q", "kv"], "f": [] if is_mask else ["score"], "b": []}
        self.tables: dict[str, torch.Tensor] = {}
        self.lines: list[str] = []
        self.add("b", "q >= kv")
        if is_mask:
            self.add("f", "q * 0.5")

    def add(self, kind, text):
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values[kind].append(name)

    def draw(self, kind):
        self.add(kind, re.sub(r"{(\w)}", lambda found: self.operand(found[1]), self.rng.choice(RULES[kind])))

    def operand(self, kind):
        if kind in self.values:  # mostly one of the last
            values = self.values[kind]
            return values[-1 - min(int(self.rng.expovariate(0.5)), len(values) - 1)]
        if kind in TABLES:
            return self.element(kind)
        return str(self.rng.choice({"n": (0, 1, 2, 3, 5, -1, -3), "d": (2, 3, 7, -3), "x": (0.5, -1.5, 0.1, 1)}[kind]))

    def element(self, kind):
        """An element of a new table, which may be a view, and negative positions."""
        shape = [self.rng.choice((1, 2, 3, 5, 8)) for _ in range(self.rng.randrange(4))]
        table = torch.randn(shape, generator=self.generator)
        if kind == "I":
            table = (table * 4).abs()
        table = (table > 0.3) if kind == "B" else table.to(self.rng.choice(TABLES[kind]))
        if len(shape) > 1 and self.rng.random() < 0.3:
            table = table.transpose(0, 1).contiguous().transpose(0, 1)
        elif shape and self.rng.random() < 0.3:
            table = table[:1].expand(shape)
        if table.dtype == torch.float32 and self.rng.random() < 0.7:
            table = table.detach().requires_grad_()
        name = f"t{len(self.tables)}"
        self.tables[name] = table
        # As an index, PyTorch reads uint8 as a mask, and takes no int8 or int16.
        cast = ".long()" if table.dtype == torch.uint8 else ""
        if not shape:
            return name + cast
        places = [f"({self.operand('i')}.long() % {size}{self.rng.choice(('', f' - {size}'))})" for size in shape]
        return name + (f"[{', '.join(places)}]" if self.rng.random() < 0.7 else f"[{']['.join(places)}]") + cast

    def mod(self, signature, result):
        """With only the lines, and the tables, that the result needs."""
        used, lines = result, []
        for line in reversed(self.lines):
            if re.search(rf"\b{line.split(' = ')[0]}\b", used):
                lines.insert(0, f"    {line}\n")
                used += " " + line.split(" = ", 1)[1]
        text = f"def mod({signature}):\n{''.join(lines)}    return {result}\n"
        tables = {name: table for name, table in self.tables.items() if re.search(rf"\b{name}\b", used)}
        scope = {"torch": torch, "F": F, "math": math, **tables}
        exec(text, scope)
        words = "".join(
            f"{name}: {one.dtype} {list(one.shape)}{' learned' * one.requires_grad}\n" for name, one in tables.items()
        )
        return Mod(scope["mod"], words + text, [one for one in tables.values() if one.requires_grad])


def draw_score_mod(rng):
    program = _Program(rng, is_mask=False)
    for _ in range(rng.randint(6, 30)):
        program.draw(rng.choice("iifffb"))
    terms = " + ".join(
        f"torch.tanh({one}) * {factor}" for one, factor in zip(program.values["f"][-3:], (0.7, 1.1, 0.6), strict=False)
    )
    result = f"score * 0.5 + {terms}"
    if rng.random() < 0.3:
        result = f"torch.where({program.operand('b')}, {result}, {rng.choice(('-math.inf', 'score', '0.0'))})"
    return program.mod("score, b, h, q, kv", result)


def draw_mask_mod(rng):
    program = _Program(rng, is_mask=True)
    for _ in range(rng.randint(4, 20)):
        program.draw(rng.choice("iibbf"))
    return program.mod("b, h, q, kv", program.operand("b") + rng.choice(("", " | (kv == 0)", " & (q >= kv)")))


def attention_of_scores(q, k, v, score_mod, mask_mod):
    """Attention in doubles, whose mods are called for one score after the other; and lse."""
    scores = (q.double() @ k.double().mT) / math.sqrt(q.shape[-1])
    places = [tuple(map(torch.tensor, one)) for one in itertools.product(*map(range, scores.shape))]
    if score_mod is not None:
        given = scores.float().flatten()
        drawn = [torch.as_tensor(score_mod.function(given[i], *place)) for i, place in enumerate(places)]
        scores = torch.stack([one.float().reshape(()) for one in drawn]).reshape(scores.shape).double()
    if mask_mod is not None:
        keep = torch.stack([mask_mod.function(*place).bool().reshape(()) for place in places]).reshape(scores.shape)
        scores = scores.masked_fill(~keep, -math.inf)
    empty = scores.detach().amax(-1, keepdim=True) == -math.inf
    lse = scores.masked_fill(empty, 0).logsumexp(-1).masked_fill(empty[..., 0], -math.inf)
    return torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0) @ v.double(), lse


def check(number, compiled=False):
    """Draws the mods of a number, and compares results and gradients. Returns the program and what is wrong with it, or
    None."""
    rng = random.Random(number)
    batch, heads, q_len, kv_len = rng.choice(SIZES)
    generator = torch.Generator().manual_seed(number)
    normal = lambda *shape: torch.randn(shape, generator=generator)
    given = [normal(batch, heads, length, DEPTH).requires_grad_() for length in (q_len, kv_len, kv_len)]
    which = rng.choice(("score", "mask", "both"))
    score_mod = draw_score_mod(rng) if which != "mask" else None
    mask_mod = draw_mask_mod(rng) if which != "score" else None
    text = "\n".join(one.text for one in (score_mod, mask_mod) if one)
    learned = score_mod.learned if score_mod else []
    d_out, d_lse = normal(batch, heads, q_len, DEPTH), normal(batch, heads, q_len)

    def results(out, lse):
        loss = (out * d_out).sum() + (lse.masked_fill(lse == -math.inf, 0) * d_lse).sum()
        return [out, lse, *torch.autograd.grad(loss, [*given, *learned], allow_unused=True)]

    def attend(q, k, v):
        mods = [one and one.function for one in (score_mod, mask_mod)]
        out, aux = flex_attention(q, k, v, mods[0], mask_mod=mods[1], return_aux=AuxRequest(lse=True))
        return out, aux.lse

    wanted = results(*attention_of_scores(*given, score_mod, mask_mod))
    run = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiled else attend
    try:
        found = results(*run(*given))
    except Exception as error:
        return text, f"{type(error).__name__}: {error}"
    names = ["out", "lse", "d_q", "d_k", "d_v", *(f"gradient of tensor {i}" for i in range(len(learned)))]
    for name, ours, expected in zip(names, found, wanted, strict=True):
        if (ours is None) != (expected is None):
            return text, f"{name} is {'None' if ours is None else 'a tensor'}"
        if ours is not None:
            scale = 1 + expected[torch.isfinite(expected)].abs().max().item() if expected.isfinite().any() else 1
            if not torch.allclose(ours.double(), expected.double(), rtol=0, atol=1e-4 * scale):
                return text, f"{name} differs by {(ours.double() - expected.double()).abs().max():.3g}"
    return text, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile, a second or two for each")
    options = parser.parse_args()
    failures = 0
    for number in range(options.first, options.first + options.count):
        torch._dynamo.reset()
        text, problem = check(number, options.compiled)
        if problem:
            failures += 1
            print(f"# {number}: {problem}\n{text}", flush=True)
    print(f"{options.count} drawn, {failures} are refused or disagree")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
