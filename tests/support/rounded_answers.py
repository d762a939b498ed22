"""Rounded answers: answers of a sound server whose sums are rounded in another order each time.

A logit between 32 and 64 has steps of 0.25 in bfloat16, so each one is off by at most 0.125. The
server always writes the likeliest token. Where two are nearly as likely, another one may be it the
next time, and all that follows is different.
"""

from random import Random

from locust_llm.answers.reference_answer import AnswerToken, ReferenceAnswer

ROUNDING = 0.125
TIE_SHARE = 0.02
"""The share of tokens where two logits are closer than rounding can move them."""
TOKENS = 24
WORDS = ("red ", "green ", "blue ", "grey ", "black ", "white ", "brown ", "pink ")


class RoundedServer:
    """Each prompt has a path of tokens: the gap between the two likeliest, before rounding."""

    def __init__(self, seed, *, gives_margins=True, num_prompts=8):
        self._random = Random(seed)
        self._gives_margins = gives_margins
        self._paths = [self._draw_path() for _ in range(num_prompts)]

    def _draw_path(self):
        return [
            (number, self._random.uniform(0, 2 * ROUNDING))
            for number in range(TOKENS)
            if self._random.random() < TIE_SHARE
        ]

    def ask(self, prompt, asked):
        """The gap is a difference of two logits, each with its own rounding."""
        draw = self._random.uniform
        turn = TOKENS
        margins = {}
        for number, gap in self._paths[prompt]:
            rounded = gap + draw(-ROUNDING, ROUNDING) - draw(-ROUNDING, ROUNDING)
            margins[number] = abs(rounded)
            if rounded < 0:
                turn = number
                break
        texts = [WORDS[(number + prompt) % 8] for number in range(turn)]
        texts += [WORDS[(3 * number + prompt + 5) % 8] for number in range(turn, TOKENS)]
        tokens = [
            AnswerToken(text, -0.5, margins.get(number, 3.0)) for number, text in enumerate(texts)
        ]
        return ReferenceAnswer(
            prompt=prompt,
            asked=asked,
            sent_at=0.0,
            ended_at=1.0,
            text="".join(texts),
            finish_reason="length",
            tokens=tuple(tokens) if self._gives_margins else (),
        )
