"""Swarm: what stands before Locust's own start and edit of a run: the form is looked at, and the server asked, before
Locust sees anything. What cannot be is said in the form, in the words of the command line.
"""

import logging
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from locust.runners import LocalRunner, MasterRunner

import flask
import gevent
import msgspec
from werkzeug.datastructures import ImmutableMultiDict, MultiDict
from werkzeug.exceptions import HTTPException

from .checks import headers_of, ready
from .control import Control
from .form import TURNED, asked, changed, filled, for_locust
from .options import Refused, refuse
from .settings import Settings, base_url
from .survey import Survey
from .view import View

logger = logging.getLogger("locust_llm")

ENDING_S: Final = 120.0
"""How long a new run waits for the end of the one before, its report included."""
WORKERS_S: Final = 3.0
"""How long it waits for workers that are on their way."""
NO_WORKERS: Final = (
    "no worker has connected yet: start one with --worker, and --master-host where this is not its machine"
)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class Swarm:
    """A view of Flask. ``ask_locust``: Locust's; ``keep_survey``: takes what was learnt of the server
    for the next run, and its address."""

    def __init__(
        self, view: View, options: Namespace, ask_locust: Callable[[], Any], keep_survey: Callable[[Survey, str], None]
    ) -> None:
        self._view, self._options = view, options
        self._ask_locust, self._keep_survey = ask_locust, keep_survey
        self._own_host = base_url(options.host or "")
        self._open = not options.web_login and options.web_host not in LOOPBACK

    def __call__(self) -> Any:
        environment = self._view.environment
        runner, control = environment.runner, self._view.control
        assert runner is not None
        on = runner.state in ("spawning", "running") and control is not None
        try:
            return self._edit(runner, control) if on and control is not None else self._start(runner)
        except HTTPException:
            raise
        except Exception as no:
            known = isinstance(no, Refused | ValueError)
            why = str(no) if known else f"{type(no).__name__}: {no} (is a number or a text of the form too large?)"
            # in the page too: Locust closes its form of changes whatever comes back
            self._view.refusal = f"{'Not changed' if on else 'The run cannot start'}: {why}"
            logger.error(self._view.refusal)
            return flask.jsonify({"success": False, "message": why, "host": environment.host})

    def _start(self, runner: Any) -> Any:
        view, form = self._view, flask.request.form
        if view.starting:
            refuse("a run is about to start: the server is being asked")
        view.starting, view.refusal = True, ""
        try:
            _wait(lambda: view.control is not None, ENDING_S, "the last run has not ended yet")
            if isinstance(runner, MasterRunner):
                workers = runner.clients
                _wait(lambda: len(workers.ready) < max(1, len(workers) - len(workers.missing)), WORKERS_S)
                if not workers.ready:
                    refuse(NO_WORKERS)
            options = filled(self._options, form)
            settings = asked(options, runner)
            headers = headers_of(options)
            if headers:
                self._keep_key(settings.host)
            found = ready(settings, headers, here=isinstance(runner, LocalRunner) or bool(options.processes))
        finally:
            view.starting = False
        self._keep_survey(found, settings.host)
        vars(self._options).update(vars(options))
        return self._pass_on(for_locust(form, settings), settings.users)

    def _edit(self, runner: Any, control: Control) -> Any:
        """Of the run that is on: the gate, at once, and the users."""
        before, form = self._options, flask.request.form
        after = filled(before, form)
        if fixed := [name for name in changed(before, after) if name != TURNED]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in fixed)
            refuse(f"{flags} cannot change while a run is on: only --prefill-concurrency and the users can")
        if form.get("host", "").strip() and base_url(form["host"].strip()) != control.settings.host:
            refuse(f"--host cannot change while a run is on: it goes to {control.settings.host}")
        limit, users = getattr(after, TURNED), getattr(after, "llm_users", None)
        if TURNED in form and limit != self._view.target:
            self._view.turn(limit)
        self._view.refusal = ""
        if users and users != runner.target_user_count and control.change_users(users):
            before.llm_users = users
            now: Settings = msgspec.structs.replace(control.settings, users=users, warmup_concurrency=None)
            return self._pass_on(for_locust(form, now), users)
        return flask.jsonify({"success": True, "message": "Changed", "host": self._view.environment.host})

    def _pass_on(self, form: MultiDict[str, str], users: int | None) -> Any:
        flask.request.form = ImmutableMultiDict(form)
        answer = self._ask_locust()
        self._options.num_users = users  # Locust knows those that begin
        return answer

    def _keep_key(self, host: str) -> None:
        """Nobody who can reach this page shall have the key sent to a server of his own. Raises Refused."""
        if self._open and host != self._own_host:
            refuse(
                "the API key and other headers go to the server of the command line only, as others can reach this page: "
                f"start Locust with --host {host}, or with --web-host 127.0.0.1 or --web-login"
            )


def _wait(while_: Callable[[], bool], seconds: float, refusal: str = "") -> None:
    """At most so long. Raises Refused then, if there is a reason."""
    until = time.monotonic() + seconds
    while while_():
        if time.monotonic() > until:
            if refusal:
                refuse(refusal)
            return
        gevent.sleep(0.05)
