"""mkdocs hooks: pages that lie beside docs/ in the repository become part of the site, and links in
all pages are those of the repository."""

import re
import sys
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any, Final

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))  # mkdocs loads this file by its path

import llms  # noqa: E402

BESIDE: Final = ("benchmarks/", "reports/")
"""Folders beside docs/ whose pages have the same path in the site. The search leaves them out."""
SHOWN: Final = (
    *(Path("reports/example") / name for name in ("report.html", "timeline.svg")),
    *(path.relative_to(ROOT) for path in sorted((ROOT / "reports/seeds").iterdir())),
    *(path.relative_to(ROOT) for path in sorted((ROOT / "benchmarks").glob("*.md"))),
)
RELATIVE_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    for path in SHOWN:
        files.append(File.generated(config, str(path), abs_src_path=str(ROOT / path)))
    nav = config["nav"]
    files.append(File.generated(config, "llms.txt", content=llms.format_list(nav)))
    files.append(File.generated(config, "llms-full.txt", content=llms.format_full_text(nav)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    path = page.file.src_uri
    beside = path.startswith(BESIDE)
    if beside:
        # set here, as front matter would be a table in the repository
        page.meta["search"] = {"exclude": True}
    in_repository = path if beside else f"docs/{path}"

    def in_site(link: re.Match[str]) -> str:
        target = normpath(join(dirname(in_repository), link[1])).removeprefix("docs/")
        return relpath(target, dirname(path) or ".")

    return RELATIVE_LINK.sub(in_site, markdown)
