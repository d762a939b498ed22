"""What CI systems read: JUnit's XML, GitHub's summary page and annotations."""

import re
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from msgspec.structs import replace
from support.records import a_run, answered, twenty

from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.github_annotations import (
    make_annotations,
    make_announcement,
    write_workflow_outputs,
)
from locust_llm.report.junit import describe_slo_result, export_junit_xml
from locust_llm.report.load_records import collect_columns
from locust_llm.report.pull_request_comment import (
    MAX_CHARACTERS,
    make_comment_body,
    make_comment_mark,
)
from locust_llm.report.render.text_report import render_markdown
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import SloResult

RULES = ("ttft p50 < 16ms", "ttft p50 < 6ms", "warn: ttft p50 < 6ms", "ttft p99 < 20.1ms")
"""Of 200 TTFTs of 1 to 20 ms: PASS, FAIL, a warning, and too few for the last."""


def made(*rules: str, **other: object) -> tuple[Summary, Run]:
    run = a_run(slo=rules, random_seed=7, **other)
    run = replace(run, versions={"locust": "2.47"}, server="vllm")
    return summarise_run(
        collect_columns(
            answered(ms, ms + 9, sent_at=10.0 + i / 10) for i, ms in enumerate(twenty())
        ),
        run,
    ), run


def test_a_case_a_rule() -> None:
    root = fromstring(export_junit_xml(*made(*RULES)))
    counts = {name: root.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
        "time": f"{19.909 + twenty()[-1] / 1e3:.3f}",
    }
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("name"), suite.get("timestamp")) == (
        "locust-llm by-hand",
        "2023-11-14T22:13:20",
    )
    assert {(p.get("name"), p.get("value")) for p in suite.iter("property")} == {
        ("slo_status", "FAIL"), ("model", "m"), ("server", "http://server:8000 vllm"),
        ("simulated", "false"),
        ("client_verdict", "OK"), ("random_seed", "7"), ("version locust", "2.47"),
        ("slo_mode", "interval"),
        ("inconclusive", "close"),
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == list(RULES)
    assert {case.get("classname") for case in cases} == {"slo"}
    assert [case[0].tag for case in cases] == ["system-out", "failure", "skipped", "skipped"]
    assert cases[1][0].get("message") == "observed 10.5ms (95% interval 9ms to 12ms, of 200 values)"
    assert "its 95% interval crosses the limit" in (cases[3][0].get("message") or "")


def test_an_undecided_rule_is_passed_where_it_counts_so() -> None:
    root = fromstring(export_junit_xml(*made(RULES[3], inconclusive="pass")))
    assert (root.get("failures"), root.get("skipped")) == ("0", "0")
    (case,) = root.iter("testcase")
    assert (case[0].tag, (case[0].text or "").split(": ")[0]) == ("system-out", "INCONCLUSIVE")


def test_names_from_outside_do_not_break_the_file() -> None:
    hostile = 'a<b>&"\x00\x1b\ud800c'
    root = fromstring(
        export_junit_xml(
            *made(f'ttft{{name="{hostile.replace(chr(34), "")}"}} p50 < 1s', model=hostile)
        )
    )
    case = root.find("testsuite/testcase")
    assert case is not None
    assert "a<b>&\N{REPLACEMENT CHARACTER}" in (case.get("name") or "")


def test_annotations() -> None:
    lines = list(make_annotations(*made("ttft{name=chat,input=100} p50 < 6ms", *RULES[2:])))
    assert lines[:3] == [
        "::error title=SLO FAIL%3A ttft{name=chat%2C input=100} p50 < 6ms::"
        "observed 10.5ms (95%25 interval 9ms to 12ms, of 200 values)\n",
        "::warning title=SLO FAIL%3A warn%3A ttft p50 < 6ms::"
        "observed 10.5ms (95%25 interval 9ms to 12ms, of 200 values)\n",
        "::warning title=SLO INCONCLUSIVE%3A ttft p99 < 20.1ms::observed 20ms (95%25 interval "
        "20ms to 21.36ms, of 200 values): its 95%25 interval crosses the limit, a longer run may "
        "decide it; fewer than 20 independent values lie beyond p99, so the upper end is an "
        "assumption: rarer values are taken to follow the trend of the largest ones\n",
    ]  # fmt: skip
    assert [line.partition("::With ")[0] for line in lines[3:]] == [
        "::notice title=locust-llm%3A SLO FAIL"
    ]
    open_, _ = make_annotations(*made(RULES[3], inconclusive="pass"))
    assert open_.startswith("::notice title=SLO INCONCLUSIVE%3A ")


def test_only_github_gets_what_is_githubs(tmp_path: Path) -> None:
    page, outputs = tmp_path / "summary", tmp_path / "outputs"
    page.write_text("before\n")
    summary, run = made(*RULES)
    files = {"GITHUB_STEP_SUMMARY": str(page), "GITHUB_OUTPUT": str(outputs)}
    stage = replace(run, stage=Stage(number=1, value=2.0, began_at=0, ended_at=1))
    write_workflow_outputs(summary, run, tmp_path, {})
    write_workflow_outputs(summary, stage, tmp_path, files)
    assert (page.read_text(), outputs.exists()) == ("before\n", False)
    write_workflow_outputs(summary, run, tmp_path / "a\nverdict=PASS", files)
    said = page.read_text()
    assert said.startswith("before\n# Load test by-hand")
    assert "SLO FAIL" in said
    verdict, begin, *folder, end = outputs.read_text().splitlines()
    assert (verdict, begin, folder) == (
        "verdict=FAIL",
        f"report-path<<{end}",
        [str(tmp_path / "a"), "verdict=PASS"],
    )
    assert make_announcement(summary, run, {"GITHUB_ACTIONS": "false"}) == ""
    here = make_announcement(summary, run, {"GITHUB_ACTIONS": "true"})
    assert here.startswith("::error title=")
    assert len(here.splitlines()) == 4
    assert make_announcement(summary, stage, {"GITHUB_ACTIONS": "true"}) == ""


def test_an_annotation_holds_no_other_command() -> None:
    summary, run = made("ttft{name=##[set-output name=verdict]PASS} p50 < 6ms", model="##[x]")
    assert not [
        line for line in make_annotations(summary, run) if "##[" in line or line.count("::") != 2
    ]


def test_a_comment(tmp_path: Path) -> None:
    hostile = "<b>|@all\n--> x @octocat #1 !2 www.evil.example https://evil.example/x, a@b.example"
    summary, run = made(*RULES, model=hostile)
    text = make_comment_body(summary, run, tmp_path / "none", tmp_path, "load --> test")
    first, _, title, *_ = text.splitlines()
    assert (first, title) == ("<!-- locust-llm load ___ test -->", r"## load --\> test: SLO FAIL")
    assert first == make_comment_mark("load --> test")
    assert "There is no base to compare with: " in text
    assert "| ttft p50 &lt; 6ms" in text
    assert "<b>" not in text
    page = render_markdown(summary, run)
    assert "<b>" not in page
    for live in (
        "@all",
        "@octocat",
        "#1",
        "!2",
        "www.evil.example",
        "https://evil.example/x",
        "a@b.example",
    ):
        assert page.count(live) == page.count(f"`{live}`") > 0, live
    assert "Time to First Token" in make_comment_body(summary, run, None, tmp_path)
    old = Path(__file__).with_name("old") / "2026-11-20"
    here, _, notes = make_comment_body(summary, run, old, old).partition(
        "<details><summary>Notes</summary>\n\n"
    )
    assert re.search(r"\| TTFT p50 \(ms\) +\| +21.51 \| +21.51 \|", here)
    assert "too few samples" in notes
    assert notes.endswith("\n\n</details>\n")
    many = make_comment_body(*made(*(f"ttft p50 < {n}ms" for n in range(1, 900))), None, tmp_path)
    assert len(many) <= MAX_CHARACTERS + 100
    assert many.startswith("<!-- locust-llm comment -->\n\n## Load test: SLO FAIL\n")
    assert many.endswith("|\n\nThe rest is in the report.\n")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"observed": 612.34, "unit": "ms", "low": 590.0, "high": None, "count": 500},
         "observed 612ms (95% interval at least 590ms, of 500 values)"),
        ({"observed": float("inf"), "unit": "s", "low": 1.0, "high": float("inf"),
            "reason": "it failed"},
         "observed fail (95% interval 1s to fail): it failed"),
        ({"reason": "there is nothing"}, "there is nothing"),
        ({"observed": 12345.6, "unit": "/s"}, "observed 12,346/s"),
    ],
)  # fmt: skip
def test_a_sentence(result: dict[str, object], said: str) -> None:
    assert describe_slo_result(SloResult(rule="r", status="FAIL", **result)) == said  # type: ignore[arg-type]
