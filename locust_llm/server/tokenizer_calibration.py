"""Tokenizer calibration: how many tokens the words of prompts are, counted before the load.

A server with ``/tokenize`` counts the whole corpus, which costs it no prefill, so two runs against
one model never differ in their lengths: it has the pieces of each text, or counts the corpus in
parts. Any other server counts a few stretches by chat completions of one token: always the same
ones, evenly over the corpus, for the same reason. Between and within the stretches the counts
follow a profile. A profile counts each word alike, or its letters, or another vocabulary's tokens,
or both. The one that fits is used.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.answers.session_markers import (
    ASK_SENTENCE,
    KEY_BYTES,
    SENTENCE_WORDS,
    MarkerKey,
)
from locust_llm.protocols.answer_parser import Count, parse_token_count
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.run_facts import CalibrationRequest
from locust_llm.server.http_get import FetchedResponse, FetchFailed, decode_response
from locust_llm.settings.run_options import Settings
from locust_llm.workload.local_tokenizer import (
    count_corpus_words,
    cut_corpus_text,
    load_corpus,
    load_reference_tokens,
)
from locust_llm.workload.prompt_length_model import SUMS_EACH, PromptLengthModel, fit_prompt_lengths
from locust_llm.workload.synthetic_prompts import BEFORE_ENDING, draw_sample_numbers

from .identity import count_template_head_tokens

TOKENIZE_TIMEOUT_S: Final = 10.0
"""The time-out, as it computes nothing."""
WORDS_A_REQUEST: Final = 100 * SUMS_EACH
"""The words of a request to ``/tokenize``: some 30 kB of text, answered with some 150 kB."""
NUMBERS: Final = 8
"""So many numbers begin prompts, and their mean counts, as a tokenizer may split each number
differently."""
NUMBERS_OF_CHAT: Final = 3
STRETCHES: Final = 8
LONGEST_STRETCH: Final = 1_000
"""The words of a stretch. Eight stretches are a sixth of the corpus: their mean is within 0.5 % of
its own."""
TOKENS_A_WORD: Final = 6
"""No tokenizer of a language model takes more for a word of a prompt. A stretch must fit into the
context."""
AGREES: Final = 0.1
"""One stretch may differ from the mean of the corpus by this share."""
BLANKS: Final = str.maketrans(
    {"\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}": " ", "\N{LOWER ONE EIGHTH BLOCK}": " "}
)
"""How byte-level BPE and SentencePiece write a blank."""
Ask = Callable[..., FetchedResponse]
CountPrompt = Callable[[str], int | None]
"""The tokens of a prompt with this text and the chat template. None: the server does not count."""


class TokenizerCalibration(NamedTuple):
    """What was counted."""

    lengths: PromptLengthModel = PromptLengthModel()
    probes: tuple[CalibrationRequest, ...] = ()
    notes: tuple[str, ...] = ()


class _Tokens(msgspec.Struct):
    """The answer to ``/tokenize``."""

    count: Count = None
    tokens: Any = None
    """The tokens' ids. llama.cpp has pieces beside them."""
    token_strs: Any = None
    """vLLM's pieces."""

    @property
    def known(self) -> int:
        return parse_token_count(self.count) or (
            len(self.tokens) if isinstance(self.tokens, list) else 0
        )

    def pieces(self) -> list[str]:
        """The texts of the tokens. Empty: they are not known."""
        pieces = self.token_strs
        if pieces is None and isinstance(self.tokens, list):
            pieces = [
                token.get("piece") if isinstance(token, dict) else None for token in self.tokens
            ]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            return []
        return [piece.translate(BLANKS) for piece in pieces]


class _TokensOfTexts(msgspec.Struct):
    """The answer to ``/tokenize`` with several texts."""

    count: list[int]


def calibrate_tokenizer(
    ask: Ask, settings: Settings, model: str | None, context: int | None, count_by_chat: CountPrompt
) -> TokenizerCalibration:
    """Query the server. ``count_by_chat`` costs it a prefill. Raises what that raises."""
    probes: list[CalibrationRequest] = []
    notes: list[str] = []
    kind = "tokenize"
    numbers = NUMBERS
    count_prompt = _counter(ask, settings, model)
    try:
        tokens = count_prompt(*draw_sample_numbers(1))
    except FetchFailed as error:
        notes.append(f"/tokenize was not used: {error}")
        tokens = None
    if tokens is None:
        kind, numbers, count_prompt = "chat", NUMBERS_OF_CHAT, count_by_chat
    corpus = None if notes else _count_corpus(ask, model)
    try:
        probes += _count_each(count_prompt, kind, draw_sample_numbers(numbers))
        if probes and corpus is not None:
            check = [*_count_each(count_prompt, kind, islice(_stretches(context), 1))]
            corpus = corpus if _agrees(_of_corpus(corpus, probes), check) else None
        if probes and corpus is None:
            probes += _count_each(count_prompt, kind, _stretches(context))
    except FetchFailed as error:
        return TokenizerCalibration(
            PromptLengthModel(),
            tuple(probes),
            (*notes, f"WARNING: prompt lengths could not be measured: {error}"),
        )
    if not probes:
        notes.append(
            "WARNING: the server does not report the tokens of a prompt: prompt lengths are "
            "estimates"
        )
        return TokenizerCalibration(PromptLengthModel(), (), tuple(notes))
    try:
        lengths = (
            _of_stretches(probes[:numbers], probes[numbers:], context)
            if corpus is None
            else _of_corpus(corpus, probes)
        )
        if kind == "tokenize" and settings.prefix_cache_hit_rate is not None:
            lengths = msgspec.structs.replace(
                lengths, head_tokens=count_template_head_tokens(ask, settings, model)
            )
    except (ValueError, FetchFailed) as error:
        return TokenizerCalibration(
            PromptLengthModel(),
            tuple(probes),
            (
                *notes,
                f"WARNING: prompt lengths could not be measured: {error}; use --tokenizer FOLDER "
                "for exact prompts",
            ),
        )
    if corpus is not None:
        probes.append(
            CalibrationRequest(kind="tokenize", words=count_corpus_words(), tokens=corpus.total)
        )
    if settings.check_answers:
        endings = _count_endings(count_prompt, kind, numbers)
        probes += endings
        lengths = msgspec.structs.replace(lengths, endings=_measure_endings(endings, probes[0]))
    return TokenizerCalibration(lengths, tuple(probes), tuple(notes))


# -- the last sentences of prompts with a session marker -------------------------------------------


def _count_endings(count_prompt: CountPrompt, kind: str, markers: int) -> list[CalibrationRequest]:
    """Prompts of one number that end with a marker, and one that asks for a marker. Always the same
    ones."""
    (number,) = draw_sample_numbers(1)
    key = MarkerKey(bytes(KEY_BYTES))
    endings = [*(key.make().sentence for _ in range(markers)), ASK_SENTENCE]
    try:
        return [
            *_count_each(count_prompt, kind, (f"{number}{BEFORE_ENDING}{end}" for end in endings))
        ]
    except FetchFailed:
        return []


def _measure_endings(
    endings: Sequence[CalibrationRequest], plain: CalibrationRequest
) -> dict[int, float]:
    """The tokens of the endings by their words, of both together as well. ``plain`` is the prompt
    without an ending."""
    if len(endings) < 2:
        return {}
    *markers, ask = [probe.tokens - plain.tokens for probe in endings]
    marker = sum(markers) / len(markers)
    words_of_ask = len(ASK_SENTENCE.split())
    return {
        SENTENCE_WORDS: marker,
        words_of_ask: float(ask),
        SENTENCE_WORDS + words_of_ask: marker + ask,
    }


# -- prompts, with the chat template ---------------------------------------------------------------


def _counter(ask: Ask, settings: Settings, model: str | None) -> CountPrompt:
    """Counts by vLLM's and the simulator's ``/tokenize``, which applies the chat template to
    messages. It raises FetchFailed."""

    def count_prompt(text: str) -> int | None:
        fields = PROTOCOLS[settings.endpoint_type].tokenized([{"role": "user", "content": text}])
        count = _tokenize(ask, {"model": model, **fields})
        return None if count is None else parse_token_count(count.count) or None

    return count_prompt


def _count_each(
    count_prompt: CountPrompt, kind: str, texts: Iterable[str]
) -> Iterator[CalibrationRequest]:
    """Count one text after the other, until the server does not count one. Raises what
    ``count_prompt`` raises."""
    for text in texts:
        if (tokens := count_prompt(text)) is None:
            return
        yield CalibrationRequest(kind=kind, words=len(text.split()), tokens=tokens)


def _stretches(context: int | None) -> Iterator[str]:
    """Texts evenly over the corpus, each after the number that begins the first short prompt."""
    (number,) = draw_sample_numbers(1)
    for at, words in _places(context):
        yield f"{number} {cut_corpus_text(at, words)}"


def _places(context: int | None) -> Iterator[tuple[int, int]]:
    """(first word, number of words) of each stretch of the corpus."""
    words = (
        LONGEST_STRETCH
        if context is None
        else max(2, min(LONGEST_STRETCH, context // TOKENS_A_WORD))
    )
    for place in range(STRETCHES):
        yield place * count_corpus_words() // STRETCHES, words - 1


# -- the corpus, without one -----------------------------------------------------------------------


class _Corpus(NamedTuple):
    total: int
    sums: tuple[int, ...]
    """See Lengths. Empty: only the total is known."""


def _count_corpus(ask: Ask, model: str | None) -> _Corpus | None:
    """The tokens of the whole corpus. None: the server does not count plain texts."""
    total = 0
    sums = [0]
    parts = list[_CountedStretch]()
    for at in range(0, count_corpus_words(), WORDS_A_REQUEST):
        text = cut_corpus_text(at, min(WORDS_A_REQUEST, count_corpus_words() - at))
        # vLLM and SGLang want a prompt, llama.cpp wants content: each leaves the other's fields
        # alone
        body = {
            "model": model, "prompt": text, "content": text, "add_special_tokens": False,
            "return_token_strs": True,
            "with_pieces": True,
        }  # fmt: skip
        try:
            count = _tokenize(ask, body)
            if count is None or not count.known:
                return None
            before = [*_sums_of(text, count.pieces())] or _sums_of_parts(
                ask, model, text, count.known
            )
        except FetchFailed:
            return None
        sums += [total + tokens for tokens in before]
        total += count.known
        parts.append(_CountedStretch(at, len(text.split(" ")), count.known))
    whole = len(sums) == 1 + -(-count_corpus_words() // SUMS_EACH) and sums[-1] == total
    return _Corpus(total, tuple(sums) if whole else _fill_in(parts))


def _sums_of(text: str, pieces: Sequence[str]) -> Iterator[int]:
    """How many tokens begin before the end of each SUMS_EACH words, and of the text. Nothing where
    the pieces do not make up the text."""
    joined = "".join(pieces)
    lead = len(joined) - len(text)  # SentencePiece puts a blank in front
    if lead not in (0, 1) or joined[lead:] != text:
        return
    ends, words = [], 0
    for at, character in enumerate(text):
        words += character == " "
        if character == " " and words % SUMS_EACH == 0:
            ends.append(at + lead)
    tokens, begins = 0, 0
    for piece in pieces:
        while ends and begins >= ends[0]:
            yield tokens
            ends.pop(0)
        tokens += 1
        begins += len(piece)
    yield tokens


def _sums_of_parts(ask: Ask, model: str | None, text: str, known: int) -> list[int]:
    """The same for a server without pieces that counts several texts at once (SGLang). Raises
    FetchFailed.

    Each part is counted by itself, with the blank before it. The counts are scaled, as a tokenizer
    may add to each part. ``known`` is the text's count. Empty: the server does not count so.
    """
    words = text.split(" ")
    parts = [" ".join(["", *words[at : at + SUMS_EACH]]) for at in range(0, len(words), SUMS_EACH)]
    parts[0] = parts[0][1:]
    body = msgspec.json.encode({"model": model, "prompt": parts, "add_special_tokens": False})
    answer = ask("POST", "/tokenize", body, timeout_s=TOKENIZE_TIMEOUT_S)
    tokens_of_texts = decode_response(answer.body, _TokensOfTexts) if answer.status == 200 else None
    if (
        tokens_of_texts is None
        or len(tokens_of_texts.count) != len(parts)
        or min(tokens_of_texts.count) < 1
    ):
        return []
    return [
        round(sum_ * known / sum(tokens_of_texts.count))
        for sum_ in accumulate(tokens_of_texts.count)
    ]


# -- stretches of the corpus -----------------------------------------------------------------------


class _CountedStretch(NamedTuple):
    at: int
    words: int
    tokens: float


def _make_profiles() -> list[tuple[int, ...]]:
    """Four profiles: words, characters, another vocabulary's tokens, and equal parts of the last
    two, before each SUMS_EACH words of the corpus."""
    words = (*range(0, count_corpus_words(), SUMS_EACH), count_corpus_words())
    _, starts = load_corpus()
    characters = tuple(starts[at] for at in words)
    reference = load_reference_tokens()
    halves = tuple(
        pair * reference[-1] + other * characters[-1]
        for pair, other in zip(characters, reference, strict=True)
    )
    return [words, characters, reference, halves]


def _choose_profile(counted: Sequence[_CountedStretch]) -> tuple[tuple[int, ...], float]:
    """(the profile that fits these best, tokens for each of its units)."""
    candidates = list[tuple[float, tuple[int, ...], float]]()
    for profile in _make_profiles():
        model = PromptLengthModel(sums=profile)
        units = [
            model.tokens_before(candidate.at + candidate.words) - model.tokens_before(candidate.at)
            for candidate in counted
        ]
        scale = sum(candidate.tokens for candidate in counted) / sum(units)
        error = sum(
            (candidate.tokens - scale * unit) ** 2
            for candidate, unit in zip(counted, units, strict=True)
        )
        candidates.append((error, profile, scale))
    _, profile, scale = min(candidates, key=lambda candidate: candidate[0])
    return profile, scale


def _fill_in(parts: Sequence[_CountedStretch]) -> tuple[int, ...]:
    """The tokens before each SUMS_EACH words, for consecutive parts of which only the total is
    known."""
    model = PromptLengthModel(sums=_choose_profile(parts)[0])
    sums, total = [0], 0.0
    for part in parts:
        before = model.tokens_before(part.at)
        scale = part.tokens / (model.tokens_before(part.at + part.words) - before)
        ends = [*range(part.at, part.at + part.words, SUMS_EACH)[1:], part.at + part.words]
        sums += [round(total + scale * (model.tokens_before(end) - before)) for end in ends]
        total += part.tokens
    return tuple(sums)


def _of_stretches(
    numbers: Sequence[CalibrationRequest],
    stretches: Sequence[CalibrationRequest],
    context: int | None,
) -> PromptLengthModel:
    """``numbers`` are prompts of one word, a number. Every stretch begins with the first of them.
    Raises ValueError where no line fits."""
    line = fit_prompt_lengths((probe.words, probe.tokens) for probe in (*numbers, *stretches))
    counted = [
        _CountedStretch(at, words, probe.tokens - numbers[0].tokens)
        for (at, words), probe in zip(_places(context), stretches, strict=False)
    ]
    if len(counted) < STRETCHES:
        return line
    profile, scale = _choose_profile(counted)
    if profile[-1] == count_corpus_words():  # each word alike, which is the line
        return line
    sums = tuple(round(scale * units) for units in profile)
    return _of_corpus(_Corpus(sums[-1], sums), numbers)


def _of_corpus(corpus: _Corpus, probes: Sequence[CalibrationRequest]) -> PromptLengthModel:
    """``probes`` are prompts of one word, a number."""
    a_word = corpus.total / count_corpus_words()
    template = sum(probe.tokens for probe in probes) / len(probes) - a_word
    return PromptLengthModel(a_word, template, True, sums=corpus.sums)


def _agrees(lengths: PromptLengthModel, check: Sequence[CalibrationRequest]) -> bool:
    """Whether ``/tokenize`` belongs to the model that answers. A gateway may have another
    model's."""
    predicted = (lengths.template_tokens + lengths.tokens_a_word * probe.words for probe in check)
    return all(
        abs(probe.tokens - tokens) <= AGREES * tokens
        for probe, tokens in zip(check, predicted, strict=True)
    )


def _tokenize(ask: Ask, body: dict[str, Any]) -> _Tokens | None:
    """Raises FetchFailed."""
    answer = ask("POST", "/tokenize", msgspec.json.encode(body), timeout_s=TOKENIZE_TIMEOUT_S)
    return decode_response(answer.body, _Tokens) if answer.status == 200 else None
