"""Corpus: plain words of single spaces, and any stretch of them follows the book, around its end as well."""

import pytest

from locust_llm.load.tokens import corpus, size, stretch


def test_the_corpus_is_plain_text_of_single_spaces() -> None:
    text, starts = corpus()
    assert text.isascii()
    assert text.isprintable()
    assert text.rstrip(" ").split(" ") == text.split()
    assert [text[at - 1] for at in starts[1:]] == [" "] * (len(starts) - 1)
    assert len(text.split()) == len(starts) == 2 * size() > 80_000


@pytest.mark.parametrize("at", [0, 1, size() // 2, size() - 1])
@pytest.mark.parametrize("count", [0, 1, 2, 1_000, size() - 1, size(), size() + 1, 2 * size() + 500])
def test_a_stretch_follows_the_book_around_its_end(at: int, count: int) -> None:
    book = corpus()[0].split()[: size()]
    assert stretch(at, count).split() == [book[(at + word) % size()] for word in range(count)]
