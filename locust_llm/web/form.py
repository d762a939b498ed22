"""The form: what Locust's pages ask of a run, and what comes back from them, looked at as the command line is.

Locust itself would turn a wrong number into HTTP 500 and leave the other texts as they are, so it never sees any.
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

from locust_llm.core.settings import Settings, base_url
from locust_llm.core.sweep import CONCURRENCY
from locust_llm.run.control.control import Control
from locust_llm.run.discovery import Discovery
from locust_llm.run.flags import OPTIONS, Refused, help_of, number, refuse
from locust_llm.run.options import check, fill_in, rules_of, settings_of
from locust_llm.run.preflight import headers_of, ready
from locust_llm.slo.grammar import PRESETS, parse

from .view import View

FIRST: Final = (
    "model", "request_rate", "sweep", "prefill_concurrency", "prefill_concurrency_ramp_duration",
    "synthetic_input_tokens_mean", "output_tokens_mean", "slo", "slo_preset", "request_count", "warmup_request_count",
    "warmup_duration", "random_seed",
)  # fmt: skip
"""What matters first, in this order; the rest as on the command line."""
TURNED: Final = "prefill_concurrency"
"""The one that can be changed while a run is on; and the users."""
NONE: Final = "none"
"""What a list says that has nothing chosen."""
RULE_END: Final = ";"
"""Between two rules: Locust's form has no field of several lines."""
RULES_HELP: Final = "SLO rules, separated by semicolons: ttft p95 < 500ms; error_rate < 1%"
SPAWN_RATE: Final = 100
"""Users a second, where nobody said: the gate ramps, not the users."""
FIELDS: Final = {option.dest: option for option in OPTIONS}
"""Our options by their fields."""
CHOSEN: Final = {
    **{name: option.allowed for name, option in FIELDS.items() if option.choices},
    "slo_preset": (None, *PRESETS),
}
"""What is chosen from a list, by field."""
OWN: Final = frozenset((*FIELDS, "run_time", "user_count"))
"""Fields that Locust is not to read."""


def fields(extra: Mapping[str, dict[str, Any]], options: Namespace) -> dict[str, dict[str, Any]]:
    """What Locust makes a form of (``extra_options`` of its template), in our order, with the values of the last run."""
    known = [name for name in OWN if name in extra]
    order = sorted(known, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST) + list(extra).index(name))
    found = {}
    for name in [*order, *(name for name in extra if name not in OWN)]:
        field = dict(extra[name], default_value=getattr(options, name, extra[name]["default_value"]))
        if name in FIELDS:
            field["help_text"] = help_of(FIELDS[name])
        if name == "slo":
            field |= {"default_value": f"{RULE_END} ".join(rules_of(options)), "help_text": RULES_HELP}
        elif name in CHOSEN:
            field |= {"choices": [value or NONE for value in CHOSEN[name]]}
        elif name in FIELDS and FIELDS[name].kind is int:
            field |= {"type": "number"}
        found[name] = field
    return found


def filled(options: Namespace, form: Mapping[str, str]) -> Namespace:
    """The options with what the form says in place of what they said. Raises Refused."""
    known = rules_of(options)
    options = Namespace(**vars(options))
    given = {name: "" if text == NONE and name in CHOSEN else text for name, text in form.items()}
    if "slo" in given:
        given["slo"] = given["slo"].replace(RULE_END, "\n")
    fill_in(options, given)
    for rule in rules_of(options):
        if rule not in known and _names_a_folder(rule):
            refuse(f"SLO {rule!r}: a rule that names another run can be given on the command line only")
    for name, text in form.items():  # of a locustfile's own flags
        kind = type(getattr(options, name, None))
        if name not in OWN and kind in (int, float):
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


def asked(options: Namespace, runner: Any) -> Settings:
    """Of a run with these options, over the processes that there are. Raises Refused.

    Locust's form always has a number of users. Where a rate brings them, one is taken for none, and for a sweep of
    concurrency any is.
    """
    users = getattr(options, "llm_users", options.num_users)
    try:
        loose = settings_of(options)
    except (ValueError, OSError):
        loose = Settings()  # the check has a sentence for it
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
    """What of a form is Locust's to read, for a run with these settings."""
    rest = MultiDict((name, value) for name, value in form.items(multi=True) if name not in OWN)
    rest["user_count"] = str(settings.first_users or 1)
    rest.setdefault("spawn_rate", str(SPAWN_RATE))
    rest["host"] = settings.host
    return rest


def _names_a_folder(rule: str) -> bool:
    """Of this machine: whoever sees the page could ask for any, and learn of it from the refusal."""
    try:
        return bool(parse(rule).base)
    except ValueError:
        return False  # the check has a sentence for it


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
        self,
        view: View,
        options: Namespace,
        ask_locust: Callable[[], Any],
        keep_survey: Callable[[Discovery, str], None],
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
        """Of the run that is on: the gate, at once, and the users. A limit that was not edited in the form is left alone:
        the live page may have changed it since."""
        before, form = self._options, flask.request.form
        after = filled(before, form)
        if fixed := [name for name in changed(before, after) if name != TURNED]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in fixed)
            refuse(f"{flags} cannot change while a run is on: only --prefill-concurrency and the users can")
        if form.get("host", "").strip() and base_url(form["host"].strip()) != control.settings.host:
            refuse(f"--host cannot change while a run is on: it goes to {control.settings.host}")
        limit, users = getattr(after, TURNED), getattr(after, "llm_users", None)
        message = "Changed"
        if limit != getattr(before, TURNED):
            self._view.change_limit(limit)
            setattr(before, TURNED, limit)
        elif limit != (target := self._view.target):
            message = (
                f"The prefill limit is not changed: the live page set it to {'none' if target is None else target}"
            )
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
