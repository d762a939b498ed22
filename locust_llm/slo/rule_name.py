"""Rule name: an SLO rule as every page and verdict writes it."""

from typing import Final

from locust_llm.text.format import format_plain_number

from .metric_definitions import BY_WORD
from .rules import Rule, quote_value

SIGNS: Final = {"<=": "\N{LESS-THAN OR EQUAL TO}", ">=": "\N{GREATER-THAN OR EQUAL TO}"}


def format_rule_name(rule: Rule, *, conditions: bool = True) -> str:
    """``ITL p95 < 60 ms``, ``TTFT {class=Chat} p99 < 1 s``. ``conditions``: with those of a good
    request."""
    warns = "" if rule.decides else "warn: "
    sign = SIGNS.get(rule.op, rule.op)
    given = f" given {' and '.join(map(str, rule.given))}" if conditions and rule.given else ""
    return f"{warns}{format_rule_subject(rule)} {sign} {format_rule_limit(rule)}{given}"


def format_rule_subject(rule: Rule) -> str:
    """``TTFT p95``, ``TTFT {class=Chat} p95``."""
    where = ", ".join(f"{key}={quote_value(value)}" for key, value in rule.where)
    words = [BY_WORD[rule.metric].spoken_name, f"{{{where}}}" if where else "", rule.stat]
    return " ".join(filter(None, words))


def format_rule_limit(rule: Rule) -> str:
    """``60 ms``; of a rule about another run ``5% of reports/base``."""
    limit = space_unit(f"{format_plain_number(rule.number)}{rule.unit}")
    return f"{limit} of {rule.base}" if rule.base else limit


def space_unit(text: str) -> str:
    """A value with a plain space between its number and its unit: ``607 ms``. It is searched and
    copied as a reader types it."""
    for unit in ("ms", "s"):
        number = text.removesuffix(unit)
        if number != text and number[-1:].isdigit():
            return f"{number} {unit}"
    return text
