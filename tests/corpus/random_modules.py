"""Draws JAX functions at random, fuses them, and compares their results with those of XLA.

random_masks.py draws masks, guards and divisors, random_numbers.py narrow numbers and empty rows, random_steps.py what
training does to probabilities. soak.py draws all of them. A file that draws a kind of its own defines
`draw_module(rng) -> Drawn` and calls main(draw_module, __doc__). Every module has a number: --seed and that number
alone make it again, whatever else was drawn.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

TOLERANCE = 1e-4  # of a result's largest number, unless the module itself is more sensitive than that
# Four f32 roundings, which flashlift.testing allows relative to the summed terms: where one probability fills a row,
# its gradient is the difference of two equal numbers. If a module also differentiates its maximum, even that difference
# cancels.
ROUNDINGS = 4 * 2.0**-24
BATCH = 12  # functions in one module: with this number, compilation per function is fastest
_fused_platform = "cpu"  # where fused modules run


@dataclass
class Drawn:
    function: Callable  # takes the arguments, returns an array or a tuple of arrays
    arguments: list
    words: str  # describes what was drawn
    tolerance: float = TOLERANCE
    may_overflow: bool = False  # the original may give NaN or infinity where a fused softmax gives a number
    has_gradients: bool = False  # the function's results and then its gradients, as with_gradients gives them


@dataclass
class Summary:
    modules: int = 0
    attentions: int = 0
    fused: int = 0
    better: int = 0  # finite where the original overflowed
    failures: int = 0

    def __add__(self, other):
        return Summary(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self):
        return (
            f"{self.modules} modules drawn, {self.fused} of {self.attentions} attentions fused, "
            f"{self.better} finite where the original overflows, {self.failures} disagree"
        )


def cotangent(x):
    return jnp.cos(jnp.arange(x.size, dtype=jnp.float32) + 0.5).reshape(x.shape).astype(x.dtype)


def with_gradients(function, floats):
    """The function's results, and its gradients with respect to the first `floats` arguments that hold floats."""

    def both(*arguments):
        places = [i for i, x in enumerate(arguments) if jnp.issubdtype(x.dtype, jnp.floating)][:floats]

        def of_some(*some):
            full = list(arguments)
            for i, x in zip(places, some, strict=True):
                full[i] = x
            return function(*full)

        results, pullback = jax.vjp(of_some, *(arguments[i] for i in places))
        return results, pullback(jax.tree.map(cotangent, results))

    return both


def run_fused_on(platform):
    """Lets fused modules run on the first device of a platform, "cpu" or "gpu"; a RuntimeError if there is none. The
    originals run on the CPU, whose products are the more exact ones."""
    global _fused_platform
    jax.devices(platform)
    _fused_platform = platform
    if platform != "cpu":
        jax.config.update("jax_default_device", jax.devices("cpu")[0])  # for which modules are lowered
        jax.config.update("jax_default_matmul_precision", "highest")  # no TF32 in what is not fused


def compile_and_run(text, arguments, overrides=(), platform="cpu"):
    """The results of a module's text on a platform's first device; compiled quickly for CPUs, because it runs only a
    few times."""
    device = jax.devices(platform)[0]
    options = xla_client.CompileOptions()
    if platform == "cpu":
        options.executable_build_options.debug_options.xla_backend_optimization_level = 1
        options.executable_build_options.debug_options.xla_llvm_disable_expensive_passes = True
    else:  # which otherwise leaves out conversions to 16 bits and back
        overrides = [*overrides, ("xla_allow_excess_precision", False)]
    options.env_option_overrides = list(overrides)
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        executable = device.client.compile_and_load(
            module.operation.get_asm(), xla_client.DeviceList((device,)), options
        )

    def run(arguments):
        buffers = [jax.device_put(argument, device) for argument in arguments]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [np.asarray(result[0]).astype(np.float64) for result in results]

    return run(arguments), run


def disagreement(want, got, size=1.0):
    """The largest error, divided by the largest number, or by the number whose tolerance is four roundings of the
    summed terms if that is larger; and the count of numbers that are finite only in `got`."""
    finite, mine = np.isfinite(want), np.isfinite(got)
    if not np.all(mine[finite]):
        return np.inf, 0
    scale = max(ROUNDINGS / TOLERANCE * size, np.max(np.abs(want), initial=0, where=finite))
    with np.errstate(invalid="ignore"):
        return np.max(np.abs(want - got), initial=0, where=finite) / scale, int(np.sum(mine & ~finite))


def moved(arguments):
    """The arguments, each changed by a millionth."""
    rng = np.random.default_rng(0)
    return [
        jnp.asarray(x * (1 + 1e-6 * rng.standard_normal(x.shape)), x.dtype)
        if jnp.issubdtype(x.dtype, np.floating)
        else x
        for x in arguments
    ]


def sizes_of_results(drawn, arguments):
    """For each result, the size of the terms that it sums: for gradients with respect to the queries (the first
    argument) the keys' size, and for those with respect to the keys the queries' size, however small the sum is."""
    shapes = jax.eval_shape(drawn.function, *arguments)
    if not drawn.has_gradients:
        return [1.0] * len(jax.tree.leaves(shapes))
    own, gradients = (len(jax.tree.leaves(some)) for some in shapes)
    largest = [max(1.0, float(np.max(np.abs(np.asarray(x, np.float64))))) for x in arguments[:2]]
    return [1.0] * own + [largest[1 - i] if i < 2 else 1.0 for i in range(gradients)]


def is_as_exact(drawn, result, want, got, size):
    """Whether `got` is right in double precision and `want` is not, or `got` is no further from the right result than
    `want`."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype) for x in drawn.arguments]
        exact = np.array(jax.tree.leaves(jax.jit(drawn.function)(*wide))[result], np.float64)
    exact[~np.isfinite(want)] = np.nan  # where f32 overflows, doubles may overflow too, at a later step
    # Large where doubles keep what f32 loses: then the comparison proves nothing.
    own = disagreement(exact, want, size)[0]
    return disagreement(exact, got, size)[0] <= drawn.tolerance or disagreement(want, got, size)[0] <= 4 * own <= 0.4


def lowered(function, arguments):
    return jax.jit(function, keep_unused=True).lower(*arguments).as_text()


def form_of(number, drawn):
    """Every third module without gradients uses composites, which XLA runs by their decompositions."""
    return "composite" if number % 3 == 2 and not drawn.has_gradients else "custom_call"


def fused(text, form):
    return flashlift.stablehlo.fuse(text, gradients=form == "custom_call", fuse_as=form)


def is_fused(drawn, form, summary):
    """Whether any attention of a function alone is fused: otherwise it need not be compiled."""
    result = fused(lowered(drawn.function, [jnp.asarray(x) for x in drawn.arguments]), form)
    summary.modules += 1
    summary.attentions += len(result.candidates)
    summary.fused += result.fused_count
    return result.fused_count > 0


def check(batch, form, summary):
    """Compares several drawn functions as one module. Returns the errors, as (position in the batch, words)."""
    taken = list(itertools.accumulate((len(drawn.arguments) for drawn in batch), initial=0))
    results = []  # the number of results of each function

    def together(*arguments):
        all_results = []
        results.clear()
        for drawn, begin in zip(batch, taken, strict=False):
            own = jax.tree.leaves(drawn.function(*arguments[begin : begin + len(drawn.arguments)]))
            results.append(len(own))
            all_results += own
        return all_results

    arguments = [jnp.asarray(x) for drawn in batch for x in drawn.arguments]
    text = lowered(together, arguments)
    want, original = compile_and_run(text, arguments)
    got, _ = compile_and_run(fused(text, form).module, arguments, platform=_fused_platform)
    ends = list(itertools.accumulate(results, initial=0))
    sizes = [
        sizes_of_results(drawn, arguments[begin : begin + len(drawn.arguments)])
        for drawn, begin in zip(batch, taken, strict=False)
    ]
    wrong, moves, better = [], None, 0
    for place, drawn in enumerate(batch):
        for i in range(ends[place], ends[place + 1]):
            size = sizes[place][i - ends[place]]
            error, gained = disagreement(want[i], got[i], size)
            better += gained > 0
            message = f"result {i - ends[place]} differs by {error:.3g}" if error > drawn.tolerance else ""
            if gained and not drawn.may_overflow:
                message = f"result {i - ends[place]} has {gained} numbers where the original is NaN or infinite"
            if message and np.isfinite(error) and (not gained or drawn.may_overflow):
                moves = moves or original(moved(arguments))
                sensitive = error < 10 * disagreement(want[i], moves[i])[0]
                right = sensitive or is_as_exact(drawn, i - ends[place], want[i], got[i], size)
                message = "" if right else message
            if message:
                wrong.append((place, message))
                break
    summary.better += better
    return wrong


def draw_number(draw, seed, number):
    return draw(np.random.default_rng([seed, number]))


def is_as_written(drawn, form):
    """Whether the fused module's results equal those of the original as it is written. XLA's simplifier changes the
    original: it turns a product with 0 or 1 into a select, which clears NaN, and combines two constants into one, which
    may overflow."""
    arguments = [jnp.asarray(x) for x in drawn.arguments]
    text = lowered(drawn.function, arguments)
    want, _ = compile_and_run(text, arguments, [("xla_disable_hlo_passes", "algsimp")])
    got, _ = compile_and_run(fused(text, form).module, arguments, platform=_fused_platform)
    pairs = [disagreement(one, other) for one, other in zip(want, got, strict=True)]
    return all(error <= drawn.tolerance and (not gained or drawn.may_overflow) for error, gained in pairs)


def compare(batch, report, summary):
    """Compares functions, as (number, drawn). Those that are fused in the same form share a module."""
    for form in ("custom_call", "composite"):
        some = [(number, drawn) for number, drawn in batch if form_of(number, drawn) == form]
        if not some:
            continue
        functions = [drawn for _, drawn in some]
        try:
            wrong = check(functions, form, summary)
        except Exception:  # one of them cannot be compiled, fused or run: find which
            wrong = []
            for place, drawn in enumerate(functions):
                try:
                    wrong += [(place, words) for _, words in check([drawn], form, summary)]
                except Exception as error:
                    wrong.append((place, f"{type(error).__name__}: {str(error)[:300]}"))
        for place, words in wrong:
            number, drawn = some[place]
            if "Error" in words or not is_as_written(drawn, form):
                summary.failures += 1
                report(number, drawn, words)


def check_numbers(draw, seed, numbers, report):
    """Draws and compares the modules of these numbers; calls `report(number, drawn, words)` for each that disagrees."""
    summary = Summary()
    batch = []
    for number in numbers:
        drawn = draw_number(draw, seed, number)
        try:
            if is_fused(drawn, form_of(number, drawn), summary):
                batch.append((number, drawn))
        except Exception as error:
            summary.failures += 1
            report(number, drawn, f"{type(error).__name__}: {str(error)[:300]}")
        if len(batch) == 2 * BATCH:
            compare(batch, report, summary)
            batch = []
    compare(batch, report, summary)
    return summary


def main(draw, document):
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first module")
    parser.add_argument("--count", type=int, default=200, help="how many modules to draw")
    parser.add_argument(
        "--print", action="store_true", help="print the modules' text and what is said of each candidate"
    )
    options = parser.parse_args()
    flashlift.jax.register()
    numbers = list(range(options.first, options.first + options.count))
    if options.print:
        for number in numbers:
            drawn = draw_number(draw, options.seed, number)
            arguments = [jnp.asarray(x) for x in drawn.arguments]
            text = lowered(drawn.function, arguments)
            result = fused(text, form_of(number, drawn))
            print(f"// module {number}: {drawn.words}\n{text}\n{result.module}")
            for candidate in result.candidates:
                print(f"// {candidate}")

    def report(number, drawn, words):
        script = Path(sys.argv[0]).name
        print(f"{script} --seed {options.seed} --first {number} --count 1: {words} ({drawn.words})", flush=True)

    start = time.monotonic()
    summary = check_numbers(draw, options.seed, numbers, report)
    print(f"{summary}, {time.monotonic() - start:.0f} s")
    return 1 if summary.failures else 0
