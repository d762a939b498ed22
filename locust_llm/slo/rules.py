"""SLO rules: one grammar for flag, file, environment and web form, the presets, and AIPerf's form
of a goodput.

    [warn:|abort:] metric [{selector, ...}] [statistic] operator limit [given condition and
    condition ...]
    [warn:] metric [{selector, ...}] [statistic] within tolerance of folder [given ...]

    ttft p95 < 500ms                                        a latency needs a statistic: avg, min, max, med or pNN
    error_rate < 1%                                         shares and rates are one number
    output_tokens_per_s >= 2500
    attainment >= 99% given ttft < 1s and itl < 50ms        the share of requests that meet every condition
    goodput >= 5/s given ttft < 1s                          those requests a second
    ttft{class=ShortQuestions, input=1k..4k} p95 < 300ms    only these requests
    ttft{concurrency=8..32} p95 < 500ms                     only these stages of a sweep, 8 and 32 being two of them
    ttft p95 within 5% of reports/base                      no worse than that run's by more than 5 % of it (or 20ms)
    error_rate within 1pp of "reports/last night"           of shares in percentage points
    leaks == 0                                              a count, with --check-answers
    recovery_time < 30s                                     one time of the run, with --disrupt

``warn:`` is reported and never decides; ``abort:`` decides like any other, and may end the run as
soon as it is broken.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NoReturn

import msgspec

from locust_llm.text.format import find_nearest_names, format_plain_number
from locust_llm.text.numbers import truncate_quoted_text

from .metric_definitions import (
    BY_NAME,
    BY_WORD,
    COUNT,
    GIVEN,
    MEASURES,
    OF_ANSWERS,
    OF_RUN,
    OF_SCHEDULE,
    OF_WHOLE_RUN,
    POOLED,
    RATE,
    SHARE,
    TIME,
    RuleMeasure,
)

PASS: Final = "PASS"
FAIL: Final = "FAIL"
INCONCLUSIVE: Final = "INCONCLUSIVE"

CLEAR: Final = 0.3
"""A run of enough requests decides a limit that is so far away, as a share of it."""
WARN: Final = "warn"
ABORT: Final = "abort"
OPERATORS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}
EQUALS: Final = "=="
"""The operator of counts alone."""
SHOWN_CHARS: Final = 80
"""The characters of a part of a rule in a message."""
MAX_RULE_CHARS: Final = 10_000
"""Longer than 100 conditions with their names."""
MAX_CONDITIONS: Final = 100
"""Each condition is checked for every request, and all of them stand in every report."""
STAGES: Final = ("stage", "concurrency", "request-rate", "prefill-concurrency", "input-tokens")
"""Selectors of stages, by the value that the sweep changes."""
SELECTORS: Final = ("class", "input", "name", "model", "tenant", "turn", "images", *STAGES)
MOST_TOKENS: Final = 1e12
"""A length has twelve digits at most."""
TURNS: Final = ("first", "later")
COLUMNS: Final = {"class": "user_class", "name": "name", "model": "model", "tenant": "tenant"}
"""Selectors of requests by a value that they have, and the record's name for it."""
IMAGES: Final = "images"
"""The selector by the number of images in a request."""
INPUT: Final = "input"
"""The selector by the prompt's length in tokens, as delivered, else as requested."""

Predicate = Callable[[Any], Any]
"""A test of one value, or of a column elementwise. For NaN, no value, it is false."""

QUOTED: Final = r'"(?:[^"]|"")*+"'
"""A value in double quotes, which are doubled inside."""
_PICK: Final = re.compile(
    rf'\s*(?P<key>[\w-]+)\s*=\s*(?P<value>{QUOTED}|[^",\s](?:[^",]*[^",\s])?)\s*(?:,|$)'
)
SELECTOR_EXAMPLES: Final = {
    "input": "{input=4k..16k} for 4,000 to 15,999 tokens, or {input=4k..} for 4,000 and more",
    "images": "{images=1..4} for 1 to 3 images, or {images=1..} for 1 and more",
    "turn": "{turn=first} or {turn=later}",
    **{
        key: f"{{{key}=8..32}} for the stages from 8 to 32, or {{{key}=8}} for one"
        for key in STAGES
    },
}
"""How a selector whose value is no text is written, by its key."""
WITHIN: Final = "within"
"""The operator of a rule about the same value of another run, its base."""
STATISTICS: Final = "avg, min, max, med and pNN (p95)"

PRESETS: Final[dict[str, tuple[str, ...]]] = {
    # "Prefill and Decode for Concurrent Requests" (B. Merkel, TNG) on interactive use: a first
    # token in 3 seconds or less, 100 to 300 ms a token; after more than 5 seconds people take it
    # for broken. The percentiles are ours.
    "chat": ("ttft p95 <= 3s", "ttft p99 <= 5s", "itl p95 <= 300ms", "warn: itl p95 <= 100ms"),
    # MLPerf Inference, scenario Server, p99 over queries of TTFT and TPOT (our ITL): ttft_latency,
    # tpot_latency and target_latency_percentile of loadgen/mlperf.conf in
    # github.com/mlcommons/inference, commit 001712e9
    **{
        f"mlperf-{model}": (f"ttft p99 <= {ttft_ms}ms", f"itl p99 <= {tpot_ms}ms")
        for model, ttft_ms, tpot_ms in (
            ("llama2-70b", 2000, 200),
            ("llama2-70b-interactive", 450, 40),
            ("mixtral-8x7b", 2000, 200),
            ("llama3.1-8b", 2000, 100),
            ("llama3.1-8b-interactive", 500, 30),
            ("llama3.1-405b", 6000, 175),
            ("llama3.1-405b-interactive", 4500, 80),
            ("deepseek-r1", 2000, 80),
            ("deepseek-r1-interactive", 1500, 15),
        )
    },
}


class Condition(msgspec.Struct, frozen=True):
    """``ttft < 1s``: what one request must meet."""

    metric: str
    op: str
    number: float
    unit: str

    @property
    def limit(self) -> float:
        """Seconds, or a number a second."""
        return self.number / BY_WORD[self.metric].units[self.unit]

    def met(self, value: Any, answered: Any) -> Any:
        """Whether a successful request with this value (in the unit of ``limit``; NaN: it has none)
        meets it. ``answered``: it had a first token. It works elementwise on columns.

        An answer of one token cannot have some metrics, and meets the condition there.
        """
        metric = BY_WORD[self.metric].metric
        within = OPERATORS[self.op](value, self.limit)
        if metric is None or not metric.two_tokens:
            return within
        return within | ((value != value) & answered)

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {format_plain_number(self.number)}{self.unit}"


class Rule(msgspec.Struct, frozen=True):
    """One rule. Its text (``str``) is its canonical form: ``parse_rule`` makes the same rule of
    it."""

    metric: str
    """The word of a measure."""
    op: str
    number: float
    """The limit in ``unit``, as written."""
    unit: str
    stat: str = ""
    """``avg``, ``min``, ``max`` or ``p95``. Empty: the measure is one number."""
    where: tuple[tuple[str, str], ...] = ()
    """Selectors and their values. Lengths are ``1000..4000`` (from 1,000 to 3,999), ``550``,
    ``..200`` or ``5000..``. Values of stages are the same, but with both ends."""
    given: tuple[Condition, ...] = ()
    kind: str = ""
    """``warn``, ``abort`` or neither."""
    base: str = ""
    """For ``within``: the folder of the run that this one must not be worse than, by more than the
    limit."""

    @property
    def limit(self) -> float:
        """Seconds, a share of 1, or a number a second. For ``within`` it may be a share (``%``) of
        the base's value."""
        return self.number / self.factor

    @property
    def factor(self) -> float:
        """The factor from the unit of ``limit`` to ``unit``."""
        measure = BY_WORD[self.metric]
        return (_rooms(measure) if self.base else measure.units)[self.unit]

    @property
    def less_is_better(self) -> bool:
        """True for latencies and errors, False for throughput, attainment and goodput."""
        return BY_WORD[self.metric].less_is_better

    @property
    def percentile(self) -> float | None:
        return float(self.stat[1:]) if self.stat.startswith("p") else None

    @property
    def decides(self) -> bool:
        return self.kind != WARN

    @property
    def is_at_edge(self) -> bool:
        """``error_rate <= 0%``: however many requests there are, their interval goes beyond the
        limit."""
        measure = BY_WORD[self.metric]
        is_count = measure.metric is None and measure.units is SHARE
        if self.base or self.metric in OF_RUN or not is_count:
            return False
        return self.limit == (0.0 if self.op.startswith("<") else 1.0)

    @property
    def staged(self) -> bool:
        """The rule is for some stages of a sweep."""
        return any(key in STAGES for key, _ in self.where)

    def at(self, value: float, axis: str = "") -> bool:
        """Whether it is for a stage of this value. ``axis`` is the sweep's; empty if unknown."""
        ranges = [(key, parse_stage_range(range_)) for key, range_ in self.where if key in STAGES]
        return all(
            low <= value <= high and (key == "stage" or axis in ("", key))
            for key, (low, high) in ranges
        )

    @property
    def felt(self) -> bool:
        """The report computes its readability metric."""
        given = [condition.metric for condition in self.given]
        return any(map(_depends_on_reader, (self.metric, *given)))

    @property
    def early(self) -> bool:
        """It can be decided as broken during the run: it is neither a rate, nor an extreme that a
        later request may still reach."""
        measure = BY_WORD[self.metric]
        if self.base or self.felt:
            return False
        if measure.metric is None:
            return measure.units is SHARE and measure.word not in OF_RUN
        return (self.stat, self.op[0]) not in (("max", ">"), ("min", "<"))

    def holds(self, value: float) -> bool:
        """Whether the rule holds for this value, in the unit of ``limit``. For ``within`` the value
        is the difference to the base."""
        return bool(self.comparison(value, self.limit))

    @property
    def comparison(self) -> Callable[[Any, Any], Any]:
        """What ``holds`` compares a value with the limit by. It takes an array of values too."""
        if self.op == EQUALS:
            return eq
        return le if self.base else OPERATORS[self.op]

    def decides_around(self, low: float, high: float) -> bool:
        """Whether an interval with these ends would have decided a limit CLEAR higher, and one as
        much lower: the value is close to the limit. For a share near 100 % the distance counts in
        its remainder to 100 %."""
        scale = self.limit
        if BY_WORD[self.metric].units is SHARE and not self.base:
            scale = min(self.limit, 1 - self.limit)
        return self.limit - CLEAR * scale < low <= high < self.limit + CLEAR * scale

    def __str__(self) -> str:
        where = ", ".join(f"{key}={quote_value(value)}" for key, value in self.where)
        stat = f" {self.stat}" if self.stat else ""
        given = f" given {' and '.join(map(str, self.given))}" if self.given else ""
        kind = f"{self.kind}: " if self.kind else ""
        braces = f"{{{where}}}" if where else ""
        base = f" of {_path(self.base)}" if self.base else ""
        return (
            f"{kind}{self.metric}{braces}{stat} {self.op} "
            f"{format_plain_number(self.number)}{self.unit}{base}{given}"
        )


def _depends_on_reader(word: str) -> bool:
    metric = BY_WORD[word].metric
    return metric is not None and metric.felt


def parse_rule(text: str) -> Rule:
    """Read a rule. Raises ValueError of one sentence: the mistake, and what is possible."""
    try:
        if len(text) > MAX_RULE_CHARS:
            raise_selector_error(
                f"it has {len(text):,} characters, and at most {MAX_RULE_CHARS:,} are possible"
            )
        return _rule(text.strip())
    except ValueError as error:
        raise ValueError(
            f"SLO {truncate_quoted_text(text.strip(), SHOWN_CHARS)!r}: {error}"
        ) from None


def parse_goodput(text: str) -> tuple[Condition, ...]:
    """Read AIPerf's ``time_to_first_token:300 inter_token_latency:20``: limits in ms (per-user
    throughput: tokens/s), upper ones for latencies, lower ones for throughputs. Raises ValueError
    of one sentence."""
    try:
        pairs = text.split() or [""]
        if len(pairs) > MAX_CONDITIONS:
            raise_selector_error(
                f"it has {len(pairs):,} limits, and at most {MAX_CONDITIONS} are possible"
            )
        return tuple(map(_pair, pairs))
    except ValueError as error:
        raise ValueError(f"--goodput {text[:200]!r}: {error}") from None


def expand_preset(name: str) -> tuple[str, ...]:
    """The rules of a preset, as text. Raises ValueError of one sentence."""
    if name not in PRESETS:
        raise ValueError(
            f"unknown SLO preset {name!r}{find_nearest_names(name, PRESETS)}; there are: "
            f"{', '.join(PRESETS)}"
        )
    return PRESETS[name]


# -- parts of a rule -------------------------------------------------------------------------------

_HEAD: Final = re.compile(
    rf"(?:(?P<kind>\w+)\s*:)?\s*(?P<metric>\w+)\s*(?:\{{(?P<where>(?:[^\"{{}}]|{QUOTED})*)\}})?(?P<rest>.*)",
    re.DOTALL,
)
_GIVEN: Final = re.compile(r"\bgiven\b", re.IGNORECASE)
_AND: Final = re.compile(r"\band\b", re.IGNORECASE)
_WITHIN: Final = re.compile(rf"\b{WITHIN}\b", re.IGNORECASE)
_ROOM: Final = re.compile(
    rf'(?P<room>.*?)(?<!\s)\s+of\s+(?P<base>{QUOTED}|[^\s"]\S*)(?:\s+given\b(?P<given>.*))?',
    re.IGNORECASE | re.DOTALL,
)
_LIMIT: Final = re.compile(r"(?P<left>[^<>=!]*?)\s*(?P<op>[<>=!]+)\s*(?P<limit>.*)", re.DOTALL)
_NUMBER: Final = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D\S*)?", re.DOTALL
)


def _rule(text: str) -> Rule:
    head = _HEAD.fullmatch(text)
    if not head:
        raise_selector_error(
            "it does not begin with a metric: write, for example, 'ttft p95 < 500ms'"
        )
    kind = (head["kind"] or "").lower()
    rest = head["rest"].strip()
    if kind not in ("", WARN, ABORT):
        raise_selector_error(f"unknown prefix {head['kind']}: there are warn: and abort:")
    measure = _measure(head["metric"])
    if rest.startswith("{"):
        raise_selector_error(
            "the braces after the metric are not closed: write {class=ShortQuestions}"
        )
    where = () if head["where"] is None else parse_selectors(head["where"])
    if measure.word in OF_SCHEDULE and any(key not in STAGES for key, _ in where):
        raise_selector_error(f"{measure.word} describes the whole schedule: leave out the braces")
    if measure.word in OF_ANSWERS and any(key not in STAGES for key, _ in where):
        raise_selector_error(f"{measure.word} describes all answers: leave out the braces")
    if measure.word in OF_WHOLE_RUN and where:
        raise_selector_error(f"{measure.word} describes the whole run: leave out the braces")
    counted_once = (*OF_ANSWERS, *OF_WHOLE_RUN)
    if measure.word in counted_once and _WITHIN.search(rest) is not None:
        raise_selector_error(f"{measure.word} is compared with no other run: give its limit")
    if (within := _WITHIN.search(rest)) is not None:
        stat = rest[: within.start()].strip()
        op = WITHIN
        number, unit, base, given = _room(rest[within.end() :], measure)
    else:
        left, *given = _GIVEN.split(rest, maxsplit=1)
        stat, op, number, unit = _compared(left, measure)
        base = ""
    if base and stat.lower() in ("min", "max"):
        raise_selector_error(
            f"the {stat} of two runs differs at random, however long they are: use p99, for example"
        )
    if given and measure.word not in GIVEN:
        raise_selector_error(
            f"{measure.word} has no conditions: 'given' is for {' and '.join(GIVEN)}"
        )
    texts = list(chain.from_iterable(map(_AND.split, given)))
    if len(texts) > MAX_CONDITIONS:
        raise_selector_error(
            f"it has {len(texts):,} conditions, and at most {MAX_CONDITIONS} are possible"
        )
    conditions = tuple(map(_condition, texts))
    return Rule(
        measure.word, op, number, unit, _statistic(stat, measure), where, conditions, kind, base
    )


def _room(text: str, measure: RuleMeasure) -> tuple[float, str, str, list[str]]:
    """(number, unit, folder of the base, conditions) of the text after ``within``."""
    match = _ROOM.fullmatch(text.strip())
    if not match or match["base"] == '""':
        raise_selector_error(
            "'within' needs an amount and a run: write 'within 5% of reports/base', a path with "
            "spaces in double quotes"
        )
    if measure.units is SHARE and match["room"].endswith("%"):
        raise_selector_error(
            f"{match['room']} of a share is ambiguous: write 5pp, in percentage points"
        )
    number, unit = _amount(match["room"], measure, _rooms(measure))
    base = (
        match["base"][1:-1].replace('""', '"') if match["base"].startswith('"') else match["base"]
    )
    return number, unit, base, [] if match["given"] is None else [match["given"]]


def _rooms(measure: RuleMeasure) -> Mapping[str, float]:
    """The units of the amount by which a value may be worse than its base."""
    return {"pp": 100.0} if measure.units is SHARE else {"%": 100.0, **measure.units}


def _path(base: str) -> str:
    return base if re.fullmatch(r'[^\s"]\S*', base) else '"' + base.replace('"', '""') + '"'


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"(\w+)(.*)", text.strip(), re.DOTALL)
    if not match:
        raise_selector_error("a condition is missing: write 'given ttft < 1s and itl < 50ms'")
    measure = _of_one_request(match[1])
    stat, op, number, unit = _compared(match[2], measure)
    if stat:
        raise_selector_error(
            f"a condition is about one request, so {measure.word} takes no {stat}: write "
            f"'{measure.word} {op} ...'"
        )
    return Condition(measure.word, op, number, unit)


def _pair(text: str) -> Condition:
    name, colon, limit = text.partition(":")
    number = _NUMBER.fullmatch(limit)
    if not colon or not number or number["unit"]:
        raise_selector_error(f"{text!r} is not tag:limit, as in time_to_first_token:300 (in ms)")
    measure = _of_one_request(name)
    unit, op = "/s", ">="
    if measure.units is TIME:
        unit, op = "ms", "<="
    elif measure.units is SHARE:
        unit = ""
    return Condition(measure.word, op, float(number["number"]), unit)


def _measure(name: str) -> RuleMeasure:
    if (metric := BY_NAME.get(name.lower())) is None:
        near = find_nearest_names(name.lower(), BY_NAME, 2 if len(name) < 16 else 1)
        if name.lower() == "throughput":  # there are several
            near = " (did you mean requests_per_s or output_tokens_per_s?)"
        raise_selector_error(
            f"unknown metric {truncate_quoted_text(name, 30)}{near}; "
            "docs/reference/metrics.md has them all"
        )
    return metric


def _of_one_request(name: str) -> RuleMeasure:
    measure = _measure(name)
    if measure.metric is None or measure.tag == POOLED:
        words = [m.word for m in MEASURES if m.metric is not None and m.tag != POOLED]
        raise_selector_error(
            f"{measure.word} is not a metric of one request: a condition takes one of "
            f"{', '.join(words)}"
        )
    return measure


def _compared(text: str, measure: RuleMeasure) -> tuple[str, str, float, str]:
    """(text before the operator, operator, number, unit)."""
    match = _LIMIT.fullmatch(text.strip())
    operators = (*OPERATORS, EQUALS) if measure.units is COUNT else tuple(OPERATORS)
    if not match or match["op"] not in operators:
        what = f"unknown operator {match['op']}" if match else "the operator is missing"
        raise_selector_error(f"{what}: there are {', '.join(operators)}")
    value, unit = _amount(match["limit"], measure, measure.units)
    if measure.units is SHARE and value == 1 and not unit:
        raise_selector_error("1 is ambiguous: write 1% or 100%")
    if measure.units is SHARE and value > SHARE[unit]:
        raise_selector_error(f"{format_plain_number(value)}{unit} is above 100%: {_units(measure)}")
    return match["left"], match["op"], value, unit


def _amount(text: str, measure: RuleMeasure, units: Mapping[str, float]) -> tuple[float, str]:
    """A number and its unit, one of ``units``."""
    there = (
        _units(measure)
        if units is measure.units
        else f"there are {', '.join(units)}, such as 5{next(iter(units))}"
    )
    number = _NUMBER.fullmatch(text.strip())
    if not number or math.isinf(float(number["number"])):
        raise_selector_error(
            f"{truncate_quoted_text(text.strip(), SHOWN_CHARS)!r} is not a limit: write a number "
            f"and its unit ({there})"
        )
    value = float(number["number"])
    unit = (number["unit"] or "").lower().replace("\N{MICRO SIGN}", "u")
    if units is RATE and not unit:
        unit = "/s"
    if unit not in units:
        what = (
            f"unknown unit {number['unit']} for {measure.word}"
            if unit
            else f"the limit of {measure.word} has no unit"
        )
        raise_selector_error(f"{what}: {there}")
    return value, unit


def _statistic(text: str, measure: RuleMeasure) -> str:
    stat = text.lower()
    if measure.metric is None and stat:
        raise_selector_error(
            f"{measure.word} is one number: leave out {truncate_quoted_text(text, SHOWN_CHARS)}"
        )
    if measure.metric is not None and not stat:
        raise_selector_error(f"{measure.word} needs a statistic: {STATISTICS}")
    if stat in ("", "avg", "min", "max"):
        return stat
    match = re.fullmatch(r"p(\d{1,9}(?:\.\d{1,4})?)", "p50" if stat == "med" else stat)
    if not match:
        raise_selector_error(
            f"unknown statistic {truncate_quoted_text(text, SHOWN_CHARS)}: there are {STATISTICS}"
        )
    if not 0 < float(match[1]) < 100:
        raise_selector_error(
            f"the percentile {text} is out of range: it must lie above 0 and below 100 (min and "
            f"max are the ends)"
        )
    return f"p{format_plain_number(float(match[1]))}"


def _units(measure: RuleMeasure) -> str:
    if measure.units is TIME:
        return "there are ms, s and us, such as 500ms"
    if measure.units is COUNT:
        return "a number alone, such as 0"
    return (
        "there are % up to 100 and a ratio up to 1, such as 99% or 0.99"
        if measure.units is SHARE
        else "there is /s, such as 5/s or just 5"
    )


# -- selectors: the requests, or stages of a sweep, in the braces ----------------------------------


def parse_selectors(text: str) -> tuple[tuple[str, str], ...]:
    """Keys and values in their canonical form. Raises ValueError of one sentence."""
    selectors: dict[str, str] = {}
    at = 0
    while at < len(text) or not selectors:
        pick = _PICK.match(text, at)
        if not pick:
            raise_selector_error(f"{{{text}}} is not a selector: {_explain_selector(text[at:])}")
        key = pick["key"].lower()
        value = pick["value"]
        at = pick.end()
        if key not in SELECTORS:
            raise_selector_error(
                f"unknown selector {key}{find_nearest_names(key, SELECTORS)}; there are: "
                f"{', '.join(SELECTORS)}"
            )
        if key in selectors:
            raise_selector_error(f"{key} is given twice: use one value")
        if value.startswith('"'):
            value = value[1:-1].replace('""', '"')
        if key in (INPUT, IMAGES):
            value = _range(*parse_length_range(value.strip()))
        if key in STAGES:
            value = _stages(*parse_stage_range(value.strip()))
        if key == "turn" and value not in TURNS:
            raise_selector_error(f"unknown turn {value}: there are {' and '.join(TURNS)}")
        selectors[key] = value
    return tuple(selectors.items())


def _explain_selector(text: str) -> str:
    """How the selector at the start of a text is written, by an example with its own key."""
    key = re.split(r"[^\w-]", text.strip().lower(), maxsplit=1)[0]
    if key in SELECTOR_EXAMPLES:
        return f"write {SELECTOR_EXAMPLES[key]}"
    return f"write {{class=ShortQuestions}}, with {', '.join(SELECTORS)} as keys"


def make_predicates(where: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Predicate]]:
    """(column, predicate) of each selector of requests. The column of a length is INPUT. Selectors
    of stages have none, as the requests at hand all belong to such a stage."""
    for key, value in where:
        if key in COLUMNS:
            yield COLUMNS[key], partial(_equals, value)
        elif key == "turn":
            yield key, partial(_is_first, value == "first")
        elif key == IMAGES:
            yield key, partial(_counts, *parse_length_range(value))
        elif key == INPUT:
            yield key, partial(_lies_in, *parse_length_range(value))


def _equals(wanted: str, value: Any) -> Any:
    return value == wanted


def _is_first(first: bool, turn: Any) -> Any:
    return (turn == 0) == first


def _lies_in(low: float, high: float, length: Any) -> Any:
    return (low <= length) & (length < high)


def _counts(low: float, high: float, count: Any) -> Any:
    """Where there are none, there is no value."""
    return _lies_in(low, high, count) | ((count != count) & (low <= 0))


def parse_length_range(value: str) -> tuple[float, float]:
    """[from, to) in tokens, of a selector's value: ``1k..4k`` and the bucket ``1k-4k`` are 1,000 to
    3,999."""
    if match := re.fullmatch(r"<(\w+)", value):
        low = 0.0
        high = _tokens(match[1])
    elif match := re.fullmatch(r"(\w+)\+", value):
        low = _tokens(match[1])
        high = float("inf")
    elif match := re.fullmatch(r"(\w*)(?:\.\.|-)(\w*)", value):
        low = _tokens(match[1]) if match[1] else 0.0
        high = _tokens(match[2]) if match[2] else float("inf")
    else:
        low = _tokens(value)
        high = low + 1
    if low >= high:
        raise ValueError(
            f"no length lies in input={value}: write input=1k..4k for 1,000 to 3,999 tokens"
        )
    return low, high


def parse_stage_range(value: str) -> tuple[float, float]:
    """(first, last) of a selector's value, both included: ``8..32``, ``32``, ``8..`` or
    ``..32``."""
    number = r"(\d{1,12}(?:\.\d{1,4})?)"
    match = re.fullmatch(rf"(?:{number}?(\.\.))?{number}?", value)
    if not match or not (match[1] or match[3]):
        raise ValueError(
            f"{value!r} is not a value of a stage: write 32, or 8..32 for the stages from 8 to 32"
        )
    high = float(match[3] or "inf")
    low = float(match[1] or 0) if match[2] else high
    if low > high:
        raise ValueError(f"no value lies in {value}: write 8..32 for the stages from 8 to 32")
    return low, high


def quote_value(value: str) -> str:
    plain = value != "" and value == value.strip() and not re.search(r'["{},]', value)
    return value if plain else '"' + value.replace('"', '""') + '"'


def raise_selector_error(why: str) -> NoReturn:
    raise ValueError(why)


def _tokens(text: str) -> float:
    match = re.fullmatch(r"(\d{1,12})([kM]?)", text)
    count = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else MOST_TOKENS
    if count >= MOST_TOKENS:
        raise_selector_error(
            f"{text!r} is not a length: write input=1k..4k, a bucket of the report (1k-2k) or a "
            f"number of tokens"
        )
    return count


def _range(low: float, high: float) -> str:
    if high == low + 1:
        return f"{low:.0f}"
    return f"{f'{low:.0f}' if low else ''}..{f'{high:.0f}' if high < float('inf') else ''}"


def _stages(low: float, high: float) -> str:
    if low == high:
        return format_plain_number(low)
    if high == float("inf"):
        return f"{format_plain_number(low)}.."
    return f"{format_plain_number(low) if low else ''}..{format_plain_number(high)}"


# -- all rules of a run ----------------------------------------------------------------------------

MAX_RULES: Final = 1_000
INTERVAL: Final = "interval"
POINT: Final = "point"
MODES: Final = (INTERVAL, POINT)
"""Compared with a limit: the 95 % interval of a value, or its point estimate alone."""
AT_EDGE: Final = "allow 0.1% beyond it, or use --slo-mode point"
"""The advice for a rule that no interval can meet."""
NO_SCHEDULE: Final = "{} needs a schedule of arrivals, which a closed loop does not have"
"""Why a rule on ``OF_SCHEDULE`` cannot be decided in a closed loop."""
FAILS: Final = "fail"
CLOSE: Final = "close"
WARNS: Final = "warn"
PASSES: Final = "pass"
INCONCLUSIVE_POLICIES: Final = (FAILS, CLOSE, WARNS, PASSES)
"""The effect of an INCONCLUSIVE rule on a run. ``close`` warns where its value is close to the
limit, and fails elsewhere."""
UNSET_SWITCHES: Final = ("", "0", "false")
"""With these values of the variable ``CI`` there is no pipeline."""
MIN_PERCENTILE: Final = 90.0
"""A limit on a higher percentile covers nearly every request; a limit on the median does not."""


class RuleEntry(msgspec.Struct, frozen=True):
    """A rule as written, and parsed."""

    text: str
    rule: Rule | None = None
    """The rule with its conditions, by default the ones of ``--goodput``. None: it cannot be
    judged."""
    why: str = ""
    """Why it cannot be judged, in one sentence."""


class Rules(msgspec.Struct, frozen=True):
    """All rules of a run."""

    entries: tuple[RuleEntry, ...] = ()
    """The run's own rules, then the preset's. An unknown preset is an entry without a rule."""
    good: tuple[Condition, ...] = ()
    """The conditions of ``--goodput``."""
    good_mistake: str = ""
    """Why ``--goodput`` cannot be read, in one sentence."""

    @property
    def readable(self) -> tuple[Rule, ...]:
        return tuple(entry.rule for entry in self.entries if entry.rule is not None)

    @property
    def by_text(self) -> dict[str, Rule]:
        """The rules by canonical form, as results name them."""
        return {str(rule): rule for rule in self.readable}


class SloResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one SLO rule. Values are in ``unit``, as the rule's limit is."""

    rule: str
    """The canonical text of the rule. An unreadable rule has its given text."""
    status: str
    """PASS, FAIL or INCONCLUSIVE."""
    decides: bool = True
    """False: the rule only warns."""
    abort: bool = False
    observed: float | None = None
    """Infinite: a percentile that is at a failure (null in JSON)."""
    worst: float | None = None
    """The value with each cut request at its worst, where cut requests leave it open. ``observed``
    has each at its best."""
    limit: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """The ends of its 95 % interval. None: too few samples for an end, or a value without an
    interval."""
    count: int | None = None
    """The number of its values or requests, with failures where they count."""
    effective: float | None = None
    """The effective sample size. None: a fact, a rate, or too few values."""
    longer_s: float | None = None
    """So many more seconds may decide an inconclusive rule. None: not known."""
    longer_is_exact: bool = False
    """They decide it if the requests go on as before. Otherwise half of such runs need less, and
    some up to ten times as much."""
    voided: bool = False
    """The load generator's error of the value reaches the limit."""
    close_to_limit: bool = False
    """The rule is INCONCLUSIVE, and its interval would have decided a limit 30 % higher or
    lower."""
    likely: str = ""
    """PASS or FAIL of an INCONCLUSIVE one, where its limit is near an end of its interval."""
    of_stage: float | None = None
    """Of a sweep: the value of the stage that these figures are of. None: they are of the run."""
    status_without_silence: str = ""
    """The better status without the requests in flight while nothing answered for a while. Empty:
    there are none, or it is the same."""
    reason: str = ""
    """One sentence: why the rule is inconclusive, or another remark."""


def choose_inconclusive_policy(ci: str, rules_file: str | None) -> str:
    """The default of ``--inconclusive``.

    ``ci`` is the environment variable of this name, which pipelines set. In a pipeline, and with
    rules from a file, nobody reads a warning.
    """
    in_pipeline = ci.strip().lower() not in UNSET_SWITCHES
    return FAILS if in_pipeline or rules_file else CLOSE


def resolve_rules(slo: Iterable[str], slo_preset: str | None, good: str | None) -> Rules:
    """The rules of these settings. Mistakes are kept beside the readable rules, as records of
    another version may hold some."""
    conditions: tuple[Condition, ...] = ()
    mistake = unknown = ""
    texts = tuple(slo)
    try:
        conditions = parse_goodput(good) if good else ()
    except ValueError as error:
        mistake = str(error)
    try:
        texts += expand_preset(slo_preset) if slo_preset else ()
    except ValueError as error:
        unknown = f"--slo-preset: {error}"
    entries = tuple(_entry(text, conditions, mistake) for text in texts[:MAX_RULES])
    unread = _too_many(len(texts))
    entries += tuple(RuleEntry(text, why=unread) for text in texts[MAX_RULES:])
    lost = (RuleEntry(slo_preset or "", why=unknown),) if unknown else ()
    return Rules((*entries, *lost), conditions, mistake)


def validate_rules(rules: Rules, axis: str = "") -> Iterator[str]:
    """The reasons why these rules cannot be judged, one sentence each. ``axis`` is what the sweep
    changes, if there is one."""
    if len(rules.entries) > MAX_RULES:
        yield _too_many(len(rules.entries))
        return
    mistakes = [entry.why or _misplaced(entry, axis) for entry in rules.entries]
    mistakes += [_too_early(entry) for entry in rules.entries]
    yield from dict.fromkeys(filter(None, (*mistakes, rules.good_mistake)))


def _too_many(count: int) -> str:
    return f"there are {count:,} SLO rules, and at most {MAX_RULES:,} are possible"


def _entry(text: str, good: tuple[Condition, ...], good_mistake: str) -> RuleEntry:
    try:
        rule = parse_rule(text)
    except ValueError as error:
        return RuleEntry(text, why=str(error))
    if rule.metric not in GIVEN or rule.given:
        return RuleEntry(text, rule)
    if good:
        return RuleEntry(text, msgspec.structs.replace(rule, given=good))
    why = f"{rule.metric} needs the conditions of a good request: "
    why += "add 'given ttft < 1s and itl < 50ms', or set --goodput"
    return RuleEntry(text, why=good_mistake or _named(text, why))


def _misplaced(entry: RuleEntry, axis: str) -> str:
    """Why the rule cannot be judged in this sweep."""
    for key, _ in entry.rule.where if entry.rule is not None and axis else ():
        if key in STAGES and key not in ("stage", axis):
            return _named(entry.text, f"this sweep changes {axis}, so its stages have no {key}")
    return ""


def _too_early(entry: RuleEntry) -> str:
    """Why the rule cannot be an ``abort:``."""
    rule = entry.rule
    if rule is None or rule.kind != ABORT or rule.early:
        return ""
    if rule.base:
        return _named(entry.text, "runs are compared after their end: leave out abort:")
    if rule.felt:
        return _named(entry.text, "reading metrics are computed after the run: leave out abort:")
    what = f"{rule.metric} {rule.stat}".strip()
    why = (
        f"{what} can still meet the limit until the end of the run: leave out abort:, the rule "
        f"is judged then"
    )
    return _named(entry.text, why)


def _named(text: str, why: str) -> str:
    return f"SLO {text.strip()[:200]!r}: {why}"


def define_good_request(rules: Rules) -> tuple[tuple[Condition, ...], str]:
    """(conditions of a good request, their source). Empty: there is no definition.

    They come from ``--goodput``, else from the first rule with conditions. Otherwise they are the
    upper limits on latencies of nearly every request (p90 and above, or max), the lowest for each
    latency.
    """
    if rules.good:
        return rules.good, "--goodput"
    if rules.good_mistake or any(entry.rule is None for entry in rules.entries):
        return (), ""
    given = next((rule.given for rule in rules.readable if rule.given), ())
    if given:
        return given, "the first rule with conditions"
    lowest: dict[str, Condition] = {}
    for rule in filter(_for_each, rules.readable):
        condition = Condition(rule.metric, rule.op, rule.number, rule.unit)
        if rule.metric not in lowest or condition.limit < lowest[rule.metric].limit:
            lowest[rule.metric] = condition
    return tuple(lowest.values()), "the rules on latencies, for each request" if lowest else ""


def _for_each(rule: Rule) -> bool:
    measure, percentile = BY_WORD[rule.metric], rule.percentile
    at_most = (
        measure.metric is not None
        and measure.units is TIME
        and measure.tag != POOLED
        and rule.op.startswith("<")
    )
    most = rule.stat == "max" or (percentile is not None and percentile >= MIN_PERCENTILE)
    return at_most and most and rule.decides and not rule.where
