"""Ports: the ports on which this process will listen, also as the master of forked workers. A port
that cannot be opened is refused on one line, before any load.

Locust finds out later: its web page then fails beside the run, and a master ends with a traceback.
"""

import contextlib
import errno
import socket
from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.server_address import explain_unopened_port, parse_metrics_port

TAKEN: Final = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
"""Errors that no later try would change. Another machine may know a name that is unknown here."""
ALL: Final = ("", "*")
PORT: Final = 5557
"""The master's port, if --master-bind-port is not given."""


class ListeningPort(NamedTuple):
    """A port of an option."""

    flag: str
    host: str
    port: int


def refuse_taken_ports(options: Namespace) -> None:
    """Raises Refused if a port is taken."""
    for flag, host, port in _listeners(options):
        try:
            _try(host, port)
        except OSError as error:
            if error.errno in TAKEN:
                refuse_run(
                    explain_unopened_port(
                        str(port) if host in ALL else f"{host}:{port}", error, flag
                    )
                )


def _listeners(options: Namespace) -> Iterator[ListeningPort]:
    """The ports of this process. Workers listen nowhere, and the master of ``--processes`` takes a
    free port."""
    if options.worker:
        return
    if not options.headless:
        yield ListeningPort("--web-port", options.web_host or "", options.web_port)
    if options.master and not options.processes:
        yield ListeningPort(
            "--master-bind-port", options.master_bind_host, options.master_bind_port
        )
    if options.metrics_port:
        try:
            host, port = parse_metrics_port(options.metrics_port)
        except ValueError as error:
            refuse_run(str(error))
        yield ListeningPort("--metrics-port", host, port)


def _try(host: str, port: int) -> None:
    """Raises OSError if the port cannot be opened."""
    where = None if host in ALL else host
    for family, kind, _, _, address in socket.getaddrinfo(
        where, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        if where is None and family != socket.AF_INET:
            continue
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)


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
