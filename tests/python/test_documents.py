"""Runs the code in the documents."""

import functools
import inspect
import re
import shlex
import subprocess
import sys

import flashlift.jax
import flashlift.stablehlo
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


def test_functions_of_the_python_table_have_these_arguments(root):
    table = re.findall(r"^\| `([\w.]+)\(([^`]*)\)`", (root / "docs/python.md").read_text(), re.MULTILINE)
    complete = {name: arguments for name, arguments in table if "..." not in arguments}
    assert len(complete) >= 10
    for name, arguments in complete.items():
        owner = flashlift.Attention if name.startswith("attention") else flashlift
        function = functools.reduce(getattr, name.split(".")[1:] or ["__call__"], owner)
        actual = [one for one in inspect.signature(function).parameters if one not in ("self", "kwargs")]
        assert [one.strip("=") for one in arguments.split(", ") if one] == actual, name


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


def _anchors(document):
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_links_lead_somewhere(root):
    documents = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    assert len(documents) > 20
    for path in documents:
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose):
            document = path.parent / target if target else path
            assert document.exists(), f"{path} links to {target}"
            assert not anchor or anchor in _anchors(document), f"{path} links to {target}#{anchor}"


def test_make_targets_of_the_documents_exist(root):
    listed = subprocess.run(["make", "-s", "help"], cwd=root, capture_output=True, text=True).stdout
    for document in [*DOCUMENTS, "CONTRIBUTING.md"]:
        for target in re.findall(r"(?:`|^    )make ([a-z0-9-]+)", (root / document).read_text(), re.MULTILINE):
            assert re.search(rf"^  {target}\s", listed, re.MULTILINE), f"{document} names make {target}"
