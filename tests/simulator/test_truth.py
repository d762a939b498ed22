"""The simulator's own account: what is counted when, and that it stays bounded."""

import json

from locust_llm.simulator import simulated_metrics as truth
from locust_llm.simulator.simulated_metrics import ServerTruth, TruthRow


def finished(book, row_id, stamps=()):
    row = TruthRow(row_id, 10, 2, 1.0)
    book.arrived(row)
    if row.token_at is not None:
        row.token_at.extend(stamps)
    book.prefilled(2.0)
    book.done(row)
    return row


def ids(book):
    return [row["id"] for row in book.as_json()["requests"]]


def test_prefilling_is_between_arrival_and_first_token():
    book = ServerTruth()
    a, b = TruthRow("a", 10, 2, 1.0), TruthRow("b", 10, 2, 2.0)
    book.arrived(a)
    book.arrived(b)
    book.prefilled(3.0)
    book.done(b)
    told = book.as_json()
    assert (told["prefilling"], told["max_prefilling"]) == (1, 2)
    assert told["prefilling_changes"][1:] == [(1.0, 1), (2.0, 2), (3.0, 1)]
    assert ids(book) == ["b", "a"]  # ended first, under way after


def test_reset_keeps_what_is_under_way():
    book = ServerTruth()
    finished(book, "old")
    running = TruthRow("running", 10, 2, 5.0)
    book.arrived(running)
    book.connections = 7
    book.reset()
    assert ids(book) == ["running"]
    told = book.as_json()
    assert (told["prefilling"], told["max_prefilling"], told["connections"]) == (1, 1, 0)
    book.prefilled(6.0)
    book.done(running)
    assert ids(book) == ["running"]


def test_token_times_come_in_pairs_and_only_if_asked():
    assert finished(ServerTruth(), "a").as_json()["token_at"] is None
    row = finished(ServerTruth(full=True), "a", [1.0, 1.5, 2.0, 2.5])
    assert json.loads(json.dumps(row.as_json()))["token_at"] == [[1.0, 1.5], [2.0, 2.5]]


def test_old_rows_make_room(monkeypatch):
    monkeypatch.setattr(truth, "MAX_ROWS", 3)
    book = ServerTruth()
    for n in range(5):
        finished(book, str(n))
    assert ids(book) == ["2", "3", "4"]


def test_old_stamps_make_room(monkeypatch):
    monkeypatch.setattr(truth, "MAX_STAMPS", 10)
    book = ServerTruth(full=True)
    for n in range(5):
        finished(book, str(n), [0.0] * 4)
    assert ids(book) == ["3", "4"]
