"""Plugin: attaches this library to Locust. A locustfile needs only to import it, and LLMUser
does."""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import locust.log
from locust import User, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.event import EventHook
from locust.runners import STATE_INIT, STATE_SPAWNING, LocalRunner, MasterRunner, WorkerRunner

import gevent
import msgspec
from gevent.event import Event

from locust_llm.access.certificate_files import use_certificates
from locust_llm.access.source_addresses import use_source_options
from locust_llm.client.reader.open_streams import collect_garbage_seldom
from locust_llm.controller.messages_from_workers import receive_from_workers
from locust_llm.controller.progress_line import keep_logs_off_live_line, show_run_progress
from locust_llm.controller.report_process import give_up_reports
from locust_llm.controller.run_controller import Controller
from locust_llm.controller.run_store import log_note
from locust_llm.events import extend_locust_events
from locust_llm.integrations import upload
from locust_llm.integrations.otel import telemetry_sender
from locust_llm.locust_adapter.command_line_parser import (
    EXTRA_VALIDATORS,
    add_options,
    build_settings,
    check_options,
    keep_locusts_defaults,
    look_through_inputs,
)
from locust_llm.locust_adapter.disruption_options import read_disruption_plans
from locust_llm.locust_adapter.forked_workers import attend_children, tie_forks_to_this_process
from locust_llm.locust_adapter.locust_tables import (
    align_errors_to_rows,
    describe_count_difference,
    describe_other_requests,
    disable_locust_tables,
    keep_no_copies_of_rows,
    keep_rows_after_json,
    keep_writing_csv,
    three_digits_in_locust,
)
from locust_llm.locust_adapter.memory_source_options import read_memory_source
from locust_llm.locust_adapter.ports import refuse_taken_ports, set_master_port
from locust_llm.locust_adapter.signals import (
    end_at_once,
    ignore_signals,
    interrupt_main,
    leave_process,
    listen_for_signals,
)
from locust_llm.locust_adapter.stop_and_quit import detach_end
from locust_llm.locust_adapter.wire_frames import check_frames
from locust_llm.locust_adapter.withheld_options import withhold_secrets
from locust_llm.records.control_message import ControlMessage
from locust_llm.records.machine import memory_refusal
from locust_llm.records.record import Record
from locust_llm.server.discovery import Discovery
from locust_llm.server.local_servers import name_host_command, show_local_servers
from locust_llm.server.open_files_and_ports import raise_open_files
from locust_llm.server.prepare_run import (
    choose_run_address,
    find_locustfile_host,
    read_run_headers,
)
from locust_llm.server.refusals import explain_outgrown_context, explain_too_long_dataset
from locust_llm.server.server_looks import METRICS_ALONE, MemorySource
from locust_llm.server.server_survey import survey_servers
from locust_llm.settings.disruption_schedule import DisruptionPlan
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import LINE, RunRefused, refuse_run
from locust_llm.settings.settings_validation import find_rules_that_cannot_pass, validate_settings
from locust_llm.settings.sweep_option import CONCURRENCY
from locust_llm.text.ci_log import guard_streams, print_ci_commands
from locust_llm.text.console import discard_if_unread, settle_output_at_exit, write_console
from locust_llm.text.numbers import truncate_quoted_text
from locust_llm.wire.critical_greenlets import spawn_critical
from locust_llm.wire.worker_messages import LOCAL, STATUS_S, EndRun
from locust_llm.worker.worker_context import (
    WorkerContext,
    attach_worker_context,
    receive_from_control,
)
from locust_llm.worker.worker_process import cut_open_requests, start_worker

from .exit_status import (
    ExitStatus,
    RunOutcome,
    decide_exit_status,
    report_early_end,
    signal_exit_status,
)
from .user import LLMUser

if TYPE_CHECKING:
    from locust_llm.web.live_page_data import RunView

logger = logging.getLogger("locust_llm")


keep_locusts_defaults()
three_digits_in_locust()
keep_writing_csv()
keep_rows_after_json()
check_frames()
withhold_secrets()
extend_locust_events(events)  # a locustfile listens before there is an environment
EXTRA_VALIDATORS.extend((upload.validate_upload, telemetry_sender.validate_otel))


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser, **kw: Any) -> None:
    end_at_once()
    settle_output_at_exit()
    guard_streams(os.environ)
    add_options(parser, before_load)


# -- between parsing and forking -------------------------------------------------------------------

_ATTRIBUTE: Final = "llm_launch"


def describe_further_interrupt(*, requests_open: bool) -> str:
    """What a further Ctrl-C does while a run ends."""
    if requests_open:
        return (
            "The run is already ending; press Ctrl-C again to cut the requests that are still open"
        )
    return "locust-llm is writing the report; press Ctrl-C again to skip it"


class LaunchOptions(NamedTuple):
    """What is known before there is an environment."""

    settings: Settings | None = None
    """The checked settings of the command line. None: there was none."""
    survey: Discovery | None = None
    """What is known of the server. None: it was not asked."""
    forks: bool = False
    """This process is the master of its own children, or one of them."""
    disruptions: tuple[DisruptionPlan, ...] = ()
    memory: MemorySource = METRICS_ALONE


def take_launch_options(options: Namespace | None) -> LaunchOptions:
    """Take them off the options, which Locust sends to workers."""
    launch = vars(options).pop(_ATTRIBUTE, None) if options is not None else None
    return launch or LaunchOptions()


def before_load(options: Namespace) -> None:
    """Between parsing and forking: refuse impossible runs, set Locust's options for the run, and
    query the server once for all processes."""
    if why := memory_refusal():
        refuse_run(why)
    options.host = options.host or find_locustfile_host(LLMUser, User)
    settings = check_options(options)
    launch = LaunchOptions(
        settings,
        forks=bool(options.processes and not options.worker),
        disruptions=read_disruption_plans(options, settings),
        memory=read_memory_source(options, settings),
    )
    setattr(options, _ATTRIBUTE, launch)
    _adapt_locusts_options(options, settings)
    raise_open_files()  # before the forks, so that children have as many
    looking = options.list_commands or options.show_task_ratio or options.show_task_ratio_json
    if not looking:
        refuse_taken_ports(options)
        survey = _prepare_requests(options, settings)
        setattr(options, _ATTRIBUTE, launch._replace(survey=survey))
    telemetry_sender.keep_loop_free(options)


def _adapt_locusts_options(options: Namespace, settings: Settings) -> None:
    # with its scheme: plain HTTP users of the same run need it too
    options.host = ",".join(settings.addresses) or options.host
    if options.headless or options.autostart:
        # -t: of profiling, see controller/phases.py
        options.llm_run_time, options.run_time = options.run_time, None
        options.llm_users = options.num_users  # before Locust makes it 1
        options.num_users = settings.first_users  # Locust lets users go only when their tasks end
        if _ends_by_itself(settings, options):
            logging.getLogger("locust.main").addFilter(_says_no_run_time)
    # users of a lost worker go to the others at once, not after a minute
    options.enable_rebalancing = True
    if options.processes and not options.worker:
        set_master_port(options)
        tie_forks_to_this_process()
    options.llm_spawn_rate = options.spawn_rate  # what was asked for, which a form shows
    if options.spawn_rate is None and options.num_users:
        if not getattr(options, "llm_users", options.num_users):
            logging.getLogger("locust.main").addFilter(_says_no_shape)
        # all at once: each then waits for its start, which Locust would round to whole seconds
        options.spawn_rate = options.num_users
    if "--print-stats" not in sys.argv:
        # the progress line takes the place of Locust's tables every two seconds
        options.only_summary = True


def _prepare_requests(options: Namespace, settings: Settings) -> Discovery | None:
    """Prepare this process to send requests. Returns what is known of the server; None: it was not
    asked."""
    try:
        use_certificates(options)
        use_source_options(options)
    except ValueError as error:
        refuse_run(str(error))
    read_run_headers(options)  # of a worker too: they do not come from the master
    if not settings.host and not options.worker:
        show_local_servers(name_host_command(sys.argv[0]))
    if options.worker or not (options.headless or options.autostart):
        return None
    return survey_servers(settings, options, here=not options.master)


def _ends_by_itself(settings: Settings, options: Namespace) -> bool:
    """The run ends without -t, too: by a number of requests or sessions, at the end of a trace,
    after its last stage, or as a probe does."""
    bounded = (
        settings.run_time_s
        or settings.request_count
        or settings.num_sessions
        or settings.fixed_schedule
        or settings.staged is not None
        or settings.swept_limits
    )
    return bool(bounded) or hasattr(options, "decoders")


def _says_no_run_time(line: logging.LogRecord) -> bool:
    """Locust does not know what bounds the run, so this line of its log would mislead."""
    return not line.getMessage().startswith("No run time limit set")


def _says_no_shape(line: logging.LogRecord) -> bool:
    """With a LoadTestShape, Locust would log that it ignores -u and -r, which nobody gave."""
    return not line.getMessage().startswith(
        ("--run-time, --users or", "The following option(s) will be ignored")
    )


# -- a run ------------------------------------------------------------------------------------------


@events.init.add_listener
def _init(environment: Environment, runner: Any, **kw: Any) -> None:
    keep_logs_off_live_line()
    extend_locust_events(environment.events)
    launch = take_launch_options(environment.parsed_options)
    if not getattr(environment.parsed_options, "stats_history_enabled", False):
        keep_no_copies_of_rows()
    settings = launch.settings or build_settings(environment.parsed_options)
    if isinstance(runner, WorkerRunner):
        start_worker(environment, runner, settings, forked=launch.forks)
    else:
        Plugin(
            environment, runner, settings, launch.survey, launch.disruptions, launch.memory
        )  # fmt: skip


class Plugin:
    """The plugin in the master, or in the only process. It begins each run, ends it in order, and
    decides the exit status."""

    def __init__(
        self,
        environment: Environment,
        runner: Any,
        settings: Settings,
        survey: Discovery | None,
        disruptions: tuple[DisruptionPlan, ...] = (),
        memory: MemorySource = METRICS_ALONE,
    ) -> None:
        self._environment, self._runner = environment, runner
        self._disruptions, self._memory = disruptions, memory
        """Commands of the next run. A run that a web page starts later has none."""
        self._settings, self._survey = settings, survey
        """The settings and the server of the next run, from the command line and the locustfile, or
        from the form. Nothing else sets them."""
        self._epoch = 0
        self._control: Controller | None = None
        """The controller of the present run."""
        self._shown: Controller | None = None
        """The controller of the present run, or of the last one."""
        self._progress: gevent.Greenlet | None = None
        self._report = self._annotations = ""
        """The tables for the console, until they are printed."""
        self._outcome = RunOutcome()
        """The outcome of the last run, as far as it is known before the end of this process."""
        self._refused = False
        """The run was refused."""
        self._leaving = False
        """Locust ends this process, and the run in it."""
        self._reported = Event()
        """Set while no report is being made."""
        self._reported.set()
        self._sender: WorkerContext | None = None
        """None: this is a worker."""
        self._telemetry = telemetry_sender.Telemetry(environment.parsed_options, LOCAL)
        self._scraped = False
        """Prometheus has a port here."""
        self._greeted = receive_from_workers(
            environment, runner, lambda: self._control, self._refuse
        )
        detach_end(
            runner,
            unattended=environment.web_ui is None,
            ends=lambda: self._control is not None and self._control.shutdown.asked_at is not None,
        )
        listen_for_signals(self._interrupted, self._hurry)
        ours = all(issubclass(user, LLMUser) for user in environment.user_classes)
        self._view: RunView | None = None
        """None: there is no web page here."""
        if environment.web_ui is not None:
            # late: a run without a page does not load them
            from locust_llm.web.prometheus_page import serve_metrics
            from locust_llm.web.routes import attach_pages

            self._view = attach_pages(environment, self._set_next, first=ours)
            serve_metrics(environment, lambda: self._shown)
        if isinstance(runner, LocalRunner):
            self._sender = WorkerContext(
                environment, settings, (self._telemetry.record, self._add_record)
            )
            attach_worker_context(environment, self._sender)
            receive_from_control(runner, self._sender, self._end_sender, self._telemetry.begin)
        else:
            collect_garbage_seldom()
        self._children: gevent.Greenlet | None = None
        """Watches the forked workers until the run begins."""
        options = environment.parsed_options
        if isinstance(runner, MasterRunner) and options and options.processes:
            waits = options.headless or options.autostart
            self._children = attend_children(
                runner,
                options.processes,
                lambda: leave_process(ExitStatus.BROKEN),
                needs_all=waits,
            )
        hooks = environment.events
        _listen_first(hooks.worker_report, self._group_failures)
        _listen_first(hooks.test_start, self.start)
        _listen_first(hooks.test_stopping, self.stopping)
        _listen_first(hooks.test_stop, self.stop)
        _listen_first(hooks.quitting, self.quitting)
        _listen_first(hooks.quit, self.quit)
        # Locust calls those that were added last first
        hooks.quitting.add_listener(self._begin_to_leave)

    def _set_next(self, settings: Settings, survey: Discovery) -> None:
        """Set what the next run uses."""
        self._settings, self._survey = settings, survey

    # -- in the only process -----------------------------------------------------------------------

    def _add_record(self, record: Record) -> None:
        if self._control is not None:
            self._control.records.add(record)

    def _end_sender(self, message: ControlMessage) -> None:
        if isinstance(message, EndRun) and self._sender is not None:
            self._sender.close()

    def _group_failures(self, data: dict[str, Any], **kw: Any) -> None:
        """Group the failures in a worker's report before Locust adds it to its tables."""
        data["errors"] = align_errors_to_rows(self._environment.stats, data.get("errors", {}))

    def _report_status(self, sender: WorkerContext, control: Controller) -> None:
        while control is self._control:
            control.on_status(LOCAL, sender.status(users=self._runner.user_count))
            gevent.sleep(STATUS_S)

    # -- signals -----------------------------------------------------------------------------------

    def _interrupted(self, number: int) -> None:
        """A first Ctrl-C, or another ending signal: end in order; at once where nothing has
        begun."""
        options = self._environment.parsed_options
        if self._leaving and self._reported.is_set():
            return  # whoever interrupts Locust now leaves a traceback, and no status of the run
        if not self._reported.is_set() or (
            self._control is not None and self._control.shutdown.begun
        ):
            is_open = self._control is not None and self._control.run_progress.inside > 0
            logger.info(describe_further_interrupt(requests_open=is_open))
            if self._environment.web_ui is not None:
                self._reported.wait()
                if not self._leaving:
                    interrupt_main()
        elif (
            self._runner.state == STATE_INIT
            and options is not None
            and (options.headless or options.autostart)
        ):
            if self._children is not None:
                self._children.kill(block=False)
            self._runner.quit()  # Locust waits for workers; those that are there would wait on
            report_early_end(number)
            leave_process(signal_exit_status(number))
        else:
            if self._control is not None:
                self._control.shutdown.note_asked()
                if line := self._control.open_line():
                    logger.info(line)
            interrupt_main()

    def _hurry(self) -> None:
        """A further Ctrl-C: wait neither for open requests nor for a report."""
        give_up_reports()
        if self._control is not None:
            self._control.cut_open()
        cut_open_requests(self._environment)

    # -- the start ---------------------------------------------------------------------------------

    def start(self, **kw: Any) -> None:
        """Begin a run. Workers begin with the master's message."""
        try:
            self._begin()
        except (RunRefused, OSError, ValueError) as error:
            self._refuse(str(error))
        except (
            Exception
        ) as error:  # whatever it is, a run that has not begun must not go on without an end
            logger.debug("the start of the run failed", exc_info=True)
            kind = type(error).__name__
            self._refuse(f"{kind}: {error} (is a number or a text among the settings too large?)")

    def _refuse(self, reason: str) -> None:
        """Refuse the next run: it ends, and so does an unattended process."""
        line = f"The run cannot start: {truncate_quoted_text(reason, LINE)}"
        logger.error(line)
        runner, options = self._runner, self._environment.parsed_options
        if self._view is not None:
            self._view.refusal = line
        if options is None or options.headless or options.autostart:
            self._refused = True
        unattended = options is None or options.headless
        gevent.spawn(runner.quit if unattended else runner.stop)

    def _begin(self) -> None:
        """Check the settings, query the server, and begin. Raises whatever may be wrong."""
        environment, runner = self._environment, self._runner
        self._refused = False
        environment.host = address = choose_run_address(environment.host, self._settings.host)
        settings = msgspec.structs.replace(
            self._settings,
            host=address,
            users=_users(runner, self._settings),
            processes=max(1, len(runner.clients)) if isinstance(runner, MasterRunner) else 1,
        )
        survey = self._surveyed(settings)
        if settings.metrics_port and not self._scraped:
            from locust_llm.web.prometheus_page import serve_metrics_on  # late: as above

            serve_metrics_on(settings.metrics_port, lambda: self._shown)
            self._scraped = True
        self._epoch += 1
        control = Controller(
            environment, settings, survey, self._epoch, self._greeted,
            on_record_over=self._view.on_record if self._view is not None else lambda record: None,
            disruptions=self._disruptions,
            memory=self._memory,
        )  # fmt: skip
        self._disruptions = ()
        self._memory = MemorySource(self._memory.pid)
        for note in (*survey.notes, *find_rules_that_cannot_pass(settings)):
            log_note(note)
        self._control = self._shown = control  # the answers of its workers are for it
        try:
            control.begin()
        except Exception:
            self._control = None
            control.abandon()
            raise
        if self._view is not None:
            self._view.begins(control)
        if self._sender is not None:
            spawn_critical(control.fail, 0.0, self._report_status, self._sender, control)
        self._progress = spawn_critical(control.fail, 0.0, show_run_progress, control)
        # a listener may end it now, and Locust stops only what has begun
        runner.update_state(STATE_SPAWNING)

    def _surveyed(self, settings: Settings) -> Discovery:
        """What is known of the server and the dataset. Raises ValueError and OSError."""
        # the next run asks anew: the form may name another server
        survey, self._survey = self._survey, None
        if survey is None:
            for mistake in validate_settings(settings):
                refuse_run(mistake)
            options = self._environment.parsed_options
            here = isinstance(self._runner, LocalRunner) or bool(
                options is not None and options.processes
            )
            survey = survey_servers(settings, options, here=here)
        if dataset := look_through_inputs(settings):  # again: in the web page it came from the form
            if why := explain_too_long_dataset(dataset, survey.context):
                refuse_run(why)
            counted = dataset.sessions if dataset.whole and not dataset.synthetic else None
            notes = (
                *survey.notes,
                f"dataset: {dataset}",
                *filter(None, [explain_outgrown_context(dataset, survey.context)]),
            )
            survey = msgspec.structs.replace(survey, dataset_sessions=counted, notes=notes)
        return survey

    # -- the end -----------------------------------------------------------------------------------

    def stopping(self, **kw: Any) -> None:
        """Start nothing new, and let open requests end."""
        if self._sender is not None:
            # also where a run could not start: its users wait for a message that never comes
            self._sender.close()
        if self._control is None:
            return
        self._reported.clear()
        self._control.drain()

    def stop(self, **kw: Any) -> None:
        """All users are gone: make the report."""
        if self._progress is not None:
            self._progress.kill()
            self._progress = None
        control, self._control = self._control, None
        if control is None:
            return
        self._conclude(control)
        if self._environment.web_ui is not None:
            self._print()

    def _conclude(self, control: Controller) -> None:
        """Make the report of a run and take over what it means for the exit status."""
        self._outcome = self._outcome._replace(incomplete=True)  # until it is known better
        try:
            if self._sender is not None:
                ended = msgspec.structs.replace(
                    self._sender.ended(), telemetry=self._telemetry.end()
                )
                control.losses.on_ended(LOCAL, ended)
            self._report = control.report(verbose=self._asked("verbose"))
            self._annotations = control.annotations
            self._outcome = control.outcome()
            control.close()
            if url := getattr(self._environment.parsed_options, "upload", None):
                self._report += f"{upload.upload_run(control.store.folder, url)}\n"
        finally:
            self._reported.set()
            if self._view is not None:
                self._view.ends()

    def _begin_to_leave(self, **kw: Any) -> None:
        self._leaving = True

    def quitting(self, **kw: Any) -> None:
        """End the users that still run, then decide the exit status. Ctrl-C and SIGTERM come
        here."""
        self._runner.stop()
        self._reported.wait()
        if self._refused or not self._runner.stats.entries:
            disable_locust_tables()  # they would be empty
        elif self._ours() and not (self._asked("verbose") or self._asked("print_stats")):
            disable_locust_tables()
            if line := describe_other_requests(self._runner.stats, self._names()):
                self._report += f"{line}\n"
        if line := self._counted_otherwise():
            self._report += f"{line}\n"
        outcome = _with_locusts(self._outcome, self._environment, self._runner)
        self._environment.process_exit_code = decide_exit_status(
            outcome._replace(refused=self._refused)
        )
        discard_if_unread()

    def quit(self, **kw: Any) -> None:
        self._print()
        ignore_signals()  # the process ends now, with the status that is printed

    def _asked(self, switch: str) -> bool:
        return bool(getattr(self._environment.parsed_options, switch, False))

    def _ours(self) -> int:
        """The number of our requests. Without any, Locust's tables have everything."""
        return 0 if self._shown is None else self._shown.run_progress.counts.total()

    def _counted_otherwise(self) -> str:
        """How Locust's own files count differently, as a sentence."""
        options = self._environment.parsed_options
        if self._shown is None or not any(
            getattr(options, name, None) for name in ("csv_prefix", "html_file")
        ):
            return ""
        stats = self._shown.run_progress
        return describe_count_difference(stats.counts, stats.profiled.total())

    def _names(self) -> set[str]:
        """The names of our requests."""
        return set() if self._shown is None else self._shown.run_progress.names

    def _print(self) -> None:
        """Print the tables last on the console. With ``--json`` standard output is Locust's JSON
        alone."""
        out = sys.stderr if self._asked("json") else sys.stdout
        if self._report:
            write_console(self._report + "\n", out)
            print_ci_commands(self._annotations, out)
        self._report = self._annotations = ""


def _listen_first(hook: EventHook, listener: Callable[..., Any]) -> None:
    """Add the listener before the locustfile's, which were added when it was loaded: they find the
    report made."""
    hook._handlers.insert(0, listener)


def _users(runner: Any, settings: Settings) -> int | None:
    """The requested number of users. None: as many as the arrivals need."""
    grows = settings.users is None and settings.open_loop
    if (
        grows or settings.sweeps(CONCURRENCY) or (settings.warmup_concurrency and settings.users)
    ):  # Locust knows those of the warmup
        return settings.users
    return runner.target_user_count or settings.users


def _with_locusts(outcome: RunOutcome, environment: Environment, runner: Any) -> RunOutcome:
    """Add what Locust knows of failed requests and tasks."""
    harmless = ("RequestCut(", "RequestCancelled(")
    errors = [str(_error(error)) for error in runner.errors.values()]
    options = environment.parsed_options
    return outcome._replace(
        greenlet_failed=locust.log.unhandled_greenlet_exception,
        failed=bool(runner.errors or runner.exceptions),
        only_stopped=bool(errors)
        and not runner.exceptions
        and all(text.startswith(harmless) for text in errors),
        failure_status=ExitStatus.FAILED_REQUESTS
        if options is None
        else options.exit_code_on_error,
        set_by_code=environment.process_exit_code,
    )


def _error(error: Any) -> Any:
    return error.error if isinstance(error.error, str) else repr(error.error)
