"""mkdocs hooks: the example report and the page of simulated claims, which lie in reports/, become
part of the site; which pages the search leaves out."""

from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
SHOWN: Final = (
    *(Path("reports/example") / name for name in ("report.html", "summary.md", "timeline.svg")),
    *(path.relative_to(ROOT) for path in sorted((ROOT / "reports/seeds").iterdir())),
)
NOT_SEARCHED: Final = ("reports/seeds/README.md",)
"""Set here, as front matter would be a table in the repository."""


def on_files(files: Files, config: Any) -> Files:
    for path in SHOWN:
        if path.suffix == ".md" and path.parent.name == "example":
            continue  # Markdown for pasting, not a page
        files.append(File.generated(config, str(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """In the repository reports/ lies beside docs/, in the site below it."""
    if page.file.src_uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    return markdown.replace("](../reports/", "](reports/")
