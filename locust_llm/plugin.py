"""The one file that attaches this library to Locust: importing it (LLMUser does) is all that a locustfile needs."""

import contextlib
import logging
import os
import signal
import socket
import sys
from argparse import Namespace
from typing import Any, Final

import locust.stats
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

import gevent
import msgspec

from .control import Control
from .folder import make_folder
from .options import add_options, check, look_through, refuse, request_headers, settings_of
from .outbox import Outbox
from .progress import progress
from .sender import Order, Sender, sender_of
from .settings import Settings, base_url, mistakes
from .sockets import local_ports, raise_open_files, shortage
from .stages import CONCURRENCY, sweep
from .survey import Survey, SurveyFailed, survey
from .user import authorities

logger = logging.getLogger("locust_llm")
NEWS_S: Final = 0.25

_surveyed: Survey | None = None
_control: Control | None = None
_progress: gevent.Greenlet | None = None
_report = ""
"""What the console shows at the end."""
_status: int | None = None
"""The exit status that the rules of the last run call for."""
_epoch = 0


def three_digits(value: float) -> float:
    """Locust's buckets, with three significant digits instead of two: 12.4 ms stays 12.4, 1,234 becomes 1,230."""
    return float(f"{value:.3g}")


locust.stats.bucket_response_time = three_digits  # type: ignore[assignment]


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser, **kw: Any) -> None:
    add_options(parser, _before_load)


def _before_load(options: Namespace) -> None:
    """Between parsing and forking: refuse what cannot be, and ask the server once, for all processes."""
    global _surveyed
    settings = check(options)
    options.host = settings.host or options.host  # with its scheme: plain HTTP users of the same run need it too
    if options.headless or options.autostart:
        options.llm_run_time, options.run_time = options.run_time, None  # -t is of the profiling phase: see control.py
        options.llm_users = options.num_users  # before Locust makes it 1
        if settings.warmup_concurrency:
            options.num_users = settings.warmup_concurrency  # Locust lets users go only when their tasks end
        if settings.sweeps(CONCURRENCY):
            options.num_users = int(sweep(settings.sweep or "").values[0])
        if options.llm_run_time or settings.staged is not None:
            logging.getLogger("locust.main").addFilter(_says_no_run_time)
    if options.processes and not options.worker:
        options.master_port = options.master_bind_port = _free_port(options.master_bind_port)
    if options.spawn_rate is None and options.num_users:
        options.spawn_rate = options.num_users  # all at once: the gate ramps, not the users
    if "--print-stats" not in sys.argv:
        options.only_summary = True  # the progress line takes the place of Locust's tables every two seconds
    files = raise_open_files()  # before the forks, so that children have as many
    looking = options.list_commands or options.show_task_ratio or options.show_task_ratio_json
    if options.worker or looking:
        return
    try:
        headers = request_headers(options)
    except OSError as error:
        refuse(f"--api-key-file {options.api_key_file}: {error.strerror}")
    except ValueError:
        refuse("the API key (--api-key-file or OPENAI_API_KEY) is not one line of text")
    if not (options.headless or options.autostart):
        return
    if not settings.host:
        refuse("--host is missing: the server's address, such as --host localhost:8000")
    if settings.most_users and not options.master:  # else the senders are elsewhere
        short = shortage(settings.most_users, settings.processes, files, local_ports())
        if short:
            refuse(short)
    if not os.path.exists(authorities()):
        refuse(f"there is no {authorities()}, named by REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE")
    try:
        folder = make_folder(settings, settings.model)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()  # the run makes it when it starts; a refused one leaves nothing
    except OSError as error:
        refuse(f"the report folder cannot be written: {error.filename}: {error.strerror} (--report-dir names another)")
    try:
        _surveyed = survey(settings, headers, verify=authorities(), sleep=gevent.sleep)
    except SurveyFailed as error:
        refuse(str(error))


def _says_no_run_time(line: logging.LogRecord) -> bool:
    """Locust believes that there is no -t, as this library bounds the run: that line would mislead."""
    return not line.getMessage().startswith("No run time limit set")


def _free_port(port: int) -> int:
    """``port``, or another one where some other run on this machine has it: workers would wait a minute, and give up."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.create_server(("", wanted)) as listener:
            return int(listener.getsockname()[1])
    return port


@events.init.add_listener
def _init(environment: Environment, runner: Any, **kw: Any) -> None:
    sender = sender_of(environment)
    if isinstance(runner, WorkerRunner):
        _worker(environment, runner, sender)
    else:
        _master(environment, runner)
    if isinstance(runner, LocalRunner):
        _receive(runner, sender)


def _receive(runner: Any, sender: Sender) -> None:
    """The messages that a sender understands."""

    def begin(msg: Any, **kw: Any) -> None:
        sender.begin(msgspec.msgpack.decode(msg.data["order"], type=Order))

    def limit(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.gate.set_limit(msg.data["limit"])
            sender.limit_number = msg.data["number"]

    def grant(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.budget.grant(msg.data["phase"], msg.data["count"])

    def again(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.budget.ask_again()
            sender.supply.again(msg.data["phase"])

    def arrivals(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.arrive(msg.data["phase"], msg.data["started_at"], msg.data["due"])

    def sessions(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.supply.grant(msg.data["phase"], msg.data["items"], over=msg.data["over"])

    def over(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.over(msg.data["phase"])

    def stage(msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == sender.epoch:
            sender.stage(msg.data["number"], msg.data["input_tokens"])

    runner.register_message("llm_begin", begin)
    runner.register_message("llm_stage", stage)
    runner.register_message("llm_limit", limit)
    runner.register_message("llm_grant", grant)
    runner.register_message("llm_again", again)
    runner.register_message("llm_arrivals", arrivals)
    runner.register_message("llm_sessions", sessions)
    runner.register_message("llm_over", over)
    if isinstance(runner, LocalRunner):
        runner.register_message("llm_end", lambda **kw: sender.close())


def _worker(environment: Environment, runner: Any, sender: Sender) -> None:
    sender.worker = runner.client_id
    outbox = Outbox(lambda batch: sender.tell("llm_records", **batch))
    sender.keep = outbox.add
    _receive(runner, sender)
    runner.register_message("llm_ack", lambda msg, **kw: outbox.acknowledged(msg.data["number"]))
    runner.register_message("llm_end", lambda **kw: _end_worker(environment, runner, sender, outbox), concurrent=True)
    gevent.spawn(_talk, runner, sender, outbox)
    sender.tell("llm_hello")
    if environment.parsed_options is not None and environment.parsed_options.processes:
        _leave_first_sigint()


def _talk(runner: Any, sender: Sender, outbox: Outbox) -> None:
    """What a worker tells four times a second: records, how it stands, and a share that nobody here can use."""
    while True:
        gevent.sleep(NEWS_S)
        outbox.flush()
        sender.tell("llm_news", **sender.news())
        if runner.user_count == 0 and (left := sender.budget.surrender()):
            sender.tell("llm_back", phase=sender.budget.phase, count=left)


def _end_worker(environment: Environment, runner: Any, sender: Sender, outbox: Outbox) -> None:
    """The drain of a worker: what runs ends, then every record and every statistic goes to the master."""
    try:
        sender.close()
        runner.stop()
        with gevent.Timeout(10, False):
            while outbox.waiting:
                outbox.flush()
                gevent.sleep(0.02)
        runner._send_stats()
    except Exception:  # a concurrent handler's exception would be lost in the hub
        logger.exception("the drain of this worker failed")
    finally:
        sender.tell("llm_ended", **sender.last_words(), undelivered=outbox.waiting)


def _leave_first_sigint() -> None:
    """Ctrl-C reaches the whole process group: the master ends the run, and a worker leaves the first one to it."""

    def first(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, first)


def _master(environment: Environment, runner: Any) -> None:
    def of_this_run(handle: Any) -> Any:
        def handler(msg: Any, **kw: Any) -> None:
            if _control is not None and msg.data["epoch"] == _control.epoch:
                handle(_control, msg.node_id, msg.data)

        return handler

    def hello(msg: Any, **kw: Any) -> None:
        if _control is not None:
            _control.welcome(msg.node_id)
            gevent.spawn_later(0, _control.share_out)

    runner.register_message("llm_hello", hello)
    runner.register_message("llm_want", of_this_run(lambda control, worker, data: control.want(worker)))
    runner.register_message(
        "llm_want_sessions", of_this_run(lambda control, worker, data: control.want_sessions(worker))
    )
    runner.register_message("llm_health", of_this_run(lambda control, worker, data: control.healthy(data["health"])))
    runner.register_message("llm_records", of_this_run(lambda control, worker, data: control.batch(worker, data)))
    runner.register_message("llm_ended", of_this_run(lambda control, worker, data: control.ended(worker, data)))
    runner.register_message("llm_news", of_this_run(_hears))
    runner.register_message("llm_back", of_this_run(lambda control, worker, data: control.put_back(data)))


@events.test_start.add_listener
def _start(environment: Environment, **kw: Any) -> None:
    """Master or only process: a run begins (workers begin with the master's order)."""
    global _control, _progress, _epoch, _surveyed
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner):
        return
    try:
        settings = settings_of(environment.parsed_options)
        if environment.host:  # of the web form, perhaps; the users take it from here
            environment.host = base_url(environment.host)
        settings = msgspec.structs.replace(
            settings,
            host=environment.host or settings.host,
            users=_users(runner, settings),
            processes=max(1, len(runner.clients)) if isinstance(runner, MasterRunner) else 1,
        )
        found = _surveyed
        if found is None:
            for mistake in mistakes(settings):
                raise SurveyFailed(mistake)
            _enough_sockets(environment, settings)
            headers = request_headers(environment.parsed_options)
            found = survey(settings, headers, verify=authorities(), sleep=gevent.sleep)
        _surveyed = None  # the next run asks anew: the form may name another server
        _epoch += 1
        if dataset := look_through(settings):  # again: in the web page it came from the form
            found = msgspec.structs.replace(found, notes=(*found.notes, f"dataset: {dataset}"))
        _control = Control(environment, settings, found, _epoch)
    except (SurveyFailed, OSError, ValueError) as error:
        logger.error(f"The run cannot start: {error}")
        gevent.spawn(runner.stop)
        return
    for note in found.notes:
        logger.warning(note)
    if isinstance(runner, LocalRunner):
        sender = sender_of(environment)
        sender.keep = _control.keep
    if environment.web_ui is not None:
        gevent.spawn_later(1.0, environment.web_ui._cancel_run_time_timer)  # as above; it is set when this is over
    _control.begin()
    _progress = gevent.spawn(_watch, environment, _control)


def _users(runner: Any, settings: Settings) -> int | None:
    """How many were asked for; None: as many as the arrivals need."""
    grows = settings.users is None and settings.open_loop
    if (
        grows or settings.sweeps(CONCURRENCY) or (settings.warmup_concurrency and settings.users)
    ):  # Locust knows those of the warmup
        return settings.users
    return runner.target_user_count or settings.users


def _enough_sockets(environment: Environment, settings: Settings) -> None:
    """For the number of users that came from the form. Raises SurveyFailed."""
    options = environment.parsed_options
    here = isinstance(environment.runner, LocalRunner) or (options is not None and options.processes)
    if settings.most_users and here:
        short = shortage(settings.most_users, settings.processes, raise_open_files(), local_ports())
        if short:
            raise SurveyFailed(short)


def _watch(environment: Environment, control: Control) -> None:
    if isinstance(environment.runner, LocalRunner):
        sender = sender_of(environment)
        gevent.spawn(_tell_news, sender, control)
    progress(control)


def _hears(control: Control, worker: str, news: dict[str, Any]) -> None:
    control.hears(worker, **{name: value for name, value in news.items() if name != "epoch"})


def _tell_news(sender: Sender, control: Control) -> None:
    while control is _control:
        _hears(control, "local", sender.news())
        gevent.sleep(NEWS_S)


@events.test_stopping.add_listener
def _stopping(environment: Environment, **kw: Any) -> None:
    if not isinstance(environment.runner, MasterRunner):
        sender_of(environment).close()  # also where a run could not start: its users wait for an order that never comes
    if _control is not None:
        _control.drain()


@events.test_stop.add_listener
def _stop(environment: Environment, **kw: Any) -> None:
    """All users are gone: the report. A worker only makes itself ready for the next run."""
    global _control, _progress, _report, _status
    if isinstance(environment.runner, WorkerRunner):
        # Locust's worker would sleep another stop_timeout before it is ready again; the next spawn restores the value
        environment.stop_timeout = 0
        return
    if _progress is not None:
        _progress.kill()
        _progress = None
    control, _control = _control, None
    if control is None:
        return
    if isinstance(environment.runner, LocalRunner):
        control.ended("local", {**sender_of(environment).last_words(), "undelivered": 0})
    _report = control.report()
    _status = control.exit_status()
    control.close()
    if environment.web_ui is not None:
        _print()


@events.quitting.add_listener
def _quitting(environment: Environment, **kw: Any) -> None:
    """Ctrl-C and SIGTERM come here with users still running: end them in order, then judge the exit status."""
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner):
        return
    try:
        runner.stop()
    except KeyboardInterrupt:  # a second Ctrl-C: do not wait any longer
        environment.stop_timeout = 0
        runner.user_greenlets.kill(block=True, timeout=5)
        runner.stop()
    if _status is not None:  # where there are rules they alone decide
        environment.process_exit_code = _status
    elif environment.process_exit_code is None and runner.errors and not runner.exceptions:
        harmless = ("RequestCut(", "RequestCancelled(")
        if all(str(_error(error)).startswith(harmless) for error in runner.errors.values()):
            environment.process_exit_code = 2 if locust.log.unhandled_greenlet_exception else 0


def _error(error: Any) -> Any:
    return error.error if isinstance(error.error, str) else repr(error.error)


@events.quit.add_listener
def _quit(exit_code: int, **kw: Any) -> None:
    _print()


def _print() -> None:
    """The tables, last on the console."""
    global _report
    if _report:
        print(_report, flush=True)
    _report = ""
