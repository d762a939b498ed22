"""Request rate option: the rate over time in the settings."""

from collections.abc import Callable

from locust_llm.files.user_file import read_small_text
from locust_llm.workload.arrivals import ArrivalRate, make_steady_rate, parse_rate_series

from .run_options import Settings


def parse_request_rate(
    settings: Settings, read: Callable[[str], str] = read_small_text
) -> ArrivalRate | None:
    """The requested rate over time. None: there is none. Raises ValueError and OSError."""
    if settings.request_rate_series:
        try:
            return parse_rate_series(read(settings.request_rate_series))
        except ValueError as error:
            raise ValueError(f"{settings.request_rate_series}: {error}") from None
    if settings.request_rate:
        return make_steady_rate(settings.request_rate, settings.request_rate_ramp_duration)
    return None
