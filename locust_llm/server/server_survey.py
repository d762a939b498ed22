"""Server survey: the queries to the server before a run, to both servers where there are two
arms."""

from argparse import Namespace

import gevent
import msgspec

from locust_llm.access.headers_and_api_key import read_candidate_headers
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.settings.ab_arms import BLOCK_S, LEAST, find_long_enough_block
from locust_llm.settings.limit_sweep_length import explain_short_limit_sweep
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.text.format import format_duration

from .discovery import Discovery, DiscoveryFailed, discover_server
from .prepare_run import MAX_COUNT_DIFFERENCE, prepare_run, read_run_headers


def survey_servers(settings: Settings, options: Namespace | None, *, here: bool) -> Discovery:
    """Query the server, or both arms' servers, so that the run may begin. ``here``: its users are
    on this machine. Raises Refused."""
    headers = read_run_headers(options)
    if "," in (getattr(options, "candidate", None) or ""):
        refuse_run("base and candidate have one address each: use one --candidate")
    discovery = prepare_run(settings, headers, here=here)
    refuse_short_blocks(settings, "the base", discovery)
    idle = discovery.response_time
    if why := explain_short_limit_sweep(settings, None if idle is None else idle.seconds):
        discovery = msgspec.structs.replace(discovery, notes=(*discovery.notes, f"WARNING: {why}"))
    if not settings.compares or settings.same_server:
        return discovery
    try:
        other = discover_server(
            make_candidate_settings(settings),
            {**headers, **read_candidate_headers(options)},
            verify=find_trusted_certificates(),
            sleep=gevent.sleep,
            times_response=settings.shortens_blocks,
        )
    except DiscoveryFailed as error:
        refuse_run(f"the candidate: {error}")
    refuse_short_blocks(settings, "the candidate", other)
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


def refuse_short_blocks(settings: Settings, arm: str, discovery: Discovery) -> None:
    """Refuse a time that leaves blocks which are too short for a request of the load, as it was
    measured before it. Blocks of a requested or of the usual length are not refused."""
    found = discovery.response_time
    if not (settings.compares and settings.shortens_blocks) or found is None:
        return
    block_s = settings.block_s
    enough_s = find_long_enough_block(found.seconds, block_s=block_s, washout_s=settings.washout_s)
    if enough_s is None:
        return
    needed = f"-t {2 * (LEAST + 1) * enough_s}s"
    if enough_s > BLOCK_S:  # -t alone leaves the usual length
        needed = f"{needed} and --block-duration {enough_s}"
    more = "more than " if found.cut else ""
    refuse_run(
        f"a request of {arm} takes {more}{format_duration(found.seconds)}, and -t leaves blocks of "
        f"{format_duration(block_s)}, which are too short for it: use {needed}"
    )


def make_candidate_settings(settings: Settings) -> Settings:
    """The settings of the candidate as a run of its own."""
    own = settings.changes.model
    return msgspec.structs.replace(
        settings,
        host=settings.candidate or settings.host,
        model=own or settings.model,
        model_mix=None if own else settings.model_mix,
    )
