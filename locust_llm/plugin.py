"""The one file that attaches this library to Locust: importing it (LLMUser does) is all that a locustfile needs."""

import contextlib
import logging
import socket
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import locust.log
from locust import User, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import STATE_INIT, LocalRunner, MasterRunner, WorkerRunner

import gevent
import msgspec
from gevent.event import Event

from locust_llm.client.requests_bridge import authorities
from locust_llm.core.settings import Settings
from locust_llm.core.sweep import CONCURRENCY
from locust_llm.core.validation import mistakes
from locust_llm.load.numbers import cut_short
from locust_llm.run.console import discard_if_unread, settle_at_exit, write
from locust_llm.run.control.control import Control
from locust_llm.run.control.forked_workers import attend_children
from locust_llm.run.control.messages import hears, to_control
from locust_llm.run.control.metrics_poller import MetricsPoller
from locust_llm.run.control.progress import keep_apart, progress
from locust_llm.run.control.run_store import give_up
from locust_llm.run.discovery import Discovery
from locust_llm.run.flags import LINE, Refused, refuse
from locust_llm.run.locust_table import three_digits_in_locust
from locust_llm.run.options import add_options, check, look_through, settings_of
from locust_llm.run.preflight import headers_of, raise_open_files, ready, the_address, written_host
from locust_llm.run.protocol import LOCAL
from locust_llm.run.secrets import withhold
from locust_llm.run.signals import end_at_once, interrupt, leave, listen
from locust_llm.run.worker.messages import to_sender
from locust_llm.run.worker.process import NEWS_S, cut, work
from locust_llm.run.worker.sender import Sender, sender_of
from locust_llm.web.routes import attach, serve_metrics
from locust_llm.web.view import View

from .exit_status import ExitStatus, of_signal, worst
from .user import LLMUser

logger = logging.getLogger("locust_llm")

PORT: Final = 5557
"""Of the master, if no --master-bind-port is given."""

_greeted: Callable[[str], bool]
"""Whether a worker said who it is, and may take part."""
_surveyed: Discovery | None = None
_address = ""
"""The server of the next run: of the command line, of the locustfile, or of our form. Nothing else can set it."""
_view: View | None = None
"""None: there is no web page here."""
_control: Control | None = None
_shown: Control | None = None
"""That one, or that of the last run."""
_progress: gevent.Greenlet | None = None
_report = ""
"""What the console shows at the end."""
_status: int | None = None
"""The exit status that the rules of the last run call for."""
_incomplete = False
"""Its result lacks something."""
_forks = False
"""This process, or the one that it was forked from, is the master of its children."""
_refused = False
"""There could be no such run."""
_reported = Event()
"""No report is being made."""
_reported.set()
_epoch = 0


def _keep_survey(found: Discovery, address: str) -> None:
    """For the run that begins next."""
    global _surveyed, _address
    _surveyed, _address = found, address


three_digits_in_locust()
withhold()


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser, **kw: Any) -> None:
    end_at_once()
    settle_at_exit()
    add_options(parser, _before_load)


def _before_load(options: Namespace) -> None:
    """Between parsing and forking: refuse what cannot be, and ask the server once, for all processes."""
    global _surveyed, _forks, _address
    _forks = bool(options.processes and not options.worker)
    options.host = options.host or written_host(LLMUser, User)
    settings = check(options)
    _address = settings.host
    options.host = settings.host or options.host  # with its scheme: plain HTTP users of the same run need it too
    if options.headless or options.autostart:
        options.llm_run_time, options.run_time = options.run_time, None  # -t is of the profiling phase: see course.py
        options.llm_users = options.num_users  # before Locust makes it 1
        options.num_users = settings.first_users  # Locust lets users go only when their tasks end
        if options.llm_run_time or settings.staged is not None:
            logging.getLogger("locust.main").addFilter(_says_no_run_time)
    options.enable_rebalancing = True  # users of a lost worker go to the others at once, not after a minute
    if options.processes and not options.worker:
        master_port(options)
    if options.spawn_rate is None and options.num_users:
        options.spawn_rate = options.num_users  # all at once: the gate ramps, not the users
    if "--print-stats" not in sys.argv:
        options.only_summary = True  # the progress line takes the place of Locust's tables every two seconds
    raise_open_files()  # before the forks, so that children have as many
    looking = options.list_commands or options.show_task_ratio or options.show_task_ratio_json
    if looking:
        return
    headers = headers_of(options)  # of a worker too: they do not come from the master
    if options.worker:
        return
    if options.headless or options.autostart:
        _surveyed = ready(settings, headers, here=not options.master)


def _says_no_run_time(line: logging.LogRecord) -> bool:
    """Locust believes that there is no -t, as this library bounds the run: that line would mislead."""
    return not line.getMessage().startswith("No run time limit set")


def master_port(options: Namespace) -> None:
    """Where the master of ``--processes`` listens, and for whom."""
    wanted = options.master_bind_port
    if not options.master and options.master_bind_host == "*":
        options.master_bind_host = "127.0.0.1"  # all workers are on this machine: nobody else is to join
        if wanted == PORT:  # nobody needs to know it, and runs that start at once would both find it free
            wanted = 0
    options.master_port = options.master_bind_port = _free_port(wanted)


def _free_port(port: int) -> int:
    """``port``, or another one where some other run on this machine has it: workers would wait a minute, and give up."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.create_server(("", wanted)) as listener:
            return int(listener.getsockname()[1])
    return port


@events.init.add_listener
def _init(environment: Environment, runner: Any, **kw: Any) -> None:
    global _view, _greeted
    keep_apart()
    sender = sender_of(environment)
    if isinstance(runner, WorkerRunner):
        work(environment, runner, sender, forked=_forks)
    else:
        _greeted = to_control(environment, runner, lambda: _control, partial(_refuse, environment))
        listen(partial(_interrupted, environment), partial(_hurry, environment))
        _view = None if environment.web_ui is None else attach(environment, _keep_survey)
        serve_metrics(environment, lambda: _shown)
    if isinstance(runner, LocalRunner):
        to_sender(runner, sender)
    if isinstance(runner, MasterRunner) and environment.parsed_options and environment.parsed_options.processes:
        attend_children(runner, lambda: leave(ExitStatus.BROKEN))


def _interrupted(environment: Environment, number: int) -> None:
    """Ctrl-C, or another signal that ends: in order, and where nothing has begun at once."""
    runner, options = environment.runner, environment.parsed_options
    assert runner is not None
    if not _reported.is_set() or (_control is not None and _control.ending.begun):
        logger.warning("The run is ending already; once more, and what is still open is cut")
        if environment.web_ui is not None:
            _reported.wait()
            interrupt()
    elif runner.state == STATE_INIT and options is not None and (options.headless or options.autostart):
        runner.quit()  # Locust waits for workers; it would not tell those that are there
        leave(of_signal(number))
    else:
        interrupt()


def _hurry(environment: Environment) -> None:
    """Ctrl-C again: neither what is open nor a report is waited for."""
    give_up()
    if _control is not None:
        _control.hurry()
    cut(environment)


@events.test_start.add_listener
def _start(environment: Environment, **kw: Any) -> None:
    """Master or only process: a run begins (workers begin with the master's order)."""
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner):
        return
    try:
        _begin(environment, runner)
    except (Refused, OSError, ValueError) as error:
        _refuse(environment, str(error))
    except Exception as error:  # whatever it is, a run that has not begun must not go on without an end
        logger.debug("the start of the run failed", exc_info=True)
        kind = type(error).__name__
        _refuse(environment, f"{kind}: {error} (is a number or a text among the settings too large?)")


def _refuse(environment: Environment, reason: str) -> None:
    """The run that is to begin cannot be: it ends, and an unattended process with it."""
    global _refused
    line = f"The run cannot start: {cut_short(reason, LINE)}"
    logger.error(line)
    runner, options = environment.runner, environment.parsed_options
    assert runner is not None
    if _view is not None:
        _view.refusal = line
    if options is None or options.headless or options.autostart:
        _refused = True
    unattended = options is None or options.headless
    gevent.spawn(runner.quit if unattended else runner.stop)


def _begin(environment: Environment, runner: Any) -> None:
    """Look at the settings, ask the server, and begin. Raises whatever may be wrong."""
    global _control, _shown, _progress, _epoch, _surveyed, _refused
    _refused = False
    settings = settings_of(environment.parsed_options)
    environment.host = address = the_address(environment.host, _address or settings.host)
    settings = msgspec.structs.replace(
        settings,
        host=address,
        users=_users(runner, settings),
        processes=max(1, len(runner.clients)) if isinstance(runner, MasterRunner) else 1,
    )
    found, _surveyed = _surveyed, None  # the next run asks anew: the form may name another server
    if found is None:
        for mistake in mistakes(settings):
            refuse(mistake)
        options = environment.parsed_options
        here = isinstance(runner, LocalRunner) or bool(options is not None and options.processes)
        found = ready(settings, headers_of(options), here=here)
    _epoch += 1
    if dataset := look_through(settings):  # again: in the web page it came from the form
        counted = dataset.sessions if dataset.whole and not dataset.synthetic else None
        found = msgspec.structs.replace(found, dataset_sessions=counted, notes=(*found.notes, f"dataset: {dataset}"))
    control = Control(environment, settings, found, _epoch, _greeted, _reported)
    for note in found.notes:
        logger.warning(note)
    if isinstance(runner, LocalRunner):
        sender_of(environment).keep = control.keep
    _control = _shown = control  # its workers' answers are for it
    try:
        control.begin()
    except Exception:
        _control = None
        control.abandon()
        raise
    if settings.server_metrics:
        meter = MetricsPoller(
            settings.host, headers_of(environment.parsed_options), control.book.folder,
            verify=False if settings.insecure else authorities(), note=control.book.say,
        )  # fmt: skip
        control.book.meter = meter
        meter.start()
    if _view is not None:
        _view.begins(control)
    _progress = gevent.spawn(_watch, environment, control)


def _users(runner: Any, settings: Settings) -> int | None:
    """How many were asked for; None: as many as the arrivals need."""
    grows = settings.users is None and settings.open_loop
    if (
        grows or settings.sweeps(CONCURRENCY) or (settings.warmup_concurrency and settings.users)
    ):  # Locust knows those of the warmup
        return settings.users
    return runner.target_user_count or settings.users


def _watch(environment: Environment, control: Control) -> None:
    if isinstance(environment.runner, LocalRunner):
        sender = sender_of(environment)
        gevent.spawn(_tell_news, sender, control)
    progress(control)


def _tell_news(sender: Sender, control: Control) -> None:
    while control is _control:
        hears(control, LOCAL, sender.news())
        gevent.sleep(NEWS_S)


@events.test_stopping.add_listener
def _stopping(environment: Environment, **kw: Any) -> None:
    if not isinstance(environment.runner, MasterRunner):
        sender_of(environment).close()  # also where a run could not start: its users wait for an order that never comes
    if _control is None:
        return
    _reported.clear()
    draining = gevent.spawn(_control.drain)
    try:
        draining.get()
    except (
        gevent.GreenletExit
    ):  # Locust has killed the greenlet that ends the run, as it does when its last worker quits
        gevent.spawn(_go_on, environment, draining)
        raise


def _go_on(environment: Environment, draining: gevent.Greenlet) -> None:
    draining.join()
    _stop(environment)


@events.test_stop.add_listener
def _stop(environment: Environment, **kw: Any) -> None:
    """All users are gone: the report. A worker only makes itself ready for the next run."""
    global _control, _progress
    runner, options = environment.runner, environment.parsed_options
    if isinstance(runner, WorkerRunner):
        # Locust's worker would sleep another stop_timeout before it is ready again; the next spawn restores the value
        environment.stop_timeout = 0
        return
    if _progress is not None:
        _progress.kill()
        _progress = None
    control, _control = _control, None
    if control is None:
        return
    gevent.spawn(_conclude, environment, control).get()  # which a kill of this greenlet does not end
    if environment.web_ui is not None:
        _print()
    if runner is not None and options is not None and options.headless and gevent.getcurrent() in runner.greenlet:
        gevent.spawn(runner.quit)  # Locust has stopped, as its last worker is gone, and would wait for ever


def _conclude(environment: Environment, control: Control) -> None:
    """The report of a run, and what it means for the exit status."""
    global _report, _status, _incomplete
    _incomplete = True  # until it is known better
    try:
        if isinstance(environment.runner, LocalRunner):
            control.ended(LOCAL, {**sender_of(environment).last_words(), "undelivered": 0})
        _report = control.report()
        _status, _incomplete = control.exit_status(), control.incomplete
        control.close()
    finally:
        _reported.set()
        if _view is not None:
            _view.ends()


@events.quitting.add_listener
def _quitting(environment: Environment, **kw: Any) -> None:
    """Ctrl-C and SIGTERM come here with users still running: end them in order, then judge the exit status."""
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner):
        return
    runner.stop()
    _reported.wait()
    status = _judged(environment, runner)
    worse = [ExitStatus.INCOMPLETE] * _incomplete + [ExitStatus.BROKEN] * locust.log.unhandled_greenlet_exception
    if _refused:
        status = ExitStatus.REFUSED
    elif worse:
        status = worst((_locusts(environment, runner) if status is None else status, *worse))
    environment.process_exit_code = status
    discard_if_unread()


def _judged(environment: Environment, runner: Any) -> int | None:
    """The exit status; None: as Locust has it. Where there are rules they alone decide."""
    if _status is not None:
        return _status
    if environment.process_exit_code is None and runner.errors and not runner.exceptions:
        harmless = ("RequestCut(", "RequestCancelled(")
        if all(str(_error(error)).startswith(harmless) for error in runner.errors.values()):
            return ExitStatus.OK
    return environment.process_exit_code


def _locusts(environment: Environment, runner: Any) -> int:
    """As Locust reckons it."""
    if runner.errors or runner.exceptions:
        options = environment.parsed_options
        return ExitStatus.FAILED_REQUESTS if options is None else options.exit_code_on_error
    return ExitStatus.OK


def _error(error: Any) -> Any:
    return error.error if isinstance(error.error, str) else repr(error.error)


@events.quit.add_listener
def _quit(exit_code: int, **kw: Any) -> None:
    _print()


def _print() -> None:
    """The tables, last on the console."""
    global _report
    if _report:
        write(_report + "\n")
    _report = ""
