"""Parts after the first token, with a pencil; and whatever comes, they add up."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.records import answered

from locust_llm.core.record import Record
from locust_llm.report.analysis.columns import collect
from locust_llm.report.analysis.occupancy import occupancy
from locust_llm.report.waterfall.decode import AFTER_FIRST, Decoded, decoded


def of(*records: Record) -> Decoded:
    found = decoded(occupancy(collect(records).requests, ()), records)
    assert (sum(found.us.values()) == found.total_us).all()
    return found


def ms(found: Decoded, row: int) -> dict[str, float]:
    return {name: float(us[row]) / 1000 for name, us in found.us.items() if us[row]}


def steady(name: str, sent_at: float = 10.0, chunks: int = 50, **at: float) -> Record:
    """A chunk each 10 ms from 100 ms on; ``after_20``: so much later from the 20th gap on, in ms."""
    later = at.get("after_20", 0.0)
    return answered(
        *(100 + 10 * i + later * (i >= 20) for i in range(chunks)), id=name, sent_at=sent_at, output_tokens=chunks
    )


def test_at_its_own_pace() -> None:
    assert ms(of(steady("a")), 0) == {"pace": 490}


def test_a_prefill_stalls_all_that_decode() -> None:
    """The prefill of c is from 282 to 332 ms of two others: their 19th gap, from 290 ms on, takes 50 ms instead of 10."""
    a, b = steady("a", after_20=40), steady("b", after_20=40)
    c = answered(50, 60, id="c", sent_at=10.282)
    found = of(a, b, c)
    assert ms(found, 0) == ms(found, 1) == {"pace": 490, "stalls": 40}


def test_of_several_streams_one_alone_stands_still_it_is_preempted() -> None:
    found = of(steady("a", after_20=300), steady("b", chunks=90), steady("c", chunks=90))
    assert ms(found, 0) == {"pace": 490, "preemption": 300}
    assert ms(found, 1) == ms(found, 2) == {"pace": 890}


def test_what_is_computed_again_stalls_the_others() -> None:
    """a comes back after 340 ms; the step of that, the last 40 ms, takes the others 40 ms instead of 10."""
    back = (300 - 10) / 10 + 29  # their gap from 590 to 630 ms
    others = [100 + 10 * i + 30 * (i > back - 9) for i in range(90)]
    b, c = (answered(*others, id=name, output_tokens=90) for name in "bc")
    a = answered(*(100 + 10 * i + (others[50] - 310 if i > 20 else 0) for i in range(50)), id="a", output_tokens=50)
    found = of(a, b, c)
    assert set(ms(found, 0)) == {"pace", "preemption"}
    assert ms(found, 1) == ms(found, 2) == {"pace": 890, "stalls": 30}


def test_all_stand_still_and_nobody_knows_why() -> None:
    found = of(steady("a", after_20=300), steady("b", after_20=300))
    assert ms(found, 0) == ms(found, 1) == {"pace": 490, "unattributed": 300}


def test_too_little_to_compare_with() -> None:
    """Three chunks, and a prefill beside all of them."""
    found = of(answered(100, 110, 150, id="a"), answered(300, 310, id="b", sent_at=10.05))
    assert ms(found, 0) == {"unattributed": 50}


@example([(593, [1, 1, 1, 342436, 12258, 1, 52149]), (94, [1] * 16), (151, [*[1] * 10, 406481, 377822])])
@given(st.lists(st.tuples(st.integers(0, 3000), st.lists(st.integers(1, 900_000), max_size=30)), max_size=12))
def test_whatever_comes_the_parts_add_up(requests: list[tuple[int, list[int]]]) -> None:
    records = [
        answered(*np.cumsum(gaps) / 1000, id=f"{i}", sent_at=10 + at / 1000) for i, (at, gaps) in enumerate(requests)
    ]
    found = of(*records)
    several = [record for record in records if len(record.chunk_us) > 1]
    assert found.total_us.tolist() == [record.chunk_us[-1] - record.chunk_us[0] for record in several]
    assert tuple(found.us) == AFTER_FIRST
    assert all((us >= 0).all() for us in found.us.values())
