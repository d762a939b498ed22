"""Protocol registry: this package's protocols and a locustfile's."""

import pkgutil
from collections.abc import Mapping
from typing import Any, Final

from locust_llm.settings.endpoint_types import ENDPOINT_TYPES

from .protocol import Protocol

PROTOCOLS: Final[dict[str, Protocol[Any]]] = {
    name: pkgutil.resolve_name(kind.protocol)() for name, kind in ENDPOINT_TYPES.items()
}
AIPERF_NAMES: Final = {"cohere_rankings": "rerank"}
"""AIPerf's --endpoint-type names that differ from ours. Its other rankings have bodies of their
own."""


def convert_key_headers(kind: str, headers: Mapping[str, str], own: str) -> dict[str, str]:
    """The ``headers`` of requests of the protocol ``own``, with the headers that the protocol
    ``kind`` adds: the key in its place."""
    key = ""
    given = {name.lower() for name in headers}
    for name, value in PROTOCOLS[own].headers("?").items():
        before, asked, _ = value.partition("?")
        if asked and (own_value := headers.get(name, "")).startswith(before):
            key = own_value.removeprefix(before)
    more = PROTOCOLS[kind].headers(key)
    return {name: value for name, value in more.items() if name.lower() not in given} | dict(
        headers
    )
