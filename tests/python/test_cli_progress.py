"""The command line's progress of long work: one line on a terminal, and no output elsewhere."""

import os
import pty
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

LONG = "attn h1 s1024 d128"  # seconds to check, of which a tenth shows nothing


def on_terminal(program, *arguments, **options):
    """The command's standard output, and its standard error on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=theirs, text=True, **options
    )
    os.close(theirs)
    return process, ours


def read_until(terminal, words):
    text = ""
    while words not in text:
        text += os.read(terminal, 65536).decode()
    return text


def read_all(terminal):
    text = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # closed at the other end
            break
        if not part:
            break
        text += part
    os.close(terminal)
    return text.decode()


@pytest.fixture
def program(root):
    return root / "build" / "bin" / "flashlift"


@pytest.mark.parametrize("options", [[], ["--backward", "--json"]])
def test_a_check_says_how_far_it_is(program, options):
    process, terminal = on_terminal(program, "run", LONG, "--check", "--seconds", 0, *options)
    text = read_all(terminal)
    output = process.communicate()[0]
    assert process.returncode == 0
    assert "checking: " in text and " % of 2048 rows, " in text and " a second, " in text and " left" in text
    assert text.endswith("\r\033[K")  # taken away in the end
    assert "checking" not in output


def test_a_file_gets_no_progress(flashlift):
    done = flashlift("run", LONG, "--check", "--seconds", 0)
    assert done.returncode == 0 and done.stderr == ""


def test_what_is_done_at_once_says_nothing(program):
    process, terminal = on_terminal(program, "run", "attn h1 s8 d8", "--check", "--seconds", 0)
    assert read_all(terminal) == ""
    assert process.wait() == 0


def test_fusing_says_how_long_it_takes(program, root, tmp_path):
    """The module comes through a pipe, whose writer waits until the program says so."""
    text = (root / "examples" / "xla" / "attention.mlir").read_text()
    process, terminal = on_terminal(program, "fuse", "/dev/stdin", "-o", tmp_path / "fused.mlir", stdin=subprocess.PIPE)
    process.stdin.write(text[: len(text) // 2])
    process.stdin.flush()
    shown = read_until(terminal, "fusing /dev/stdin: ")
    process.stdin.write(text[len(text) // 2 :])
    process.stdin.close()
    shown += read_all(terminal)
    assert process.wait() == 0
    assert shown.endswith("\r\033[K")


def bars_of(svg):
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    widths = [float(one.get("width")) for one in root.iter(name + "rect") if one.get("fill") == "#1f6feb"]
    return widths, " ".join(one.text or "" for one in root.iter(name + "text"))


def test_bench_draws_a_bar_for_each_problem(flashlift, tmp_path):
    problems = ["attn h2 s64 d16", "attn h2 s128 d16 causal mask_mod() { %0 = lt kv, 3; return %0 }"]
    done = flashlift("bench", *problems, "--seconds", 0, "--plot", tmp_path / "bars.svg", "--json")
    assert done.returncode == 0, done.stderr
    widths, text = bars_of((tmp_path / "bars.svg").read_text())
    assert len(widths) == 2 and max(widths) == pytest.approx(560)
    assert all(problem in text for problem in problems) and "GFLOP/s" in text


def test_bench_draws_to_standard_output(flashlift):
    done = flashlift("bench", "attn h2 s64 d16", "--seconds", 0, "--plot", "-")
    assert len(bars_of(done.stdout)[0]) == 1
    assert "GFLOP/s" in done.stderr  # the table
    refused = flashlift("bench", "attn h2 s64 d16", "--plot", "-", "--json")
    assert refused.returncode == 2 and "leave out one" in refused.stderr


def test_bench_refuses_a_plot_that_cannot_be_written_before_it_measures(flashlift, tmp_path):
    done = flashlift("bench", "attn h2 s64 d16", "--seconds", 100, "--plot", tmp_path / "none" / "bars.svg", timeout=30)
    assert done.returncode == 2 and "--plot" in done.stderr
