"""Changes the modules of a folder of cases at random, and compares fused modules with the changed ones on XLA:CPU.

    build/venv/bin/python tests/corpus/mutate.py FOLDER [--seed N] [--count N] [--case NAME]... [--save FOLDER]

A change is small and keeps the text well-formed more often than not: another operation of the same kind, another
comparison, other dimensions, an operand exchanged for a value of the same type. What JAX does not accept is dropped,
and so is what gives no attention. What is fused, gradients included, must compute what the changed module computes:
attention proved in a module that is no attention any more would show here.
"""

import argparse
import json
import random
import re
import sys
from pathlib import Path

import flashlift.jax
import numpy as np
import run

GROUPS = [
    ["add", "subtract", "multiply", "divide", "maximum", "minimum"],
    ["exponential", "logistic", "tanh", "negate", "abs", "log", "sine"],
    ["and", "or", "xor"],
]
COMPARISONS = ["EQ", "NE", "GE", "GT", "LE", "LT"]
OPERAND = re.compile(r"%[\w#]+")


def types_of(lines):
    """The type of each value that a line with one type, or a function type, defines; for lines of @main only."""
    types = {}
    for line in lines:
        found = re.match(r"\s*(%\w+) = .*?(?:-> |: )(tensor<[^>]*>)$", line)
        if found:
            types[found[1]] = found[2]
        for name, kind in re.findall(r"(%arg\d+): (tensor<[^>]*>)", line) if "@main" in line else []:
            types[name] = kind
    return types


def change_operation(rng, line):
    for group in rng.sample(GROUPS, len(GROUPS)):
        found = re.search(r"stablehlo\.(" + "|".join(group) + r")\b", line)
        if found:
            return line[: found.start(1)] + rng.choice(group) + line[found.end(1) :]
    return line


def change_comparison(rng, line):
    return re.sub(r"(?<=compare )(EQ|NE|GE|GT|LE|LT)", lambda _: rng.choice(COMPARISONS), line)


def change_list(rng, line):
    lists = list(re.finditer(r"\[(\d+(?:, \d+)*)\]", line))
    if not lists:
        return line
    found = rng.choice(lists)
    numbers = found[1].split(", ")
    if len(numbers) > 1 and rng.random() < 0.7:
        rng.shuffle(numbers)
    else:
        numbers[rng.randrange(len(numbers))] = str(rng.randrange(5))
    return line[: found.start(1)] + ", ".join(numbers) + line[found.end(1) :]


def change_iota(rng, line):
    return re.sub(r"(?<=iota dim = )\d", lambda _: str(rng.randrange(4)), line)


def change_constant(rng, line):
    values = [
        "0.000000e+00",
        "1.000000e+00",
        "-1.000000e+00",
        "5.000000e-01",
        "0xFF800000",
        "-1.000000e+30",
        "2.000000e+00",
    ]
    if re.search(r"dense<(true|false)>", line):
        return re.sub(r"dense<(true|false)>", lambda _: f"dense<{rng.choice(['true', 'false'])}>", line)
    if re.search(r"dense<-?\d+> : tensor<.*i32>", line):
        return re.sub(r"dense<-?\d+>", lambda _: f"dense<{rng.randrange(-3, 12)}>", line)
    return re.sub(r"dense<[^\[\]\"]*>(?= : tensor<(?:\d+x)*f32>)", lambda _: f"dense<{rng.choice(values)}>", line)


def exchange_operands(rng, line):
    head, equals, tail = line.partition(" = ")
    operands = OPERAND.findall(tail)
    if len(operands) < 2:
        return line
    a, b = rng.sample(operands, 2)
    return head + equals + OPERAND.sub(lambda found: {a: b, b: a}.get(found[0], found[0]), tail)


def replace_operand(rng, line, types, before):
    head, equals, tail = line.partition(" = ")
    operands = [operand for operand in OPERAND.findall(tail) if operand in types]
    if not operands:
        return line
    old = rng.choice(operands)
    others = [name for name, kind in types.items() if kind == types[old] and name in before and name != old]
    if not others:
        return line
    return head + equals + re.sub(re.escape(old) + r"\b", rng.choice(others), tail, count=1)


def mutated(rng, text):
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if line.startswith("  }")), len(lines))
    for _ in range(rng.choice([1, 1, 2, 3])):
        types = types_of(lines[:end])
        changed = False
        for _ in range(50):
            i = rng.randrange(len(lines))
            before = set(OPERAND.findall("\n".join(line.split(" = ")[0] for line in lines[:i])))
            change = rng.choice(
                [
                    change_operation,
                    change_comparison,
                    change_list,
                    change_iota,
                    change_constant,
                    exchange_operands,
                    "operand",
                ]
            )
            if change == "operand":
                line = replace_operand(rng, lines[i], types, before) if i < end else lines[i]
            else:
                line = change(rng, lines[i])
            if line != lines[i]:
                lines[i] = line
                changed = True
                break
        if not changed:
            break
    return "\n".join(lines) + "\n"


def disagreement(want, got):
    """Largest error over the largest number, where the original is finite.

    Where it is not, an exponential overflowed or an infinity was subtracted from itself, for instance because the
    change took the row maximum out; a fused softmax does better there, and what rows without keys give is tested
    elsewhere.
    """
    worst = 0.0
    for a, b in zip(want, got, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        if not np.all(np.isfinite(b[finite])):
            return np.inf
        scale = max(1.0, np.max(np.abs(a), initial=0, where=finite))
        with np.errstate(invalid="ignore"):
            worst = max(worst, np.max(np.abs(a - b), initial=0, where=finite) / scale)
    return worst


def sensitivity(text, arguments, want):
    """How far the module's results move if its inputs change by a millionth: a mutation may divide by nearly 0."""
    rng = np.random.default_rng(0)
    moved = [
        (x * (1 + 1e-6 * rng.standard_normal(x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x for x in arguments
    ]
    return disagreement(want, run.run_on_cpu(text, moved))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000, help="how many changed modules to try")
    parser.add_argument("--case", action="append")
    parser.add_argument("--save", type=Path, help="where to write modules that disagree")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    flashlift.jax.register()
    cases = []
    for path in run.find_cases(options.folder, options.case):
        meta = json.loads((path.parent / "meta.json").read_text())
        arguments = run.load_arguments(path.parent, meta)
        half = any(arg["dtype"] in ("bfloat16", "float16") for arg in meta["args"] + meta["outs"])
        if path.name == "module.mlir" and arguments is not None and not half:
            cases.append((path, arguments))
    fused = valid = disagreements = 0
    for number in range(options.count):
        path, arguments = rng.choice(cases)
        text = mutated(rng, path.read_text())
        try:
            result = flashlift.stablehlo.fuse(text, gradients=True)
        except flashlift.FlashliftError:
            continue
        valid += 1
        if result.fused_count == 0:
            continue
        try:
            want = run.run_on_cpu(text, arguments)
        except Exception:  # JAX accepts less than this reader
            continue
        fused += 1
        try:
            error = disagreement(want, run.run_on_cpu(result.module, arguments))
            differs = error > 1e-3 and not error < 10 * sensitivity(text, arguments, want)
            message = f"differs by {error:.3g}" if differs else ""
        except Exception as exception:
            message = f"{type(exception).__name__}: {exception}"
        if message:
            disagreements += 1
            print(f"{path.parent.name} change {number}: {message[:300]}", flush=True)
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"{path.parent.name}-{options.seed}-{number}.mlir").write_text(text)
    print(f"{options.count} changes, {valid} read, {fused} fused and run, {disagreements} disagree")
    return 1 if disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
