"""Targets of a run, its arms: where a request goes and with what, what is written down of it, and
that both arms are asked."""

from argparse import Namespace
from pathlib import Path

import msgspec
import pytest
from support.command_line import parse
from support.tiny_server import TinyServer, tiny_server

from locust_llm.access.headers_and_api_key import read_candidate_headers
from locust_llm.controller.schedule import schedule_phase
from locust_llm.locust_adapter.command_line_parser import check_options
from locust_llm.locust_adapter.withheld_options import list_secret_names, strip_secrets
from locust_llm.server.discovery import Discovery
from locust_llm.server.server_survey import make_candidate_settings, survey_servers
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.worker.ab_targets import list_variants, make_variant_targets

SECRET = "s3cret-of-the-candidate"


def options(*words: str) -> Namespace:
    return parse("--host", "http://a", *words)


def test_without_arms_there_is_one_side() -> None:
    (side,) = make_variant_targets(
        Settings(host="http://a"), Discovery(model="m", length_way=("ignore_eos",)), {}
    ).values()
    assert (side.name, side.address, side.model, side.length_way) == (
        "",
        "http://a",
        "m",
        ("ignore_eos",),
    )


def test_each_arm_has_its_address_its_model_and_its_headers() -> None:
    s = Settings(host="http://a", candidate="http://b", candidate_set=("header:X=***", "body.k=1"))
    found = Discovery(
        model="one", candidate=Discovery(model="two", length_way=("min_tokens",), server="new")
    )
    both = make_variant_targets(s, found, {"X": "y"})
    assert (both[BASE].address, both[BASE].model, both[BASE].headers, both[BASE].body) == (
        "http://a",
        "one",
        {},
        {},
    )
    assert (both[CANDIDATE].address, both[CANDIDATE].model, both[CANDIDATE].length_way) == (
        "http://b", "two", ("min_tokens",),
    )  # fmt: skip
    assert (both[CANDIDATE].headers, both[CANDIDATE].body) == ({"X": "y"}, {"k": 1})
    assert [(arm.name, arm.host, arm.model, arm.server) for arm in list_variants(s, found)] == [
        (BASE, "http://a", "one", ""), (CANDIDATE, "http://b", "two", "new"),
    ]  # fmt: skip


def test_a_candidate_with_a_model_of_its_own_has_no_mix() -> None:
    s = Settings(host="http://a", model_mix="m=1,n=2", candidate_set=("model=new",))
    assert make_candidate_settings(s).models == ("new",)
    assert make_candidate_settings(
        msgspec.structs.replace(s, candidate_set=(), candidate="http://b")
    ).models == (
        "m",
        "n",
    )


def test_a_candidate_that_was_not_asked_gets_no_request() -> None:
    with pytest.raises(ValueError, match="was not checked before the run"):
        make_variant_targets(Settings(host="http://a", candidate="http://b"), Discovery(), {})


def test_both_arms_of_a_self_test_are_the_base() -> None:
    both = make_variant_targets(Settings(host="http://a", aa=True), Discovery(model="m"), {})
    assert both[BASE][1:] == both[CANDIDATE][1:]


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_value_of_a_header_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--candidate-set", f"header:X-Key={SECRET}", "--candidate-set", "model=new"]
    monkeypatch.setattr("sys.argv", ["/somewhere/locust", *words])
    given = options(*words)
    s = check_options(given)
    assert (s.candidate_set, s.command) == (
        ("header:X-Key=***", "model=new"),
        "locust --candidate-set 'header:X-Key=***' --candidate-set model=new",
    )  # fmt: skip
    assert read_candidate_headers(given) == {"X-Key": SECRET}
    assert "--candidate-set header:X-Key" in list_secret_names(given)
    spawn = type(
        "Spawn", (), {"type": "spawn", "data": {"parsed_options": vars(given)}, "node_id": "x"}
    )()
    assert SECRET not in str(strip_secrets(spawn).data)  # type: ignore[arg-type]


def test_the_environment_has_one_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUST_LLM_CANDIDATE_SET", f"header:X-Key={SECRET}\nmodel=new\n")
    assert check_options(options()).candidate_set == ("header:X-Key=***", "model=new")


def test_both_are_asked_and_the_candidate_with_its_own_header() -> None:
    with tiny_server() as base, tiny_server() as other:
        given = parse(
            "--host", base.url, "--candidate", other.url, "--candidate-set", "header:X-Key=k"
        )
        found = survey_servers(check_options(given), given, here=True)
        assert found.candidate is not None
        assert asked_with(base, "x-key") == {None}
        assert asked_with(other, "x-key") == {"k"}
    with tiny_server() as base, tiny_server(started=False) as nobody:
        given = parse("--host", base.url, "--candidate", nobody.url)
        with pytest.raises(RunRefused, match="the candidate: cannot reach"):
            survey_servers(check_options(given), given, here=True)


def asked_with(server: TinyServer, name: str) -> set[str | None]:
    return {asked.headers.get(name) for asked in server.asked}


def test_both_blocks_of_a_pair_have_the_same_arrivals() -> None:
    s = Settings(aa=True, request_rate=5.0, block_duration=10.0, random_seed=3)

    def arrivals(number: int) -> list[float]:
        dues = schedule_phase(s, f"profiling {number}")
        assert dues is not None
        return [due.at_s for due in dues]

    assert arrivals(3) == arrivals(4) != arrivals(5) == arrivals(6)
    for number in (3, 5):
        load_s = s.blocks[number - 1].load_s
        assert 0 <= min(arrivals(number)) <= max(arrivals(number)) < load_s
        # the next one, of 5 a second, is behind the end
        assert max(arrivals(number)) > load_s - 3
