"""Tenants of a process: whose the next session is, what its requests carry, and what is written
down of that."""

import sys
from collections import Counter
from pathlib import Path

from locust.rpc.protocol import Message

import pytest
from support.command_line import parse

from locust_llm.access.headers_and_api_key import read_tenant_headers
from locust_llm.locust_adapter.command_line_parser import build_settings, look_through_inputs
from locust_llm.locust_adapter.withheld_options import list_secret_names, strip_secrets
from locust_llm.settings.ab_arms import BASE, CANDIDATE, TrialBlock
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.worker.ab_targets import VariantTarget
from locust_llm.worker.tenant_choice import TenantAssigner
from locust_llm.workload.dataset import Dataset
from locust_llm.workload.dataset_formats import DatasetError

SECRET = "sk-hush-1"
SIDE = VariantTarget("", "http://server", "m", (), {"X-All": "1"}, {"top_k": 1})


def settings(**fields: object) -> Settings:
    return Settings(
        **{"host": "http://h", "tenant_mix": "gold=20,free=80", "random_seed": 4, **fields}
    )  # type: ignore[arg-type]


def test_each_arrival_is_drawn_and_each_user_of_a_closed_loop_dealt() -> None:
    rate = settings(request_rate=5.0)
    drawn = [TenantAssigner(rate, worker=worker).of(1) for worker in range(200)]
    assert set(drawn) == {"gold", "free"}
    one, same = TenantAssigner(rate), TenantAssigner(rate)
    first = [one.of(user) for user in range(2000)]
    assert first == [same.of(7) for _ in range(2000)]
    assert Counter(first)["gold"] / 2000 == pytest.approx(0.2, abs=4 * (0.16 / 2000) ** 0.5)
    assert one.of(1, "session 3") == TenantAssigner(rate, worker=1).of(2, "session 3")
    closed = TenantAssigner(settings(users=10))
    assert Counter(closed.of(user) for user in range(10)) == {"gold": 2, "free": 8}
    two = [TenantAssigner(settings(users=10, processes=2), worker=worker) for worker in (0, 1)]
    assert Counter(some.of(user) for some in two for user in range(5)) == {"gold": 2, "free": 8}
    assert TenantAssigner(Settings()).of(1) == ""


def test_both_blocks_of_a_pair_draw_the_same_and_in_the_base_one_is_alone() -> None:
    tenants = TenantAssigner(settings(request_rate=5.0, isolate="gold"))
    draws = []
    for block in (TrialBlock(1, BASE, 10.0), TrialBlock(1, CANDIDATE, 10.0)):
        tenants.begin_block(block, "4/0/pair 1")
        draws.append([tenants.of(1) for _ in range(50)])
    assert draws[0] == draws[1]
    assert [
        tenants.alone(block)
        for block in (TrialBlock(1, BASE, 10.0), TrialBlock(1, CANDIDATE, 10.0), None)
    ] == ["gold", "", ""]
    tenants.wait(TrialBlock(1, BASE, 10.0))  # it is over: nobody waits
    tenants.close()
    tenants.wait(TrialBlock(1, CANDIDATE, 10.0))
    assert TenantAssigner(settings(request_rate=5.0)).alone(TrialBlock(1, BASE, 10.0)) == ""


def test_what_requests_carry() -> None:
    given = {
        "gold": {"Authorization": "Bearer k"},
        "free": {"X-Gateway-Inference-Fairness-ID": "poor"},
    }
    tenants = TenantAssigner(settings(tenant_priority="gold=0,free=-3"), given)
    gold, free = tenants.side(SIDE, "gold"), tenants.side(SIDE, "free")
    assert gold.headers == {
        "X-All": "1",
        "x-gateway-inference-fairness-id": "gold",
        "Authorization": "Bearer k",
    }
    assert free.headers == {"X-All": "1", "X-Gateway-Inference-Fairness-ID": "poor"}
    assert (gold.body, free.body) == ({"top_k": 1, "priority": 0}, {"top_k": 1, "priority": -3})
    assert tenants.side(SIDE, "other").body == SIDE.body
    assert tenants.side(SIDE, "") is SIDE
    assert set(tenants.secrets.values()) == {"Bearer k", "poor"}
    with pytest.raises(ValueError, match="goes into a header"):
        tenants.side(SIDE, "a\r\nX-Evil: 1")


def test_values_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "--tenant-mix",
        "gold=1,free=2",
        "--tenant-header",
        f"gold:Authorization=Bearer {SECRET}",
    ]
    monkeypatch.setattr(sys, "argv", ["locust", *words])
    monkeypatch.setenv("LOCUST_LLM_TENANT_HEADER", f"free:X-Key={SECRET}2")
    options = parse(*words)
    assert read_tenant_headers(options) == {
        "free": {"X-Key": f"{SECRET}2"},
        "gold": {"Authorization": f"Bearer {SECRET}"},
    }
    found = build_settings(options)
    assert found.tenant_header == ("free:X-Key=***", "gold:Authorization=***")
    assert (
        found.command
        == "locust --tenant-mix gold=1,free=2 --tenant-header 'gold:Authorization=***'"
    )
    assert {"--tenant-header free:X-Key", "--tenant-header gold:Authorization"} <= {
        *list_secret_names(options)
    }
    assert SECRET not in str((found, list_secret_names(options)))
    sent = strip_secrets(Message("spawn", {"parsed_options": vars(options)}, "w"))
    assert SECRET.encode() not in sent.serialize()
    assert not list(validate_settings(found))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tenant_mix": "gold=1,gold=2"}, "has the tenant 'gold' twice"),
        ({"tenant_mix": "gold=1,free=0"}, "the weight of 'free' must be above 0"),
        ({"tenant_header": ("silver:x=***",)}, "--tenant-header: there is no tenant silver"),
        (
            {"tenant_priority": "god=1"},
            "--tenant-priority: there is no tenant god (did you mean gold?)",
        ),
        (
            {"tenant_priority": "gold=1", "endpoint_type": "responses"},
            "--tenant-priority works with vLLM's",
        ),
        ({"tenant_weight": "silver=1"}, "--tenant-weight: there is no tenant silver"),
        ({"tenant_weight": "gold=x"}, "--tenant-weight: the weight of 'gold'"),
        ({"slo": ("ttft{tenant=silver} p95 < 1s",)}, "there is no tenant silver"),
        ({"isolate": "silver", "request_rate": 5.0}, "--isolate: there is no tenant silver"),
        ({"isolate": "gold", "tenant_mix": None}, "--isolate needs --tenant-mix"),
        ({"isolate": "gold", "tenant_mix": "gold=1"}, "--isolate needs a second tenant"),
        ({"isolate": "gold", "users": 2}, "it has 0 of 2 users (-u)"),
        (
            {"isolate": "gold", "request_rate": 5.0, "tenant_mix": "gold=1,free=999"},
            "too little to compare",
        ),
        (
            {"isolate": "gold", "users": 10, "candidate": "http://other"},
            "--isolate and locust-llm ab exclude each other",
        ),
        (
            {"isolate": "gold", "users": 10, "request_count": 5},
            "--isolate and --request-count exclude each other",
        ),
        ({"users": 10, "aa": True}, "locust-llm ab and --tenant-mix exclude each other"),
    ],
)
def test_what_cannot_be(fields: dict[str, object], why: str) -> None:
    found = list(validate_settings(settings(**fields)))
    assert any(why in mistake for mistake in found), found
    assert all("\n" not in mistake for mistake in found)


def test_rows_name_their_tenants(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a", "tenant": "gold"}\n{"text": "b"}\n')
    assert [item.tenant for item in Dataset(str(rows))] == ["gold", ""]
    log = tmp_path / "log.csv"
    log.write_text("tokens,team\n10,gold\n20,free\n")
    columns = {"input_tokens": "tokens", "tenant": "team"}
    assert [item.tenant for item in Dataset(str(log), kind="access_log", columns=columns)] == [
        "gold",
        "free",
    ]
    asked = {
        "input_file": str(log),
        "dataset_columns": "input_tokens=tokens,tenant=team",
        "users": 10,
    }
    assert look_through_inputs(settings(**asked)) is not None
    for more, why in (
        ({"tenant_mix": "gold=1,pro=2"}, "the tenant free, which is missing in"),
        ({"isolate": "gold"}, "a request rate"),
    ):
        with pytest.raises(ValueError, match=why):
            look_through_inputs(settings(**{**asked, **more}))
    rows.write_text('{"text": "a", "tenant": "two words"}\n')
    with pytest.raises(
        DatasetError, match="column 15: tenant: the name 'two words' goes into a header"
    ):
        list(Dataset(str(rows)))
