"""Fields of the scenario, the rules, the report and A/B: each setting declared once, as in fields.py."""

from typing import Annotated

import msgspec

from locust_llm.slo.published import MODES as PUBLISHED_MODES
from locust_llm.slo.published import WARNS as PUBLISHED_WARNS
from locust_llm.slo.published import Published
from locust_llm.slo.reading import DEADLINES, PACE, PACES
from locust_llm.slo.rules import FAILS, INTERVAL, MODES, UNDECIDED

from .option import DURATION, Option, Range
from .selftest_modes import AUTO, OFF, REQUIRE


class RuleFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What decides, what it is said in, and where the defaults are from."""

    scenario: Annotated[
        str | None,
        Option(
            "prompts",
            "Workload whose options are the defaults of this run: a name (locust-llm scenario lists them) or a TOML file",
            "interactive-chat",
            "NAME|FILE",
            in_form=False,
        ),
    ] = None
    scenario_changed: tuple[str, ...] = ()
    """The options of the scenario that this run has otherwise."""
    published: Published | None = None
    """The rules of the benchmark that the scenario is of; None: it is of none."""
    published_rules: Annotated[
        str,
        Option(
            "rules",
            "What a run does that is not valid by the published rules of its scenario: fail ends with status 4",
            "fail",
            choices=PUBLISHED_MODES,
        ),
    ] = PUBLISHED_WARNS
    slo: Annotated[
        tuple[str, ...],
        Option(
            "rules",
            "Rule that must hold; the environment variable has a rule per line",
            "ttft p95 < 500ms",
            "RULE",
            repeated=True,
        ),
    ] = ()
    """Rules as text, as run.json has them; ``rules`` has the objects."""
    slo_preset: Annotated[
        str | None, Option("rules", "Preset rules: chat, or those of MLPerf", "mlperf-llama3.1-8b", "NAME")
    ] = None
    until_decided_s: Annotated[
        float | None,
        Option(
            "rules",
            "Go on after -t until every rule is decided, at most so long in all",
            "600",
            "seconds",
            flag="--until-decided",
            range=DURATION,
        ),
    ] = None
    inconclusive: Annotated[
        str, Option("rules", "What an undecided rule does: fail ends with status 4", "warn", choices=UNDECIDED)
    ] = FAILS
    slo_mode: Annotated[
        str, Option("rules", "Rules judge the 95% interval, or the point estimate alone", "point", choices=MODES)
    ] = INTERVAL
    goodput: Annotated[
        str | None, Option("rules", "Limits in AIPerf's form", "time_to_first_token:300 inter_token_latency:20")
    ] = None
    reading_pace: Annotated[
        float,
        Option("rules", "Pace of a reader in tokens/s, for qoe and reading_stall", "3.3", "N", range=Range(*PACES)),
    ] = PACE
    token_deadline: Annotated[
        str,
        Option(
            "rules",
            "Deadlines of the first token and between tokens, for fluidity; qoe takes the first",
            "450ms,40ms",
            "TTFT,TPOT",
        ),
    ] = DEADLINES
    selftest: Annotated[
        str,
        Option(
            "report",
            "Streams with known send times beside the load: how far are reported times from true ones? With require, a run "
            "that cannot show it is INVALID",
            "require",
            choices=(AUTO, OFF, REQUIRE),
        ),
    ] = AUTO
    percentiles: Annotated[
        tuple[float, ...], Option("report", "Percentiles of the tables, up to 99.9", "50,95,99.9", "numbers")
    ] = (50.0, 90.0, 95.0, 99.0)
    report_dir: Annotated[
        str,
        Option("report", "Folder of the reports", "out", "FOLDER", otherwise="reports/<time>-<model>", in_form=False),
    ] = ""
    label: Annotated[
        tuple[str, ...],
        Option(
            "report",
            "Label by which locust-llm history and compare find the run; the environment variable has one per line",
            "gpu=h200",
            "KEY=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    git: Annotated[
        bool,
        Option("report", "Note the Git commit and branch of the working directory, or of the CI job", in_form=False),
    ] = True
    candidate: Annotated[
        str,
        Option("ab", "Address of the candidate", "localhost:8001", "URL", otherwise="that of the base", in_form=False),
    ] = ""
    candidate_set: tuple[str, ...] = ()
    """In what it differs beside its address; never the value of a header."""
    aa: Annotated[
        bool, Option("ab", "Both arms are the base: how often are equal ones called different?", in_form=False)
    ] = False
    block_duration: Annotated[
        float, Option("ab", "Duration of the load of a block", "10", "seconds", DURATION, in_form=False)
    ] = 15.0
    washout: Annotated[
        float | None,
        Option(
            "ab",
            "Time at the begin of a block whose requests are not counted",
            "2",
            "seconds",
            DURATION,
            otherwise="a fifth of the block",
            in_form=False,
        ),
    ] = None
