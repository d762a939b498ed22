"""Server survey: the queries to the server before a run, to both servers where there are two
arms."""

from argparse import Namespace

import gevent
import msgspec

from locust_llm.access.headers_and_api_key import read_candidate_headers
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run

from .discovery import Discovery, DiscoveryFailed, discover_server
from .prepare_run import MAX_COUNT_DIFFERENCE, prepare_run, read_run_headers


def survey_servers(settings: Settings, options: Namespace | None, *, here: bool) -> Discovery:
    """Query the server, or both arms' servers, so that the run may begin. ``here``: its users are
    on this machine. Raises Refused."""
    headers = read_run_headers(options)
    if "," in (getattr(options, "candidate", None) or ""):
        refuse_run("base and candidate have one address each: use one --candidate")
    discovery = prepare_run(settings, headers, here=here)
    if not settings.compares or settings.same_server:
        return discovery
    try:
        other = discover_server(
            make_candidate_settings(settings),
            {**headers, **read_candidate_headers(options)},
            verify=find_trusted_certificates(),
            sleep=gevent.sleep,
        )
    except DiscoveryFailed as error:
        refuse_run(f"the candidate: {error}")
    notes = [f"candidate: {note}" for note in other.notes]
    a, b = discovery.lengths.tokens_a_word, other.lengths.tokens_a_word
    if (
        discovery.lengths.measured
        and other.lengths.measured
        and abs(b - a) > MAX_COUNT_DIFFERENCE * a
    ):
        notes.append(
            f"base and candidate count tokens differently: {a:.3f} tokens per word at the base, "
            f"{b:.3f} at the candidate"
        )
    return msgspec.structs.replace(discovery, candidate=other, notes=(*discovery.notes, *notes))


def make_candidate_settings(settings: Settings) -> Settings:
    """The settings of the candidate as a run of its own."""
    own = settings.changes.model
    return msgspec.structs.replace(
        settings,
        host=settings.candidate or settings.host,
        model=own or settings.model,
        model_mix=None if own else settings.model_mix,
    )
