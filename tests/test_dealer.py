"""The dealer, in virtual time: every arrival goes out once, about a second ahead, evenly over the processes."""

from typing import Any

import msgspec

from locust_llm.dealer import AHEAD_S, Dealer
from locust_llm.formats import Item, Turn
from locust_llm.timetable import Due


class World:
    def __init__(self, workers: list[str]) -> None:
        self.now = 100.0
        self.told: list[tuple[str, str, float, dict[str, Any]]] = []
        self.workers = workers
        self.dealer = Dealer(self.tell, lambda: self.workers, clock=lambda: self.now, sleep=self.sleep)

    def tell(self, kind: str, worker: str, **data: Any) -> None:
        self.told.append((kind, worker, self.now - 100.0, data))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def due_of(self, worker: str) -> list[float]:
        return [at_s for _, to, _, data in self.told if to == worker for at_s, _, _ in data["due"]]


def test_arrivals_go_out_once_a_second_ahead_and_in_turn() -> None:
    world, dealt = World(["a", "b"]), []
    dues = [Due(n / 10) for n in range(50)]
    world.dealer.deal_out(iter(dues), "profiling", 4999.5, 0.5, dealt.append)
    assert sum(dealt) == 50
    assert sorted(world.due_of("a") + world.due_of("b")) == [due.at_s for due in dues]
    assert len(world.due_of("a")) == len(world.due_of("b")) == 25
    for kind, _, said_s, data in world.told:
        assert (kind, data["phase"], data["started_at"]) == ("llm_arrivals", "profiling", 5000.0)
        assert all(
            said_s - 0.5 <= max(-0.5, at_s - AHEAD_S + 0.11) and at_s <= said_s - 0.5 + AHEAD_S
            for at_s, _, _ in data["due"]
        )


def test_a_slot_stays_with_its_process() -> None:
    world = World(["a", "b"])
    world.dealer.deal_out((Due(n / 10, n % 3) for n in range(12)), "profiling", 0.0, 0.0, lambda count: None)
    slots = {
        worker: {slot for _, to, _, data in world.told if to == worker for _, slot, _ in data["due"]} for worker in "ab"
    }
    assert slots == {"a": {0, 2}, "b": {1}}


def test_what_has_been_due_is_counted_not_what_was_dealt_ahead() -> None:
    world = World(["a"])

    def dues() -> Any:
        for n in range(1000):
            if n == 45:
                assert world.dealer.due()[0] in (34, 35)  # 3.4 s have passed, in steps of a tenth
            yield Due(n / 10)

    world.dealer.deal_out(dues(), "profiling", 0.0, 0.0, lambda count: None)
    world.now += AHEAD_S
    count, span_s = world.dealer.due()
    assert (count, round(span_s, 6)) == (1000, 100.0)  # 1,000 arrivals, 0.1 s apart


def test_a_session_counts_with_all_its_turns_and_comes_whole() -> None:
    world, dealt = World(["a"]), []
    item = Item(id="x", turns=(Turn(row=1, input_tokens=5), Turn(row=2, input_tokens=6)), row=1)
    world.dealer.deal_out(iter([Due(0.0, None, item)]), "profiling", 0.0, 0.0, dealt.append)
    assert dealt == [2]
    (_, _, packed) = world.told[0][3]["due"][0]
    assert msgspec.msgpack.decode(packed, type=Item) == item


def test_sessions_are_dealt_until_there_are_none() -> None:
    world = World(["a", "b"])
    items = iter([None] * 40)
    answers = [world.dealer.sessions(worker, items, "profiling") for worker in "aba"]
    assert answers == [True, True, False]
    assert [len(data["items"]) for _, _, _, data in world.told] == [32, 8, 0]
    assert [data["over"] for _, _, _, data in world.told] == [False, False, True]
    assert world.dealer.sessions_out == 40
