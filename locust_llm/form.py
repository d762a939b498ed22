"""The form: what Locust's pages ask of a run, and what comes back from them, looked at as the command line is.

Locust itself would turn a wrong number into HTTP 500 and leave the other texts as they are, so it never sees any.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from locust.runners import MasterRunner
from locust.util.timespan import parse_timespan

from werkzeug.datastructures import MultiDict

from .options import CHOICES, FLAGS, SWITCHES, check, fill_in, number, refuse, rules_of, settings_of
from .settings import Settings
from .slo import PRESETS, parse
from .stages import CONCURRENCY

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
RULES_HELP: Final = "What must hold, a rule a line: ttft p95 < 500ms"
SPAWN_RATE: Final = 100
"""Users a second, where nobody said: the gate ramps, not the users."""
CHOSEN: Final[dict[str, tuple[str | None, ...]]] = {
    **{flag[2:].replace("-", "_"): values for flag, values in CHOICES.items()},
    "slo_preset": (None, *PRESETS),
}
"""What is chosen from a list, by field."""
NAMES: Final = tuple(
    flag[2:].replace("-", "_") for flag in (*(flag for flag, *_ in FLAGS), *(flag for flag, _, _ in SWITCHES))
)
OWN: Final = frozenset((*NAMES, "slo", "run_time", "user_count"))
"""Fields that Locust is not to read."""


def fields(extra: Mapping[str, dict[str, Any]], options: Namespace) -> dict[str, dict[str, Any]]:
    """What Locust makes a form of (``extra_options`` of its template), in our order, with the values of the last run."""
    whole = {flag[2:].replace("-", "_") for flag, kind, *_ in FLAGS if kind is int}
    known = [name for name in OWN if name in extra]
    order = sorted(known, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST) + list(extra).index(name))
    found = {}
    for name in [*order, *(name for name in extra if name not in OWN)]:
        field = dict(extra[name], default_value=getattr(options, name, extra[name]["default_value"]))
        if name == "slo":
            field |= {"default_value": "\n".join(rules_of(options)), "help_text": RULES_HELP}
        elif name in CHOSEN:
            field |= {"choices": [value or NONE for value in CHOSEN[name]]}
        elif name in whole:
            field |= {"type": "number"}
        found[name] = field
    return found


def filled(options: Namespace, form: Mapping[str, str]) -> Namespace:
    """The options with what the form says in place of what they said. Raises Refused."""
    known = rules_of(options)
    options = Namespace(**vars(options))
    fill_in(options, {name: "" if text == NONE and name in CHOSEN else text for name, text in form.items()})
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
    return check(options, processes=max(1, len(runner.clients.ready)) if isinstance(runner, MasterRunner) else 1)


def changed(before: Namespace, after: Namespace) -> list[str]:
    """The flags that differ."""
    found = [name for name in NAMES if getattr(before, name) != getattr(after, name)]
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
