"""The examples for PyTorch run, and check their results."""

import subprocess
import sys


def test_eagle3(root):
    script = root / "examples" / "eagle3" / "eagle3.py"
    command = [sys.executable, script, "--length", "96", "--steps", "2", "--heads", "2", "--check-only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "agree" in done.stdout, done.stderr
