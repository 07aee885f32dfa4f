"""Additions to MkDocs (mkdocs.yml): generated pages, links to the repository, and the search index.

- README.md and its neighbours become pages. A link to another file of the repository leads to a page that shows the
  file, so that the site is whole without a network.
- The references are made of the headers' comments and of the Python package's docstrings (site_reference.py).
- search_index.js holds the text of every page, for search.js.
"""

import json
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))

import site_reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages that stand beside docs/ in the repository.
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".def": "cpp", ".c": "c", ".py": "python", ".go": "go", ".rs": "rust"}
LARGEST = 200_000
LINK = re.compile(r"(!?\[[^\]\n]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^```.*?^```|^    .*?$)", re.MULTILINE | re.DOTALL)

_index: list[dict[str, str]] = []


def slug(text: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def place_of(path: str) -> str:
    """Where the site shows a file of the repository: a page of its own, a picture, or a page with the file's text."""
    if path in BESIDE:
        return BESIDE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.md"


def with_links(markdown: str, path: str) -> str:
    """Replaces links to files of the repository, relative to `path`, by links within the site."""
    here = posixpath.dirname(place_of(path))

    def redirect(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if "://" in match[2] or not (ROOT / target).exists():
            return match[0]  # MkDocs says what leads nowhere
        return f"{match[1]}{posixpath.relpath(place_of(target), here or '.')}{match[3] or ''}{match[4]}"

    parts = FENCE.split(markdown)  # code at odd places
    return "".join(part if i % 2 else LINK.sub(redirect, part) for i, part in enumerate(parts))


def linked_files(markdown: str, path: str) -> set[str]:
    prose = FENCE.sub("", markdown)
    targets = {posixpath.normpath(posixpath.join(posixpath.dirname(path), one[2])) for one in LINK.finditer(prose)}
    return {one for one in targets if (ROOT / one).exists() and place_of(one).startswith("source/")}


def source_page(path: str) -> tuple[str, set[str]]:
    """A page that shows a file or lists a folder, and the files that it links to."""
    here = ROOT / path
    if here.is_dir():
        names = sorted(f"{path}/{one.name}" for one in here.iterdir() if one.is_file())
        rows = "\n".join(f"- [{name}]({posixpath.basename(path)}/{posixpath.basename(name)}.md)" for name in names)
        return f"# {path}\n\n{rows}\n", set(names)
    text = here.read_text(errors="replace")
    cut = "" if len(text) <= LARGEST else f"\n\nThese are the first {LARGEST} characters."
    fence = "````"
    return f"# {path}\n\n{fence}{LANGUAGES.get(here.suffix, 'text')}\n{text[:LARGEST]}\n{fence}{cut}\n", set()


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    for section in config.nav:
        if isinstance(section, dict) and "Gallery" in section:
            pages = re.findall(r"^\| \[[^\]]*\]\((\w+\.md)\)", (DOCS / "gallery/README.md").read_text(), re.MULTILINE)
            section["Gallery"] = ["gallery/README.md", *(f"gallery/{one}" for one in pages)]
    return config


def on_files(files, config):
    _index.clear()
    open_files = set()
    for path in [*BESIDE, *(str(one.relative_to(ROOT)) for one in DOCS.rglob("*.md"))]:
        markdown = (ROOT / path).read_text()
        open_files |= linked_files(markdown, path)
        if path in BESIDE:
            files.append(File.generated(config, BESIDE[path], content=with_links(markdown, path)))
    done = set()
    while open_files:
        path = open_files.pop()
        done.add(path)
        content, more = source_page(path)
        files.append(File.generated(config, place_of(path), content=content))
        open_files |= more - done
    for name, content in site_reference.pages(ROOT).items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    path = f"docs/{page.file.src_uri}"
    return with_links(markdown, path) if (ROOT / path).exists() else markdown


class Text(HTMLParser):
    """The text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def on_page_content(html, page, config, files):
    text = Text()
    text.feed(html)
    if not page.file.src_uri.startswith("source/"):
        words = " ".join(" ".join(text.parts).split())
        _index.append({"title": page.title, "url": page.file.url, "text": words})
    return html


def on_post_build(config):
    site = Path(config.site_dir)
    (site / "search_index.js").write_text(f"var searchIndex = {json.dumps(_index)};\n")
    for path in [*site.rglob("*.html"), *site.glob("*.js")]:
        for address in re.findall(r"(?:src|<link[^>]*href)=\"(https?:[^\"]+)\"", path.read_text()):
            raise SystemExit(f"error: {path} loads {address}; the site must be readable without a network")
