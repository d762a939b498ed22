"""Affinity: the order of addresses, that a session stays, and what goes back to its server."""

import logging
from typing import Final

import pytest

from locust_llm.client.response_chunks import Response
from locust_llm.settings.ab_arms import TrialBlock
from locust_llm.worker import session_affinity as module
from locust_llm.worker.ab_targets import VariantTarget
from locust_llm.worker.session_affinity import Affinity, read_response_header

ALONE: Final = {"": VariantTarget("", "a", "model", ())}
TOKEN: Final = "X-Session-Token"


def came(head: str) -> Response:
    """An answer with these lines of headers."""
    found = Response(0)
    found.append_read(1, 0, f"HTTP/1.1 200 OK\r\n{head}Content-Length: 0\r\n\r\n".encode("latin-1"))
    found.decode_pending()
    return found


def where(affinity: Affinity, sessions: str) -> str:
    """The address of each request; ``-``: of no session."""
    return "".join(affinity.side(None, "" if name == "-" else name).address for name in sessions)


@pytest.mark.parametrize(
    ("first", "addresses"), [(0, "abcaabbbc"), (1, "bcabbccca"), (5, "cabccaaab")]
)
def test_new_sessions_go_round_and_stay(first: int, addresses: str) -> None:
    """x, y and z are new; two requests without a session take their turn too; then v is the
    sixth."""
    assert where(Affinity(ALONE, ["a", "b", "c"], first=first), "xyz-x-yyv") == addresses


def test_without_either_all_is_as_it_was() -> None:
    both = {
        "base": VariantTarget("base", "a", None, ()),
        "candidate": VariantTarget("candidate", "z", None, ()),
    }
    affinity = Affinity(both)
    assert affinity.side(None, "x") is both["base"]
    assert affinity.side(TrialBlock(1, "candidate", 10.0), "x") is both["candidate"]
    affinity.answered("x", came(f"{TOKEN}: abc\r\n"))
    assert affinity.side(None, "x") is both["base"]
    assert affinity.secrets(None) == {}


def test_what_an_answer_brings_goes_back_in_its_session_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    affinity = Affinity({"": VariantTarget("", "a", None, (), {"X-Own": "1"})}, ["a", "b"], TOKEN)
    assert affinity.side(None, "x").headers == {"X-Own": "1"}
    stream = came("x-session-TOKEN: pod-7==\r\n")
    affinity.answered("x", stream)
    affinity.answered("", came(f"{TOKEN}: of-nobody\r\n"))
    assert (affinity.side(None, "x").address, affinity.side(None, "x").headers) == (
        "a",
        {"X-Own": "1", TOKEN: "pod-7=="},
    )
    assert [dict(affinity.side(None, name).headers) for name in ("y", "")] == [{"X-Own": "1"}] * 2
    assert (affinity.secrets(stream), affinity.secrets(None)) == ({TOKEN: "pod-7=="}, {TOKEN: ""})
    affinity.answered("x", came(f"{TOKEN}: pod-8\r\n{TOKEN}: pod-9\r\n"))
    assert affinity.side(None, "x").headers[TOKEN] == "pod-8"
    with caplog.at_level(logging.WARNING):
        affinity.answered("x", Response(0))  # no answer at all says nothing about its headers
        for head in ("", f"{TOKEN}: caf\xe9\r\n", f"{TOKEN}: {'x' * 8_001}\r\n"):
            affinity.answered("x", came(head))
    assert affinity.side(None, "x").headers[TOKEN] == "pod-8"  # none of these can take its place
    (line,) = caplog.messages  # once a run, and without its value
    assert (
        line
        == f"no {TOKEN} that is in the response: its session continues unchanged (--echo-header)"
    )


def test_the_session_that_was_longest_without_a_request_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    # y was forgotten for z, and comes anew
    assert where(Affinity(ALONE, ["a", "b", "c"]), "xyxzxy") == "abacaa"
    assert read_response_header(came("x-backend:  two \r\n"), "X-Backend") == "two"
    assert read_response_header(Response(0), "X-Backend") == ""
