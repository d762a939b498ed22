"""Reproduction: the requests that suffice for a fault, with all that its reader needs, as in
``reproduce.json`` and as ``locust-llm verify reproduce --json`` prints it."""

from typing import Any

import msgspec

from .reduce_requests import Odds

SMALLEST = "smallest"
TIME_OVER = "time"
SERVER_GONE = "server"
NOT_REPRODUCED = "not_reproduced"


class SeenOdds(msgspec.Struct, frozen=True, kw_only=True):
    """In how many tries the fault appeared."""

    hits: int
    """The tries with the fault."""
    tries: int
    """All tries."""
    low: float
    """The lower end of the 95 % interval of its odds."""
    high: float
    """The upper end. Without a hit, at most so high are the odds with 95 % confidence."""


def describe_odds(odds: Odds) -> SeenOdds:
    low, high = odds.ends
    return SeenOdds(hits=odds.hits, tries=odds.tries, low=low, high=high)


class TracedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of the smallest set."""

    id: str
    """Its X-Request-Id in the run."""
    at_s: float
    """When it was sent, in seconds since the first one."""
    cancel_after_s: float | None = None
    """When the client closed its connection, in seconds since it was sent. Null: it did not."""
    open: bool = False
    """It had not ended when the fault was there."""
    outcome: str = ""
    """Its outcome in the run. Empty: it was open."""
    headers: dict[str, str] = {}
    """Its own headers."""
    body: Any
    """Its JSON."""


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """What ``verify reproduce`` found."""

    schema: int = 1
    """The version of this form."""
    title: str
    """One sentence on the fault."""
    run: str
    """The name of the run."""
    fault: str
    """The name of the fault, as in ``answer_faults.jsonl``."""
    request: str
    """The X-Request-Id of the request whose answer had it in the run."""
    result: str
    """``smallest``: no request can be left out. ``time`` or ``server``: the time was over before, or
    the server did not answer any more. ``not_reproduced``: the fault did not appear."""
    host: str
    """The server to which the requests were sent."""
    path: str
    """The path of the endpoint."""
    headers: dict[str, str]
    """The headers of each request. ``{key}`` stands for the API key."""
    model: str
    """The model of the run."""
    server: str
    """The server's name and version, as the run knows them."""
    server_flags: dict[str, str]
    """The flags that the server reports."""
    random_seed: int | None
    """The seed of the run."""
    words_seed: str
    """The seed of the words of its prompts, where it was drawn for the run."""
    version: str
    """The version of locust-llm."""
    replayed: int
    """The requests with which the search began."""
    left_out: int
    """The requests that could not be replayed, as their bodies would hold a secret."""
    fresh: bool
    """Each try begins each prompt with a new word, so that no cache has it from an earlier try."""
    first_odds: SeenOdds
    """Of all requests."""
    odds: SeenOdds
    """Of the smallest set, counted after the search."""
    tries: int
    """All tries."""
    steps: int
    """The sets of requests that were tried."""
    seconds: float
    """How long all tries took."""
    requests: tuple[TracedRequest, ...]
    """The smallest set. Empty: the fault was not reproduced."""
