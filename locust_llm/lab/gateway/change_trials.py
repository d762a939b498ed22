"""Change trials: the same scripts directly and through the gateway, over APIs and features, and the
changes between the two."""

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from gevent.pool import Pool

from locust_llm.client.request_exchange import UserConnection

from .changed_streams import (
    AnswerFacts,
    GatewayAnswer,
    compare_facts,
    count_lost_chunks,
    read_facts,
    summarise_changes,
)
from .gateway_client import GatewayAddress, exchange_script
from .gateway_result import StreamChange
from .upstream_script import FEATURES, UpstreamScript

TRIALS: Final = 20
AT_ONCE: Final = 8
TTFT_MS: Final = 5.0
GAP_MS: Final = 20.0
"""Long enough that a busy client does not merge reads of its own."""
TOKENS: Final = 8
TIMEOUT_S: Final = 10.0


class ChangeTrial(NamedTuple):
    """One kind of request."""

    kind: str
    feature: str = ""
    stream: bool = True

    @property
    def name(self) -> str:
        """In words: ``chat, tools, not streamed``."""
        parts = (self.kind, self.feature.replace("_", " "), "" if self.stream else "not streamed")
        return ", ".join(filter(None, parts))

    def make_script(self, identity: str) -> UpstreamScript:
        features = (self.feature,) if self.feature else ()
        return UpstreamScript(
            id=identity, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, features=features
        )


CHANGE_TRIALS: Final = (
    *(ChangeTrial("chat", feature) for feature in ("", *FEATURES)),
    *(ChangeTrial("chat", feature, False) for feature in ("", "reasoning", "tools", "gzip")),
    *(ChangeTrial("completions", feature) for feature in ("", "bursts")),
    *(ChangeTrial("responses", feature) for feature in ("", "reasoning", "tools")),
    *(ChangeTrial("messages", feature) for feature in ("", "reasoning", "tools")),
    ChangeTrial("responses", "", False),
    ChangeTrial("messages", "", False),
    ChangeTrial("embeddings", "", False),
)


class ChangesFound(NamedTuple):
    """The changes through the gateway, and those between direct answers: there must be none."""

    changes: tuple[StreamChange, ...]
    direct_changes: tuple[StreamChange, ...]
    lost_chunks: int


def run_change_trials(
    direct: GatewayAddress,
    through: GatewayAddress,
    run: str,
    trials: int = TRIALS,
    planned: Sequence[ChangeTrial] = CHANGE_TRIALS,
) -> ChangesFound:
    """``run`` is a text that no other trials of this upstream have."""
    sent = list(product(planned, range(trials)))
    pool = Pool(AT_ONCE)

    def ask(way: str, address: GatewayAddress) -> list[AnswerFacts]:
        def send(trial_and_number: tuple[ChangeTrial, int]) -> AnswerFacts:
            trial, number = trial_and_number
            identity = f"{run}-{way}-{trial.name.replace(', ', '-')}-{number}"
            return _ask_once(address, trial, identity.replace(" ", "-"))

        return list(pool.map(send, sent))

    expected = ask("expected", direct)
    own = _compare_all(sent, expected, ask("direct", direct))
    changed = _compare_all(sent, expected, ask("through", through))
    lost = sum(one.lost_chunks for one in changed)
    return ChangesFound(summarise_changes(changed), summarise_changes(own), lost)


def _ask_once(address: GatewayAddress, trial: ChangeTrial, identity: str) -> AnswerFacts:
    line = UserConnection()
    try:
        return read_facts(
            exchange_script(
                line, address, trial.make_script(identity), kind=trial.kind, stream=trial.stream,
                timeout_s=TIMEOUT_S,
            )
        )  # fmt: skip
    finally:
        line.close()


def _compare_all(
    sent: Sequence[tuple[ChangeTrial, int]],
    expected: Sequence[AnswerFacts],
    came: Sequence[AnswerFacts],
) -> list[GatewayAnswer]:
    compared = list[GatewayAnswer]()
    for (trial, _), one, other in zip(sent, expected, came, strict=True):
        changes = tuple(compare_facts(one, other))
        lost = count_lost_chunks(one, other)
        compared.append(GatewayAnswer(trial.name, changes, other.outcome, lost))
    return compared
