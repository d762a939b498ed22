"""Examples: how many Hypothesis draws for a test; at most 25 with the profile ``few``, which ``make test`` uses."""

from typing import Final

from hypothesis import settings

FEW: Final = 25


def register_profiles() -> None:
    """``all`` is the default. No deadlines: a busy machine is no failure."""
    settings.register_profile("all", deadline=None, print_blob=True)
    settings.register_profile("few", settings.get_profile("all"), max_examples=FEW)
    settings.load_profile("all")


def examples(count: int) -> settings:
    """As a decorator: ``count`` of them, unless the profile asks for few."""
    few = settings.default.max_examples == FEW
    return settings(max_examples=min(count, FEW) if few else count)
