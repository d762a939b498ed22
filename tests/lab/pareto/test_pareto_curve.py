"""Pareto curves of levels whose figures can be worked out with a pencil; the energy of a token; the
figure."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.levels import level, row
from support.records import answered
from support.stages import fill_sweep

from locust_llm.lab.pareto.pareto_chart import MAX_CURVES, choose_ticks, draw_pareto_svg
from locust_llm.lab.pareto.pareto_command import load_pareto_curves, run_pareto_command
from locust_llm.lab.pareto.pareto_curve import (
    CurveWorkload,
    ParetoCurve,
    describe_curve_differences,
    make_level_point,
)
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.sections.energy import measure_energy
from locust_llm.report.sections.sweep.best_points import (
    CurvePoint,
    PaceLimit,
    find_pace_limits,
    mark_best_points,
)
from locust_llm.report.write_report_files import summarise_folder
from locust_llm.slo.rules import parse_rule


def point(per_user: float, per_gpu: float, **other: object) -> CurvePoint:
    return CurvePoint(value=per_gpu, per_user=per_user, per_gpu=per_gpu, **other)  # type: ignore[arg-type]


FOUR = mark_best_points((point(100, 10), point(50, 40), point(40, 30), point(20, 60)))
CURVE = ParetoCurve(
    name="H100", axis="concurrency", gpus=2, points=FOUR, knee=40.0, knee_rule="SLO"
)


def test_a_level_is_a_pace_and_a_share_of_the_server() -> None:
    """TPOT of 5 ms at the median and 8 at p90 are 200 and 125 tokens/s; 400 tokens/s on 8 GPUs are
    50 each."""
    tails = {
        "inter_token_latency": replace(
            row("inter_token_latency", 5, 9), percentiles={50.0: 5.0, 90.0: 8.0}
        )
    }
    found = make_level_point(level(4, latencies=tails), 8, 50.0)
    assert found is not None
    assert (found.per_user, found.per_gpu, found.value) == (200, 50, 4)
    tail = make_level_point(level(4, latencies=tails), 8, 90.0)
    assert tail is not None
    assert tail.per_user == 125
    assert make_level_point(level(4, latencies=tails), 8, 99.0) is None  # of which there is none
    whole = make_level_point(level(4), None)
    assert whole is not None
    assert whole.per_gpu == 400
    frozen = make_level_point(level(4, silence="no token came from 9.7 to 15.7 s"), None)
    assert frozen is not None
    assert not frozen.sound


def test_the_best_make_a_step_function() -> None:
    """40 tokens/s per user with 30 per GPU is dominated by 50 with 40."""
    assert [p.best for p in FOUR] == [True, True, False, True]
    assert CURVE.steps == ((20, 60), (50, 40), (100, 10))
    equal = mark_best_points((point(1, 1), point(1, 1), point(1, 2, client="INVALID")))
    # an unsound one is not best, and dominates nothing
    assert [p.best for p in equal] == [True, True, False]


def test_a_rule_on_itl_is_a_pace() -> None:
    rules = [
        parse_rule(text)
        for text in ("itl p95 <= 50ms", "ttft p95 < 1s", "itl{class=A} p50 < 9ms", "itl p99 > 1ms")
    ]
    assert find_pace_limits(rules) == (PaceLimit(rule="itl p95 <= 50ms", per_user=20.0),)


def power(*watts: float, gpu: str = "0", each_s: float = 10.0) -> list[EngineSample]:
    return [
        EngineSample(at=i * each_s, engine="DCGM", gpu=gpu, gpu_power_w=w)
        for i, w in enumerate(watts)
    ]


def test_the_energy_of_a_token() -> None:
    """Two GPUs of 300 W and of 200 rising to 400 draw 600 W; at 150 tokens/s that is 4 J each."""
    history = EngineHistory()
    for sample in (*power(300, 300, 300), *power(200, 300, 400, gpu="1")):
        history.add(sample)
    found = measure_energy(history, (0.0, 20.0), 150.0)
    assert found is not None
    assert (found.gpus, found.watts, found.joules_per_output_token) == (2, 600, 4)
    assert measure_energy(history, (0.0, 40.0), 150.0) is None  # half of the time is not covered
    assert measure_energy(history, (100.0, 120.0), 150.0) is None
    assert measure_energy(EngineHistory(), (0.0, 20.0), 150.0) is None
    none = measure_energy(history, (0.0, 20.0), None)
    assert none is not None
    assert none.joules_per_output_token is None


@pytest.mark.parametrize("width", [1200, 400])
def test_a_warning_is_in_full_on_every_screen(browser: Any, width: int) -> None:
    """It is wrapped, not cut: neither by dots nor by the edge of the drawing, as letters grow on a
    phone."""
    a, b = (
        replace(
            CURVE,
            name=f"reports/a-run-with-a-long-name-{name}",
            workloads=(CurveWorkload(model=model, input_tokens=tokens, output_tokens=50),),
        )
        for name, model, tokens in (
            ("a", "meta-llama/Llama-3.1-8B-Instruct", 100.0),
            ("b", "mistralai/Mistral-7B-Instruct-v0.3", 4000.0),
        )
    )
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_content(draw_pareto_svg([a, b], 50))
    lines = page.locator("text.warning")
    assert " ".join(lines.all_text_contents()) == describe_curve_differences([a, b])
    boxes = lines.evaluate_all(
        "lines => lines.map(line => line.getBBox()).map(box => [box.y, box.x + box.width])"
    )
    top = float(page.locator("svg").get_attribute("viewBox").split()[1])
    assert min(begins for begins, _ in boxes) >= top
    assert max(ends for _, ends in boxes) <= 1200
    page.close()


def test_curves_of_different_models_or_lengths_say_so() -> None:
    """Lengths may differ by 2 %, which chance does too."""
    one, near, far = (
        CurveWorkload(model="m", input_tokens=n, output_tokens=50.0) for n in (100.0, 102.0, 103.0)
    )
    a, b, c = (
        replace(CURVE, name=name, workloads=(w,))
        for name, w in (("a", one), ("b", near), ("c", far))
    )
    assert (
        describe_curve_differences([a, b])
        == describe_curve_differences([a])
        == describe_curve_differences([CURVE])
        == ""
    )
    why = (
        "These runs cannot be compared, as they differ in input tokens (a: m, 100 / 50 tokens; "
        "c: m, 103 / 50 tokens)"
    )
    assert describe_curve_differences([a, c]) == why
    other = replace(a, name="d", workloads=(replace(one, model="n"),))
    assert describe_curve_differences([a, other]).startswith(
        "These runs cannot be compared, as they differ in model (a: m"
    )
    svg = draw_pareto_svg([replace(a, simulated=True), c], 50.0)
    root = ET.fromstring(svg)
    lines = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")
             if one.attrib.get("class") == "slo warning"]  # fmt: skip
    assert " ".join(lines) == why  # to its last word
    assert "SIMULATED" in svg


@pytest.mark.parametrize(
    ("most", "last", "count"), [(9, 10, 6), (100, 120, 7), (0.4, 0.45, 10), (1, 1.2, 7)]
)
def test_ticks_hold_the_most(most: float, last: float, count: int) -> None:
    found = choose_ticks(most)
    assert found[0] == 0
    assert found[-1] >= most
    assert 4 <= len(found) <= 10


def test_the_figure_is_sound_xml_of_steps_and_nothing_of_a_name_is_markup() -> None:
    evil = replace(
        CURVE,
        name='<b>"&',
        limits=(PaceLimit(rule="itl p95 <= 50ms", per_user=20.0),),
        not_valid="x: <i>",
    )
    svg = draw_pareto_svg([CURVE, evil], 90.0)
    root = ET.fromstring(svg)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(
        text.startswith('<b>"& (by concurrency, 2 GPUs, not valid by x: <i>') for text in texts
    )
    assert "SLO itl p95 <= 50ms" in texts
    assert "40 knee (SLO)" in texts
    assert "tokens/s per user (1000 / p90 of TPOT in ms)" in texts
    assert "prefers-color-scheme:dark" in svg
    line = next(
        one
        for one in root.iter("{http://www.w3.org/2000/svg}path")
        if "stroke-opacity" in one.attrib
    )
    assert set(line.attrib["d"]) & set("CLQSTAcl") == set()  # across and down only
    assert draw_pareto_svg([CURVE, evil], 90.0) == svg
    for number in (0, MAX_CURVES + 1):
        with pytest.raises(ValueError, match=f"and these are {number}"):
            draw_pareto_svg([CURVE] * number, 50.0)


def test_every_point_has_its_label_and_no_two_overlap() -> None:
    """Eight points within three tokens a second."""
    points = tuple(
        CurvePoint(value=2.0**i, per_user=50 + i / 3, per_gpu=400 + 3 * i, client="OK", best=True)
        for i in range(8)
    )
    root = ET.fromstring(draw_pareto_svg([replace(CURVE, points=points, knee=None)], 50.0))
    texts = [(one.text, float(one.attrib["x"]), float(one.attrib["y"]))
             for one in root.iter("{http://www.w3.org/2000/svg}text")
             if (one.text or "") in {f"{2**i}" for i in range(8)} and one.attrib.get("class") != "muted"]  # fmt: skip
    assert {text for text, _, _ in texts} == {f"{2**i}" for i in range(8)}
    for i, (text, left, y) in enumerate(texts):
        for other, x, height in texts[:i]:
            assert abs(y - height) >= 17 or abs(left - x) >= 9 * min(len(text), len(other)), (
                text,
                other,
            )


def test_folders_become_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One more token 10 ms after the first, and one 20 ms later: TPOT 15 ms, 66.7 tokens/s."""

    def records(count: int) -> list[Record]:
        return [answered(100, 110, 130, sent_at=10 + i * 20 / count) for i in range(count)]

    for name, gpus in (("a", 2), ("b", 4)):
        stages = {1.0: records(20), 2.0: records(30), 4.0: records(40)}
        fill_sweep(tmp_path / name, stages, gpus=gpus, slo=("itl p95 <= 50ms",))
    found = load_pareto_curves([tmp_path / "a", tmp_path / "b"], summarise_folder, None, 50.0)
    assert [(curve.name, curve.gpus) for curve in found] == [("a", 2), ("b", 4)]
    assert [p.per_user for p in found[0].points] == pytest.approx([66.67] * 3, rel=1e-3)
    ratios = [x.per_gpu / y.per_gpu for x, y in zip(found[0].points, found[1].points, strict=True)]
    assert ratios == pytest.approx([2, 2, 2])
    svg, data = tmp_path / "x.svg", tmp_path / "x.json"
    words = [str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(svg), "--json", str(data)]
    assert run_pareto_command(words) == 0
    shown = capsys.readouterr().out
    assert "tokens/s/GPU" in shown
    assert "itl p95 <= 50ms: 20 tokens/s per user at least." in shown
    assert ET.parse(svg) is not None
    assert '"per_user"' in data.read_text()
    assert run_pareto_command([*words[:2], "--json", "-"]) == 0
    assert capsys.readouterr().out == data.read_text()
    points = [str(tmp_path / "a" / "stages" / number) for number in "123"]
    assert run_pareto_command(points) == 0  # runs of one load each
    shown = capsys.readouterr().out
    assert "runs of m, 2 GPUs" in shown
    assert [line.split()[0] for line in shown.splitlines() if line[:1].isdigit()] == ["1", "2", "4"]
    assert run_pareto_command([*points, str(tmp_path / "b" / "stages" / "1")]) == 5
    assert "runs of different numbers of GPUs make no curve" in capsys.readouterr().err
    assert run_pareto_command([str(tmp_path / "none")]) == 5
    assert "is not a run folder" in capsys.readouterr().err
    assert run_pareto_command([str(tmp_path / "a"), "--percentile", "12"]) == 5
    assert "has no stage with TPOT p12" in capsys.readouterr().err
    assert run_pareto_command([str(tmp_path / "a"), "--gpus", "0"]) == 5
