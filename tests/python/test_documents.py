"""Runs the code in the documents."""

import re
import shlex
import subprocess
import sys

import pytest

DOCUMENTS = ["README.md", "docs/tour.md"]


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/jax.md"])
def test_python_runs(root, tmp_path, document):
    blocks = re.findall(r"```python\n(.*?)```", (root / document).read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_c_runs(root, tmp_path):
    blocks = re.findall(r"```c\n(.*?)```", (root / "docs/c.md").read_text(), re.DOTALL)
    assert blocks
    libraries = root / "build"
    for number, block in enumerate(blocks):
        source, program = tmp_path / f"block{number}.c", tmp_path / f"block{number}"
        source.write_text(block)
        command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{root / 'include'}", source, "-o", program]
        library = [f"-L{libraries}", "-lflashlift", f"-Wl,-rpath,{libraries}"]
        subprocess.run([*command, *library], check=True)
        done = subprocess.run([program], timeout=300)
        assert done.returncode == 0, block


def test_readme_cpp_is_the_example(root):
    (block,) = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    example = re.sub(r"\s+", " ", (root / "examples" / "two_lambdas.cpp").read_text())
    assert re.sub(r"\s+", " ", block).strip() in example


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_run(root, flashlift, tmp_path, document):
    lines = re.findall(r"^    build/bin/flashlift (.*)$", (root / document).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        arguments = shlex.split(line)
        if "model.mlir" not in arguments:  # the reader's own
            done = flashlift(*arguments, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.parametrize(
    "document",
    [
        *DOCUMENTS,
        "CONTRIBUTING.md",
        "docs/design.md",
        "docs/problem.md",
        "docs/python.md",
        "docs/jax.md",
        "docs/c.md",
        "docs/xla.md",
        "docs/security.md",
        "docs/stability.md",
        "docs/custom_call.md",
        "docs/lessons/README.md",
        "docs/gallery/README.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ],
)
def test_links_lead_somewhere(root, document):
    path = root / document
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert (path.parent / target).exists(), f"{document} links to {target}"


def test_make_targets_of_the_documents_exist(root):
    listed = subprocess.run(["make", "-s", "help"], cwd=root, capture_output=True, text=True).stdout
    for document in [*DOCUMENTS, "CONTRIBUTING.md"]:
        for target in re.findall(r"(?:`|^    )make ([a-z]+)\b", (root / document).read_text(), re.MULTILINE):
            assert re.search(rf"^  {target}\s", listed, re.MULTILINE), f"{document} names make {target}"
