"""Planted faults: answers that are wrong in known ways, each at its own rate, as real servers under
load have given them.

Draws come from a generator of their own, so a server without these faults sends the same bytes as
ever. `TruthRow.planted` names the faults that an answer really got.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from .scheduling.step_cost import BLOCK_SIZE
from .simulated_faults import RATES
from .simulated_text import SimulatedText, TextWish, find_session_code, quote_session_code

if TYPE_CHECKING:
    from .openai_chat import AnswerRequest
    from .response_stream import SimulatedAnswer
    from .simulated_faults import Quirks
    from .simulated_metrics import TruthRow

OTHER_MODEL: Final = "another-model"
BROKEN_WORD: Final = " \N{REPLACEMENT CHARACTER}"
DELTA_FAULTS: Final = ("drop_delta", "double_delta", "reorder_delta")
MAX_RECENT: Final = 32
"""So many earlier requests can be the source of a wrong text."""
LONG_PROMPT: Final = 1_000
LONG_ANSWER: Final = 200
"""Tokens from which on prompts and answers can have their part in ``cancel_leak``."""


class EarlierAnswer(NamedTuple):
    """Holds what a later answer may wrongly contain."""

    pieces: list[str]  # of the prompt
    wish: TextWish
    text: SimulatedText


class FaultPlanter:
    """Draws the faults of each answer, and remembers the answers that others may leak into."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"planted faults {seed}")
        self._recent: deque[EarlierAnswer] = deque(maxlen=MAX_RECENT)
        self._cancelled: SimulatedText | None = None
        self._unbegun: dict[SimulatedAnswer, None] = {}  # an ordered set
        self._wants_partner: SimulatedAnswer | None = None
        self._long_answers: set[SimulatedAnswer] = set()  # that are being written
        self._last_id = ""

    def choose_id(self, quirks: Quirks, row: TruthRow) -> None:
        """Gives the answer the id of the answer before, if that is drawn."""
        last, self._last_id = self._last_id, row.answer_id
        if quirks.duplicate_id and last and self.random.random() < quirks.duplicate_id:
            row.answer_id = last
            row.planted.append("duplicate_id")

    def plant(self, answer: SimulatedAnswer, *, crowded: bool) -> None:
        """Draws the faults of an answer that begins. ``crowded``: other requests are open."""
        quirks = answer.quirks
        text = answer.spoken
        assert text is not None
        drawn = {
            name
            for name in RATES
            if getattr(quirks, name) and self.random.random() < getattr(quirks, name)
        }
        asked = answer.asked
        own = EarlierAnswer(asked.pieces, asked.wish, text)
        if quirks.near_tie:
            self._place_tie(answer)
        if crowded:
            self._plant_leaks(answer, drawn)
        if "slot_leak" in drawn and self._cancelled is not None:
            answer.spoken = replace(self._cancelled)
            self._cancelled = None
            answer.row.planted.append("slot_leak")
        self._plant_flips(answer, drawn, crowded=crowded)
        if "broken_text" in drawn:
            self._break_word(answer)
        self._plant_into_stream(answer, drawn)
        self._unbegun[answer] = None
        if not self._swap_with_waiting(answer) and "swap" in drawn:
            self._swap_with_earlier(answer)
        self._recent.append(own)

    def begun(self, answer: SimulatedAnswer) -> None:
        """Notes that an answer has its first token, so that its text stays."""
        self._unbegun.pop(answer, None)
        if answer.quirks.cancel_leak and answer.max_tokens >= LONG_ANSWER:
            self._drop_finished()
            self._long_answers.add(answer)

    def left(self, answer: SimulatedAnswer, *, cancelled: bool) -> None:
        """Notes the early end of an answer. If its client cancelled it, the next answer may get its
        slot with its text."""
        self._unbegun.pop(answer, None)
        self._long_answers.discard(answer)
        if cancelled:
            self._cancelled = answer.spoken
            self._leak_cancelled(answer)

    def _drop_finished(self) -> None:
        self._long_answers -= {one for one in self._long_answers if one.sequence.is_finished}

    def _leak_cancelled(self, cancelled: SimulatedAnswer) -> None:
        """Needs three requests: one that is cancelled, a long prompt that awaits its first token,
        and a long answer that is being written."""
        if not cancelled.quirks.cancel_leak:
            return
        self._drop_finished()
        victim = next(
            (one for one in self._unbegun if one.asked.prompt_tokens >= LONG_PROMPT), None
        )
        if victim is None or not self._long_answers:
            return
        if self.random.random() < cancelled.quirks.cancel_leak:
            messages = cancelled.asked.wish.messages
            victim.spoken = quote_session_code(messages, victim.first_word)
            victim.row.planted.append("cancel_leak")

    def _swap_with_waiting(self, answer: SimulatedAnswer) -> bool:
        """Swaps with the answer that waits for a partner, if it has not begun meanwhile."""
        waiting, self._wants_partner = self._wants_partner, None
        if waiting is None or waiting not in self._unbegun:
            return False
        self._swap(answer, waiting)
        return True

    def _swap_with_earlier(self, answer: SimulatedAnswer) -> None:
        """Swaps with the latest answer that has not begun, or waits for the next one."""
        earlier = next((other for other in reversed(self._unbegun) if other is not answer), None)
        if earlier is None:
            self._wants_partner = answer
        else:
            self._swap(answer, earlier)

    def _swap(self, *pair: SimulatedAnswer) -> None:
        """Each answer is swapped once at most."""
        one, other = pair
        one.spoken, other.spoken = other.spoken, one.spoken
        for answer in pair:
            answer.row.planted.append("swap")
            del self._unbegun[answer]

    def _plant_leaks(self, answer: SimulatedAnswer, drawn: set[str]) -> None:
        text = answer.spoken
        assert text is not None
        if "prefix_leak" in drawn and (source := self._find_most_alike(answer.asked)):
            answer.spoken = answer.asked.wish.make_text(text.first_word, source.wish)
            answer.row.planted.append("prefix_leak")
        if "late_block" in drawn and (source := self._find_other(answer.asked)):
            begin = {number: source.text.piece(number) for number in range(BLOCK_SIZE)}
            answer.spoken = replace(text, changed=begin)
            answer.row.planted.append("late_block")

    def _plant_flips(self, answer: SimulatedAnswer, drawn: set[str], *, crowded: bool) -> None:
        """Changes one word of a text that depends on its prompt alone."""
        text = answer.spoken
        if text is None or text.seed is None or text.ends or text.changed:
            return
        if "near_tie" in drawn and text.tie_at is not None:
            answer.spoken = replace(text, changed={text.tie_at: text.runner_up(text.tie_at)})
            answer.row.planted.append("near_tie")
        elif "wide_flip" in drawn and crowded:
            places = [
                number
                for number in range(len(text.pieces), answer.max_tokens)
                if number != text.tie_at
            ]
            if places:
                place = self.random.choice(places)
                answer.spoken = replace(text, changed={place: text.runner_up(place)})
                answer.row.planted.append("wide_flip")

    def _break_word(self, answer: SimulatedAnswer) -> None:
        """Breaks a word behind the session marker, but not the last one: half a character at the end
        of an answer that its length cut off is no fault."""
        text = answer.spoken
        assert text is not None
        places = range(len(text.pieces), answer.max_tokens - 1)
        if places and not text.ends:
            broken = {self.random.choice(places): BROKEN_WORD}
            answer.spoken = replace(text, changed={**(text.changed or {}), **broken})
            answer.row.planted.append("broken_text")

    def _place_tie(self, answer: SimulatedAnswer) -> None:
        """Puts a near tie where the prompt decides, as alone as under load."""
        text = answer.spoken
        assert text is not None
        words = answer.max_tokens - len(text.pieces)
        if text.seed is not None and words > 0 and not text.ends:
            text.tie_at = len(text.pieces) + text.seed % words

    def _plant_into_stream(self, answer: SimulatedAnswer, drawn: set[str]) -> None:
        random = self.random
        if "wrong_model" in drawn:
            answer.model = OTHER_MODEL
            answer.row.planted.append("wrong_model")
        if "wrong_usage" in drawn:
            answer.extra_tokens = random.randint(1, answer.max_tokens)
            answer.row.planted.append("wrong_usage")
        num_chunks = 1 + -(-(answer.max_tokens - 1) // answer.quirks.tokens_per_chunk)
        damage = next((name for name in DELTA_FAULTS if name in drawn), "")
        # the first chunk and the last one stay, and another one comes behind the swapped ones
        last_place = num_chunks - (2 if damage == "reorder_delta" else 1)
        if damage and last_place >= 2:
            answer.damage = damage, random.randint(2, last_place)
        if "wrong_id" in drawn and num_chunks >= 2:
            answer.new_id = random.randint(2, num_chunks), f"{random.getrandbits(64):016x}"

    def _find_most_alike(self, asked: AnswerRequest) -> EarlierAnswer | None:
        """Finds the earlier prompt of another text that has most in common with this one. Of equal
        ones it is the latest."""
        others = [earlier for earlier in self._recent if self._is_other(earlier, asked)]
        return max(
            reversed(others),
            key=lambda earlier: _count_common_blocks(earlier.pieces, asked.pieces),
            default=None,
        )

    def _find_other(self, asked: AnswerRequest) -> EarlierAnswer | None:
        return next(
            (earlier for earlier in reversed(self._recent) if self._is_other(earlier, asked)), None
        )

    def _is_other(self, earlier: EarlierAnswer, asked: AnswerRequest) -> bool:
        """Returns whether it is another session: another code, or without codes another prompt."""
        code = find_session_code(earlier.wish.messages)
        own_code = find_session_code(asked.wish.messages)
        return code != own_code if code or own_code else earlier.pieces != asked.pieces


def _count_common_blocks(one: list[str], other: list[str]) -> int:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs) // BLOCK_SIZE
