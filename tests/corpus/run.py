"""Runs a folder of StableHLO cases through Flashlift and compares with what JAX and XLA make of them.

    build/venv/bin/python tests/corpus/run.py FOLDER [--build build] [--case NAME]... [--mode MODE]...

Each case is a folder with module.mlir (pretty form), maybe module.generic.mlir, inputs.npz (arg0, arg1, ...),
outputs.npz (out0, ...; both hold bf16 as float32) and meta.json with args, outs (shape, dtype), tolerance, and in
`expect` how many attentions there are to find and whether the module also holds gradients.

The modes, all by default:
  read         what the reader prints is, to JAX, the module that was read, operation for operation; after inlining,
               removal of dead code and merging of equal operations it still computes the outputs on XLA:CPU
  custom_call  as many attentions are fused as expected, and the module computes the outputs through Flashlift's handler
  gradients    where the module holds gradients: they are fused with their attention, and the module computes the
               outputs
  composite    as custom_call, with the original kept as the decomposition, which XLA runs
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import flashlift.jax
import jax
import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

ROOT = Path(__file__).resolve().parents[2]
FORMS = ("module.mlir", "module.generic.mlir")
MODES = ("read", "custom_call", "gradients", "composite")
PASSES = ["inline", "inline_composites", "remove_dead_code"]


def generic_text(text):
    """A module as JAX's own MLIR prints it in generic form: equal texts mean equal modules."""
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


def difference(outputs, case, meta):
    """Describes the error in the outputs; None if there is none."""
    expected = np.load(case / "outputs.npz")
    for i, out in enumerate(outputs):
        want, got = expected[f"out{i}"].astype(np.float64), out.astype(np.float64)
        if not np.array_equal(np.isnan(want), np.isnan(got)):
            return f"output {i}: NaN in other places"
        with np.errstate(invalid="ignore"):
            error = np.where((want == got) | np.isnan(want), 0, np.abs(got - want))
        largest = np.max(np.abs(want), initial=0, where=np.isfinite(want))
        # Two correct results may differ by one unit of the output's own type, whatever tolerance the case sets.
        atol = max(meta["tolerance"]["atol"], float(ml_dtypes.finfo(out.dtype).eps) if out.dtype.itemsize == 2 else 0)
        bound = atol * max(1, largest) + meta["tolerance"]["rtol"] * np.abs(np.nan_to_num(want))
        if not np.all(error <= bound):
            return f"output {i}: error {np.max(error):.3g} where {np.max(bound):.3g} is allowed"
    return None


def load_arguments(case, meta):
    """None if the weights are not stored with the case."""
    inputs = np.load(case / "inputs.npz")
    if any(f"arg{i}" not in inputs for i in range(len(meta["args"]))):
        return None
    return [inputs[f"arg{i}"].astype(dtype_of(arg["dtype"])) for i, arg in enumerate(meta["args"])]


def run_and_compare(text, case, meta):
    arguments = load_arguments(case, meta)
    if arguments is None:
        generic_text(text)
        return None
    return difference(run_on_cpu(text, arguments), case, meta)


def check_reading(path, meta, print_module):
    def printed(*passes):
        done = subprocess.run([print_module, path, *passes], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    if generic_text(printed()) != generic_text(path.read_text()):
        return "printed as another module"
    return run_and_compare(printed(*PASSES), path.parent, meta)


def check_fusing(path, meta, mode):
    text = path.read_text()
    expect = meta["expect"]
    gradients = mode == "gradients"
    if gradients and expect["direction"] != "forward+backward":
        return None
    fuse_as = "custom_call" if gradients else mode
    result = flashlift.stablehlo.fuse(text, fuse_as=fuse_as, name=str(path), gradients=gradients)
    allowed = {expect["attentions"]}
    if gradients:
        allowed = {expect["attentions"] + expect.get("recomputed_forwards", 0)}
    # Otherwise the gradients need the probabilities, which a fused forward pass does not keep; such a module may stay
    # unfused.
    elif expect["direction"] == "forward+backward" or expect.get("optional"):
        allowed.add(0)
    if result.fused_count not in allowed or any(not candidate.reason for candidate in result.candidates):
        reasons = "".join(f"\n    {candidate.reason}" for candidate in result.candidates if not candidate.fused)
        return f"fused {result.fused_count} of {expect['attentions']}{reasons}"
    if result.fused_count == 0:
        return None if result.module == text else "changed without anything fused"
    return run_and_compare(result.module, path.parent, meta)


def check(path, mode, print_module):
    meta = json.loads((path.parent / "meta.json").read_text())
    try:
        if mode == "read":
            return check_reading(path, meta, print_module)
        return check_fusing(path, meta, mode)
    except Exception as error:  # every case is reported, whatever fails in one
        return f"{type(error).__name__}: {error}"


def find_cases(folder, names=None):
    """The modules of a folder of cases, pretty and generic."""
    paths = [path.parent / form for path in sorted(folder.glob("*/module.mlir")) for form in FORMS]
    return [path for path in paths if path.exists() and (not names or path.parent.name in names)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--case", action="append", help="only this one; may be given several times")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this one; may be given several times")
    options = parser.parse_args()
    cases = find_cases(options.folder, options.case)
    if not cases:
        sys.exit(f"no cases in {options.folder}")
    flashlift.jax.register()
    failures = 0
    modes = options.mode or MODES
    for path in cases:
        for mode in modes:
            problem = check(path, mode, options.build / "bin" / "print_module")
            if problem:
                failures += 1
                print(f"{path.parent.name}/{path.name} {mode}: {problem}", flush=True)
    print(f"{len(cases)} modules, {len(cases) * len(modes)} checks, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
