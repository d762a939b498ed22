"""Checks: what must be there before a run may begin: certificates, sockets, a folder for its files, and the server."""

import contextlib
import logging
import os
from argparse import Namespace
from collections.abc import Mapping

import gevent

from .folder import make_folder
from .options import refuse, request_headers
from .prepared import authorities
from .settings import Settings, base_url
from .sockets import local_ports, raise_open_files, shortage
from .survey import Survey, SurveyFailed, survey

logger = logging.getLogger("locust_llm")


def headers_of(options: Namespace | None) -> dict[str, str]:
    """Of every request, the key among them. Raises Refused."""
    try:
        return request_headers(options)
    except OSError as error:
        refuse(f"--api-key-file {error.filename}: {error.strerror}")
    except ValueError:
        refuse("the API key (--api-key-file or OPENAI_API_KEY) is not one line of text")


def written_host(ours: type, every: type) -> str | None:
    """The host of the user classes below ``ours``, as the locustfile has it; None if they have none, or if not all that are
    below ``every`` have the same: Locust gives all of them that of the run."""
    found = _hosts(ours)
    return found.pop() if len(found) == 1 and _hosts(every) <= found else None


def _hosts(base: type) -> set[str]:
    kinds, found = [base], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found.add(getattr(kind, "host", None) or "")
    return found - {""}


def the_address(now: str | None, checked: str) -> str:
    """Of a run that begins: ``checked``, whatever somebody has made of Locust's host ``now``; without one that."""
    wanted = base_url(now or "")
    if checked and wanted and wanted != checked:
        logger.warning(f"the host {wanted} is not followed: the run goes to {checked}, the address that was checked")
    return checked or wanted


def ready(settings: Settings, headers: Mapping[str, str], *, here: bool) -> Survey:
    """The server was asked, and the run may begin. ``here``: its users are on this machine. Raises Refused."""
    if not settings.host:
        refuse("--host is missing: the server's address, such as --host localhost:8000")
    if settings.most_users and here:
        short = shortage(settings.most_users, settings.processes, raise_open_files(), local_ports())
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
        return survey(settings, headers, verify=authorities(), sleep=gevent.sleep)
    except SurveyFailed as error:
        refuse(str(error))
