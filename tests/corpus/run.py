"""Runs a folder of StableHLO cases through the reader and compares with what JAX and XLA make of them.

    python tests/corpus/run.py FOLDER --build build [--case NAME]...

Each case is a folder with module.mlir (pretty form), maybe module.generic.mlir, inputs.npz (arg0, arg1, ...),
outputs.npz (out0, ...; both hold bf16 as float32) and meta.json with args, outs (shape, dtype) and tolerance.
For both forms: the text that the reader prints must be, to JAX, the module that was read, operation for operation;
and after inlining, removal of dead code and merging of equal operations it must still compute the outputs on XLA:CPU.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

PASSES = ["inline", "inline_composites", "remove_dead_code", "merge_equal", "remove_dead_code"]


def generic_text(text):
    """A module as JAX's own MLIR prints it in generic form: equal texts are equal modules."""
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        return module.operation.get_asm(print_generic_op_form=True)


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def run_on_cpu(text, arguments):
    device = jax.devices("cpu")[0]
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        executable = device.client.compile_and_load(
            module.operation.get_asm(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
        )
    buffers = [jax.device_put(argument, device) for argument in arguments]
    results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [np.asarray(result[0]) for result in results]


def compare(outputs, case, meta):
    expected = np.load(case / "outputs.npz")
    for i, out in enumerate(outputs):
        want = expected[f"out{i}"].astype(np.float64)
        got = out.astype(np.float64)
        nan = np.isnan(want)
        if not np.array_equal(nan, np.isnan(got)):
            return f"output {i}: NaN in other places"
        want, got = np.where(nan, 0, want), np.where(nan, 0, got)
        same = want == got  # infinities too
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(got - want))
        largest = np.max(np.abs(want), initial=0, where=np.isfinite(want))
        bound = meta["tolerance"]["atol"] * max(1, largest) + meta["tolerance"]["rtol"] * np.abs(want)
        if not np.all(error <= bound):
            return f"output {i}: error {np.max(error):.3g}"
    return None


def load_arguments(case, meta):
    inputs = np.load(case / "inputs.npz")
    if any(f"arg{i}" not in inputs for i in range(len(meta["args"]))):
        return None  # weights that are not stored with the case
    return [inputs[f"arg{i}"].astype(dtype_of(arg["dtype"])) for i, arg in enumerate(meta["args"])]


def check(case, form, print_module):
    path = case / form

    def printed(*passes):
        done = subprocess.run([print_module, path, *passes], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    if generic_text(printed()) != generic_text(path.read_text()):
        return "printed as another module"
    meta = json.loads((case / "meta.json").read_text())
    arguments = load_arguments(case, meta)
    normalized = printed(*PASSES)
    if arguments is None:
        generic_text(normalized)
        return None
    return compare(run_on_cpu(normalized, arguments), case, meta)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--case", action="append", help="only this one; may be given several times")
    options = parser.parse_args()
    cases = sorted(path.parent for path in options.folder.glob("*/module.mlir"))
    cases = [case for case in cases if not options.case or case.name in options.case]
    if not cases:
        sys.exit(f"no cases in {options.folder}")
    checked = failures = 0
    for case in cases:
        for form in ("module.mlir", "module.generic.mlir"):
            if not (case / form).exists():
                continue
            checked += 1
            try:
                problem = check(case, form, options.build / "bin" / "print_module")
            except Exception as error:  # report every case, whatever breaks in one
                problem = f"{type(error).__name__}: {error}"
            if problem:
                failures += 1
                print(f"{case.name}/{form}: {problem}")
    print(f"{checked} modules, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
