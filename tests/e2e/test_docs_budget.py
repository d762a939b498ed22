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
WRITTEN: Final = 43_700
"""Words of all pages but those of commands and the changelog. The goal is 36,000."""
GENERATED: Final = 5_900
"""Words of the pages of commands. The goal is 5,000."""
LONG_SHARE: Final = 0.05
"""Share of long sentences in all pages."""
PAGE: Final = 1000
"""A page has at most so many words, and its own ceiling where it had more."""
LARGER: Final[dict[str, int]] = {
    "how-to/interference.md": 1100,
    "how-to/locustfiles.md": 1350,
    "how-to/protocols.md": 1350,
    "how-to/security.md": 1400,
    "how-to/simulator.md": 1200,
    "how-to/twin.md": 1400,
    "reference/metrics.md": 2300,
    "reference/reports.md": 1350,
    "reference/scenarios.md": 1100,
}
PLAIN: Final = (
    "accuracy.md",
    "compatibility.md",
    "concepts/metrics-for-users.md",
    "concepts/open-and-closed-load.md",
    "concepts/prefill-limit.md",
    "concepts/two-phases.md",
    "concepts/verdicts.md",
    "faq.md",
    "get-started/first-report.md",
    "get-started/install.md",
    "get-started/quickstart.md",
    "get-started/which-command.md",
    "how-to/ab.md",
    "how-to/audit.md",
    "how-to/canary.md",
    "how-to/ci.md",
    "how-to/distributed.md",
    "how-to/formats.md",
    "how-to/history.md",
    "how-to/images-and-audio.md",
    "how-to/interference.md",
    "how-to/kubernetes.md",
    "how-to/live.md",
    "how-to/load-modes.md",
    "how-to/locustfiles.md",
    "how-to/migration.md",
    "how-to/network.md",
    "how-to/opentelemetry.md",
    "how-to/prefix-cache.md",
    "how-to/prompts.md",
    "how-to/protocols.md",
    "how-to/routers.md",
    "how-to/security.md",
    "how-to/sessions.md",
    "how-to/spans.md",
    "how-to/sweeps.md",
    "index.md",
    "reference/exit-status.md",
    "reference/glossary.md",
    "reference/measurement-error.md",
    "reference/metrics.md",
    "reference/slo.md",
    "tutorials/ci-gate.md",
    "tutorials/coming-from-other-tools.md",
    "tutorials/compare-builds.md",
    "tutorials/kubernetes.md",
    "tutorials/prefill-concurrency.md",
    "tutorials/rag-and-agent.md",
    "tutorials/replay.md",
    "tutorials/size-a-deployment.md",
    "tutorials/slow-p99.md",
)
"""In these pages at most 5 % of the sentences are long."""

CODE: Final = re.compile(r"^```.*?^```$|<!--.*?-->|<[^>]+>", re.DOTALL | re.MULTILINE)
ADDRESS: Final = re.compile(r"\]\([^)]*\)")
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
OF_COMMANDS: Final = frozenset(name for name in TEXTS if name.startswith("reference/cli/"))


def test_words_and_sentences_are_counted() -> None:
    text = "# Title\n\nOne [two](a/b.md) three. Four `five six`:\n\n```sh\nrun it\n```\n\n| a | 7 |\n|---|---|\n\n- eight nine\n"
    assert count_words(text) == 1 + 6 + 2 + 2
    assert split_sentences(text) == ["One [two] three.", "Four `five six`:", "- eight nine"]
    assert count_long(" ".join(["word"] * 26) + ". Short one.") == (1, 2)


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in OF_COMMANDS])
def test_a_page_is_within_its_words(name: str) -> None:
    assert count_words(TEXTS[name]) <= LARGER.get(name, PAGE)


def test_all_pages_are_within_their_words() -> None:
    words = {name: count_words(text) for name, text in TEXTS.items()}
    generated = sum(words[name] for name in OF_COMMANDS)
    assert generated <= GENERATED
    assert sum(words.values()) - generated <= WRITTEN


def test_few_sentences_are_long() -> None:
    counted = [count_long(text) for name, text in TEXTS.items() if name not in OF_COMMANDS]
    long = sum(one for one, _ in counted)
    assert long / sum(of for _, of in counted) <= LONG_SHARE


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_page_stays_plain(name: str) -> None:
    long, of = count_long(TEXTS[name])
    assert long <= max(1, of * 0.05)


def test_each_ceiling_is_of_a_page() -> None:
    assert {*LARGER, *PLAIN} <= {*TEXTS}
    assert [name for name, words in LARGER.items() if words <= PAGE] == []
