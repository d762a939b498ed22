"""Drift: an unchanged server stays one, and what has moved is named, all in virtual time."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import jsonschema
import msgspec
import pytest
from support.probing import Noise, Server
from support.sweeping import Lengths, chat, stage, swept
from support.twin_folders import swept_folder

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.lab.twin.twin_command import run_drift as command
from locust_llm.lab.twin.twin_drift import (
    BURST_S,
    TRAITS,
    Bursts,
    ServerChange,
    Shift,
    UnchangedServer,
    bonferroni_bound,
    check_drift,
    choose_reference_loads,
    error_by_requests,
    error_variance,
    format_shift,
    measure_reference,
    measure_shifts,
    measure_traits,
    possible_changes,
    simulate_unchanged_server,
)
from locust_llm.lab.twin.twin_model import FIGURES, Origin, Ranges, Reference, Trust, Twin
from locust_llm.lab.twin.twin_model import Noise as ModelNoise
from locust_llm.simulator.scheduling.clock import VirtualClock

from .models import h100, plain

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "twin-drift-output.schema.json"
SERVER = Server(budget=1024, num_seqs=16)
NOISE = Noise(steps=0.03, network_s=0.0002)
USERS = (1, 24)


def minute(server: Server, noise: Noise, seed: int, of: int = 0) -> list[ObservedStage]:
    """The lengths of the requests are the same for every seed; ``of``: which ones."""

    def lengths(users: int) -> Lengths:
        own = Random(1000 * of + users)
        return lambda random: chat(own)

    return [
        stage(server, noise, seed + users, users, lengths(users), count=3 * users + 20)
        for users in USERS
    ]


@pytest.fixture(scope="module")
def twin() -> Twin:
    model = h100(budget=1024, max_num_seqs=16)
    model = msgspec.structs.replace(
        model, noise=msgspec.structs.replace(model.noise, step_sigma=0.03)
    )
    trust, ranges = Trust(verdict=FIGURES), Ranges(users=USERS)
    stages = minute(SERVER, NOISE, 1)
    return Twin(
        model=model, trust=trust, ranges=ranges,
        origin=Origin(host="http://server:8000", model="m", server="simulated 1"),
        lengths=((500, 100),), reference=measure_reference(model, stages, 20),
    )  # fmt: skip


@pytest.fixture(scope="module")
def known(twin: Twin) -> UnchangedServer:
    return simulate_unchanged_server(twin, minute(SERVER, NOISE, 100), 40)


def test_traits_of_two_requests() -> None:
    """Gaps of 10, 10, 20 and 40 ms; first tokens after 100 and 300 ms, the longer prompt later;
    0.42 s, 7 tokens."""
    one = ObservedRequest(0.0, (0.1, 0.11, 0.12), 10, 3)
    two = ObservedRequest(0.0, (0.3, 0.32, 0.36, 0.37), 20, 4)
    found = dict(zip(TRAITS, measure_traits(ObservedStage(2, 0.0, (one, two))), strict=True))
    assert found["gap mean"] == pytest.approx(math.log(0.09 / 5))
    assert found["stall"] == pytest.approx((math.log(0.01) + math.log(0.04)) / 2)
    assert found["ttft short"] == pytest.approx(math.log(0.1))
    assert found["ttft long"] == pytest.approx(math.log(0.3))
    assert found["running"] == pytest.approx(math.log(0.09 / 0.37), abs=1e-3)
    assert found["throughput"] == pytest.approx(math.log(7 / 0.37))


def test_traits_do_not_hang_on_who_is_the_last_of_those_sent_at_once() -> None:
    """0.37 s until the last token of the two, 7 tokens."""
    one = ObservedRequest(0.0, (0.1, 0.11, 0.12), 10, 3)
    two = ObservedRequest(0.0, (0.3, 0.32, 0.36, 0.37), 20, 4)
    found = measure_traits(ObservedStage(2, 0.0, (two, one)))
    assert found[TRAITS.index("throughput")] == pytest.approx(math.log(7 / 0.37))
    assert found == pytest.approx(measure_traits(ObservedStage(2, 0.0, (one, two))))


def test_bursts_last_a_third_of_the_time() -> None:
    clock = VirtualClock()
    bursts, slow = Bursts(2.0, clock, Random(1)), 0
    for i in range(40_000):
        clock.call_at(i * BURST_S / 10, lambda: None)
        clock.run()
        slow += bursts() == 2.0
    assert slow / 40_000 == pytest.approx(1 / 3, abs=0.03)
    assert Bursts(1.0, clock, Random(1))() == 1.0


def test_limits_that_would_not_show_are_no_changes() -> None:
    assert {one.name for one in possible_changes(h100(max_num_seqs=100), 8)} >= {
        "step",
        "fixed",
        "token",
        "budget",
    }
    assert "max_num_seqs" in {one.name for one in possible_changes(h100(), 32)}
    assert "kv_tokens" not in {one.name for one in possible_changes(h100(), 32)}


def test_a_shift_is_measured_in_its_own_size(known: UnchangedServer) -> None:
    change, move = next(one for one in known.moves if one[0].name == "token")
    (shift,) = [one for one in measure_shifts(known, 0.5 * move) if one.change is change]
    assert shift.times == pytest.approx(0.5)
    assert shift.z == pytest.approx(0.5 / shift.error)


def test_the_size_of_a_shift_in_words() -> None:
    change = ServerChange("step", "every step", plain(), size=0.1)
    assert format_shift(shifts_of(change, 1.0, 0.2)) == "every step, +10.0% (+6.0% to +14.2%)"
    assert format_shift(shifts_of(ServerChange("budget", "half", plain()), 1.0, 0.2)) == "half"


def shifts_of(change: ServerChange, times: float, error: float) -> Shift:
    return Shift(change, times / error, times, error)


def test_an_unchanged_server_has_not_drifted(known: UnchangedServer) -> None:
    found = [check_drift(known, minute(SERVER, NOISE, seed)) for seed in (100, 300, 400)]
    assert [one.drifted for one in found] == [False] * 3
    assert all(one.named == () for one in found)


@pytest.mark.parametrize(
    ("server", "noise", "name"),
    [
        (SERVER, replace(NOISE, slower=1.15), "step"),
        (replace(SERVER, budget=512), NOISE, "budget"),
        (replace(SERVER, num_seqs=8), NOISE, "max_num_seqs"),
        (SERVER, replace(NOISE, slowed=1.5), "neighbour"),
    ],
)
def test_what_has_moved_is_named(
    known: UnchangedServer, server: Server, noise: Noise, name: str
) -> None:
    found = check_drift(known, minute(server, noise, 100))
    assert found.drifted
    assert found.named[0].change.name == name


def test_a_twin_of_no_closed_loop_cannot_drift(twin: Twin) -> None:
    assert choose_reference_loads(twin) == [1, 24]
    with pytest.raises(ValueError, match="fit it again"):
        choose_reference_loads(msgspec.structs.replace(twin, reference=()))


def test_the_reference_is_kept_in_the_file(twin: Twin, tmp_path: Path) -> None:
    twin_file.write_twin(twin, tmp_path / "twin.toml")
    again = twin_file.read_twin(tmp_path / "twin.toml")
    assert [one.figure for one in again.reference] == [one.figure for one in twin.reference]
    assert again.reference[5].off == pytest.approx(twin.reference[5].off, rel=1e-5)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays: more would only move the bound a little."""
    monkeypatch.setattr("locust_llm.lab.twin.twin_drift.REPLAYS", 24)
    monkeypatch.setattr("locust_llm.lab.twin.twin_drift.REPLAYS_OF_CHANGE", 4)


@pytest.mark.usefixtures("few")
def test_the_command_says_so_by_its_exit_status(
    twin: Twin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin_file.write_twin(twin, tmp_path / "twin.toml")
    same = swept_folder(tmp_path / "same", minute(SERVER, NOISE, 100))
    less = swept_folder(tmp_path / "less", minute(replace(SERVER, num_seqs=8), NOISE, 100))
    assert command([str(tmp_path / "twin.toml"), str(same)]) == ExitStatus.OK
    assert "No drift found in one minute" in capsys.readouterr().out
    assert command([str(tmp_path / "twin.toml"), str(less)]) == ExitStatus.RULE_FAILED
    assert "Likely change: the requests at a time, about half" in capsys.readouterr().out
    assert command([str(tmp_path / "twin.toml"), str(less), "--json"]) == ExitStatus.RULE_FAILED
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads(SCHEMA.read_text("utf-8")))
    assert found["drifted"]
    assert found["largest"] > found["bound"]
    assert found["moved"][0]["name"] == "max_num_seqs"


@pytest.mark.usefixtures("few")
def test_another_server_by_name_is_said_first(
    twin: Twin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = msgspec.structs.replace(
        twin, origin=msgspec.structs.replace(twin.origin, server="simulated 0")
    )
    twin_file.write_twin(other, tmp_path / "twin.toml")
    same = swept_folder(tmp_path / "same", minute(SERVER, NOISE, 100))
    assert command([str(tmp_path), str(same)]) == ExitStatus.RULE_FAILED
    assert capsys.readouterr().out.startswith(
        "Another server: simulated 1, but the twin was fitted to simulated 0."
    )


def of_loads(*offs: float) -> tuple[Reference, ...]:
    return tuple(
        Reference(users=2**i, figure="stall", off=off, error=0.01) for i, off in enumerate(offs)
    )


def test_a_change_is_one_test_and_with_its_opposite_two() -> None:
    """With the rest four, of 0.25% each: 2.807 standard errors."""
    both, one = (
        ServerChange("step", "", plain()),
        ServerChange("budget", "", plain(), both_ways=False),
    )
    assert bonferroni_bound([both, one]) == pytest.approx(2.807, abs=1e-3)


def test_the_error_of_a_twin_varies_as_from_load_to_load() -> None:
    """Differences of 0.01, 0.02, 0 and -0.03: the sum of their squares is 0.0014, over 4 - 2."""
    assert error_variance(of_loads(0.0, 0.01, 0.03, 0.03, 0.0), "stall") == pytest.approx(0.0007)
    assert error_variance(of_loads(0.02, 0.0), "stall") == pytest.approx(0.0004)
    assert error_variance(of_loads(0.02), "stall") == 0.0


def test_a_reference_is_as_sure_as_its_requests_are_alike() -> None:
    """The first token comes after 0.1 s, but after 0.1 e s for every second block of three
    requests: the logarithms of the blocks' means are 0 and 1 by turns, their standard deviation
    sqrt(8 x 0.25 / 7), a mean of eight that / sqrt(8)."""
    alike = [ObservedRequest(float(i), (i + 0.1, i + 0.2), 10, 2) for i in range(24)]
    late = 0.1 * math.e
    by_turns = [
        one if i // 3 % 2 else ObservedRequest(float(i), (i + late, i + late + 0.1), 10, 2)
        for i, one in enumerate(alike)
    ]
    measured, said = ObservedStage(1, 0.0, tuple(by_turns)), ObservedStage(1, 0.0, tuple(alike))
    error = error_by_requests(measured, [said, said])
    assert error[TRAITS.index("ttft short")] == pytest.approx(math.sqrt(8 * 0.25 / 7 / 8))
    assert error[TRAITS.index("stall")] == pytest.approx(0.0, abs=1e-9)
    assert error_by_requests(said, [said])[TRAITS.index("ttft short")] == 0.0


def test_a_load_of_one_request_has_traits() -> None:
    one = ObservedStage(1, 0.0, (ObservedRequest(0.0, (0.1,), 10, 1),))
    assert measure_traits(one)[TRAITS.index("ttft short")] == pytest.approx(math.log(0.1))
    assert error_by_requests(one, [one]).tolist() == [0.0] * len(TRAITS)


@pytest.mark.usefixtures("few")
def test_a_twin_that_lacks_a_threshold_is_off_by_the_lengths_of_a_minute_and_that_is_no_drift() -> (
    None
):
    """Stalls hang on how many prompts are longer than the threshold. That of 24 users was off by
    less in the sweep."""
    server = Server(
        policy="partial-prefills",
        budget=2048,
        partial=3,
        long_partial=3,
        threshold=600,
        num_seqs=16,
    )
    model = h100(budget=2048, max_num_seqs=16)
    settings = msgspec.structs.replace(
        model.settings, policy="partial-prefills", max_num_partial_prefills=3
    )
    model = msgspec.structs.replace(
        model.with_settings(settings), noise=ModelNoise(step_sigma=0.03)
    )
    known_loads = measure_reference(model, swept(server, NOISE, 1, (1, 2, 4, 8, 16, 24)), 12)
    twin = Twin(
        model=model, trust=Trust(verdict=FIGURES), ranges=Ranges(users=USERS), reference=known_loads
    )
    same = minute(server, NOISE, 100, of=3)
    known = simulate_unchanged_server(twin, same, 30)
    assert not check_drift(known, same).drifted
    less = check_drift(known, minute(replace(server, budget=1024, threshold=300), NOISE, 100, of=3))
    assert less.drifted
    assert less.named[0].change.name == "budget"


def test_what_cannot_be_checked_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([]) == ExitStatus.REFUSED
    assert command([str(tmp_path / "no.toml")]) == ExitStatus.REFUSED
    assert "cannot be read" in capsys.readouterr().err
