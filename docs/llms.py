"""llms.txt and llms-full.txt of the site: a list of the pages, and the text of all of them, for
programs that read the documentation (llmstxt.org)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent
SUMMARY: Final = (
    "Load tester for LLM servers, an extension of Locust. It reports whether a server meets an SLO, how many users fit, "
    "and what makes slow requests slow."
)
OTHER: Final = "Other pages"
"""Title for pages that have no section, where a section came before them."""
LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT: Final = re.compile(r"<!--.*?-->\n*|<a id=\"[^\"]*\"></a>", re.DOTALL)


class NavPage(NamedTuple):
    section: str
    path: str
    """Below docs/."""

    @property
    def text(self) -> str:
        return COMMENT.sub("", (FOLDER / self.path).read_text("utf-8"))

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The first sentence below the title."""
        for block in CODE.sub("", self.text).split("\n\n")[1:]:
            if block.strip()[:1].isalnum() or block.startswith(("`", "*")):
                flat = LINK.sub(r"\1", " ".join(block.split())).replace("**", "")
                return re.split(r"(?<=[.?]) ", flat)[0]
        return ""


def list_pages(nav: list[Any], section: str = "") -> Iterator[NavPage]:
    """The pages of the navigation in their order, each with its uppermost section."""
    for entry in nav:
        if isinstance(entry, str):
            yield NavPage(section, entry)
            continue
        for title, below in entry.items():
            if isinstance(below, str):
                yield NavPage(section, below)
            else:
                yield from list_pages(below, section or title)


def format_list(nav: list[Any]) -> str:
    """The text of llms.txt. Its links are relative to the root of the site."""
    parts = [f"# locust-llm\n\n> {SUMMARY}\n\n"]
    section = ""
    for page in list_pages(nav):
        if page.section != section:
            section = page.section
            parts.append(f"\n## {section or OTHER}\n\n")
        address = re.sub(r"(index)?\.md$", "", page.path)
        link = f"{address}/" if address and not address.endswith("/") else address or "./"
        about = f": {page.summary}" if page.summary else ""
        parts.append(f"- [{page.title}]({link}){about}\n")
    return "".join(parts)


def format_full_text(nav: list[Any]) -> str:
    """The text of llms-full.txt: every page in the order of the navigation."""
    texts = (f"<!-- {page.path} -->\n\n{page.text.strip()}\n" for page in list_pages(nav))
    return "\n".join(texts)
