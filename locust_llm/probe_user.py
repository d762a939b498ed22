"""The interference probe as a load: its timetable carried out by users, then the end of the run.

The users are hands: each takes the next shot, waits for its moment and sends it. What the shots say of the server is
worked out from their records, when the report is made (symptoms.py, diagnosis.py).
"""

import logging
import time
from argparse import Namespace
from collections import Counter
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

from locust_llm.client.gate import GateClosed
from locust_llm.core.option import COUNT, TOKENS, USERS, Option, Range, options_of, out_of_range
from locust_llm.core.record import OK, Record
from locust_llm.core.settings import Settings
from locust_llm.probe.requests import Episode, ProbeRequest, ProbeResult, label, seen
from locust_llm.probe.schedule import Bounds, timetable
from locust_llm.run.flags import add_groups
from locust_llm.run.options import FURTHER

from .user import FAILED_S, LLMUser

logger = logging.getLogger("locust_llm")

PAUSE_S: Final = 0.05
"""Between two episodes: the server has let go of the last one."""
SOON_S: Final = 0.02
"""All hands have their shots before the first one is due."""
HANDS: Final = 8
"""Users, unless ``-u`` says otherwise: as many as the largest episode has shots."""
FEWEST: Final = 4
"""Prompts of a crowd, or nothing can be said of it."""
GIVE_UP: Final = 3
"""Episodes of which every request failed, in a row."""
DEFAULTS: Final = Bounds()
PATIENCE_S: Final = 120.0
"""For a first token, and for the next one, unless a flag says otherwise: a server that hangs ends the probe."""


class ProbeOptions(msgspec.Struct):
    """The options of a probe beside those of a run."""

    longest: Annotated[
        int,
        Option(
            "probe", "Longest prompt, unless its prefill alone takes too long", "16000", "tokens",
            Range(8 * DEFAULTS.first_tokens, TOKENS.most), in_form=False,
        ),
    ] = DEFAULTS.longest_tokens  # fmt: skip
    decoders: Annotated[int, Option("probe", "Number of decodes beside a prompt", "6", range=USERS, in_form=False)] = (
        DEFAULTS.decoders
    )
    rounds: Annotated[
        int, Option("probe", "Repetitions of each measurement", "5", range=Range(2, COUNT.most), in_form=False)
    ] = DEFAULTS.rounds


class Job(NamedTuple):
    """A shot in the hand of a user."""

    shot: ProbeRequest
    text: str
    session: str
    at: float
    """On the monotonic clock."""
    record: "AsyncResult[Record]"


class ProbeUser(LLMUser):
    """A hand of the probe: see locustfiles/interference.py."""

    abstract = True
    jobs: ClassVar["SimpleQueue[Job | None]"] = SimpleQueue()
    """Of this run. None: there will be no more; it stays there for the others."""
    conductor: ClassVar[Greenlet | None] = None
    wanted: ClassVar[bool] = False
    """A run began, and its conductor comes with its first user."""
    more: ClassVar[dict[str, Any]] = {}
    """Fields of every request: what keeps outputs at their length. Whether a server knows it, its first answer says."""

    def on_start(self) -> None:
        if ProbeUser.wanted:
            ProbeUser.wanted, ProbeUser.more = False, {"ignore_eos": True}
            ProbeUser.conductor = gevent.spawn(conduct, self)

    @task
    def send(self) -> None:
        job = self.jobs.get()
        if job is None:
            self.jobs.put(None)
            raise StopUser
        shot = job.shot
        try:
            self.sender.wait_until(job.at)
            record = self.chat(
                job.text, max_tokens=shot.output_tokens, input_tokens=shot.input_tokens, name=shot.role,
                session=job.session, **self.more,
            )  # fmt: skip
        except GateClosed:  # the run ends
            raise StopUser from None
        except Exception as error:
            job.record.set_exception(error)
            raise
        job.record.set(record)


def conduct(user: ProbeUser) -> None:
    """The whole timetable; then the end of the run."""
    options, runner = user.environment.parsed_options, user.environment.runner
    assert options is not None
    assert runner is not None
    bounds = Bounds(
        longest_tokens=int(options.longest), decoders=int(options.decoders), rounds=int(options.rounds),
        crowd=runner.target_user_count,
    )  # fmt: skip
    probe, texts = timetable(bounds), dict[int, str]()
    came: Sequence[ProbeResult] | None = None
    number, in_vain, began = 0, 0, time.monotonic()
    try:
        while True:
            episode = next(probe) if came is None else probe.send(came)
            _say(episode, number, time.monotonic() - began)
            came = _episode(user, episode, number, bounds.rounds, texts)
            if number == 0 and ProbeUser.more and not all(one.ok for one in came):
                ProbeUser.more = {}
                came = _episode(user, episode, number, bounds.rounds, texts)
            number += 1
            in_vain = 0 if any(one.ok for one in came) else in_vain + 1
            if in_vain == GIVE_UP:
                logger.error(f"The probe ends before its time: no request of {GIVE_UP} episodes in a row was answered.")
                break
    except StopIteration:
        logger.info(f"The probe is over after {time.monotonic() - began:.0f} s.")
    except Exception as error:  # the user whose request it was has told all of it
        logger.error(f"The probe ends before its time: {error!r}")
    gevent.spawn(runner.stop if user.environment.web_ui is not None else runner.quit)


def _episode(user: ProbeUser, episode: Episode, number: int, rounds: int, texts: dict[int, str]) -> list[ProbeResult]:
    """Sends its shots at their moments, and waits for them all."""
    text = user.sender.prompts.text
    said = [
        texts.setdefault(shot.text, text(shot.input_tokens)) if shot.text else text(shot.input_tokens)
        for shot in episode.shots
    ]
    begin = time.monotonic() + SOON_S
    jobs = [
        Job(shot, words, label(number, episode, rounds), begin + shot.at_s, AsyncResult())
        for shot, words in zip(episode.shots, said, strict=True)
    ]
    for job in jobs:
        ProbeUser.jobs.put(job)
    records = [job.record.get() for job in jobs]
    gevent.sleep(PAUSE_S if all(record.outcome == OK for record in records) else FAILED_S + PAUSE_S)
    return [one for record in records if (one := seen(record)) is not None]


def _say(episode: Episode, number: int, seconds: float) -> None:
    sent = Counter(f"{shot.role} {shot.input_tokens:,}" for shot in episode.shots if shot.role != "decoder")
    shots = ", ".join(what if count == 1 else f"{count} x {what}" for what, count in sent.items())
    decoders = sum(shot.role == "decoder" for shot in episode.shots)
    beside = f" beside {decoders} decoders" if decoders and shots else f"{decoders} decoders" if decoders else ""
    logger.info(f"probe {seconds:4.0f} s, round {episode.round}: {episode.kind}: {shots}{beside}")


def mistakes(settings: Settings, options: Namespace) -> Iterator[str]:
    """Why a probe cannot be so: each a sentence. Its timetable alone says what is sent when, and by one process. None of
    options that a parser without the probe's has read."""
    if not all(hasattr(options, option.dest) for option in options_of(ProbeOptions)):
        return
    for option in options_of(ProbeOptions):
        if getattr(options, option.dest) is None and option.range is not None:
            yield f"{option.flag} must be at least {option.range.least}, got nothing"
            return
    if wrong := list(out_of_range(options, options_of(ProbeOptions))):
        yield from wrong
        return
    fewest = max(FEWEST, options.decoders + 2)
    if settings.users is not None and settings.users < fewest:
        yield f"a probe needs at least {fewest} users (-u), one for each request of an episode, got {settings.users}"
    if settings.processes > 1 or options.master or options.worker:
        yield "a probe is a few requests at a time, of one process: leave out --processes, --master and --worker"
    if not settings.streaming:
        yield "a probe needs --streaming: without a stream nobody can tell when a token came"
    for flag, given in (
        ("--prefill-concurrency", settings.prefill_concurrency),
        ("--request-count", settings.request_count),
        ("--num-sessions", settings.num_sessions),
        ("--request-cancellation-rate", settings.request_cancellation_rate),
        ("--warmup-request-count", settings.warmup_request_count),
        ("--warmup-duration", settings.warmup_duration),
        ("--sweep", settings.sweep),
        ("--repeats", settings.repeats > 1),
        ("--candidate, --candidate-set and --aa", settings.compares),
        ("a schedule of arrivals (--request-rate, --fixed-schedule, ...)", settings.open_loop),
    ):
        if given:
            yield f"a probe has a timetable of its own: leave out {flag}"


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser, **kw: Any) -> None:
    add_groups(parser, options_of(ProbeOptions))
    if mistakes not in FURTHER:  # the web page makes a parser for each visitor
        FURTHER.append(mistakes)
    parser.set_defaults(num_users=HANDS, first_token_timeout=PATIENCE_S, gap_timeout=PATIENCE_S)


@events.test_start.add_listener
def _start(**kw: Any) -> None:
    ProbeUser.jobs, ProbeUser.wanted = SimpleQueue(), True


@events.test_stopping.add_listener
def _stopping(environment: Environment, **kw: Any) -> None:
    conductor, ProbeUser.conductor, ProbeUser.wanted = ProbeUser.conductor, None, False
    if conductor is not None:
        gevent.spawn(conductor.kill)
    ProbeUser.jobs.put(None)
