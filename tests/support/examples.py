"""Examples: how many Hypothesis draws for a test; at most 25 with the profile ``few``, which ``make
test`` uses; a hundred times as many with ``many``, which ``make fuzz`` uses."""

from typing import Final

from hypothesis import HealthCheck, settings

FEW: Final = 25
MANY: Final = 10_000
TIMES: Final = 100


def register_profiles() -> None:
    """``all`` is the default. No deadlines: a busy machine is no failure."""
    settings.register_profile("all", deadline=None, print_blob=True)
    settings.register_profile("few", settings.get_profile("all"), max_examples=FEW)
    settings.register_profile(
        "many",
        settings.get_profile("all"),
        max_examples=MANY,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("all")


def examples(count: int) -> settings:
    """As a decorator: ``count`` of them, unless the profile asks for few or many."""
    most = settings.default.max_examples
    return settings(
        max_examples=min(count, FEW) if most == FEW else TIMES * count if most == MANY else count
    )
