"""Trees of a file as whole runs: who waits for whom, and that a user is held until its tree is
done; over two processes."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from support.runs import Server, records, run

from locust_llm.demo_command import start_simulator

TREE: Final = [
    {"id": "a", "text": "plan", "output_length": 6},
    {"id": "b", "text": "look here", "after": "a", "delay": 50, "output_length": 120},
    {"id": "c", "text": "look there", "after": ["a"], "tool": 80, "output_length": 120},
    {"id": "d", "text": "decide", "after": ["b", "c"], "tool": 30, "output_length": 6},
]
PARENTS: Final = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}
WAITS_S: Final = {1: 0.05, 2: 0.08, 3: 0.03}
TREES: Final = 12


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_tree_by_hand(tmp_path: Path, processes: str) -> None:
    path = tmp_path / "trees.jsonl"
    path.write_text(
        "".join(json.dumps({"session_id": f"s{n}", "turns": TREE}) + "\n" for n in range(TREES))
    )
    with start_simulator("--ttft-ms", "30", "--itl-ms", "5") as url:
        done = run(
            Server(url), tmp_path / "r", "-u", "4", "--processes", processes, "--input-file",
            str(path), "--no-probe",
            "--dataset-sampling-strategy", "sequential",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = records(tmp_path / "r")
    assert len(got) == 4 * TREES
    trees = defaultdict(dict)
    for record in got:
        trees[record.session][record.turn] = record
    assert len(trees) == TREES
    for turns in trees.values():
        ends = {number: turn.closed_at for number, turn in turns.items()}
        for number, parents in PARENTS.items():
            assert all(
                turns[number].asked_at >= ends[parent] + WAITS_S[number] for parent in parents
            )
        assert turns[1].sent_at < ends[2]
        assert turns[2].sent_at < ends[1]  # side by side
        assert [turns[number].tool_s for number in range(4)] == [None, None, 0.08, 0.03]
        assert [turns[number].after for number in range(4)] == [None, None, (0,), (1, 2)]
        assert {turn.user for turn in turns.values()} == {turns[0].user}
    lanes = defaultdict(list)
    for turns in trees.values():
        lanes[turns[0].worker, turns[0].user].append((turns[0].sent_at, turns[3].closed_at))
    assert len(lanes) == 4
    assert all(
        one[1] <= other[0] for spans in lanes.values() for one, other in pairwise(sorted(spans))
    )
    found = json.loads((tmp_path / "r" / "run.json").read_text())["sessions"]
    assert (found["sessions"], found["complete"], found["depth"], found["width"]) == (
        TREES,
        TREES,
        3,
        2,
    )
    assert found["tool_s"] == pytest.approx(0.11)
