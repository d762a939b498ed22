"""Waits for a user: how long each request of an open loop was due while all users were busy."""

from typing import Final

import numpy as np

from locust_llm.report.array_types import Floats
from locust_llm.report.request_table import RequestTable

HANDED_ON_S: Final = 0.02
"""The user of an answer may need so long to begin with the next request."""
LONG_WAIT_S: Final = 0.1
"""The least time from due to the user's begin. A shorter one may be this machine's delay."""


def measure_waits_for_user_s(requests: RequestTable, users: int | None) -> Floats:
    """In seconds, for each request. ``users``: as many as there can be; None: there was always a free one.

    Between the turns of a session its user has no request, and may not be free either: there a
    turn that waits long waits for a user.
    """
    due, asked, closed, turn = (
        requests.floats(name) for name in ("due_at", "asked_at", "closed_at", "turn")
    )
    if users is None:
        return np.zeros(len(due))
    again = requests.floats("attempt") > 1
    # a refused attempt has no row here, and kept its user busy from about due on
    begun = np.searchsorted(np.sort(np.where(again, due, asked)), due, side="right")
    ended = np.searchsorted(np.sort(closed), due - HANDED_ON_S, side="right")
    all_busy = begun - ended >= users
    if (turn > 0).any():
        all_busy = asked - due > LONG_WAIT_S
    return np.where(all_busy, asked - due, 0.0)
