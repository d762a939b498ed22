"""Ports: the ports on which this process will listen. A port that cannot be opened is refused on
one line, before any load.

Locust finds out later: its web page then fails beside the run, and a master ends with a traceback.
"""

import errno
import socket
from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from locust_llm.settings.address import explain_unopened_port, parse_metrics_port
from locust_llm.settings.refusal import refuse_run

TAKEN: Final = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
"""Errors that no later try would change. Another machine may know a name that is unknown here."""
ALL: Final = ("", "*")


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
