"""A/B targets: the arms of a run: what a process must know to send to either."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from locust_llm.records.run_facts import Arm
from locust_llm.server.discovery import Discovery
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.settings.run_options import Settings


class VariantTarget(NamedTuple):
    """The target of a request, with its differences from the other arm."""

    name: str
    address: str
    """Empty: the process's own address."""
    model: str | None
    """The model where the user class has none."""
    length_way: tuple[str, ...]
    headers: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    set_model: str | None = None
    """The model that also replaces the user class's."""
    form: RequestForm = RequestForm()
    """The form in which the server accepts requests."""


def make_variant_targets(
    settings: Settings, discovery: Discovery, headers: Mapping[str, str]
) -> dict[str, VariantTarget]:
    """The targets by name, the base first. Without arms there is one without a name. ``headers``
    are the candidate's own. Raises ValueError."""
    if not settings.compares:
        return {
            "": VariantTarget(
                "", settings.host, discovery.model, discovery.length_way, form=discovery.form
            )
        }
    base = VariantTarget(
        BASE, settings.host, discovery.model, discovery.length_way, form=discovery.form
    )
    if settings.same_server:
        return {BASE: base, CANDIDATE: base._replace(name=CANDIDATE)}
    if (other := discovery.candidate) is None:
        raise ValueError("the candidate was not checked before the run, so it gets no API key")
    own = settings.changes
    return {
        BASE: base,
        CANDIDATE: VariantTarget(
            CANDIDATE,
            settings.candidate or settings.host,
            other.model,
            other.length_way,
            headers,
            own.body,
            own.model,
            other.form,
        ),
    }


def list_variants(settings: Settings, discovery: Discovery) -> tuple[Arm, ...]:
    """The arms for run.json."""
    if not settings.compares:
        return ()
    other = discovery.candidate or discovery
    return (
        Arm(
            name=BASE,
            host=settings.host,
            model=discovery.models,
            server=discovery.server,
            server_flags=discovery.server_flags,
        ),
        Arm(
            name=CANDIDATE,
            host=settings.candidate or settings.host,
            model=settings.changes.model or other.models,
            server=other.server,
            server_flags=other.server_flags,
            changes=settings.candidate_set,
        ),
    )
