"""flashlift compile and flashlift.precompile store a GPU's kernels in the cache on disk, without a GPU."""

import json
import os
from pathlib import Path

import flashlift as package
import pytest

# Small tiles, which compile quickest.
FORWARD = "attn h1 s128 d32 bf16"
BIASED = "attn h1 s128 d32 bf16 lse bias=f32"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    nvrtc = next(Path(pytest.__file__).parents[1].glob("nvidia/cu*/lib/libnvrtc.so.*"), None)
    assert nvrtc is not None, "libnvrtc is missing; scripts/requirements.txt brings it"
    monkeypatch.setenv("FLASHLIFT_NVRTC", str(nvrtc))
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(flashlift, *arguments):
    done = flashlift("compile", *arguments, "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["kernels"]


def test_compiles_once(flashlift, cache):
    first = run(flashlift, FORWARD, FORWARD, "--architecture", "8.0")
    assert [(one["architecture"], one["kernel"], one["cached"]) for one in first] == [
        (80, "sm80/forward", False),
        (80, "sm80/forward", False),
    ]
    assert len(list(cache.glob("*.cubin"))) == 1
    assert all(one["cached"] for one in run(flashlift, FORWARD, "--architecture", "sm_80"))
    # Lengths and batches share a kernel.
    assert all(one["cached"] for one in run(flashlift, "attn b3 h2 s900 d32 bf16", "--architecture", "80"))


def test_spellings_share_a_kernel(flashlift, cache):
    """PyTorch's front end writes causal as a comparison with exchanged operands."""
    run(flashlift, f"{FORWARD} causal", "--architecture", "80")
    spelled = run(flashlift, FORWARD + " mask_mod() { %0 = ge q, kv; return %0 }", "--architecture", "80")
    assert all(one["cached"] for one in spelled)


def test_backward_with_gradients_of_a_captured_tensor(cache):
    kernels = package.precompile(BIASED, architectures=[80], gradients=["bias"])
    assert [one.kernel for one in kernels] == [
        "sm80/forward",
        "common/backward_preprocess",
        "sm80/backward_queries",
        "sm80/backward_keys",
        "sm80/backward_captures",
        "common/backward_postprocess",
    ]
    assert all(not one.cached and one.seconds > 0 for one in kernels)
    assert len(list(cache.glob("*.cubin"))) == len(kernels)


def test_backward_in_one_kernel(cache):
    """For a problem with the results that the backward pass reads, as PyTorch's front end requests them."""
    kernels = package.precompile(f"{FORWARD} lse residual", architectures=[80], backward=True)
    assert [one.kernel for one in kernels] == ["sm80/forward", "common/backward_preprocess", "sm80/backward_fused"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--architecture", "80x"], "--architecture is 80x: expected a compute capability"),
        (["--architecture", "999"], "does not compile for architecture 999: expected one of"),
        (["--architecture", "75"], "sm_75 has compute capability 7.5, expected 8.0 or newer"),
        (["--architecture", "80", "--gradients", "x"], "x is not a captured float tensor of this problem"),
        (["--architecture", "80", "--q-len", "0"], "a number of queries is 0: expected at least 1"),
        (["--architecture", "80", "--implementation", "cuda_sm90"], "sm_80 has compute capability 8.0, expected 9.0"),
    ],
)
def test_errors(flashlift, cache, arguments, message):
    done = flashlift("compile", FORWARD, *arguments)
    assert done.returncode == 2
    assert message in done.stderr, done.stderr
    assert not list(cache.glob("*.cubin"))


def test_a_folder_that_cannot_be_used(flashlift, cache, monkeypatch):
    cache.write_text("a file")
    done = flashlift("compile", FORWARD, "--architecture", "80")
    assert done.returncode == 2
    assert "the kernel cache cannot be used" in done.stderr
    assert done.stderr.count("set FLASHLIFT_CACHE_DIR to a folder of your own") == 1, done.stderr


def test_a_folder_that_takes_no_files(flashlift, cache, monkeypatch):
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", f"/proc/{os.getpid()}")  # not even of root
    done = flashlift("compile", FORWARD, "--architecture", "80", timeout=600)
    assert done.returncode == 2 and "was not written: " in done.stderr and "FLASHLIFT_CACHE_DIR" in done.stderr
    assert "defect of Flashlift" not in done.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "NVRTC could not be loaded"),
        (["--gradients", "x"], "x is not a captured float tensor of this problem"),
        (["--q-len", "0"], "a number of queries is 0: expected at least 1"),
        (["--implementation", "none"], "CUDA's forward pass has no implementation named none"),
    ],
)
def test_a_missing_compiler_comes_after_wrong_arguments(flashlift, cache, monkeypatch, arguments, message):
    monkeypatch.setenv("FLASHLIFT_NVRTC", str(cache / "none.so"))
    done = flashlift("compile", FORWARD, "--architecture", "80", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and ("none.so" in done.stderr) == (not arguments), done.stderr


@pytest.mark.parametrize("architectures", [[], ["90"], [9.0], [-1], [2**40], 90, "90"])
def test_architectures_that_are_none(cache, architectures):
    with pytest.raises(package.InvalidArgumentError, match="architecture"):
        package.precompile(FORWARD, architectures=architectures)


def test_gradients_that_are_no_list(cache):
    with pytest.raises(package.InvalidArgumentError, match="gradients is 'bias'; expected a list"):
        package.precompile(BIASED, architectures=[80], gradients="bias")
