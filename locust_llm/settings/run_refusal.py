"""Run refusal: a run is impossible, and one line has the reason and what to do."""

from typing import Final, NoReturn

from locust_llm.text.numbers import truncate_quoted_text

LINE: Final = 1000
"""The characters of a refusal, as the given text may be a whole file."""


class RunRefused(Exception):
    """The run is impossible. The text is one line with the reason and what to do."""


def refuse_run(reason: str) -> NoReturn:
    raise RunRefused(truncate_quoted_text(reason.replace("\n", " "), LINE))
