"""The file of a twin: what is written is read; what is no twin is refused in a sentence."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.lab.twin.twin_file import NAME, format_twin, read_twin, write_twin
from locust_llm.lab.twin.twin_model import (
    Draw,
    FrontendDelay,
    HeldOutCheck,
    Noise,
    Origin,
    Ranges,
    Trust,
    Twin,
)

from .models import h100

TWIN = Twin(
    model=msgspec.structs.replace(h100(max_num_seqs=64), front=FrontendDelay(request_s=0.001),
        noise=Noise(step_sigma=0.05)),
    trust=Trust(verdict="figures", error=0.03, reasons=("it was off by 3%",),
        errors={"ttft p99": 0.02}),
    ranges=Ranges(users=(1, 64), prompt_tokens=(32, 4000), output_tokens=(40, 200), saturated=True),
    origin=Origin(host="http://127.0.0.1:8000", model="tiny", folders=("reports/a", "reports/b"),
        requests=900),
    intervals={"fixed_s": (0.007, 0.008)}, unknown={"kv_tokens": "no limit was observed"},
    lengths=((100, 20), (300, 40)),
    draws=(Draw(0.007, 3e-5, 1e-5, 4e-8, 1e-9, 170.0, 0.001, 0.0),),
    checks=(HeldOutCheck(load="8 users", figure="ttft p50", said=0.1, low=0.09, high=0.11,
        measured=0.105, requests=48),),
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_twin(TWIN, tmp_path / NAME)
    found = read_twin(tmp_path)
    assert found.trust == TWIN.trust
    assert found.checks == TWIN.checks
    assert found.ranges == TWIN.ranges
    assert found.model.settings == TWIN.model.settings
    assert found.model.cost.fixed_s == pytest.approx(TWIN.model.cost.fixed_s, rel=1e-6)
    assert read_twin(tmp_path / NAME) == found


@given(st.text(), st.text(), st.dictionaries(st.text(min_size=1), st.floats(0, 1e9), max_size=3))
@examples(200)
def test_any_name_is_read_as_it_was(host: str, reason: str, errors: dict[str, float]) -> None:
    import tomllib

    twin = msgspec.structs.replace(
        TWIN,
        origin=Origin(host=host),
        trust=Trust(verdict="shape", reasons=(reason,), errors=errors),
    )
    found = tomllib.loads(format_twin(twin))
    assert found["origin"]["host"] == host
    assert found["trust"]["reasons"] == [reason]
    assert found["trust"].get("errors", {}) == pytest.approx(errors)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("version = 1", "version = 7"), "its version is 7"),
        (('policy = "chunked"', 'policy = "best"'), "no policy 'best'"),
        (("max_num_batched_tokens = 1024", "max_num_batched_tokens = 0"), "below 1"),
        (("request_s = 0.001", "request_s = nan"), "not a number"),
        (("request_s = 0.001", "request_s = -1.0"), "below 0"),
        (("request_s = 0.001", 'request_s = "soon"'), "Expected `float`"),
        (("[trust]", "[trust"), "is not TOML"),
        (("[100, 20]", "[0, 20]"), "no tokens"),
    ],
)
def test_what_is_no_twin_is_refused_in_a_sentence(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    text = format_twin(TWIN)
    assert change[0] in text
    (tmp_path / NAME).write_text(text.replace(*change))
    with pytest.raises(ValueError, match=r"twin\.toml is not ") as error:
        read_twin(tmp_path)
    assert why in str(error.value)
    assert "\n" not in str(error.value).strip()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_twin(tmp_path)


@given(st.binary(max_size=300))
@examples(100)
def test_any_bytes_are_refused_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("twin") / NAME
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"twin\.toml"):
        read_twin(path)
