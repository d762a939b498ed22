"""Budgets of the documentation: words of each page and of all, and long sentences. The ceilings are
the numbers of the day on which they were set, rounded up: lower them, never raise them."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
LONG: Final = 25
"""A sentence of more words is long."""
WRITTEN: Final = 41_053
"""Words by hand: of all pages but those of commands and the changelog, without generated tables.
36,000 are for the pages of 2026-11-26, 700 for a tutorial on checked answers, 500 for the page on gateways,
612 for its tutorial, 500 for the page on killed servers, 1,140 for the page and the tutorial on soaks,
1,095 for clients who leave, and 558 for the tutorial on killed servers."""
GENERATED: Final = 5_310
"""Words of the pages of commands and of generated tables. 130 are for the options of soak,
120 for those of clients who leave."""
LONG_SHARE: Final = 0.02
"""Share of long sentences in all pages."""
PAGE: Final = 1000
"""A page has at most so many words by hand, and its own ceiling where it had more."""
LARGER: Final[dict[str, int]] = {
    "how-to/locustfiles.md": 1010,
    "how-to/twin.md": 1100,
    "reference/metrics.md": 1400,
    "reference/reports.md": 1110,
}
LONG_OF_A_PAGE: Final = 0.05
"""Share of long sentences in a page, which may have one at least."""

CODE: Final = re.compile(r"^```.*?^```$|<!--.*?-->|<[^>]+>", re.DOTALL | re.MULTILINE)
ADDRESS: Final = re.compile(r"\]\([^)]*\)")
GENERATED_TABLE: Final = re.compile(r"<!-- [^>]*made by.*?<!-- end -->", re.DOTALL)
TABLE_OR_HEADING: Final = re.compile(r"^[|#].*$", re.MULTILINE)
BLOCK: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
END: Final = re.compile(r"(?<=[.?!:])\s+(?=[A-Z`*\[\"(])")


def count_words(text: str) -> int:
    """Words outside of code blocks, those of tables among them."""
    return len(re.findall(r"\S*[A-Za-z0-9]\S*", ADDRESS.sub("]", CODE.sub("", text))))


def split_sentences(text: str) -> list[str]:
    """The sentences of the prose. A colon before a capital letter ends one, too."""
    prose = ADDRESS.sub("]", TABLE_OR_HEADING.sub("\n", CODE.sub("", text)))
    blocks = (" ".join(block.split()) for block in BLOCK.split(prose))
    return [sentence for block in blocks for sentence in END.split(block) if " " in sentence]


def count_long(text: str) -> tuple[int, int]:
    sentences = split_sentences(text)
    return sum(len(sentence.split()) > LONG for sentence in sentences), len(sentences)


TEXTS: Final = {
    str(path.relative_to(DOCS)): path.read_text("utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if path.name != "changelog.md"
}
BY_HAND: Final = tuple(name for name in TEXTS if not name.startswith("reference/cli/"))


def count_by_hand(name: str) -> int:
    return count_words(GENERATED_TABLE.sub("", TEXTS[name]))


def test_words_and_sentences_are_counted() -> None:
    text = "# Title\n\nOne [two](a/b.md) three. Four `five six`:\n\n```sh\nrun it\n```\n\n| a | 7 |\n|---|---|\n\n- eight nine\n"
    assert count_words(text) == 1 + 6 + 2 + 2
    assert split_sentences(text) == ["One [two] three.", "Four `five six`:", "- eight nine"]
    assert count_long(" ".join(["word"] * 26) + ". Short one.") == (1, 2)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_page_is_within_its_words(name: str) -> None:
    assert count_by_hand(name) <= LARGER.get(name, PAGE)


def test_all_pages_are_within_their_words() -> None:
    written = sum(map(count_by_hand, BY_HAND))
    everything = sum(map(count_words, TEXTS.values()))
    assert written <= WRITTEN
    assert everything - written <= GENERATED


def test_few_sentences_are_long() -> None:
    counted = [count_long(TEXTS[name]) for name in BY_HAND]
    long = sum(one for one, _ in counted)
    assert long / sum(of for _, of in counted) <= LONG_SHARE


@pytest.mark.parametrize("name", BY_HAND)
def test_a_page_has_few_long_sentences(name: str) -> None:
    long, of = count_long(TEXTS[name])
    assert long <= max(1, of * LONG_OF_A_PAGE)


def test_each_ceiling_is_of_a_page() -> None:
    assert {*LARGER} <= {*TEXTS}
    assert [name for name, words in LARGER.items() if words <= PAGE] == []
