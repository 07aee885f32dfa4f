"""Runs a folder of StableHLO cases through libflashlift_pjrt around real plugins, and through the plugins themselves.

    build/venv/bin/python tests/corpus/plugins.py FOLDER [--plugin FILE]... [--client pypjrt|jax]... [--case NAME]...
        [--shard I/N] [--limit SECONDS] [--logs FOLDER] [--forms FOLDER [--prepare]]

Each case is a folder as run.py takes it. pypjrt compiles a module from its text, its generic text, VHLO of the oldest
version that can say it and of the newest that the plugin takes, and plain bytecode; JAX sends VHLO of its own. The
plugins are those of PyPI for CPUs that are installed, or those that are named. Results are compared with the plugin's
own and with the case's outputs, and the number of fused attentions with that of `flashlift fuse`.

A plugin whose name has `cuda` in it is wrapped for CUDA. XLA rounds the inputs of f32 products to TF32 there, so
results that the case's tolerance refuses have to be as close to its outputs as the plugin's own.

--forms keeps the forms of the modules, so that a machine without MLIR can run what --prepare made elsewhere.

A program that ends its client's process fails; a new process runs those after it. After --limit seconds the clients
are stopped: what has run is compared, and the other programs are problems, too. --logs keeps the clients' output, the
wrapper's reports, and in results.jsonl a line for each program, with its errors.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import flashlift
import flashlift.stablehlo
import ml_dtypes
import numpy as np

LIBRARIES = Path(flashlift.__file__).parent / "lib"
PLUGINS = {
    "fastatomstruct_xla_cpu": "libpjrt_cpu.so",
    "lammps_jax_pjrt_cpu": "pjrt_c_api_cpu_plugin.so",
}
CLIENTS = ("pypjrt", "jax")
PRINT_MODULE = Path(__file__).resolve().parents[2] / "build" / "bin" / "print_module"
NEWEST = {"libpjrt_cpu.so": "1.17.0"}  # of StableHLO, where a plugin takes newer versions than it says
TF32 = {"atol": 2.0**-9, "rtol": 0}  # twice its rounding: for results that can be compared only with XLA's
LINES_OF_A_CASE = 80  # the lines of a module that take as long as what each case needs besides, measured on a CPU
ANOTHER_PROCESS = 75  # exit code: the remaining programs need a new process
NOT_RUN = "not run within the time limit"


def is_cuda(plugin):
    return "cuda" in plugin.name


def wrapper_of(plugin):
    return LIBRARIES / f"pjrt_c_api_flashlift-{'cuda' if is_cuda(plugin) else 'cpu'}_plugin.so"


def find_plugins():
    for package, name in PLUGINS.items():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            yield Path(spec.origin).parent / name


def newest_of(plugin):
    """The newest version of StableHLO that a plugin accepts."""
    if plugin.name in NEWEST:
        return NEWEST[plugin.name]
    asks = "import sys, pypjrt; print(pypjrt.Plugin(sys.argv[1]).stablehlo_target('max'))"
    ran = subprocess.run([sys.executable, "-c", asks, plugin], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{plugin} does not say which StableHLO it takes:\n{ran.stderr}")
    return ran.stdout.strip()


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


# --- parent: the forms of a module ---


def written(path, form):
    """The artifact, written by Flashlift's own writer."""
    ran = subprocess.run([PRINT_MODULE, path, f"emit={form}"], capture_output=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.decode().strip())
    return ran.stdout


def artifact(text, like):
    """The artifact, written by JAX's writer in the version that another artifact has."""
    from jax._src.lib import _jax

    version = re.match(rb"ML\xefR.StableHLO_v([0-9.]+)\0", like, re.DOTALL)[1].decode()
    return _jax.mlir.serialize_portable_artifact(text, version, True)


def forms_of(case, newest, kept):
    """For each name the program, or the Exception if it could not be made. `kept`: the folder that keeps them, or
    None."""
    kept = kept and kept / newest / case.name
    if kept and kept.exists():
        return {path.name: path.read_bytes() for path in sorted(kept.iterdir())}
    path = case / "module.mlir"
    text = path.read_text()
    makers = {
        "text": lambda: text,
        "vhlo oldest": lambda: written(path, "vhlo"),
        "vhlo oldest of JAX": lambda: artifact(text, forms["vhlo oldest"]),
        "vhlo newest": lambda: written(path, f"vhlo={newest}"),
        "bytecode": lambda: written(path, "bytecode"),
    }
    for name in ("module.generic.mlir", "module.mlirbc", "program.mlirbc"):
        if (case / name).exists():
            makers[name] = (case / name).read_bytes
    forms = {}
    for name, make in makers.items():
        try:
            forms[name] = make()
        except Exception as error:  # every form is reported
            forms[name] = error
    if kept and not any(isinstance(program, Exception) for program in forms.values()):
        kept.mkdir(parents=True)
        for name, program in forms.items():
            (kept / name).write_bytes(program if isinstance(program, bytes) else program.encode())
    return forms


# --- child: compiles and runs programs with one client ---


class Pypjrt:
    """Uses pypjrt, which passes the bytes to the plugin unchanged."""

    def __init__(self, library):
        import pypjrt

        self.client = pypjrt.Client.create(library)
        self.scope = self.client.devices()  # until the process ends
        self.device = self.scope.__enter__()[0]

    def run(self, program, arguments):
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
        import pjrt_run

        return pjrt_run.compile_and_run(self.client, self.device, program, arguments)


class Jax:
    """Uses JAX, which reads a program and sends it as VHLO of the newest version that JAX and the plugin both
    support."""

    def __init__(self, library):
        if is_cuda(Path(library)):  # as pypjrt does; other processes may also use the device
            described = Path(tempfile.mkdtemp()) / "plugin.json"
            described.write_text(json.dumps({"library_path": library, "create_options": {"preallocate": False}}))
            library = described
        os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"tested:{library}"
        os.environ["JAX_PLATFORMS"] = "tested"
        import jax

        self.jax = jax
        self.device = jax.devices()[0]

    def run(self, program, arguments):
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jaxlib.mlir import ir

        with mlir.make_ir_context():
            executable = self.device.client.compile_and_load(
                ir.Module.parse(program).operation.get_asm(),
                xla_client.DeviceList((self.device,)),
                xla_client.CompileOptions(),
            )
        results = executable.execute_sharded([self.jax.device_put(each, self.device) for each in arguments])
        return [np.asarray(each[0]) for each in results.disassemble_into_single_device_arrays()]


def work(client, library, jobs, results, first):
    """jobs: a JSON list of [name, program's file, arguments' file]; `first`: the number of the one to begin with."""
    runner = {"pypjrt": Pypjrt, "jax": Jax}[client](library)
    results = Path(results)
    (results / "ready").touch()
    report = Path(os.environ["FLASHLIFT_PJRT_REPORT"])
    for i, (name, program, arguments) in list(enumerate(json.loads(Path(jobs).read_text())))[int(first) :]:
        found = {}
        started = time.monotonic()
        told_before = report.stat().st_size
        try:
            with np.load(arguments) as file:
                types = [key.split(" ")[1] for key in file.files]
                values = [
                    np.ascontiguousarray(file[key]).view(dtype_of(type_name))
                    for key, type_name in zip(file.files, types, strict=True)
                ]
            for j, out in enumerate(runner.run(Path(program).read_bytes(), values)):
                found[f"{j} {out.dtype.name}"] = out.astype(np.float64)
        except Exception as error:
            found = {"error": np.array(" ".join(f"{type(error).__name__}: {error}".split()))}
            traceback.print_exc()
        # Reports of the case's own compilations: JAX also compiles programs that move its arrays.
        (results / f"{i}.jsonl").write_bytes(report.read_bytes()[told_before:])
        np.savez(results / "unfinished.npz", **found)
        (results / "unfinished.npz").rename(results / f"{i}.npz")
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
        if "CUDA_ERROR" in str(found.get("error")):  # such an error may stay with the process
            sys.exit(ANOTHER_PROCESS)


# --- parent: comparison ---


def arguments_of(case, meta):
    """The case's own arguments; random ones for weights that are not stored with the case."""
    rng = np.random.default_rng(1)
    inputs = np.load(case / "inputs.npz")
    values = []
    for i, arg in enumerate(meta["args"]):
        dtype = dtype_of(arg["dtype"])
        if f"arg{i}" in inputs:
            values.append(inputs[f"arg{i}"].astype(dtype).reshape(arg["shape"]))
        else:
            values.append((rng.normal(size=arg["shape"]) / np.sqrt(arg["shape"][-1])).astype(dtype))
    return values, all(f"arg{i}" in inputs for i in range(len(meta["args"])))


def errors(got, want):
    """The error of each element; 0 if both are the same infinity, or if the expected value is NaN."""
    with np.errstate(invalid="ignore"):
        return np.where((got == want) | np.isnan(want), 0, np.abs(got - want))


def largest_finite(values):
    return np.max(np.abs(values), initial=0, where=np.isfinite(values))


def difference(got, want, tolerance, what):
    for i, (out, expected) in enumerate(zip(got, want, strict=True)):
        if out.shape != expected.shape:
            return f"output {i}: shape {out.shape}, {what} {expected.shape}"
        if not np.array_equal(np.isnan(out), np.isnan(expected)):
            return f"output {i}: NaN in other places than {what}"
        error = errors(out, expected)
        bound = tolerance["atol"] * max(1, largest_finite(expected))
        bound += tolerance.get("rtol", 0) * np.abs(np.nan_to_num(expected))
        if not np.all(error <= bound):
            return f"output {i}: {np.max(error):.3g} from {what}, {np.max(bound):.3g} is allowed"
    return None


def as_close(got, own, want):
    """Whether each output is as close to the expected one as the plugin's own, except for a unit in f32's last
    place."""
    for out, unfused, expected in zip(got, own, want, strict=True):
        unit = 2.0**-23 * largest_finite(expected)
        if np.max(errors(out, expected), initial=0) > np.max(errors(unfused, expected), initial=0) + unit:
            return False
    return True


def run_all(client, library, plugin, jobs, folder, logs, deadline):
    """Writes each job's outputs, and the wrapper's reports on its compilations, into the folder; the error of a job at
    which the client's process died; nothing for a job that was not begun before the deadline. The output and all
    reports go to `logs`, a path without its suffix. Returns what went wrong besides."""
    folder.mkdir()
    names = [name for name, _, _ in json.loads(jobs.read_text())]
    report, log = Path(f"{logs}.jsonl"), Path(f"{logs}.txt")
    for path in (report, log):
        path.write_bytes(b"")
    environment = {**os.environ, "FLASHLIFT_PJRT_PLUGIN": str(plugin), "FLASHLIFT_PJRT_REPORT": str(report)}
    problems, first = [], 0
    while first < len(names):
        (folder / "ready").unlink(missing_ok=True)
        command = [sys.executable, __file__, "--work", client, library, jobs, folder, first]
        with open(log, "a") as output:
            try:
                left = max(0, deadline - time.monotonic()) if deadline else None
                ran = subprocess.run(
                    list(map(str, command)), env=environment, stdout=output, stderr=output, timeout=left
                )
            except subprocess.TimeoutExpired:
                return problems
        if ran.returncode == 0:
            return problems
        first = next((i for i in range(first, len(names)) if not (folder / f"{i}.npz").exists()), len(names))
        if ran.returncode == ANOTHER_PROCESS:
            continue
        # Without a client, no other program would run either.
        after = min(first + 1, len(names)) if (folder / "ready").exists() else len(names)
        at = " ".join(names[first:after]) if (folder / "ready").exists() else "its start"
        problems.append(
            f"{client} with {library}: exit code {ran.returncode} at {at or 'its end'}:\n"
            f"{log.read_text(errors='replace')[-2000:]}"
        )
        for i in range(first, after):
            np.savez(folder / f"{i}.npz", error=np.array(f"the process died: exit code {ran.returncode}"))
        first = after
    return problems


def fused_of(path, expected):
    """The number of fused attentions according to a job's reports, and why it differs from the expected number."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    fused = sum(line["fused"] for line in lines)
    reasons = "; ".join(line["reason"] for line in lines if line["reason"]) or "no reason is given"
    if not lines:
        return 0, "the wrapper reports no compile"
    return fused, "" if fused == expected else f"{fused} fused, flashlift fuse {expected}: {reasons}"


def outputs_of(path):
    """Results with their types, or the error."""
    if not path.exists():
        return NOT_RUN
    with np.load(path) as file:
        if "error" in file:
            return str(file["error"])
        return [(key.split(" ")[1], file[key]) for key in file.files]


def compare(case, meta, complete, coarse, unfused, fused):
    """coarse: the plugin's own products use TF32."""
    if isinstance(unfused, str) or isinstance(fused, str):
        if isinstance(unfused, str) and isinstance(fused, str):
            return None  # the plugin rejects it
        return "; ".join(
            f"{which}: {outputs if isinstance(outputs, str) else 'runs'}"
            for which, outputs in (("unfused", unfused), ("fused", fused))
        )
    types, values, own = [name for name, _ in fused], [value for _, value in fused], [value for _, value in unfused]
    if types != [name for name, _ in unfused]:
        return f"types {types} instead of {[name for name, _ in unfused]}"
    tolerance = {"rtol": 0, **meta["tolerance"]}
    for name in types:
        if name in ("bfloat16", "float16"):  # two correct results may differ by one unit of the output's type
            tolerance["atol"] = max(tolerance["atol"], float(ml_dtypes.finfo(name).eps))
    if complete:
        with np.load(case / "outputs.npz") as file:
            wanted = [file[f"out{i}"].astype(np.float64) for i in range(len(values))]
        problem = difference(values, wanted, tolerance, "the expected output")
        if coarse:
            nan_agrees = all(np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(values, wanted, strict=True))
            return None if nan_agrees and as_close(values, own, wanted) else problem
        if problem:
            return problem
    # Each of the two results may be off by the tolerance.
    twice = TF32 if coarse else {"atol": 2 * tolerance["atol"], "rtol": 2 * tolerance["rtol"]}
    return difference(values, own, twice, "the unfused one")


def largest_error(got, want):
    """In units of each wanted output's largest element, if that is above 1; None if shapes differ."""
    if [out.shape for out in got] != [out.shape for out in want]:
        return None
    return max(
        np.max(errors(out, expected), initial=0) / max(1, largest_finite(expected))
        for out, expected in zip(got, want, strict=True)
    )


def jobs_of(client, newest, case, folder, kept):
    """The programs of a case: each one's form, its bytes or the Exception, and its job."""
    meta = json.loads((case / "meta.json").read_text())
    values, complete = arguments_of(case, meta)
    arguments = folder / f"{case.name}.npz"
    named = {f"{i} {value.dtype.name}": value.view(np.uint8) if value.ndim else value for i, value in enumerate(values)}
    np.savez(arguments, **named)
    forms = forms_of(case, newest, kept) if client == "pypjrt" else {"text": (case / "module.mlir").read_text()}
    for form, program in forms.items():
        name = f"{case.name}/{form}"
        path = folder / name.replace("/", " ")
        if not isinstance(program, Exception):
            path.write_bytes(program if isinstance(program, bytes) else program.encode())
        yield (case, meta, complete, form, program), (name, str(path), str(arguments))


def judge(made, coarse, folder, i):
    """The i-th program's problems, and what the logs say of it."""
    case, meta, complete, form, program = made
    outputs = {which: outputs_of(folder / which / f"{i}.npz") for which in ("unfused", "fused")}
    unfused, fused = outputs["unfused"], outputs["fused"]
    told = {"case": case.name, "form": form}
    if NOT_RUN in (unfused, fused):
        return [NOT_RUN], told
    problems = []
    if problem := compare(case, meta, complete, coarse, unfused, fused):
        problems.append(problem)
    elif isinstance(unfused, str):
        problems.append(f"(the plugin itself refuses it: {unfused[:200]})")
    found = {which: [out for _, out in outs] for which, outs in outputs.items() if not isinstance(outs, str)}
    if len(found) == 2:
        told["difference"] = largest_error(found["fused"], found["unfused"])
    if complete:
        with np.load(case / "outputs.npz") as file:
            wanted = [file[f"out{i}"].astype(np.float64) for i in range(len(file.files))]
        told |= {f"error_{which}": largest_error(outs, wanted) for which, outs in found.items()}
    try:
        expected = flashlift.stablehlo.fuse(program, gradients=True).fused_count
    except Exception as error:
        return [*problems, f"flashlift fuse: {error}"], told
    count, problem = fused_of(folder / "fused" / f"{i}.jsonl", expected)
    if problem:
        problems.append(problem)
    return problems, {**told, "fused": count, "expected": expected}


def check(client, plugin, cases, folder, kept, logs, deadline):
    """The failures of all cases with a client and a plugin, the number of programs, and of fused attentions. `logs`: a
    path to which the names of files are appended."""
    newest = newest_of(plugin) if client == "pypjrt" else None
    jobs, wanted, problems = [], [], []
    for case in cases:
        for made, job in jobs_of(client, newest, case, folder, kept):
            if isinstance(made[-1], Exception):
                problems.append(f"{job[0]}: not made: {str(made[-1]).splitlines()[0]}")
            else:
                wanted.append(made)
                jobs.append(job)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    # Both at a time, so that at the deadline most programs have run in both ways.
    with ThreadPoolExecutor() as threads:
        runs = [
            threads.submit(
                run_all, client, library, plugin, folder / "jobs.json", folder / which, f"{logs}-{which}", deadline
            )
            for which, library in (("unfused", plugin), ("fused", wrapper_of(plugin)))
        ]
    problems += [problem for run in runs for problem in run.result()]
    fused_count = 0
    with open(f"{logs}-results.jsonl", "w") as results:
        for i, ((name, _, _), made) in enumerate(zip(jobs, wanted, strict=True)):
            found, told = judge(made, is_cuda(plugin), folder, i)
            problems += [f"{name}: {problem}" for problem in found]
            fused_count += told.get("fused", 0)
            print(json.dumps({"client": client, "plugin": plugin.name, **told, "problems": found}), file=results)
    return problems, len(jobs), fused_count


def part_of(cases, part, parts):
    """The part-th of so many parts of the cases, counted from 1, with about as many lines of modules in each."""
    work = {case: LINES_OF_A_CASE + (case / "module.mlir").read_bytes().count(b"\n") for case in cases}
    shares = [[] for _ in range(parts)]
    for case in sorted(cases, key=lambda case: -work[case]):
        min(shares, key=lambda share: sum(work[each] for each in share)).append(case)
    return sorted(shares[part - 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", help="the file of a PJRT plugin")
    parser.add_argument("--client", choices=CLIENTS, action="append")
    parser.add_argument("--case", action="append", help="only this one; may be given several times")
    parser.add_argument("--shard", default="1/1", help="I/N: the I-th of N parts of the cases, from 1")
    parser.add_argument("--limit", type=float, help="stop the clients after so many seconds")
    parser.add_argument("--logs", type=Path, help="keep what the clients and the wrapper say, and all errors, here")
    parser.add_argument("--forms", type=Path, help="keep the modules' forms in this folder")
    parser.add_argument("--prepare", action="store_true", help="make the forms, and run nothing")
    options = parser.parse_args()
    deadline = None if options.limit is None else time.monotonic() + options.limit
    part, parts = map(int, options.shard.split("/"))
    cases = [
        path.parent
        for path in sorted(options.folder.glob("*/module.mlir"))
        if not options.case or path.parent.name in options.case
    ]
    cases = part_of(cases, part, parts)
    plugins = [plugin.absolute() for plugin in options.plugin or find_plugins()]
    if not cases or not plugins:
        sys.exit(f"no cases in {options.folder}" if not cases else "no plugin: scripts/requirements-xla.txt has two")
    failed = False
    if options.prepare:
        for plugin in plugins:
            newest = newest_of(plugin)
            for case in cases:
                for name, program in forms_of(case, newest, options.forms).items():
                    if isinstance(program, Exception):
                        failed = True
                        print(f"{case.name}/{name}: not made: {str(program).splitlines()[0]}")
        return 1 if failed else 0
    for plugin in plugins:
        for client in options.client or CLIENTS:
            with tempfile.TemporaryDirectory() as folder:
                logs = (options.logs or Path(folder)).absolute()
                logs.mkdir(parents=True, exist_ok=True)
                logs /= f"{client}-{plugin.stem}-{part}-of-{parts}"
                problems, programs, fused = check(client, plugin, cases, Path(folder), options.forms, logs, deadline)
            for problem in problems:
                print(problem)
            print(
                f"{client} with {plugin.name}: {len(cases)} cases, {programs} programs, "
                f"{fused} attentions fused, {len(problems)} problems",
                flush=True,
            )
            failed |= bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
