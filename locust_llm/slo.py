"""SLO rules: one grammar for flag, file, environment and web form, the presets, and AIPerf's way to say a goodput.

    [warn:|abort:] metric [{selector, ...}] [statistic] operator limit [given condition and condition ...]

    ttft p95 < 500ms                                        a latency needs a statistic: avg, min, max, med or pNN
    error_rate < 1%                                         shares and rates are one number
    output_tokens_per_s >= 2500
    attainment >= 99% given ttft < 1s and itl < 50ms        the share of requests that meet every condition
    goodput >= 5/s given ttft < 1s                          those requests a second
    ttft{class=ShortQuestions, input=1k..4k} p95 < 300ms    only these requests

``warn:`` is reported and never decides; ``abort:`` decides like any other, and may end the run as soon as it is broken.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from operator import ge, gt, le, lt
from typing import Final, NoReturn

import msgspec

from .measures import BY_NAME, BY_WORD, GIVEN, MEASURES, POOLED, RATE, SHARE, TIME, Measure

PASS: Final = "PASS"
FAIL: Final = "FAIL"
INCONCLUSIVE: Final = "INCONCLUSIVE"
EXIT_STATUS: Final = {PASS: 0, FAIL: 3, INCONCLUSIVE: 4}

WARN: Final = "warn"
ABORT: Final = "abort"
OPERATORS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}
STATISTICS: Final = "avg, min, max, med and pNN (p95)"
SELECTORS: Final = ("class", "input", "name", "model", "turn")
TURNS: Final = ("first", "later")

PRESETS: Final[dict[str, tuple[str, ...]]] = {
    # "Prefill and Decode for Concurrent Requests" (B. Merkel, TNG) on interactive use: a first token in 3 seconds or
    # less, 100 to 300 ms a token; after more than 5 seconds people take it for broken. The percentiles are ours.
    "chat": ("ttft p95 <= 3s", "ttft p99 <= 5s", "itl p95 <= 300ms", "warn: itl p95 <= 100ms"),
    # MLPerf Inference, scenario Server, p99 over queries of TTFT and TPOT (our ITL): ttft_latency, tpot_latency and
    # target_latency_percentile of loadgen/mlperf.conf in github.com/mlcommons/inference, commit 001712e9
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

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {_plain(self.number)}{self.unit}"


class Rule(msgspec.Struct, frozen=True):
    """One rule. Its text (``str``) is its canonical form: ``parse`` makes the same rule of it."""

    metric: str
    """The word of a measure."""
    op: str
    number: float
    """The limit in ``unit``, as written."""
    unit: str
    stat: str = ""
    """``avg``, ``min``, ``max`` or ``p95``; empty for a measure that is one number."""
    where: tuple[tuple[str, str], ...] = ()
    """Selectors and their values; lengths as ``1000..4000`` (from 1,000 to 3,999), ``550``, ``..200`` or ``5000..``."""
    given: tuple[Condition, ...] = ()
    kind: str = ""
    """``warn``, ``abort`` or neither."""

    @property
    def limit(self) -> float:
        """Seconds, a share of 1, or a number a second."""
        return self.number / BY_WORD[self.metric].units[self.unit]

    @property
    def percentile(self) -> float | None:
        return float(self.stat[1:]) if self.stat.startswith("p") else None

    @property
    def decides(self) -> bool:
        return self.kind != WARN

    def holds(self, value: float) -> bool:
        """For this value, in the unit of ``limit``."""
        return bool(OPERATORS[self.op](value, self.limit))

    def __str__(self) -> str:
        where = ", ".join(f"{key}={_quoted(value)}" for key, value in self.where)
        stat = f" {self.stat}" if self.stat else ""
        given = f" given {' and '.join(map(str, self.given))}" if self.given else ""
        kind = f"{self.kind}: " if self.kind else ""
        braces = f"{{{where}}}" if where else ""
        return f"{kind}{self.metric}{braces}{stat} {self.op} {_plain(self.number)}{self.unit}{given}"


def parse(text: str) -> Rule:
    """A rule from its text. Raises ValueError of one sentence: what is wrong, and what there is."""
    try:
        return _rule(text.strip())
    except ValueError as error:
        raise ValueError(f"SLO {text.strip()[:200]!r}: {error}") from None


def goodput(text: str) -> tuple[Condition, ...]:
    """AIPerf's ``time_to_first_token:300 inter_token_latency:20``: limits in ms (per-user throughput: tokens/s), at
    most so much of a latency and at least so much of a throughput. Raises ValueError of one sentence."""
    try:
        return tuple(map(_pair, text.split() or [""]))
    except ValueError as error:
        raise ValueError(f"goodput {text[:200]!r}: {error}") from None


def preset(name: str) -> tuple[str, ...]:
    """The rules of a preset, as text. Raises ValueError of one sentence."""
    if name not in PRESETS:
        raise ValueError(f"unknown SLO preset {name!r}{_nearest(name, PRESETS)}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]


def texts(slo: Iterable[str], slo_preset: str | None) -> tuple[str, ...]:
    """All rules of a run as text: its own, then those of the preset. Raises ValueError of one sentence."""
    return (*slo, *(preset(slo_preset) if slo_preset else ()))


def ready(text: str, good: str | None) -> Rule:
    """A rule with its conditions: where it gives none, those of the run's ``--goodput``. Raises ValueError."""
    rule = parse(text)
    if rule.metric not in GIVEN or rule.given:
        return rule
    if not good:
        raise ValueError(
            f"SLO {text.strip()[:200]!r}: {rule.metric} needs to know what a good request is: "
            "add 'given ttft < 1s and itl < 50ms', or set --goodput"
        )
    return msgspec.structs.replace(rule, given=goodput(good))


def mistakes(slo: Iterable[str], slo_preset: str | None, good: str | None) -> Iterator[str]:
    """Each reason why these rules cannot be judged, one sentence each."""
    checks: list[Callable[[], object]] = [partial(ready, text, good) for text in slo]
    if slo_preset:
        checks.append(partial(preset, slo_preset))
    if good:
        checks.append(partial(goodput, good))
    told = set()
    for check in checks:
        try:
            check()
        except ValueError as error:
            if str(error) not in told:  # rules without conditions share those of --goodput, and its mistakes
                told.add(str(error))
                yield str(error)


def lengths(value: str) -> tuple[float, float]:
    """[from, to) in tokens, of a selector's value: ``1k..4k`` and the bucket ``1k-4k`` are 1,000 to 3,999."""
    if match := re.fullmatch(r"<(\w+)", value):
        low, high = 0.0, _tokens(match[1])
    elif match := re.fullmatch(r"(\w+)\+", value):
        low, high = _tokens(match[1]), float("inf")
    elif match := re.fullmatch(r"(\w*)(?:\.\.|-)(\w*)", value):
        low = _tokens(match[1]) if match[1] else 0.0
        high = _tokens(match[2]) if match[2] else float("inf")
    else:
        low = _tokens(value)
        high = low + 1
    if low >= high:
        raise ValueError(f"no length lies in input={value}: write input=1k..4k for 1,000 to 3,999 tokens")
    return low, high


# -- parts of a rule ---------------------------------------------------------------------------------------------------

_TEXT: Final = r'"(?:[^"]|"")*+"'
_HEAD: Final = re.compile(
    rf"(?:(?P<kind>\w+)\s*:)?\s*(?P<metric>\w+)\s*(?:\{{(?P<where>(?:[^\"{{}}]|{_TEXT})*)\}})?(?P<rest>.*)", re.DOTALL
)
_PICK: Final = re.compile(rf'\s*(?P<key>\w+)\s*=\s*(?P<value>{_TEXT}|[^",]*[^",\s])\s*(?:,|$)')
_GIVEN: Final = re.compile(r"\bgiven\b", re.IGNORECASE)
_AND: Final = re.compile(r"\band\b", re.IGNORECASE)
_LIMIT: Final = re.compile(r"(?P<left>[^<>=!]*?)\s*(?P<op>[<>=!]+)\s*(?P<limit>.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D\S*)?", re.DOTALL)


def _rule(text: str) -> Rule:
    head = _HEAD.fullmatch(text)
    if not head:
        _refuse("it begins with no metric: write, for one, 'ttft p95 < 500ms'")
    kind, rest = (head["kind"] or "").lower(), head["rest"].strip()
    if kind not in ("", WARN, ABORT):
        _refuse(f"unknown prefix {head['kind']}: there are warn: and abort:")
    measure = _measure(head["metric"])
    if rest.startswith("{"):
        _refuse("the braces after the metric do not close: write {class=ShortQuestions}")
    where = () if head["where"] is None else _where(head["where"])
    if where and measure.word == "delivered":
        _refuse("delivered is about the whole schedule: leave out the braces")
    left, *given = _GIVEN.split(rest, maxsplit=1)
    stat, op, number, unit = _compared(left, measure)
    if given and measure.word not in GIVEN:
        _refuse(f"{measure.word} has no conditions: 'given' belongs to {' and '.join(GIVEN)}")
    conditions = tuple(_condition(text) for part in given for text in _AND.split(part))
    return Rule(measure.word, op, number, unit, _statistic(stat, measure), where, conditions, kind)


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"(\w+)(.*)", text.strip(), re.DOTALL)
    if not match:
        _refuse("a condition is missing: write 'given ttft < 1s and itl < 50ms'")
    measure = _of_one_request(match[1])
    stat, op, number, unit = _compared(match[2], measure)
    if stat:
        _refuse(
            f"a condition is about one request, so {measure.word} has no {stat} there: write '{measure.word} {op} ...'"
        )
    return Condition(measure.word, op, number, unit)


def _pair(text: str) -> Condition:
    name, colon, limit = text.partition(":")
    number = _NUMBER.fullmatch(limit)
    if not colon or not number or number["unit"]:
        _refuse(f"{text!r} is not tag:limit, as in time_to_first_token:300 (in ms)")
    measure = _of_one_request(name)
    unit, op = ("ms", "<=") if measure.units is TIME else ("/s", ">=")
    return Condition(measure.word, op, float(number["number"]), unit)


def _measure(name: str) -> Measure:
    if (found := BY_NAME.get(name.lower())) is None:
        _refuse(f"unknown metric {name}{_nearest(name.lower(), BY_NAME)}; there are: {', '.join(BY_WORD)}")
    return found


def _of_one_request(name: str) -> Measure:
    measure = _measure(name)
    if measure.metric is None or measure.tag == POOLED:
        words = [m.word for m in MEASURES if m.metric is not None and m.tag != POOLED]
        _refuse(f"{measure.word} is no number of one request: a condition is about one of {', '.join(words)}")
    return measure


def _compared(text: str, measure: Measure) -> tuple[str, str, float, str]:
    """(what stands before the operator, operator, number, unit)."""
    match = _LIMIT.fullmatch(text.strip())
    if not match or match["op"] not in OPERATORS:
        what = f"unknown operator {match['op']}" if match else "there is no operator"
        _refuse(f"{what}: there are {', '.join(OPERATORS)}")
    number = _NUMBER.fullmatch(match["limit"].strip())
    if not number or math.isinf(float(number["number"])):
        _refuse(f"{match['limit'].strip()!r} is no limit: write a number and its unit ({_units(measure)})")
    value, unit = float(number["number"]), (number["unit"] or "").lower().replace("\N{MICRO SIGN}", "u")
    if measure.units is RATE and not unit:
        unit = "/s"
    if unit not in measure.units:
        what = (
            f"unknown unit {number['unit']} for {measure.word}" if unit else f"the limit of {measure.word} has no unit"
        )
        _refuse(f"{what}: {_units(measure)}")
    if measure.units is SHARE and value == 1 and not unit:
        _refuse("1 can be read as 1 % and as all: write 1% or 100%")
    if measure.units is SHARE and value > SHARE[unit]:
        _refuse(f"{_plain(value)}{unit} is more than all: {_units(measure)}")
    return match["left"], match["op"], value, unit


def _statistic(text: str, measure: Measure) -> str:
    stat = text.lower()
    if measure.metric is None and stat:
        _refuse(f"{measure.word} is one number: leave out {text}")
    if measure.metric is not None and not stat:
        _refuse(f"{measure.word} needs a statistic: {STATISTICS}")
    if stat in ("", "avg", "min", "max"):
        return stat
    match = re.fullmatch(r"p(\d{1,9}(?:\.\d{1,4})?)", "p50" if stat == "med" else stat)
    if not match:
        _refuse(f"unknown statistic {text}: there are {STATISTICS}")
    if not 0 < float(match[1]) < 100:
        _refuse(f"the percentile {text} is out of range: it must lie above 0 and below 100 (min and max are the ends)")
    return f"p{_plain(float(match[1]))}"


def _where(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text) or not found:
        pick = _PICK.match(text, at)
        if not pick:
            _refuse(f"{{{text}}} is no selector: write {{class=ShortQuestions}}, with {', '.join(SELECTORS)} as keys")
        key, value, at = pick["key"].lower(), pick["value"], pick.end()
        if key not in SELECTORS:
            _refuse(f"unknown selector {key}{_nearest(key, SELECTORS)}; there are: {', '.join(SELECTORS)}")
        if key in found:
            _refuse(f"{key} is there twice: a request has one, so no request would be left")
        if value.startswith('"'):
            value = value[1:-1].replace('""', '"')
        if key == "input":
            value = _range(*lengths(value.strip()))
        if key == "turn" and value not in TURNS:
            _refuse(f"unknown turn {value}: there are {' and '.join(TURNS)}")
        found[key] = value
    return tuple(found.items())


def _tokens(text: str) -> float:
    match = re.fullmatch(r"(\d{1,12})([kM]?)", text)
    if not match:
        _refuse(f"{text!r} is no length: write input=1k..4k, a bucket of the report (1k-2k) or a number of tokens")
    return float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]]


def _range(low: float, high: float) -> str:
    if high == low + 1:
        return f"{low:.0f}"
    return f"{f'{low:.0f}' if low else ''}..{f'{high:.0f}' if high < float('inf') else ''}"


def _units(measure: Measure) -> str:
    if measure.units is TIME:
        return "there are ms, s and us, as 500ms"
    return (
        "there are % up to 100 and a ratio up to 1 as 99% or 0.99"
        if measure.units is SHARE
        else "there is /s, as 5/s or just 5"
    )


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")


def _quoted(value: str) -> str:
    plain = value == value.strip() and not re.search(r'["{},]', value)
    return value if plain else '"' + value.replace('"', '""') + '"'


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
