"""Added time as the gateway bench measures it, against what the planted proxy says that it added.

The proxy of the tests (tests/support/planted_proxy.py) writes down when it read and when it wrote
each request and each event. The bench knows nothing of that: it measures through the proxy as
through any gateway, in blocks with and without it. ``make bench-gateway`` runs it and prints a
table. Goal at 100 streams: p50 within 0.05 ms, p99 within 0.2 ms.
"""

# isort: off
import locust_llm.locust_adapter.command_line_parser  # noqa: F401  first: Locust patches before the network is imported

# isort: on
import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
from support.planted_proxy import ProxyExchange, planted_proxy, read_proxy_log

from locust_llm.lab.gateway.added_levels import GatewayWay, LevelRunner
from locust_llm.lab.gateway.gateway_client import DIRECT, make_address
from locust_llm.lab.gateway.gateway_result import (
    FIRST_TOKEN,
    FURTHER_TOKEN,
    AddedLevel,
)
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas

DELAYS_MS: Final = (0.0, 0.1, 1.0, 10.0)
GOALS_MS: Final = {50: 0.05, 99: 0.2}
LIMIT_MS: Final = 1e6
SEED: Final = 7
MS: Final = 1e6


class StampedRunner(LevelRunner):
    """Also knows which of its requests were measured, and not sent to warm up."""

    warm_up = 0

    def _order_blocks(self, ways: Sequence[str], rounds: int) -> Iterator[str]:
        self.warm_up = self._sent
        return super()._order_blocks(ways, rounds)


class Difference(NamedTuple):
    """One percentile of one quantity, in ms."""

    quantity: str
    percentile: int
    stamped_ms: float
    """By the proxy's own stamps."""
    measured_ms: float
    error_ms: float
    """The measurement error that the bench states."""

    @property
    def off_ms(self) -> float:
        return self.measured_ms - self.stamped_ms


def stamp_added_time(exchange: ProxyExchange) -> tuple[float, list[float]]:
    """What the proxy added to the first and to each further word, in ns."""
    way = exchange.request[1] - exchange.request[0]
    delays = [written - read for _, read, written in exchange.words]
    return way + delays[0], delays[1:]


def compare_level(level: AddedLevel, stamped: list[ProxyExchange]) -> list[Difference]:
    added = [stamp_added_time(exchange) for exchange in stamped if exchange.words]
    known = {
        FIRST_TOKEN: np.array([first for first, _ in added]),
        FURTHER_TOKEN: np.array([delay for _, further in added for delay in further]),
    }
    found = []
    for quantity, values in known.items():
        measured = level.find(quantity)
        assert measured is not None
        for percentile, value in ((50, measured.p50_ms), (99, measured.p99_ms)):
            stamped_ms = float(np.percentile(values, percentile)) / MS
            found.append(Difference(quantity, percentile, stamped_ms, value, measured.error_ms))
    return found


def measure(
    folder: Path, delay_ms: float, *, spread: bool, streams: int, seconds: float
) -> list[Difference]:
    log = folder / "proxy.jsonl"
    with UpstreamReplicas(folder / "upstream") as upstream:
        port = upstream[0].port
        with planted_proxy([port], log, delay_ms=delay_ms, spread=spread) as proxy:
            runner = StampedRunner(
                make_address(DIRECT, f"http://127.0.0.1:{port}"),
                [GatewayWay(make_address("proxy", f"http://127.0.0.1:{proxy}"), lambda: None)],
                "bench",
                LIMIT_MS,
                Random(SEED),
            )
            level = runner.measure_streams(streams, seconds, ["proxy"])["proxy"].level
            runner.close()
    measured = [
        exchange
        for exchange in read_proxy_log(log)
        if int(exchange.id.rpartition("-")[2]) > runner.warm_up
    ]
    return compare_level(level, measured)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(
        "| planted | quantity | | by the proxy's stamps (ms) | measured (ms) | off (ms) | stated error (ms) |"
    )
    print("|---|---|---|---|---|---|---|")
    within = True
    for delay_ms in DELAYS_MS:
        for spread in (False, True)[: 2 if delay_ms else 1]:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(
                    Path(folder),
                    delay_ms,
                    spread=spread,
                    streams=options.streams,
                    seconds=options.seconds,
                )
            for one in found:
                kind = "random, mean" if spread else "constant"
                within = within and abs(one.off_ms) <= GOALS_MS[one.percentile]
                print(
                    f"| {kind} {delay_ms:g} ms | {one.quantity} | p{one.percentile} | "
                    f"{one.stamped_ms:.3f} | {one.measured_ms:.3f} | {one.off_ms:+.3f} | "
                    f"{one.error_ms:.3f} |",
                    flush=True,
                )
    print(f"goal met: {within}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
