"""The generated parts of the documentation site; `make docs` builds it and checks its links."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import flashlift
import pytest

SITE = Path(__file__).resolve().parents[2] / "scripts" / "site"
sys.path.insert(0, str(SITE))

import site_reference as reference  # noqa: E402


@pytest.fixture(scope="module")
def pages(root):
    return reference.pages(root)


def headings(page):
    return [name for line in re.findall(r"^### (.*)$", page, re.MULTILINE) for name in line.split(", ")]


def test_the_reference_has_every_function_of_c(root, pages):
    text = "".join((root / "include/flashlift" / name).read_text() for name in reference.C_HEADERS)
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    functions = set(re.findall(r"\b(flashlift_\w+)\(", code))
    assert len(functions) > 25 and functions <= set(headings(pages["c"]))


def test_the_reference_has_every_type_of_cpp(root, pages):
    for header in (root / "include/flashlift").glob("*.h"):
        if header.name not in reference.C_HEADERS:
            for name in re.findall(
                r"^(?:class|struct|enum class) (?:\[\[\w+\]\] )?(\w+) .*\{", header.read_text(), re.M
            ):
                assert name in headings(pages["cpp"]), f"{name} of {header.name}"


def test_a_declaration_has_its_own_comment():
    _, declarations = reference.read_header(
        "// Head.\n\n// One.\nint one(int x);\n// Two.\n// More.\nint two();\n\nint three();\n"
    )
    assert declarations == [
        ("one", "One.", "int one(int x);"),
        ("two", "Two.\nMore.", "int two();"),
        ("three", "", "int three();"),
    ]


def test_the_reference_has_the_python_package(pages):
    public = {one for one in flashlift.__all__ if callable(getattr(flashlift, one))}
    assert public and public <= set(headings(pages["python"]))
    assert "def flex_attention(query, key, value, score_mod=None" in pages["python"]


@pytest.mark.skipif(not shutil.which("node"), reason="needs node: apt-get install nodejs")
def test_search_finds_pages_by_all_words():
    pages = [
        {"title": "Sinks", "url": "sinks.html", "text": "A learned logit of each head."},
        {"title": "Causal", "url": "causal.html", "text": "Each token sees itself; sinks are elsewhere."},
        {"title": "C", "url": "c.html", "text": "Functions."},
    ]
    script = f"""
    const {{ searchPages }} = require({json.dumps(str(SITE / "theme" / "search.js"))});
    const titles = (query) => searchPages({json.dumps(pages)}, query).map((one) => one.page.title);
    console.log(JSON.stringify([titles("sinks"), titles("SINKS token"), titles("nothing"), titles("")]));
    """
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["Sinks", "Causal"], ["Causal"], [], []]
