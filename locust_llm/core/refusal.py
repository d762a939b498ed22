"""Refusal: there can be no such run, and one line says why and what to do."""

from typing import Final, NoReturn

from locust_llm.load.numbers import cut_short

LINE: Final = 1000
"""Characters of a refusal: what was given may be a whole file."""


class Refused(Exception):
    """There can be no such run: why, and what to do, in one line."""


def refuse(reason: str) -> NoReturn:
    raise Refused(cut_short(reason.replace("\n", " "), LINE))
