"""flashlift.torch on a CPU runs on torch's own threads, and on as many as torch uses."""

import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from flashlift.torch import flex_attention
from flashlift.torch._run import threads as lent_threads

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(autouse=True)
def same_threads_after():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def tensors(length=200, seed=1):
    """Small enough that torch itself starts no threads: in a forked process, it would wait for them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 4, length, 32, generator=generator, requires_grad=True) for _ in range(3)]


def causal(b, h, q, kv):
    return q >= kv


def attend(q, k, v):
    """The output and all gradients."""
    out = flex_attention(q, k, v, lambda score, b, h, q, kv: score * 1.5, mask_mod=causal)
    return out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))


def in_fresh_process(body):
    """The output of a program that starts without any thread of torch's or ours."""
    begin = """
        import os, time, torch
        from flashlift.torch import flex_attention
        q, k, v = torch.randn(3, 1, 8, 1024, 64)

        def threads():
            return len(os.listdir("/proc/self/task"))
    """
    program = textwrap.dedent(begin) + textwrap.dedent(body)
    passive = os.environ | {"OMP_WAIT_POLICY": "passive"}  # so that time is work
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=passive)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@LINUX
def test_one_thread_is_the_calling_one():
    before, after, others = in_fresh_process("""
        torch.set_num_threads(1)
        before = threads()
        flex_attention(q, k, v)
        start = time.process_time() - time.thread_time()
        flex_attention(q, k, v)
        print(before, threads(), time.process_time() - time.thread_time() - start)
    """)
    assert before == after
    assert float(others) < 0.002


@LINUX
def test_the_threads_are_torchs():
    before, *after = in_fresh_process("""
        torch.set_num_threads(3)
        torch.randn(1 << 20).exp()
        print(threads())
        for _ in range(3):
            flex_attention(q, k, v)
            torch.randn(1 << 20).exp()
            print(threads())
        torch.set_num_threads(2)
        torch.randn(1 << 20).exp()
        flex_attention(q, k, v)
        print(threads() + 1)
    """)
    assert set(after) == {before}


@LINUX
def test_torchs_threads_do_work():
    ours, all_threads = map(
        float,
        in_fresh_process("""
        torch.set_num_threads(2)
        flex_attention(q, k, v)
        calling, process = time.thread_time(), time.process_time()
        for _ in range(20):
            flex_attention(q, k, v)
        print(time.thread_time() - calling, time.process_time() - process)
    """),
    )
    assert all_threads > 1.2 * ours


def test_the_number_of_threads_changes_no_bit():
    torch.set_num_threads(1)
    expected = attend(*tensors())
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        assert all(map(torch.equal, attend(*tensors()), expected))


def test_without_openmp(monkeypatch):
    """If torch uses other threads, Flashlift's own threads run the call, and a single thread is still the calling
    one."""
    torch.set_num_threads(2)
    expected = attend(*tensors())
    monkeypatch.setattr(lent_threads, "_gomp_parallel", lambda: None)
    assert lent_threads.options_of_cpu() is None
    assert all(map(torch.equal, attend(*tensors()), expected))
    torch.set_num_threads(1)
    assert lent_threads.options_of_cpu().executor[0].concurrency == 1
    assert all(map(torch.equal, attend(*tensors()), expected))


def test_calls_from_several_threads():
    problems = [tensors(length=200 + 40 * i, seed=i) for i in range(4)]
    expected = [attend(*problem) for problem in problems]
    found = {}

    def work(i):
        torch.set_num_threads(1 + i)
        found[i] = [attend(*problems[i]) for _ in range(10)]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in range(4):
        assert all(all(map(torch.equal, one, expected[i])) for one in found[i])


@pytest.mark.skipif(lent_threads._gomp_parallel() is None, reason="torch runs without OpenMP")
def test_inside_a_parallel_region():
    torch.set_num_threads(2)
    expected = attend(*tensors())
    found = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def region(_):
        found.append(attend(*tensors()))

    parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel(lent_threads._gomp_parallel())(ctypes.cast(region, ctypes.c_void_p), None, 2, 0)
    assert len(found) == 2
    assert all(all(map(torch.equal, one, expected)) for one in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork():
    """libgomp would wait for the parent's threads."""
    torch.set_num_threads(2)
    expected = [one.numpy() for one in attend(*tensors())]
    child = os.fork()
    if child == 0:
        found = attend(*tensors())
        os._exit(0 if all((one.numpy() == other).all() for one, other in zip(found, expected, strict=True)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class _Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return attend(*tensors(seed=i))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_workers_of_a_data_loader():
    expected = [attend(*tensors(seed=i)) for i in range(4)]
    loader = torch.utils.data.DataLoader(_Attended(), batch_size=None, num_workers=2)
    for found, wanted in zip(loader, expected, strict=True):
        assert all(map(torch.equal, found, wanted))
