"""Corpus: plain words of single spaces, and any stretch of them follows the book, around its end as
well."""

import pytest

from locust_llm.workload.local_tokenizer import count_corpus_words, cut_corpus_text, load_corpus


def test_the_corpus_is_plain_text_of_single_spaces() -> None:
    text, starts = load_corpus()
    assert text.isascii()
    assert text.isprintable()
    assert text.rstrip(" ").split(" ") == text.split()
    assert [text[at - 1] for at in starts[1:]] == [" "] * (len(starts) - 1)
    assert len(text.split()) == len(starts) == 2 * count_corpus_words() > 80_000


@pytest.mark.parametrize("at", [0, 1, count_corpus_words() // 2, count_corpus_words() - 1])
@pytest.mark.parametrize(
    "count",
    [
        0,
        1,
        2,
        1_000,
        count_corpus_words() - 1,
        count_corpus_words(),
        count_corpus_words() + 1,
        2 * count_corpus_words() + 500,
    ],
)
def test_a_stretch_follows_the_book_around_its_end(at: int, count: int) -> None:
    book = load_corpus()[0].split()[: count_corpus_words()]
    assert cut_corpus_text(at, count).split() == [
        book[(at + word) % count_corpus_words()] for word in range(count)
    ]
