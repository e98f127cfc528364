"""``dra-kit explain --html``: the same explanation as a page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from typing_extensions import override

from tests.unit.cli.cluster.saved import CHEESE, KITCHEN, Document, claim, explained, pod, run, save, words


class Elements(HTMLParser):
    """Open and closed elements of a page."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(tmp_path: Path, *documents: Document, code: int = 3) -> str:
    objects = save(tmp_path / "objects.yaml", *KITCHEN, *documents)
    result = run("explain", "--from", objects, "--html", tmp_path / "page.html")
    assert result.exit_code == code, result.output
    assert words(result.output).startswith(f"the explanation is in {tmp_path / 'page.html'}: ")
    return (tmp_path / "page.html").read_text()


WANTED = f'{CHEESE} == "brie"'
DOCUMENTS = (claim("lunch", WANTED), pod("guest", claim="lunch"))


def test_the_page_says_what_the_terminal_says(tmp_path: Path) -> None:
    page = page_of(tmp_path, *DOCUMENTS)
    _, printed = explained(tmp_path, *DOCUMENTS, what=())

    shown = words(unescape(re.sub(r"<[^>]*>", " ", page)))
    for line in printed.splitlines():
        assert words(line) in shown


def test_the_page_begins_with_verdict_and_remedies(tmp_path: Path) -> None:
    page = page_of(tmp_path, *DOCUMENTS)

    summary = page.partition("In detail")[0]
    assert "✗ pod default/guest cannot be scheduled" in summary
    assert "→ without `" in summary
    manifest = unescape(re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)[0])
    assert manifest.startswith("# in the claim's spec, or in spec.spec of its template\ndevices:\n  requests:\n")
    assert "brie" not in manifest


def test_the_page_needs_no_other_file_and_runs_no_script(tmp_path: Path) -> None:
    page = page_of(tmp_path, *DOCUMENTS)

    elements = Elements(page)
    assert elements.open == []
    assert not {"script", "link", "img", "iframe"} & set(elements.tags)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_names_are_never_read_as_markup(tmp_path: Path) -> None:
    evil = f'{CHEESE} == "<script>alert(1)</script>"'
    page = page_of(tmp_path, claim("lunch", evil), pod("guest", claim="lunch"))

    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_exit_code_is_that_of_the_explanation(tmp_path: Path) -> None:
    page = page_of(tmp_path, claim("lunch"), pod("guest", claim="lunch"), code=0)
    assert "✓ pod default/guest" in page


def test_a_page_cannot_be_json(tmp_path: Path) -> None:
    objects = save(tmp_path / "objects.yaml", *KITCHEN)
    result = run("explain", "--from", objects, "--html", tmp_path / "page.html", "-o", "json")
    assert result.exit_code == 2
    assert "--html cannot be combined with -o json" in result.output


def test_a_folder_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    result = run("explain", "--html", tmp_path / "missing" / "page.html")
    assert result.exit_code == 2
    assert "does not exist; create it, or use another path" in words(result.output)
