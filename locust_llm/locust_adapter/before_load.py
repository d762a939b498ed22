"""Before load: between parsing and forking, impossible runs are refused and Locust's options are
set for the run."""

import contextlib
import logging
import socket
import sys
from argparse import Namespace
from typing import Final, NamedTuple

from locust_llm.access.certificates import use_certificates
from locust_llm.access.source_addresses import use_source_options
from locust_llm.records.machine import memory_refusal
from locust_llm.server.discovery import Discovery
from locust_llm.server.preflight import find_locustfile_host, raise_open_files, read_run_headers
from locust_llm.server.survey import survey_servers
from locust_llm.settings.refusal import refuse_run
from locust_llm.settings.settings import Settings

from .forked_workers import tie_forks_to_this_process
from .parsed_options import check_options
from .ports import refuse_taken_ports

PORT: Final = 5557
"""The master's port, if --master-bind-port is not given."""
_ATTRIBUTE: Final = "llm_launch"


class LaunchOptions(NamedTuple):
    """What is known before there is an environment."""

    settings: Settings | None = None
    """The checked settings of the command line. None: there was none."""
    survey: Discovery | None = None
    """What is known of the server. None: it was not asked."""
    forks: bool = False
    """This process is the master of its own children, or one of them."""


def take_launch_options(options: Namespace | None) -> LaunchOptions:
    """Take them off the options, which Locust sends to workers."""
    launch = vars(options).pop(_ATTRIBUTE, None) if options is not None else None
    return launch or LaunchOptions()


def before_load(options: Namespace, user_class: type, base: type) -> None:
    """Refuse impossible runs, and query the server once for all processes. ``user_class`` has the
    ``host``, if it is derived from ``base``."""
    if why := memory_refusal():
        refuse_run(why)
    options.host = options.host or find_locustfile_host(user_class, base)
    settings = check_options(options)
    launch = LaunchOptions(settings, forks=bool(options.processes and not options.worker))
    setattr(options, _ATTRIBUTE, launch)
    options.host = (
        ",".join(settings.addresses) or options.host
    )  # with its scheme: plain HTTP users of the same run need it too
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
    raise_open_files()  # before the forks, so that children have as many
    looking = options.list_commands or options.show_task_ratio or options.show_task_ratio_json
    if looking:
        return
    refuse_taken_ports(options)
    try:
        use_certificates(options)
        use_source_options(options)
    except ValueError as error:
        refuse_run(str(error))
    read_run_headers(options)  # of a worker too: they do not come from the master
    if options.worker:
        return
    if options.headless or options.autostart:
        discovery = survey_servers(settings, options, here=not options.master)
        setattr(options, _ATTRIBUTE, launch._replace(survey=discovery))


def _ends_by_itself(s: Settings, options: Namespace) -> bool:
    """The run ends without -t, too: by a number of requests or sessions, at the end of a trace,
    after its last stage, or as a probe does."""
    bounded = (
        s.run_time_s
        or s.request_count
        or s.num_sessions
        or s.fixed_schedule
        or s.staged is not None
        or s.swept_limits
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


def set_master_port(options: Namespace) -> None:
    """Choose where the master of ``--processes`` listens, and for whom."""
    wanted = options.master_bind_port
    if not options.master and options.master_bind_host == "*":
        # all workers are on this machine: nobody else is to join
        options.master_bind_host = "127.0.0.1"
        # nobody needs to know it, and runs that start at once would both find it free
        if wanted == PORT:
            wanted = 0
    options.master_port = options.master_bind_port = _free_port(wanted)


def _free_port(port: int) -> int:
    """``port``, or another one if another run on this machine has it. Workers would wait for a
    minute and give up."""
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.create_server(("", wanted)) as listener:
            return int(listener.getsockname()[1])
    return port
