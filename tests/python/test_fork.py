"""Processes forked from one whose threads compute, as multiprocessing and torch's DataLoader create them."""

import subprocess
import sys

# In a process of its own: what other tests have loaded must not be forked.
SCRIPT = """
import multiprocessing, threading
import flashlift
import numpy as np

inputs = [np.random.default_rng(1).normal(size=(2, 4, 256, 16)).astype(np.float32) for _ in range(3)]
ended = False

def compute(number):
    return flashlift.compile(f"attn b2 h4 s256 d16 softcap={number + 1}")(*inputs)

def compute_on():
    number = 0
    while not ended:
        compute(number := (number + 1) % 50)

def child(number, queue):
    queue.put(compute(number).tobytes() + compute(1000 + number).tobytes())

threads = [threading.Thread(target=compute_on) for _ in range(3)]
for thread in threads:
    thread.start()
context = multiprocessing.get_context("fork")
try:
    for number in range(5):
        queue = context.Queue()
        process = context.Process(target=child, args=(number, queue), daemon=True)  # ends with its parent
        process.start()
        assert queue.get(timeout=60) == compute(number).tobytes() + compute(1000 + number).tobytes()
        process.join(60)
        assert process.exitcode == 0, process.exitcode
finally:
    ended = True
    for thread in threads:
        thread.join()
"""


def test_children_compute_while_threads_of_their_parent_do():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


IMPORTS = """
import sys
import flashlift
import numpy as np

inputs = [np.zeros((2, 4, 64, 16), np.float32) for _ in range(3)]
before = set(sys.modules)
attention = flashlift.compile("attn b2 h4 s64 d16 causal")
out = attention(*inputs)
attention.backward(*inputs, out, inputs[0])
print(sorted(set(sys.modules) - before))
"""


def test_a_call_imports_nothing():
    """A fork() in the middle of an import leaves the module locked in the child for ever."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stdout + done.stderr
