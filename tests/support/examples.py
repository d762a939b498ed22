"""Examples: sets how many Hypothesis draws for a test. The profile ``few``, for ``make test``, has
at most 25, and ``many``, for ``make fuzz``, has a hundred times as many."""

from typing import Final

from hypothesis import HealthCheck, settings

FEW: Final = 25
MANY: Final = 10_000
TIMES: Final = 100


def register_profiles() -> None:
    """Registers the profiles with ``all`` as the default. There are no deadlines, as a busy machine
    is no failure."""
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
    """Decorates a test with ``count`` examples, unless the profile sets few or many."""
    most = settings.default.max_examples
    if most == FEW:
        count = min(count, FEW)
    elif most == MANY:
        count *= TIMES
    return settings(max_examples=count)
