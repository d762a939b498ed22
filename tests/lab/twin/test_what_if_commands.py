"""The commands twin predict and plan: statuses, JSON, the page, refusals in one line, the run to do
next."""

import json
import re

import msgspec
import pytest
from support.made_twins import QUEUE, STEPS, draws, made

from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.twin_model import NOT_TO_BE_USED, SHAPE


@pytest.fixture
def written(tmp_path):
    def write(twin):
        twin_file.write_twin(twin, tmp_path / "twin.toml")
        return str(tmp_path / "twin.toml")

    return write


def predict(*words):
    return main(["twin", "predict", *words])


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("ttft p95 < 1s", ExitStatus.OK),
        ("ttft p95 < 1ms", ExitStatus.RULE_FAILED),
        ("itl p50 < 10ms", ExitStatus.INCONCLUSIVE),
    ],
)
def test_the_status_says_whether_something_is_within_the_rules(written, capsys, rule, status):
    path = written(made(draws=draws(0.9, 1.1)))
    assert predict(path, "--load", "concurrency=1,2", "--slo", rule) == status
    out = " ".join(capsys.readouterr().out.split())  # where lines end depends on the path
    assert ("No what-if is within the SLO." in out) == (status == ExitStatus.RULE_FAILED)
    assert ("it is open whether the SLO is met" in out) == (status == ExitStatus.INCONCLUSIVE)


def test_without_rules_nothing_is_the_best(written, capsys):
    assert predict(written(made()), "--load", "concurrency=1") == ExitStatus.OK
    assert "no what-if is the best" in capsys.readouterr().out


def test_every_answer_has_an_interval_and_extrapolations_their_range(written, capsys):
    path = written(made(draws=draws(0.9, 1.1)))
    assert (
        predict(
            path, "--load", "concurrency=16,32", "--set", "max-num-batched-tokens=100,200", "--json"
        )
        == ExitStatus.OK
    )
    found = json.loads(capsys.readouterr().out)
    assert [(one["load"], one["set"], one["extrapolated"]) for one in found["what_ifs"]] == [
        ({"concurrency": 16}, {"max-num-batched-tokens": "100"}, []),
        ({"concurrency": 32}, {"max-num-batched-tokens": "100"},
            ["32 users (up to 16 were measured)"]),
        ({"concurrency": 16}, {"max-num-batched-tokens": "200"},
            ["steps of up to 200 tokens (up to 100 were measured)"]),
        ({"concurrency": 32}, {"max-num-batched-tokens": "200"},
         ["32 users (up to 16 were measured)",
             "steps of up to 200 tokens (up to 100 were measured)"]),
    ]  # fmt: skip
    for one in found["what_ifs"]:
        for low, about, high in one["answers"].values():
            assert low <= about <= high


def test_what_is_left_out_is_told_once_for_each_reason(written, capsys):
    words = (
        written(made()), "--load", "concurrency=1,1000", "--set", "max-num-seqs=64",
        "--set", "max-num-batched-tokens=32,100", "--set", "prefill-concurrency=1,2",
    )  # fmt: skip
    assert predict(*words) == ExitStatus.OK
    out = " ".join(capsys.readouterr().out.split())
    why = "64 sequences of one token each are above a budget of 32 tokens"
    first = "max-num-seqs=64 max-num-batched-tokens=32 prefill-concurrency=1"
    assert (
        f"Left out, because no server can run with these settings: {first} and 1 more: {why}."
        in out
    )
    assert (
        "Left out, because they are too far outside of the fitted range: 1000 users, where the twin was fitted up to "
        "16 users." in out
    )
    predict(*words, "--json")
    left_out = json.loads(capsys.readouterr().out)["left_out"]
    assert len(left_out) == 3
    assert left_out[0] == f"{first}: {why}"


def test_a_shape_is_relative_and_decides_no_rule(written, capsys):
    path = written(made(verdict=SHAPE))
    status = predict(
        path,
        "--load",
        "concurrency=1",
        "--set",
        "max-num-batched-tokens=50,100",
        "--slo",
        "ttft p95 < 1s",
    )
    assert status == ExitStatus.INCONCLUSIVE
    out = capsys.readouterr().out
    assert "good for relative changes only" in out
    assert re.search(r"50 +1 user +2\.00 \[1\.85, 2\.17\]", out)


def test_settings_that_cannot_be_told_apart_name_the_run_that_decides(written, capsys):
    """A KV cache of 10,000 or of 20,000 tokens is the same for two users."""
    path = written(made(draws=draws(0.99, 1.01)))
    sets = ["--set", "kv-tokens=10000,20000", "--set", "prefill-concurrency=2"]
    assert (
        predict(path, "--load", "concurrency=1,2", *sets, "--slo", "ttft p95 < 1s") == ExitStatus.OK
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "are not distinguished" in out
    assert "server --kv-tokens 20000: locust-llm run --headless --host HOST -u" in out
    assert (
        "--prefill-concurrency 2 --synthetic-input-tokens-mean 100 --output-tokens-mean 10" in out
    )


def test_the_page_has_a_plot_with_the_frontier(written, tmp_path, capsys):
    page = tmp_path / "page.html"
    path = written(made(QUEUE, draws=draws(0.9, 1.1, cost=QUEUE)))
    words = ["--load", "concurrency=1..16", "--slo", "ttft p95 < 500ms", "--html", str(page)]
    assert predict(path, *words) == ExitStatus.OK
    text = page.read_text()
    assert "ttft p95 &lt; 500ms" in text
    (plot,) = json.loads(text.split("id=plots>")[1].split("</script>")[0])
    assert [(mark["text"], mark["x"]) for mark in plot["marks"]] == [("ttft p95 < 500ms", 500.0)]
    frontier, *dots = plot["series"]
    assert frontier["x"] == sorted(frontier["x"])
    assert frontier["y"] == sorted(frontier["y"])
    for x, low, high in zip(frontier["x"], frontier["x_low"], frontier["x_high"], strict=True):
        assert low <= x <= high
    assert sum(len(series["x"]) for series in dots) >= len(frontier["x"])
    shown = re.sub(r"<(style|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert "nan" not in shown
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        ({"verdict": NOT_TO_BE_USED}, (), "not to be used: made for a test"),
        ({}, ("--load", "users=3"), "write concurrency=1..64, or request-rate=0.5..8"),
        ({}, ("--set", "budget=3"), "write KEY=VALUES with one of policy"),
        ({}, ("--slo", "error_rate < 1%"), "a twin predicts ttft"),
        ({}, ("--load", "concurrency=160"), "160 users, where the twin was fitted up to 16"),
        ({}, ("--synthetic-input-tokens-mean", "600"), "6 times as long as the longest"),
        ({}, ("--output-tokens-stddev", "3"), "--output-tokens-stddev needs --output-tokens-mean"),
        ({}, ("--set", "kv-tokens=64"), "does not hold a request of 110"),
        ({"lengths": ()}, (), "has no lengths of requests"),
    ],
)
def test_what_is_refused_in_one_line(written, capsys, change, words, why):
    assert predict(written(made(**change)), *words) == ExitStatus.REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert captured.err.count("\n") == 1


def test_another_command_of_a_twin_is_refused(capsys):
    assert main(["twin", "ask"]) == ExitStatus.REFUSED
    assert "unknown command twin 'ask'" in capsys.readouterr().err
    assert main(["twin", "--help"]) == ExitStatus.OK
    assert "predict" in capsys.readouterr().out


def test_a_plan_as_text(written, capsys):
    path = written(made(QUEUE, draws=draws(*[1.0] * 6, cost=QUEUE), lengths=((100, 1),)))
    words = [
        "--arrivals",
        "20/s",
        "--day",
        "diurnal",
        "--slo",
        "ttft avg < 200ms",
        "--gpu-hour",
        "2.5",
    ]
    assert main(["plan", path, *words]) == ExitStatus.OK
    out = " ".join(capsys.readouterr().out.split())
    for said in (
        "replicas: ",
        "When to add and to remove a replica",
        "spread evenly",
        "a month (730 h)",
        "The day",
    ):
        assert said in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--arrivals", "1/s"), "a plan needs an SLO"),
        (("--arrivals", "nowhere.jsonl", "--slo", "ttft p95 < 1s"), "there is no such file"),
        (("--arrivals", "1/s", "--day", "round", "--slo", "ttft p95 < 1s"), "write flat, diurnal"),
        (
            ("--arrivals", "1/s", "--slo", "ttft p95 < 1s", "--gpu-hour", "-1"),
            "--gpu-hour must be above 0",
        ),
        (("--arrivals", "1/s", "--slo", "ttft p95 < 1s", "--gpus-per-replica", "0"), "at least 1"),
    ],
)
def test_what_no_plan_is_made_of(written, capsys, words, why):
    assert main(["plan", written(made()), *words]) == ExitStatus.REFUSED
    assert why in capsys.readouterr().err


def test_no_replicas_and_only_a_shape_have_statuses_of_their_own(written, capsys):
    twin = made(STEPS, draws=draws(*[1.0] * 6))
    words = ["--arrivals", "1/s", "--slo", "itl p50 < 1ms"]
    assert main(["plan", written(twin), *words]) == ExitStatus.RULE_FAILED
    assert "No number of replicas" in capsys.readouterr().out
    shaped = msgspec.structs.replace(twin, trust=msgspec.structs.replace(twin.trust, error=0.2))
    assert main(["plan", written(shaped), *words]) == ExitStatus.INCONCLUSIVE
    assert "so none is given" in " ".join(capsys.readouterr().out.split())
