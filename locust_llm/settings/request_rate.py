"""Request rate: the rate over time in the settings."""

from collections.abc import Callable

from locust_llm.files.user_file import read_small_text
from locust_llm.workload.arrivals import ArrivalRate, make_steady_rate, parse_rate_series

from .settings import Settings


def parse_request_rate(
    s: Settings, read: Callable[[str], str] = read_small_text
) -> ArrivalRate | None:
    """The requested rate over time. None: there is none. Raises ValueError and OSError."""
    if s.request_rate_series:
        try:
            return parse_rate_series(read(s.request_rate_series))
        except ValueError as error:
            raise ValueError(f"{s.request_rate_series}: {error}") from None
    if s.request_rate:
        return make_steady_rate(s.request_rate, s.request_rate_ramp_duration)
    return None
