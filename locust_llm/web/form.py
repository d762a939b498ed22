"""The form: the fields of Locust's pages for a run, and their checks, the same as for the command line.

Locust itself answers a wrong number with HTTP 500 and does not check texts, so it never gets them.
"""

import logging
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, Final

from locust.runners import LocalRunner, MasterRunner
from locust.util.timespan import parse_timespan

import flask
import gevent
import msgspec
from werkzeug.datastructures import ImmutableMultiDict, MultiDict
from werkzeug.exceptions import HTTPException

from locust_llm.core.settings import Settings
from locust_llm.core.sweep import CONCURRENCY
from locust_llm.run.address import base_url
from locust_llm.run.control.control import Control
from locust_llm.run.discovery import Discovery
from locust_llm.run.flags import OPTIONS, Refused, help_of, number, refuse
from locust_llm.run.options import check, fill_in, rules_of, settings_of
from locust_llm.run.preflight import headers_of, ready
from locust_llm.slo.grammar import PRESETS, parse

from .view import View

MAIN_FIELDS: Final = (
    "model", "request_rate", "sweep", "prefill_concurrency", "prefill_concurrency_ramp_duration",
    "synthetic_input_tokens_mean", "output_tokens_mean", "slo", "slo_preset", "request_count", "warmup_request_count",
    "warmup_duration", "random_seed",
)  # fmt: skip
"""The first fields of the form, in this order; the others as on the command line."""
LIMIT_FIELD: Final = "prefill_concurrency"
"""The one field that can change during a run, besides the users."""
NO_CHOICE: Final = "none"
"""The entry of a list for no choice."""
RULE_END: Final = ";"
"""Between two rules: Locust's form has no field of several lines."""
RULES_HELP: Final = "SLO rules, separated by semicolons: ttft p95 < 500ms; error_rate < 1%"
SPAWN_RATE: Final = 100
"""Users per second by default: the gate ramps, not the users."""
FIELDS: Final = {option.dest: option for option in OPTIONS}
"""Our options by their fields."""
CHOICES: Final = {
    **{name: option.allowed for name, option in FIELDS.items() if option.choices},
    "slo_preset": (None, *PRESETS),
}
"""The values of fields with a list."""
OWN_FIELDS: Final = frozenset((*FIELDS, "run_time", "user_count"))
"""Fields that Locust does not get."""


def fields(extra: Mapping[str, dict[str, Any]], options: Namespace) -> dict[str, dict[str, Any]]:
    """The fields of Locust's form (``extra_options`` of its template), in our order, with the values of the last run."""
    known = [name for name in OWN_FIELDS if name in extra]
    order = sorted(
        known,
        key=lambda name: MAIN_FIELDS.index(name) if name in MAIN_FIELDS else len(MAIN_FIELDS) + list(extra).index(name),
    )
    found = {}
    for name in [*order, *(name for name in extra if name not in OWN_FIELDS)]:
        field = dict(extra[name], default_value=getattr(options, name, extra[name]["default_value"]))
        if name in FIELDS:
            field["help_text"] = help_of(FIELDS[name])
        if name == "slo":
            field |= {"default_value": f"{RULE_END} ".join(rules_of(options)), "help_text": RULES_HELP}
        elif name in CHOICES:
            field |= {"choices": [value or NO_CHOICE for value in CHOICES[name]]}
        elif name in FIELDS and FIELDS[name].kind is int:
            field |= {"type": "number"}
        found[name] = field
    return found


def filled(options: Namespace, form: Mapping[str, str]) -> Namespace:
    """The options with the values of the form. Raises Refused."""
    known = rules_of(options)
    options = Namespace(**vars(options))
    given = {name: "" if text == NO_CHOICE and name in CHOICES else text for name, text in form.items()}
    if "slo" in given:
        given["slo"] = given["slo"].replace(RULE_END, "\n")
    fill_in(options, given)
    for rule in rules_of(options):
        if rule not in known and _names_a_folder(rule):
            refuse(f"SLO {rule!r}: a rule with another run is allowed on the command line only")
    for name, text in form.items():  # of a locustfile's own flags
        kind = type(getattr(options, name, None))
        if name not in OWN_FIELDS and kind in (int, float):
            flag = f"--{name.replace('_', '-')}"
            if (value := number(kind, flag)(text.strip())) is None:
                refuse(f"{flag} takes {'a whole number' if kind is int else 'a number'}, got nothing")
            setattr(options, name, value)
    if "host" in form:
        options.host = form["host"].strip()
    if "run_time" in form:
        options.run_time = options.llm_run_time = _seconds(form["run_time"].strip())
    if "user_count" in form:
        options.llm_users = _count(form["user_count"].strip())
    return options


def settings_asked(options: Namespace, runner: Any) -> Settings:
    """The settings of a run with these options and the connected processes. Raises Refused.

    Locust's form always has a number of users. In an open loop one counts as none, and in a sweep of concurrency any number
    does.
    """
    users = getattr(options, "llm_users", options.num_users)
    try:
        loose = settings_of(options)
    except (ValueError, OSError):
        loose = Settings()  # the check reports it
    if loose.sweeps(CONCURRENCY) or (loose.open_loop and not loose.user_centric_rate and users in (0, 1)):
        users = None
    elif users is None:
        users = 1
    options.llm_users = users
    settings = check(options, processes=max(1, len(runner.clients.ready)) if isinstance(runner, MasterRunner) else 1)
    if settings.compares:
        refuse("a run of two arms begins on the command line only: locust-llm ab")
    return settings


def changed(before: Namespace, after: Namespace) -> list[str]:
    """The flags that differ."""
    found = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    if rules_of(before) != rules_of(after):
        found.append("slo")
    return found


def for_locust(form: MultiDict[str, str], settings: Settings) -> MultiDict[str, str]:
    """The fields for Locust, for a run with these settings."""
    rest = MultiDict((name, value) for name, value in form.items(multi=True) if name not in OWN_FIELDS)
    rest["user_count"] = str(settings.first_users or 1)
    rest.setdefault("spawn_rate", str(SPAWN_RATE))
    rest["host"] = settings.host
    return rest


def _names_a_folder(rule: str) -> bool:
    """Any visitor of the page could test which folders exist on this machine."""
    try:
        return bool(parse(rule).base)
    except ValueError:
        return False  # the check reports it


def _count(text: str) -> Any:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        refuse(f"-u takes a whole number, got {text!r}")
    return number(int, "-u")(text)


def _seconds(text: str) -> int | None:
    try:
        return (int(parse_timespan(text)) if text else 0) or None
    except (ValueError, OverflowError):
        refuse(f"-t takes a time such as 20, 20s, 3m, 2h or 1h20m, got {text!r}")


# -- swarm -----------------------------------------------------------------------------------------------------------

logger = logging.getLogger("locust_llm")

MAX_ENDING_S: Final = 120.0
"""A new run waits so long for the end of the one before, with its report."""
MAX_WORKERS_S: Final = 3.0
"""A run waits so long for workers that are connecting."""
NO_WORKERS: Final = "no worker has connected: start one with --worker (on another machine also with --master-host)"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class Swarm:
    """A view of Flask. ``ask_locust``: Locust's own view; ``on_asked``: takes the settings of the next run, and what is
    known of the server."""

    def __init__(
        self,
        view: View,
        options: Namespace,
        ask_locust: Callable[[], Any],
        on_asked: Callable[[Settings, Discovery], None],
    ) -> None:
        self._view, self._options = view, options
        self._ask_locust, self._on_asked = ask_locust, on_asked
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
            why = str(no) if known else f"{type(no).__name__}: {no} (is a value of the form too large?)"
            # in the page too: Locust closes its form after any answer
            self._view.refusal = f"{'Not changed' if on else 'The run cannot start'}: {why}"
            logger.error(self._view.refusal)
            return flask.jsonify({"success": False, "message": why, "host": environment.host})

    def _start(self, runner: Any) -> Any:
        view, form = self._view, flask.request.form
        if view.starting:
            refuse("a run is starting: the server is being checked")
        view.starting, view.refusal = True, ""
        try:
            _wait(lambda: view.control is not None, MAX_ENDING_S, "the last run has not ended yet")
            if isinstance(runner, MasterRunner):
                workers = runner.clients
                _wait(lambda: len(workers.ready) < max(1, len(workers) - len(workers.missing)), MAX_WORKERS_S)
                if not workers.ready:
                    refuse(NO_WORKERS)
            options = filled(self._options, form)
            settings = settings_asked(options, runner)
            headers = headers_of(options)
            if headers:
                self._keep_key(settings.host)
            found = ready(settings, headers, here=isinstance(runner, LocalRunner) or bool(options.processes))
        finally:
            view.starting = False
        self._on_asked(settings, found)
        vars(self._options).update(vars(options))
        return self._pass_on(for_locust(form, settings), settings.users)

    def _edit(self, runner: Any, control: Control) -> Any:
        """Change gate and users of the current run. A limit that was not edited in the form stays: the live page may
        have changed it since."""
        before, form = self._options, flask.request.form
        after = filled(before, form)
        if fixed := [name for name in changed(before, after) if name != LIMIT_FIELD]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in fixed)
            refuse(f"{flags} cannot change during a run: only --prefill-concurrency and the users can")
        if form.get("host", "").strip() and base_url(form["host"].strip()) != control.settings.host:
            refuse(f"--host cannot change during a run: it is {control.settings.host}")
        limit, users = getattr(after, LIMIT_FIELD), getattr(after, "llm_users", None)
        message = "Changed"
        if limit != getattr(before, LIMIT_FIELD):
            self._view.change_limit(limit)
            setattr(before, LIMIT_FIELD, limit)
        elif limit != (target := self._view.target):
            message = f"The prefill limit is unchanged: the live page set it to {'none' if target is None else target}"
        self._view.refusal = ""
        if users and users != runner.target_user_count and control.change_users(users):
            before.llm_users = users
            now: Settings = msgspec.structs.replace(control.settings, users=users, warmup_concurrency=None)
            return self._pass_on(for_locust(form, now), users)
        return flask.jsonify({"success": True, "message": message, "host": self._view.environment.host})

    def _pass_on(self, form: MultiDict[str, str], users: int | None) -> Any:
        flask.request.form = ImmutableMultiDict(form)
        answer = self._ask_locust()
        self._options.num_users = users  # Locust knows those that begin
        return answer

    def _keep_key(self, host: str) -> None:
        """No visitor of this page may have the key sent to another server. Raises Refused."""
        if self._open and host != self._own_host:
            refuse(
                "the API key and headers go to the server of the command line only, as others can reach this page: "
                f"start Locust with --host {host}, or with --web-host 127.0.0.1 or --web-login"
            )


def _wait(while_: Callable[[], bool], seconds: float, refusal: str = "") -> None:
    """Wait while it holds, at most ``seconds``; then raises Refused, if there is a refusal."""
    until = time.monotonic() + seconds
    while while_():
        if time.monotonic() > until:
            if refusal:
                refuse(refusal)
            return
        gevent.sleep(0.05)
