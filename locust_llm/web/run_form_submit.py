"""Run form submit: answers the form of a run (``POST /swarm``). It starts a run, or changes the
present one."""

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

from locust_llm.controller.run_controller import Controller
from locust_llm.locust_adapter.command_line_parser import build_settings
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.server.discovery import Discovery
from locust_llm.server.prepare_run import prepare_run, read_run_headers
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused, refuse_run
from locust_llm.settings.server_address import normalise_base_url

from .command_line_of_form import ARM_FIELDS, FormCommand, add_arms, find_actions
from .dataset_choices import UPLOAD, Datasets
from .form_dataset_check import look_at_dataset
from .form_whitelist import LABEL_FIELD, PICKED, Whitelist
from .live_page_data import RunView
from .locust_form import (
    DATASET_FIELD,
    LIMIT_FIELD,
    check_form_options,
    drop_empty_fields,
    drop_unasked_spawn_rate,
    fill_options,
    list_changed_flags,
    make_locust_form,
    read_form_settings,
)

logger = logging.getLogger("locust_llm")

MAX_ENDING_S: Final = 120.0
"""A new run waits so long for the end of the one before, with its report."""
MAX_WORKERS_S: Final = 3.0
"""A run waits so long for workers that are connecting."""
NO_WORKERS: Final = (
    "no worker is connected: start one with --worker (on another machine, also with --master-host)"
)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def is_reachable_by_others(options: Namespace) -> bool:
    """Whether others can reach the pages, as far as this process knows."""
    return not options.web_login and options.web_host not in LOOPBACK


class RunFormView:
    """A view of Flask. ``ask_locust`` is Locust's own view. ``whitelist`` has the allowed fields.
    ``on_asked`` gets the next run's settings and what is known of the server."""

    def __init__(
        self,
        view: RunView,
        options: Namespace,
        datasets: Datasets,
        whitelist: Whitelist,
        ask_locust: Callable[[], Any],
        on_asked: Callable[[Settings, Discovery], None],
    ) -> None:
        self._view, self._options, self._datasets = view, options, datasets
        self._whitelist, self._ask_locust, self._on_asked = whitelist, ask_locust, on_asked
        self._own_host = normalise_base_url(options.host or "")
        self._open = is_reachable_by_others(options)

    def __call__(self) -> Any:
        environment = self._view.environment
        runner, control = environment.runner, self._view.control
        assert runner is not None
        on = runner.state in ("spawning", "running") and control is not None
        try:
            form = self._whitelist.check(flask.request)
            return (
                self._edit(runner, control, form)
                if on and control is not None
                else self._start(runner, form)
            )
        except HTTPException:
            raise
        except Exception as no:
            known = isinstance(no, RunRefused | ValueError)
            why = (
                str(no)
                if known
                else f"{type(no).__name__}: {no} (is a value of the form too large?)"
            )
            # in the page too: Locust closes its form after any answer
            self._view.refusal = f"{'Not changed' if on else 'The run cannot start'}: {why}"
            logger.error(self._view.refusal)
            return flask.jsonify({"success": False, "message": why, "host": environment.host})

    def _start(self, runner: Any, form: MultiDict[str, str]) -> Any:
        view = self._view
        if view.starting:
            refuse_run("a run is starting: locust-llm is checking the server")
        view.starting, view.refusal = True, ""
        try:
            _wait(lambda: view.control is not None, MAX_ENDING_S, "the last run has not ended yet")
            if isinstance(runner, MasterRunner):
                workers = runner.clients
                _wait(
                    lambda: len(workers.ready) < max(1, len(workers) - len(workers.missing)),
                    MAX_WORKERS_S,
                )
                if not workers.ready:
                    refuse_run(NO_WORKERS)
            from_locusts_page = LABEL_FIELD in flask.request.form
            if from_locusts_page:
                form = drop_unasked_spawn_rate(form, self._options)
            options = self._fill(form)
            self._look_at_dataset(options)
            settings = read_form_settings(options, runner, from_locusts_page=from_locusts_page)
            headers = read_run_headers(options)
            self.keep_key(settings.host)
            discovery = prepare_run(
                settings, headers, here=isinstance(runner, LocalRunner) or bool(options.processes)
            )
        finally:
            view.starting = False
        self._on_asked(settings, discovery)
        vars(self._options).update(vars(options))
        return self._pass_on(
            make_locust_form(self._whitelist.for_locust(form), settings), settings.users
        )

    def show_command(self) -> Any:
        """The command line of the run that the form asks for. Nothing starts, and what no run can
        have is refused. Only here the form may have two arms."""
        try:
            form = self._whitelist.check(flask.request, only_shown=ARM_FIELDS)
            asked = self._fill(form, add_arms(self._options, form))
            # which fills in what nobody gave, such as the number of users
            check_form_options(Namespace(**vars(asked)), self._view.environment.runner)
        except (RunRefused, ValueError, OSError) as no:
            return flask.jsonify({"success": False, "message": str(no)})
        command = FormCommand(asked, self._datasets, find_actions(self._whitelist.own_flags))
        return flask.jsonify(
            {"success": True, "command": command.format(), "notes": list(command.list_notes())}
        )

    def _fill(self, form: MultiDict[str, str], before: Namespace | None = None) -> Namespace:
        options = fill_options(self._options if before is None else before, form)
        if DATASET_FIELD in form:
            options.input_file = self._datasets.path(form[DATASET_FIELD])
        return options

    def _look_at_dataset(self, options: Namespace) -> None:
        try:
            settings = build_settings(options)
        except (ValueError, OSError):
            return  # the check reports it
        look_at_dataset(
            settings, limited=self._datasets.choice_of(options.input_file).startswith(UPLOAD)
        )

    def _edit(self, runner: Any, control: Controller, asked: MultiDict[str, str]) -> Any:
        """Edit gate and users of the present run. A field that is empty or unchanged is no change,
        so a limit from the live page stays."""
        before = self._options
        form = drop_empty_fields(asked)
        if picked := [name for name in PICKED if name in form]:
            refuse_run(f"{' and '.join(picked)} cannot change during a run")
        after = fill_options(before, form)
        if fixed := [name for name in list_changed_flags(before, after) if name != LIMIT_FIELD]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in fixed)
            refuse_run(
                f"{flags} cannot change during a run: only --prefill-concurrency and the number of "
                "users can"
            )
        if "host" in form and normalise_base_url(form["host"].strip()) != control.settings.host:
            refuse_run(f"--host cannot change during a run: it is {control.settings.host}")
        limit = getattr(after, LIMIT_FIELD)
        users = getattr(after, "llm_users", None)
        message = "Changed"
        if limit != getattr(before, LIMIT_FIELD):
            self._view.change_limit(limit)
            setattr(before, LIMIT_FIELD, limit)
        elif limit != (target := self._view.target) and LIMIT_FIELD in form:
            message = (
                f"The prefill limit is unchanged: the live page set it to "
                f"{'none' if target is None else target}"
            )
        if users and users != runner.target_user_count:
            if self._view.change_users(users):
                before.llm_users = users
                self._view.settled()
                now: Settings = msgspec.structs.replace(
                    control.settings, users=users, warmup_concurrency=None
                )
                answer = self._pass_on(
                    make_locust_form(self._whitelist.for_locust(asked), now), users
                )
                if not answer.get_json()["success"]:
                    return answer
            else:
                message = "The number of users is unchanged: the load sets it"
        self._view.settled()
        return flask.jsonify(
            {"success": True, "message": message, "host": self._view.environment.host}
        )

    def _pass_on(self, form: MultiDict[str, str], users: int | None) -> Any:
        flask.request.form = ImmutableMultiDict(form)
        answer = self._ask_locust()
        self._options.num_users = users  # Locust knows those that begin
        return answer

    def keep_key(self, host: str) -> None:
        """No visitor of this page may send the key, or another secret, to another server. Raises
        Refused."""
        if (
            self._open
            and normalise_base_url(host) != self._own_host
            and list_secret_names(self._options)
        ):
            refuse_run(
                "the API key and headers go only to the server of the command line, because "
                f"others can reach this page. Start Locust with --host {host}, --web-host "
                "127.0.0.1 or --web-login"
            )


def _wait(while_: Callable[[], bool], seconds: float, refusal: str = "") -> None:
    """Wait while it holds, at most ``seconds``. Then raise Refused, if there is a refusal."""
    until = time.monotonic() + seconds
    while while_():
        if time.monotonic() > until:
            if refusal:
                refuse_run(refusal)
            return
        gevent.sleep(0.05)
