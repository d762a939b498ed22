"""The arms of a run: both asked before it begins, and what a process must know to send to either."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

import gevent
import msgspec

from locust_llm.client.requests_bridge import authorities
from locust_llm.core.arms import BASE, CANDIDATE
from locust_llm.core.refusal import refuse
from locust_llm.core.run import Arm
from locust_llm.core.settings import Settings

from .access.headers import candidate_headers
from .discovery import Discovery, DiscoveryFailed, discover
from .preflight import ALIKE, headers_of, ready
from .request_form import RequestForm


class Side(NamedTuple):
    """Where a request goes, and in what it differs from those of the other arm."""

    name: str
    address: str
    """Empty: where the process's own address is."""
    model: str | None
    """Where the user class has none."""
    length_way: tuple[str, ...]
    headers: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    set_model: str | None = None
    """In place of that of the user class too."""
    form: RequestForm = RequestForm()
    """As the server takes requests."""


def survey(settings: Settings, options: Namespace | None, *, here: bool) -> Discovery:
    """The server was asked, of two arms both, and the run may begin. ``here``: its users are on this machine. Raises
    Refused."""
    headers = headers_of(options)
    if "," in (getattr(options, "candidate", None) or ""):
        refuse("two arms have one address each: give one --candidate")
    found = ready(settings, headers, here=here)
    if not settings.compares or settings.same_server:
        return found
    try:
        other = discover(
            of_candidate(settings),
            {**headers, **candidate_headers(options)},
            verify=authorities(),
            sleep=gevent.sleep,
        )
    except DiscoveryFailed as error:
        refuse(f"the candidate: {error}")
    notes = [f"candidate: {note}" for note in other.notes]
    a, b = found.lengths.tokens_a_word, other.lengths.tokens_a_word
    if found.lengths.measured and other.lengths.measured and abs(b - a) > ALIKE * a:
        notes.append(f"the arms count tokens differently: {a:.3f} tokens a word at the base, {b:.3f} at the candidate")
    return msgspec.structs.replace(found, candidate=other, notes=(*found.notes, *notes))


def of_candidate(s: Settings) -> Settings:
    """As if it were alone."""
    own = s.changes.model
    return msgspec.structs.replace(
        s, host=s.candidate or s.host, model=own or s.model, model_mix=None if own else s.model_mix
    )


def sides(s: Settings, found: Discovery, headers: Mapping[str, str]) -> dict[str, Side]:
    """By name, the base first; without arms one side without a name. ``headers``: the candidate's own. Raises ValueError."""
    if not s.compares:
        return {"": Side("", s.host, found.model, found.length_way, form=found.form)}
    base = Side(BASE, s.host, found.model, found.length_way, form=found.form)
    if s.same_server:
        return {BASE: base, CANDIDATE: base._replace(name=CANDIDATE)}
    if (other := found.candidate) is None:
        raise ValueError("the candidate was not asked before the run, and gets no key")
    own = s.changes
    return {
        BASE: base,
        CANDIDATE: Side(
            CANDIDATE, s.candidate or s.host, other.model, other.length_way, headers, own.body, own.model, other.form
        ),
    }


def arms_of(s: Settings, found: Discovery) -> tuple[Arm, ...]:
    """For run.json."""
    if not s.compares:
        return ()
    other = found.candidate or found
    return (
        Arm(name=BASE, host=s.host, model=found.models, server=found.server, server_flags=found.server_flags),
        Arm(
            name=CANDIDATE,
            host=s.candidate or s.host,
            model=s.changes.model or other.models,
            server=other.server,
            server_flags=other.server_flags,
            changes=s.candidate_set,
        ),
    )
