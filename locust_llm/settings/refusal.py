"""Refusal: there can be no such run, and one line says why and what to do."""

from typing import Final, NoReturn

from locust_llm.text.numbers import truncate_quoted_text

LINE: Final = 1000
"""Characters of a refusal: what was given may be a whole file."""


class RunRefused(Exception):
    """There can be no such run: why, and what to do, in one line."""


def refuse_run(reason: str) -> NoReturn:
    raise RunRefused(truncate_quoted_text(reason.replace("\n", " "), LINE))
