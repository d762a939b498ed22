"""docs/schemas, made from the code's types: `make docs` writes it, a test says when it is out of
date."""

import ast
import inspect
import json
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

import locust_llm
from locust_llm.check_command import CheckFinding
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.canary.canary_session import CanaryResult
from locust_llm.lab.disconnect.disconnect_result import DisconnectResult
from locust_llm.lab.gateway.gateway_result import GatewayResult
from locust_llm.lab.history.history_command import HistoryResult
from locust_llm.lab.interop.audit_command import AuditedLoad
from locust_llm.lab.interop.export_command import ExportedFile
from locust_llm.lab.interop.import_command import ImportedFolder
from locust_llm.lab.pareto.pareto_command import ParetoCurve
from locust_llm.lab.probe.probe_findings import ProbeFindings
from locust_llm.lab.reproduce.reproduction import Reproduction
from locust_llm.lab.soak.soak_result import SoakResult
from locust_llm.lab.twin.plan.plan_text import PlanResult
from locust_llm.lab.twin.twin_drift import DriftResult
from locust_llm.lab.twin.twin_fit import FitResult
from locust_llm.lab.twin.whatif.whatif_text import PredictionResult
from locust_llm.records.profile_export_jsonl import OUTCOMES, PHASES, RecordLine
from locust_llm.records.run_facts import Run
from locust_llm.report import aiperf_export, load_records, sweep_csv
from locust_llm.report.fluidity_and_qoe import Readability
from locust_llm.report.report_command import ReportOutput
from locust_llm.report.run_comparison import Comparison
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.section_registry import REPORT_SECTIONS
from locust_llm.report.write_report_files import FACTS
from locust_llm.selftest_command import SelftestResult
from locust_llm.settings.scenario_command import ListedScenario
from locust_llm.slo import metric_definitions, rules

FOLDER: Final = Path(__file__).with_name("schemas")
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
CHECK_FINDING: Final = msgspec.defstruct(
    "CheckFinding", [*get_type_hints(CheckFinding).items()], kw_only=True
)
JSON_OUTPUTS: Final = {
    "audit": list[AuditedLoad],
    "canary": CanaryResult,
    "check": list[CHECK_FINDING],  # type: ignore[valid-type]
    "compare": Comparison,
    "disconnect": DisconnectResult,
    "export": ExportedFile,
    "gateway": list[GatewayResult],
    "history": HistoryResult,
    "import": ImportedFolder,
    "pareto": list[ParetoCurve],
    "plan": PlanResult,
    "report": ReportOutput,
    "scenario": list[ListedScenario],
    "selftest": SelftestResult,
    "soak": SoakResult,
    "twin drift": DriftResult,
    "twin fit": FitResult,
    "twin predict": PredictionResult,
    "verify reproduce": Reproduction,
}
"""What commands print with --json."""
PYTHON: Final = ("LLMUser", "ProbeUser", "Answer", "read", "events")


def files() -> dict[Path, str]:
    """What each file holds."""
    made = {"run.schema.json": _run(), "record.schema.json": _record(), "names.json": _names()}
    made |= {
        f"{command.replace(' ', '-')}-output.schema.json": _output(command, kind)
        for command, kind in JSON_OUTPUTS.items()
    }
    texts = {
        name: json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        for name, content in made.items()
    }
    return {FOLDER / name: text for name, text in (texts | {"slo.lark": _slo()}).items()}


def _output(command: str, kind: Any) -> dict[str, Any]:
    """Of what a command prints with --json."""
    found = msgspec.json.schema(kind)
    _with_null(found)
    _describe_fields(found, msgspec.inspect.type_info(kind))
    return {"$schema": DIALECT, "title": f"locust-llm {command} --json", **found}


def _describe_fields(schema: dict[str, Any], kind: msgspec.inspect.Type) -> None:
    """Gives each property the docstring of its field as description."""
    for struct in _find_structs(kind, {}).values():
        properties = schema["$defs"].get(struct.__name__, {}).get("properties", {})
        for name, text in _field_docstrings(struct).items():
            if name in properties:
                properties[name]["description"] = text


def _find_structs(kind: Any, found: dict[str, type]) -> dict[str, type]:
    """Returns the structs that a value of this type can contain, by name."""
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls.__name__ in found:
            assert found[kind.cls.__name__] is kind.cls
            return found
        found[kind.cls.__name__] = kind.cls
    if isinstance(kind, (list, tuple)):
        for inner in kind:
            _find_structs(inner, found)
    elif isinstance(kind, (msgspec.inspect.Type, msgspec.inspect.Field)):
        for name in kind.__struct_fields__:
            _find_structs(getattr(kind, name), found)
    return found


def _field_docstrings(struct: type) -> dict[str, str]:
    """Returns the text below each field, by the field's name in JSON."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    found: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if not issubclass(kind, msgspec.Struct) or kind is msgspec.Struct:
            continue
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):  # made by defstruct
            continue
        (definition,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = _string_of(after)
                if text:
                    found[names[field.target.id]] = inspect.cleandoc(text).replace("\n", " ")
    return found


def _string_of(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _run() -> dict[str, Any]:
    """Of run.json: the run, and what its report found. A number that is not finite is null in
    JSON."""
    types = get_type_hints(Summary) | {"examination": ProbeFindings}
    types |= {section.name: section.finding for section in REPORT_SECTIONS}
    sections = tuple(section.name for section in REPORT_SECTIONS)
    fields = [("run", Run), *((name, types[name] | None, None) for name in FACTS + sections)]
    found = msgspec.json.schema(msgspec.defstruct("RunFile", fields, kw_only=True))
    for name, schema in found["$defs"].items():
        if name != "Run":
            _with_null(schema)
    return {"$schema": DIALECT, "title": "run.json", **found}


def _record() -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "title": "A line of profile_export.jsonl",
        **msgspec.json.schema(RecordLine),
    }


def _with_null(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "number":
            schema["type"] = ["number", "null"]
        for inner in schema.values():
            _with_null(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _with_null(inner)


def _names() -> dict[str, Any]:
    """Names that have no type: of metrics, columns, outcomes, statuses."""
    assert all(hasattr(locust_llm, name) or name == "events" for name in PYTHON)
    return {
        "exit statuses": {one.name: int(one) for one in ExitStatus},
        "python": PYTHON,
        "rules": {measure.word: measure.tag for measure in metric_definitions.MEASURES},
        "presets": sorted(rules.PRESETS),
        "metrics": sorted(
            {metric.tag for metric in metric_definitions.METRICS}
            | {measure.tag for measure in metric_definitions.MEASURES}
        ),
        "outcomes": sorted(OUTCOMES),
        "phases": sorted(PHASES),
        "read().requests": [*load_records.NUMBERS, *load_records.TEXTS, *Readability._fields],
        "read().gaps": ["id", "index", "gap_s", "merged"],
        "profile_export_aiperf.csv": aiperf_export.STATS,
        "sweep.csv": [*sweep_csv.COLUMNS_BEFORE, *sweep_csv.COLUMNS_AFTER],
    }


def _slo() -> str:
    by_unit: dict[str, list[metric_definitions.RuleMeasure]] = {}
    for measure in metric_definitions.MEASURES:
        by_unit.setdefault(_kind(measure), []).append(measure)
    names = {
        kind: _choice(name for m in some for name in _names_of(m)) for kind, some in by_unit.items()
    }
    conditions = [
        m
        for m in metric_definitions.MEASURES
        if m.metric is not None and m.tag != metric_definitions.POOLED
    ]
    return SLO.format(
        **names,
        **{
            f"condition_{kind}": _choice(
                name for m in conditions if _kind(m) == kind for name in _names_of(m)
            )
            for kind in ("latency", "felt", "per_user")
        },
        columns=_choice(rules.COLUMNS),
        stages=_choice(rules.STAGES),
        turns=_choice(rules.TURNS),
        lengths=_choice((rules.INPUT, rules.IMAGES)),
    )


def _kind(measure: metric_definitions.RuleMeasure) -> str:
    """Measures that have statistics, units and selectors in common."""
    if measure.word in metric_definitions.OF_WHOLE_RUN:
        return "count_of_run" if measure.units is metric_definitions.COUNT else "time_of_run"
    if measure.word in metric_definitions.OF_ANSWERS:
        return "count" if measure.units is metric_definitions.COUNT else "share_of_answers"
    if measure.word in (*metric_definitions.GIVEN, *metric_definitions.OF_SCHEDULE):
        return "schedule" if measure.word in metric_definitions.OF_SCHEDULE else measure.word
    if measure.units is metric_definitions.TIME:
        return "latency"
    share = measure.units is metric_definitions.SHARE
    return (
        ("felt" if share else "per_user")
        if measure.metric is not None
        else "share"
        if share
        else "rate"
    )


def _names_of(measure: metric_definitions.RuleMeasure) -> list[str]:
    return [name for name, one in metric_definitions.BY_NAME.items() if one is measure]


def _choice(names: Any) -> str:
    return " | ".join(f'"{name}"' for name in names)


SLO: Final = r"""// The grammar of an SLO rule: EBNF in the notation of Lark. Made by docs/generate_schemas.py: do not edit.
//
// Words are read in any case, and blanks may stand around operators, braces and colons; here is the form in which locust-llm
// writes them. Beyond the grammar: a share is at most 100 %, and 1 needs its %; a range is not empty; a selector comes once.

start: PREFIX? (compared | against)

compared: latency selected? " " STATISTIC OPERATOR NUMBER TIME
        | felt selected? " " STATISTIC OPERATOR share
        | per_user selected? " " STATISTIC OPERATOR NUMBER "/s"?
        | rate selected? OPERATOR NUMBER "/s"?
        | share_of_run selected? OPERATOR share
        | schedule stages? OPERATOR share
        | share_of_answers stages? OPERATOR share
        | count stages? (OPERATOR | EQUALS) NUMBER
        | time_of_run OPERATOR NUMBER TIME
        | count_of_run (OPERATOR | EQUALS) NUMBER
        | attainment selected? OPERATOR share given?
        | goodput selected? OPERATOR NUMBER "/s"? given?

// at most so much worse than the run in a folder
against: latency selected? " " QUANTILE WITHIN NUMBER (TIME | "%") OF
       | felt selected? " " QUANTILE WITHIN NUMBER "pp" OF
       | per_user selected? " " QUANTILE WITHIN NUMBER ("/s" | "%") OF
       | rate selected? WITHIN NUMBER ("/s" | "%") OF
       | share_of_run selected? WITHIN NUMBER "pp" OF
       | schedule stages? WITHIN NUMBER "pp" OF
       | attainment selected? WITHIN NUMBER "pp" OF given?
       | goodput selected? WITHIN NUMBER ("/s" | "%") OF given?

given: " given " condition (" and " condition)*
condition: latency_of_one OPERATOR NUMBER TIME
         | felt_of_one OPERATOR share
         | per_user_of_one OPERATOR NUMBER "/s"?

selected: "{{" selector (", " selector)* "}}"
selector: text "=" VALUE
        | "turn=" turn
        | length "=" LENGTHS
        | stage "=" STAGES
stages: "{{" stage "=" STAGES "}}"

text: {columns}
turn: {turns}
length: {lengths}
stage: {stages}

latency: {latency}
felt: {felt}
per_user: {per_user}
rate: {rate}
share_of_run: {share}
schedule: {schedule}
share_of_answers: {share_of_answers}
count: {count}
time_of_run: {time_of_run}
count_of_run: {count_of_run}
attainment: {attainment}
goodput: {goodput}
latency_of_one: {condition_latency}
felt_of_one: {condition_felt}
per_user_of_one: {condition_per_user}

share: NUMBER "%"?

PREFIX: "warn: " | "abort: "
STATISTIC: "avg" | "min" | "max" | "med" | PERCENTILE
QUANTILE: "avg" | "med" | PERCENTILE
PERCENTILE: /p[1-9][0-9]?(\.[0-9]{{1,4}})?/ | /p0\.[0-9]{{0,3}}[1-9]/
OPERATOR: " < " | " <= " | " > " | " >= "
EQUALS: " == "
WITHIN: " within "
TIME: "s" | "ms" | "us"
NUMBER: /[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{{1,3}})?/
OF: " of " (/[^\s"]\S*/ | QUOTED_NAME)
QUOTED_NAME: /"([^"]|"")+"/
VALUE: /[^\s",{{}}]([^",{{}}]*[^\s",{{}}])?/ | QUOTED
QUOTED: /"([^"]|"")*"/
LENGTHS: /[0-9]{{1,12}}[kM]?/ | /[0-9]{{1,12}}[kM]?\.\.([0-9]{{1,12}}[kM]?)?/ | /\.\.([0-9]{{1,12}}[kM]?)?/
STAGES: /[0-9]{{1,12}}(\.[0-9]{{1,4}})?(\.\.([0-9]{{1,12}}(\.[0-9]{{1,4}})?)?)?/ | /\.\.[0-9]{{1,12}}(\.[0-9]{{1,4}})?/
"""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
