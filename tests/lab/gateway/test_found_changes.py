"""Every planted change is found, and none is invented: 100 answers through the proxy of the tests,
which draws for each of them whether and what it changes, and writes that down."""

from pathlib import Path
from typing import Final

from gevent.pool import Pool
from support.planted_proxy import planted_proxy, read_proxy_log

from locust_llm.client.request_exchange import UserConnection
from locust_llm.lab.gateway.changed_streams import AnswerFacts, compare_facts, read_facts
from locust_llm.lab.gateway.gateway_client import (
    DIRECT,
    GatewayAddress,
    exchange_script,
    make_address,
)
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript

RUNS: Final = 100
EXPECTED: Final[dict[str, set[str]]] = {
    "lose": {"lost"},
    "double": {"doubled"},
    "swap": {"reordered"},
    "merge": {"merged"},
    "split": {"split"},
    "hold": {"held"},
    "hold_all": {"held"},
    "drop_keep_alives": {"comments_lost"},
    "drop_done": {"done_missing"},
    "change_usage": {"usage_changed"},
    "drop_usage": {"usage_missing", "fields_lost"},
    "rewrite_id": {"id"},
    "rewrite_model": {"model"},
    "drop_reasoning": {"lost", "fields_lost"},
    "empty_tool_arguments": {"lost", "tool_call"},
    "cut_write": set(),
    "close": set(),
    "request_headers": set(),
    "response_headers": set(),
    "resend": set(),
}
"""The kinds of change that each plant makes. Those without are no changes of the answer."""
FEATURES: Final = (("usage", "comments", "reasoning"), ("usage", "comments", "tools"))
BY_TIME: Final = "held"
"""It depends on times: where nothing is planted, a busy machine may hold chunks itself."""


def ask(address: GatewayAddress, identity: str, features: tuple[str, ...]) -> AnswerFacts:
    script = UpstreamScript(id=identity, ttft_ms=5, gap_ms=12, tokens=16, features=features)
    line = UserConnection()
    try:
        return read_facts(exchange_script(line, address, script, headers={"X-Own": "1"}))
    finally:
        line.close()


def ask_calmly(address: GatewayAddress, features: tuple[str, ...]) -> AnswerFacts:
    """An answer whose chunks a busy machine did not hold back."""
    answers = (ask(address, f"calm-{number}", features) for number in range(20))
    return next(facts for facts in answers if not facts.held)


def test_each_planted_change_is_found_and_none_is_invented(tmp_path: Path) -> None:
    with UpstreamReplicas(tmp_path / "upstream") as upstream:
        port = upstream[0].port
        direct = make_address(DIRECT, f"http://127.0.0.1:{port}")
        references = [ask_calmly(direct, features) for features in FEATURES]
        with planted_proxy([port], tmp_path / "log", plants=list(EXPECTED), share=0.8) as proxy:
            through = make_address("proxy", f"http://127.0.0.1:{proxy}")
            came = Pool(8).map(
                lambda number: ask(through, f"run-{number}", FEATURES[number % 2]), range(RUNS)
            )
    done = {exchange.id: exchange for exchange in read_proxy_log(tmp_path / "log")}
    wrong = {}
    acted = set()
    for number, facts in enumerate(came):
        exchange = done[f"run-{number}"]
        found = {kind for kind, _ in compare_facts(references[number % 2], facts)}
        planted = set(EXPECTED[exchange.plant]) if exchange.acted else set()
        if exchange.acted:
            acted.add(exchange.plant)
        if BY_TIME not in planted:
            found.discard(BY_TIME)
        if found != planted:
            wrong[f"{number} {exchange.plant}"] = found
    assert wrong == {}
    assert len(acted) > 15
