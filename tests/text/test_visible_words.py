"""Texts that users see are plain: no sentence is longer than 25 words, and no word is used that
only this project understands.

A text is a string of the package with three words or more that is no docstring. The words of an
f-string's values do not count.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "locust_llm"
MOST_WORDS: Final = 25
END_OF_SENTENCE: Final = re.compile(r"(?<=[.!?;])(?:\s+|(?=\{\}))|\n")
WORD: Final = re.compile(r"[A-Za-z][\w'-]*")
VALUE: Final = re.compile(r"\{[^{}]*\}")
PRIVATE: Final = {
    r"that of|those of|what \w+ (?:has|have)": "name the thing",
    r"said|told|tells|knows|lacks|wants": "programs report, print, predict, require",
    r"may tell|would tell|tells? more": "may decide it",
    r"worth(?! noting)": "effective sample size",
    r"sentinels?|truth server": "reference stream, reference server",
    r"plus-minus": "measurement error",
    r"arms?": "variant, base and candidate",
    r"pictures?|sounds?": "image, audio",
    r"figures? (?:is|are|of|may|that|together)": "metric, value",
    r"beside": "next to, during, with, in addition to",
    r"undecided": "INCONCLUSIVE",
    r"foremost": "top",
    r"turned away": "dropped",
    r"held against": "compared with",
    r"looked at": "judged, checked",
    r"by chance": "at random",
    r"as ever": "as usual",
    r"at the begin|for good": "at the start, permanently",
    r"given up": "skipped",
    r"to be seen": "significant",
    r"whose millisecond|blame[sd]?": "latency breakdown",
}
"""Words with another meaning for the reader, or with none, and the words to use."""
ALLOWED: Final[dict[str, str]] = {
    "simulator/simulated_tokenizer.py": "the text that the simulator generates",
    "simulator/openai_chat.py": "the errors of vLLM in its own words",
    "simulator/simulated_server.py": "the errors of vLLM in its own words",
}
"""Files whose texts are not ours."""


class VisibleText(NamedTuple):
    place: str
    text: str


def read_text(node: ast.AST) -> str | None:
    """The text of a string, with {} in place of each value. None: it is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        return "".join(map(str, parts))
    return None


def find_docstrings(tree: ast.Module) -> set[ast.AST]:
    """Strings that stand alone: docstrings, also of constants and fields."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {value for value in alone if read_text(value) is not None}


def find_strings(node: ast.AST, skipped: set[ast.AST]) -> Iterator[tuple[int, str]]:
    if node in skipped:
        return
    text = read_text(node)
    if text is not None:
        yield getattr(node, "lineno", 0), text
    for child in ast.iter_child_nodes(node):
        if text is None or not isinstance(child, ast.Constant):
            yield from find_strings(child, skipped)


@cache
def visible_texts() -> tuple[VisibleText, ...]:
    texts = list[VisibleText]()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name in ALLOWED:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for line, text in find_strings(tree, find_docstrings(tree)):
            if is_prose(text):
                texts.append(VisibleText(f"{name}:{line}", text))
    return tuple(texts)


def is_prose(text: str) -> bool:
    """Words with blanks between: no pattern, markup, SQL or list of names."""
    if len(WORD.findall(VALUE.sub(" ", text))) < 3 or " " not in text.strip():
        return False
    if text.count("_") > 5:
        return False
    code = re.search(
        r"\\[sdwb]|\(\?|</?\w+[ >]|[{;]\s*[\w-]+:[^ ]|[.*]\)|^(?:SELECT|CREATE) ", text
    )
    return code is None


def split_sentences(text: str) -> list[str]:
    return END_OF_SENTENCE.split(VALUE.sub("{}", text))


def count_words(sentence: str) -> int:
    return len(WORD.findall(sentence))


def find_private_words(text: str) -> list[str]:
    words = VALUE.sub(" ", text)
    return [
        better for private, better in PRIVATE.items() if re.search(rf"(?i)\b(?:{private})\b", words)
    ]


def test_no_sentence_is_long() -> None:
    long = [
        f"{place}: {count_words(sentence)} words: {sentence}"
        for place, text in visible_texts()
        for sentence in split_sentences(text)
        if count_words(sentence) > MOST_WORDS
    ]
    assert long == []


def test_no_word_is_private() -> None:
    found = [
        f"{place}: {', '.join(better)}: {text}"
        for place, text in visible_texts()
        if (better := find_private_words(text))
    ]
    assert found == []


def test_the_texts_of_the_package_are_found() -> None:
    assert len(visible_texts()) > 2000
    assert any(one.text.startswith("Prefill concurrency limit:") for one in visible_texts())


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("the limit is that of the base", ["name the thing"]),
        ("294 requests are worth 200", ["effective sample size"]),
        ("both arms have one address", ["variant, base and candidate"]),
        ("the server requires an API key", []),
        ("alarms and armed forces", []),
        ("it is {said} here", []),
    ],
)
def test_private_words_are_found(text: str, better: list[str]) -> None:
    assert find_private_words(text) == better


def test_sentences_are_counted_in_words() -> None:
    assert [count_words(one) for one in split_sentences("Use --slo. It takes a rule; {} more")] == [
        2, 4, 1,
    ]  # fmt: skip
