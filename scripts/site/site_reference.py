"""Generates reference pages of the C and C++ headers from comments, and of the Python package from docstrings."""

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

C_HEADERS = ("flashlift.h", "flashlift_stablehlo.h", "flashlift_xla.h")
PYTHON_MODULES = ("flashlift", "flashlift.stablehlo", "flashlift.torch", "flashlift.jax", "flashlift.testing")


def pages(root: Path) -> dict[str, str]:
    headers = sorted((root / "include/flashlift").glob("*.h"))
    in_c = [root / "include/flashlift" / name for name in C_HEADERS]
    return {
        "c": of_headers("C reference", in_c),
        "cpp": of_headers("C++ reference", [one for one in headers if one.name not in C_HEADERS]),
        "python": of_python(),
    }


def of_headers(title: str, headers: list[Path]) -> str:
    parts = [f"# {title}", "What the headers declare, by header. `make docs` makes this page of them."]
    for header in headers:
        head, declarations = read_header(header.read_text())
        parts += [f"## {header.name}", head, f"```cpp\n#include <flashlift/{header.name}>\n```"]
        for name, comment, code in declarations:
            parts += [f"### {name}", comment, f"```cpp\n{code}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def read_header(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The comment at the header's top, and for each declaration its name, comment and code."""
    chunks = re.split(r"\n\s*\n", text)
    # Braces must balance: a structure with empty lines within is one declaration.
    joined: list[str] = []
    for chunk in chunks:
        if joined and _depth(joined[-1]) > 0:
            joined[-1] += "\n\n" + chunk
        else:
            joined.append(chunk)
    head, declarations = "", []
    for chunk in joined:
        comment, code = _split(chunk)
        if not head:
            head = comment
            continue
        for one_comment, one_code in _statements(comment, code):
            if name := _name(one_code):
                public = re.sub(r"\n private:.*?(?=\n};)", "", one_code, flags=re.DOTALL)
                declarations.append((name, one_comment, textwrap.dedent(public).strip("\n")))
    return head, declarations


def _depth(text: str) -> int:
    code = re.sub(r"//.*|/\*.*?\*/", "", text, flags=re.DOTALL if "/*" in text and "//" not in text else 0)
    code = re.sub(r'^(?:extern "C" |namespace [\w:]+ )\{$', "", code, flags=re.MULTILINE)
    return code.count("{") - code.count("}")


def _split(chunk: str) -> tuple[str, str]:
    """The comment at the start of a chunk, as prose, and the rest."""
    chunk = chunk.strip("\n")
    if match := re.match(r"/\*(.*?)\*/\n?", chunk, re.DOTALL):
        lines = [re.sub(r"^ \* ?", "", line) for line in match[1].strip().splitlines()]
        return _prose("\n".join(lines)), chunk[match.end() :]
    lines = chunk.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return _prose("\n".join(re.sub(r"^// ?", "", line) for line in lines[:count])), "\n".join(lines[count:])


def _prose(text: str) -> str:
    """Indented lines become code; text that looks like HTML is escaped."""
    text = re.sub(r"(?m)^---- .* ----$", "", text)
    lines = ("    " + line if line.startswith("  ") else line.replace("<", "&lt;") for line in text.splitlines())
    return "\n".join(lines).strip("\n")


def _statements(comment: str, code: str) -> list[tuple[str, str]]:
    """Splits a chunk that declares several functions, each after a comment of its own."""
    found, lines, depth = [], [], 0
    for line in code.splitlines():
        if line.startswith(("//", "/*")) and depth == 0 and _split("\n".join(lines))[1].strip():
            found.append("\n".join(lines))
            lines = []
        lines.append(line)
        depth += line.count("{") - line.count("}")
    found.append("\n".join(lines))
    result = [(comment, found[0])]
    return result + [_split(one) for one in found[1:]]


def _name(code: str) -> str:
    """The name of what is declared; for functions of C all names; nothing for guards, includes and pragmas."""
    code = "\n".join(line for line in code.splitlines() if not line.startswith(("#pragma", "#include", "//")))
    if functions := re.findall(r"^\w[\w* ]*\b(flashlift_\w+)\(", code, re.MULTILINE):
        return ", ".join(functions)
    for pattern in (
        r"typedef (?:struct|enum) (\w+)",
        r"^(?:class|struct|enum class|union) (?:\[\[\w+\]\] )?(\w+)\b[^;]*\{",
        r"^#define (?!\w+_(?:H|IMPL)_)(\w+)",
        r"\b(operator\S+)\(",
        r"\b(\w+)\([^()]*(?:\([^()]*\)[^()]*)*\)[^;{]*[;{]",
        r"(?:using|constexpr \w+) (\w+) =",
    ):
        if match := re.search(pattern, code, re.MULTILINE):
            return match[1]
    return ""


def of_python() -> str:
    parts = ["# Python reference", "The package's docstrings. `make docs` makes this page of them."]
    for name in PYTHON_MODULES:
        module = importlib.import_module(name)
        parts += [f"## {name}", _docstring(module)]
        for one in _public(module):
            parts += _of_object(one, getattr(module, one))
    return "\n\n".join(filter(None, parts)) + "\n"


def _public(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [one for one, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [one for one in names if not one.startswith("_")]


def _of_object(name: str, value: object) -> list[str]:
    parts = [f"### {name}"]
    if inspect.isclass(value) or inspect.isroutine(value):
        parts.append(f"```python\n{_signature(name, value)}\n```")
    parts.append(_docstring(value) if inspect.isclass(value) or inspect.isroutine(value) else "")
    if inspect.isclass(value):
        for member_name, member in vars(value).items():
            if not member_name.startswith("_") and inspect.isfunction(member) and member.__doc__:
                parts += [f"```python\n{_signature(f'{name}.{member_name}', member)}\n```", _docstring(member)]
    return parts


def _signature(name: str, value: object) -> str:
    kind = "class" if inspect.isclass(value) else "def"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{kind} {name}"
    plain = signature.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return "\n".join(textwrap.wrap(f"{kind} {name}{plain}", 110, subsequent_indent="    "))


def _docstring(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return f"```text\n{text}\n```" if text else ""
