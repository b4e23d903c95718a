"""Relative links of every Markdown page lead to a file, and their anchors to a heading or an `<a id>` of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.tables import each

FOLDERS = ("", ".github/", "deploy/", "docs/**/", "examples/**/", "verification/")
PAGES = sorted(
    page
    for folder in FOLDERS
    for page in ROOT.glob(f"{folder}*.md")
    if "templates" not in page.parts and "node_modules" not in page.parts
)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def prose(page: Path) -> str:
    """Read a page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(
        r"`[^`\n]+`", lambda match: "`" + match[0].strip("`").replace("](", "") + "`", text
    )


@cache
def anchors(page: Path) -> frozenset[str]:
    """Name the anchors of a page: its headings as GitHub spells them, and explicit ids."""
    text = prose(page)
    found: list[str] = re.findall(r"<a id=\"([^\"]+)\">", text)
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return frozenset(found)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page that are in this tree."""
    for match in _LINK.finditer(prose(page)):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{target}: no such anchor"


@each("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_wrong_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b_c`: d, e\n[x](#a-b_c-d-e) [x](#other) [x](page.md#f) [x](gone.md) [x](https://gone)\n"
        '<a id="f"></a> <img src="gone.png"> `[x](code.md)`\n'
    )
    assert list(broken(page)) == [
        "#other: no such anchor",
        "gone.md: no such file",
        "gone.png: no such file",
    ]


def test_the_readme_leads_to_every_page() -> None:
    """Pages of docs are linked from the README, decisions from their list, and templates are not pages."""
    readme = {(ROOT / target.partition("#")[0]).resolve() for target in links(ROOT / "README.md")}
    decisions = ROOT / "docs" / "decisions"
    listed = {(decisions / target).resolve() for target in links(decisions / "README.md")}
    unlisted = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - readme - listed
    assert [str(page.relative_to(ROOT)) for page in sorted(unlisted)] == []


def test_decisions_are_listed_by_their_headlines() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(
        r"^\| \[(\d+)\]\(([^)]+)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M
    )
    pages = sorted(folder.glob("0*.md"))
    assert [path for _, path, _ in listed] == [page.name for page in pages]
    for (number, _, title), page in zip(listed, pages, strict=True):
        assert page.read_text().partition("\n")[0] == f"# {number} {title}"
