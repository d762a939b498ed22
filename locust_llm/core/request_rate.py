"""Request rate: the rate over time that the settings ask for."""

from collections.abc import Callable

from locust_llm.load.arrivals import Rate, series, steady
from locust_llm.load.user_file import small_text

from .settings import Settings


def rate_of(s: Settings, read: Callable[[str], str] = small_text) -> Rate | None:
    """The rate over time that was asked for; None without one. Raises ValueError and OSError."""
    if s.request_rate_series:
        try:
            return series(read(s.request_rate_series))
        except ValueError as error:
            raise ValueError(f"{s.request_rate_series}: {error}") from None
    if s.request_rate:
        return steady(s.request_rate, s.request_rate_ramp_duration)
    return None
