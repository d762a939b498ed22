"""Probe user: Locust users send the requests of the probe's schedule, then the run ends.

Each user takes the next request, waits for its time and sends it. The report makes the diagnosis
from the records (probe_measurements.py, scheduler_diagnosis.py).
"""

import logging
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from locust import events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser

import gevent
import msgspec
from gevent import Greenlet
from gevent.event import AsyncResult
from gevent.queue import SimpleQueue

from locust_llm.gate.gate import GateClosed
from locust_llm.lab.probe.episode_requests import (
    ProbeEpisode,
    ProbeRequest,
    ProbeResult,
    format_episode_label,
    read_probe_result,
)
from locust_llm.lab.probe.probe_experiments import (
    ProbeBounds,
    max_probe_episodes,
    schedule_episodes,
)
from locust_llm.lab.probe.probe_progress import ProbeProgress, format_probe_position
from locust_llm.locust_adapter.command_line_parser import EXTRA_VALIDATORS, add_groups
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.settings.option_declaration import (
    COUNT,
    TOKENS,
    USERS,
    Option,
    OptionRange,
    declared_options,
    find_out_of_range,
)
from locust_llm.settings.run_options import Settings
from locust_llm.user import LLMUser
from locust_llm.worker.send_request import FAILED_S

logger = logging.getLogger("locust_llm")

PAUSE_S: Final = 0.05
"""The pause between two episodes lets the server finish the last one."""
LEAD_S: Final = 0.02
"""Every user has its request this time before the first one is due."""
NUM_USERS: Final = 8
"""Without ``-u`` there are as many users as the largest episode has requests."""
SPAWN_RATE: Final = 100.0
"""Users start at this rate per second, and send when the schedule requires it."""
MIN_BURST: Final = 4
"""A burst has at least this many prompts, as a smaller one shows no slots."""
MAX_FAILED_EPISODES: Final = 3
"""The probe stops after this many successive episodes in which every request failed."""
DEFAULT_BOUNDS: Final = ProbeBounds()
TIMEOUT_S: Final = 120.0
"""The first token and each next one must come within this time, unless a flag sets another. A
server that hangs ends the probe."""


class ProbeOptions(msgspec.Struct):
    """Declares the options of a probe beside the options of a run."""

    longest: Annotated[
        int,
        Option(
            "probe",
                "Length of the longest prompt; shorter if its prefill takes too long", "16000", "tokens",
            OptionRange(8 * DEFAULT_BOUNDS.first_tokens, TOKENS.most), in_form=False,
        ),
    ] = DEFAULT_BOUNDS.longest_tokens  # fmt: skip
    decoders: Annotated[
        int,
        Option(
            "probe",
            "Requests that decode while a prompt arrives",
            "6",
            range=USERS,
            in_form=False,
        ),
    ] = DEFAULT_BOUNDS.decoders
    rounds: Annotated[
        int,
        Option(
            "probe",
            "Repetitions of each measurement",
            "5",
            range=OptionRange(2, COUNT.most),
            in_form=False,
        ),
    ] = DEFAULT_BOUNDS.rounds


class ProbeJob(NamedTuple):
    """Is a request for the next free user."""

    request: ProbeRequest
    text: str
    session: str
    at: float
    """The request is due at this time of the monotonic clock."""
    record: "AsyncResult[Record]"


class ProbeUser(LLMUser):
    """Sends the probe's requests: see locustfiles/interference.py."""

    abstract = True
    jobs: ClassVar["SimpleQueue[ProbeJob | None]"] = SimpleQueue()
    """The queue has the jobs of this run. None ends it, and stays in it for the other users."""
    runner_greenlet: ClassVar[Greenlet | None] = None
    pending: ClassVar[bool] = False
    """A run began, and its first user starts the schedule."""
    more: ClassVar[dict[str, Any]] = {}
    """Every request has these fields, which fix the output length. They are dropped if the first
    response refuses them."""

    def on_start(self) -> None:
        if ProbeUser.pending:
            ProbeUser.pending = False
            ProbeUser.more = {"ignore_eos": True}
            ProbeUser.runner_greenlet = gevent.spawn(run_schedule, self)

    @task
    def send(self) -> None:
        job = self.jobs.get()
        if job is None:
            self.jobs.put(None)
            raise StopUser
        request = job.request
        try:
            self.sender.wait_until(job.at)
            record = self.chat(
                job.text, max_tokens=request.output_tokens, input_tokens=request.input_tokens,
                name=request.role,
                session=job.session, keep_text=False, **self.more,
            )  # fmt: skip
        except GateClosed:  # the run ends
            raise StopUser from None
        except Exception as error:
            job.record.set_exception(error)
            raise
        job.record.set(record)


def run_schedule(user: ProbeUser) -> None:
    """Sends all episodes, then ends the run."""
    options = user.environment.parsed_options
    runner = user.environment.runner
    assert options is not None
    assert runner is not None
    bounds = ProbeBounds(
        longest_tokens=int(options.longest), decoders=int(options.decoders),
        rounds=int(options.rounds),
        burst=runner.target_user_count,
    )  # fmt: skip
    probe = schedule_episodes(bounds)
    texts = dict[int, str]()
    progress = ProbeProgress()
    most = max_probe_episodes(bounds)
    results: Sequence[ProbeResult] | None = None
    number = 0
    num_failed = 0
    part = ""
    began = time.monotonic()
    try:
        while True:
            episode = next(probe) if results is None else probe.send(results)
            begin = time.monotonic()
            before = part
            part = _describe_part(episode, bounds.rounds)
            user.sender.activity = format_probe_position(
                number, episode, most, progress.left(episode)
            )
            if part != before:
                logger.info(f"probe, {user.sender.activity}: {part}")
            results = _run_episode(user, episode, number, bounds.rounds, texts)
            if number == 0 and ProbeUser.more and not all(result.ok for result in results):
                ProbeUser.more = {}
                results = _run_episode(user, episode, number, bounds.rounds, texts)
            progress.ended(episode, time.monotonic() - begin)
            number += 1
            num_failed = 0 if any(result.ok for result in results) else num_failed + 1
            if num_failed == MAX_FAILED_EPISODES:
                logger.error(
                    f"The probe stops early: all requests of {MAX_FAILED_EPISODES} episodes in a "
                    f"row failed."
                )
                break
    except StopIteration:
        logger.info(f"The probe ended after {time.monotonic() - began:.0f} s.")
    except Exception as error:  # the user with the request has logged the traceback
        logger.error(f"The probe stops early: {error!r}")
    gevent.spawn(runner.stop if user.environment.web_ui is not None else runner.quit)


def _run_episode(
    user: ProbeUser, episode: ProbeEpisode, number: int, rounds: int, texts: dict[int, str]
) -> list[ProbeResult]:
    """Sends the requests of an episode when they are due, and waits for all of them."""
    prompts = []
    for request in episode.requests:
        prompt = user.sender.prompts.text(request.input_tokens)
        prompts.append(texts.setdefault(request.text, prompt) if request.text else prompt)
    begin = time.monotonic() + LEAD_S
    jobs = [
        ProbeJob(
            request,
            prompt,
            format_episode_label(number, episode, rounds),
            begin + request.at_s,
            AsyncResult(),
        )
        for request, prompt in zip(episode.requests, prompts, strict=True)
    ]
    for job in jobs:
        ProbeUser.jobs.put(job)
    records = [job.record.get() for job in jobs]
    gevent.sleep(PAUSE_S if all(record.outcome == OK for record in records) else FAILED_S + PAUSE_S)
    return [result for record in records if (result := read_probe_result(record)) is not None]


def _describe_part(episode: ProbeEpisode, rounds: int) -> str:
    """Describes the part of the schedule for the log."""
    parts = {
        "warm": "a short request",
        "alone": "prompts alone, of doubling length",
        "quiet": "decoders without a prompt",
    }
    return (
        f"round {episode.round} of {rounds}"
        if episode.round and episode.kind != "warm"
        else parts[episode.kind]
    )


def validate_probe(settings: Settings, options: Namespace) -> Iterator[str]:
    """Yields each reason why a probe cannot run with these settings, as its schedule alone decides
    what one process sends. Without the probe's options it yields nothing."""
    if not all(hasattr(options, option.dest) for option in declared_options(ProbeOptions)):
        return
    for option in declared_options(ProbeOptions):
        if getattr(options, option.dest) is None and option.range is not None:
            yield f"{option.flag} must be at least {option.range.least}, got nothing"
            return
    if wrong := list(find_out_of_range(options, declared_options(ProbeOptions))):
        yield from wrong
        return
    fewest = max(MIN_BURST, options.decoders + 2)
    if settings.users is not None and settings.users < fewest:
        yield (
            f"a probe needs at least {fewest} users (-u), one for each request of an episode, "
            f"got {settings.users}"
        )
    if settings.processes > 1 or options.master or options.worker:
        yield "a probe runs in one process: leave out --processes, --master and --worker"
    if not settings.streaming:
        yield "a probe needs --streaming: without a stream there are no times of tokens"
    if settings.hosts:
        yield "a probe is of one server: give one --host"
    for flag, given in (
        ("--model-mix", settings.model_mix),
        ("--tenant-mix", settings.tenant_mix),
        ("--prefill-concurrency", settings.prefill_concurrency),
        ("--request-count", settings.request_count),
        ("--num-sessions", settings.num_sessions),
        ("--request-cancellation-rate", settings.request_cancellation_rate),
        ("--warmup-request-count", settings.warmup_request_count),
        ("--warmup-duration", settings.warmup_duration),
        ("--sweep", settings.sweep),
        ("--repeats", settings.repeats > 1),
        ("--candidate, --candidate-set, --aa and --isolate", settings.compares),
        ("a schedule of arrivals (--request-rate, --fixed-schedule, ...)", settings.open_loop),
    ):
        if given:
            yield f"a probe has its own schedule: leave out {flag}"


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser, **kw: Any) -> None:
    add_groups(parser, declared_options(ProbeOptions))
    if validate_probe not in EXTRA_VALIDATORS:  # the web page makes a parser for each visitor
        EXTRA_VALIDATORS.append(validate_probe)
    parser.set_defaults(
        num_users=NUM_USERS,
        spawn_rate=SPAWN_RATE,
        first_token_timeout=TIMEOUT_S,
        gap_timeout=TIMEOUT_S,
    )


@events.test_start.add_listener
def _start(**kw: Any) -> None:
    ProbeUser.jobs = SimpleQueue()
    ProbeUser.pending = True


@events.test_stopping.add_listener
def _stopping(environment: Environment, **kw: Any) -> None:
    runner_greenlet = ProbeUser.runner_greenlet
    ProbeUser.runner_greenlet = None
    ProbeUser.pending = False
    if runner_greenlet is not None:
        gevent.spawn(runner_greenlet.kill)
    ProbeUser.jobs.put(None)
