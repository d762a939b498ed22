"""Media: what a picture is, which files are read for a row, the same bytes from the same seed, and
what the record says."""

import io
import json
import struct
import wave
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.protocols.request_body import encode_request_body
from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.dataset import Dataset
from locust_llm.workload.dataset_formats import DatasetError
from locust_llm.workload.dataset_summary import check_dataset
from locust_llm.workload.generated_images_and_audio import (
    GeneratedMediaSettings,
    MediaGenerator,
    UnfinishedMedium,
    begin_jpeg,
    begin_png,
    begin_wav,
    prepare_generated_media,
)
from locust_llm.workload.images_and_audio import (
    COLUMNS,
    EncodedMedium,
    MediaError,
    MediaFacts,
    MediaStore,
    count_media,
    encode_in_pieces,
    list_media_refs,
    read_media_facts,
)
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

PIXEL = b64encode(b"GIF89a\x02\x00\x03\x00").decode()


def file_of(medium: EncodedMedium) -> bytes:
    return b64decode(json.loads(bytes(medium.url)).partition(",")[2])


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """(width, height, RGB), of a PNG without filters: by the standard, chunk by chunk, each with
    its checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == int.from_bytes(data[at + 8 + length : at + 12 + length])
        size = struct.unpack(">II", body[:8]) if kind == b"IHDR" else size
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    row = 1 + 3 * size[0]
    rows = zlib.decompress(packed)  # checks the Adler-32 of them all
    assert len(rows) == row * size[1]
    assert set(rows[::row]) == {0}
    return *size, b"".join(rows[at + 1 : at + row] for at in range(0, len(rows), row))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 1), (1, 9), (33, 17), (200, 100)])
def test_pictures_differ_in_their_last_row_alone(width: int, height: int) -> None:
    begun = begin_png(width, height, Random(1))
    one, other = (begun.finished(random) for random in (Random(2), Random(3)))
    assert bytes(one.url) == bytes(begun.finished(Random(2)).url)
    first, second = pixels(file_of(one)), pixels(file_of(other))
    assert first[:2] == (width, height)
    above = 3 * width * (height - 1)
    assert first[2][:above] == second[2][:above]
    assert first[2][above:] != second[2][above:]
    assert one.size == len(file_of(one))
    assert (
        one.facts
        == read_media_facts(file_of(one), one.size)
        == MediaFacts("image/png", width * height, None, width, height)
    )


def test_a_picture_takes_half_of_its_pixels() -> None:
    """16 shades of 256: four bits of eight, in 3 bytes a pixel."""
    assert begin_png(500, 400, Random(1)).finished(Random(1)).size / (500 * 400) == pytest.approx(
        1.53, abs=0.03
    )


@pytest.mark.parametrize(("width", "height"), [(7, 1), (40, 16), (33, 17), (200, 100)])
def test_a_jpeg_whose_last_rows_are_its_own(width: int, height: int) -> None:
    image = pytest.importorskip("PIL.Image")
    begun = begin_jpeg(width, height, Random(1))
    files = [file_of(begun.finished(random)) for random in (Random(2), Random(3))]
    first, second = (image.open(io.BytesIO(data)) for data in files)
    assert first.size == second.size == (width, height)
    assert first.tobytes() != second.tobytes()
    # colours of the row below reach one pixel up
    above = (0, 0, width, max(0, (height - 1) // 16 * 16 - 1))
    assert first.crop(above).tobytes() == second.crop(above).tobytes()
    assert read_media_facts(files[0], len(files[0])) == begun.facts


def test_a_sound_lasts_as_long_as_asked() -> None:
    begun = begin_wav(0.25, 8000, Random(1))
    one, other = file_of(begun.finished(Random(2))), file_of(begun.finished(Random(3)))
    with wave.open(io.BytesIO(one)) as sound:
        assert (sound.getnframes(), sound.getframerate(), sound.getsampwidth()) == (2000, 8000, 2)
    assert (one[:-128], one != other) == (other[:-128], True)
    assert read_media_facts(one, len(one)).seconds == 0.25


ASKED = GeneratedMediaSettings(
    width=(60, 20), height=(40, 10), images=2, seconds=(0.01, 0.002), seed=5
)


def bodies(seed: str) -> list[bytes]:
    """Of requests of a process, in each protocol that takes both."""
    prompts = Prompts(PromptLengthModel(), seed=1, media=MediaGenerator(ASKED, seed))
    drawn = [prompts.draw().message for _ in range(4)]
    return [
        encode_request_body(kind, "m", [message], 5)
        for kind in ("chat", "responses")
        for message in drawn
    ]


def test_the_same_seed_gives_the_same_bytes_and_no_two_pictures_are_alike() -> None:
    first = bodies("1/0/media")
    prepare_generated_media.cache_clear()  # as in another run
    assert bodies("1/0/media") == first
    assert bodies("1/1/media") != first
    media = MediaGenerator(ASKED, "x")
    drawn = [medium(part) for _ in range(20) for part in media.parts()]
    assert len({bytes(one.url) for one in drawn}) == 60
    assert len({one.facts for one in drawn if one.facts.width}) > 5


def medium(part: dict[str, Any]) -> EncodedMedium:
    held = part[part["type"]]
    found = held.get("url", held.get("data"))
    assert isinstance(found, EncodedMedium)
    return found


def test_no_media_leave_a_prompt_as_it_is() -> None:
    plain, none = (
        Prompts(PromptLengthModel(), seed=1, media=media)
        for media in (None, MediaGenerator(GeneratedMediaSettings(), None))
    )
    assert plain.draw().message == none.draw().message
    assert isinstance(plain.draw().message["content"], str)


def test_the_form_of_each_protocol() -> None:
    image, sound = (
        EncodedMedium(facts, [b"QUJD"], 3).part
        for facts in (MediaFacts("image/png", 6, None, 2, 3), MediaFacts("audio/wav", None, 1.5))
    )
    text = {"type": "text", "text": "hi"}
    said = [{"role": "user", "content": [text, image, sound]}]

    def content(kind: str, *parts: dict[str, Any]) -> Any:
        body = msgspec.json.decode(
            encode_request_body(kind, "m", [{"role": "user", "content": list(parts)}], 5)
        )
        return (body.get("messages") or body["input"])[0]["content"]

    url, data = "data:image/png;base64,QUJD", {"data": "QUJD", "format": "wav"}
    assert content("chat", text, image, sound) == [
        text, {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": data},
    ]  # fmt: skip
    assert content("responses", text, image, sound) == [
        {"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": url},
        {"type": "input_audio", "input_audio": data},
    ]  # fmt: skip
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert content("messages", text, image) == [text, {"type": "image", "source": source}]
    assert count_media(said) == {
        "images": 1, "image_bytes": 3, "image_pixels": 6, "audio_s": 1.5,
        "asked_input_tokens": None,
    }  # fmt: skip
    with pytest.raises(NotImplementedError):
        encode_in_pieces(object())


def test_what_is_known_of_media_in_messages_of_ones_own() -> None:
    def image(url: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    known, url, broken = (
        image(f"data:image/gif;base64,{PIXEL}"),
        image("http://x/a.png"),
        image("data:image/png;base64,A"),
    )
    assert count_media(known)["image_pixels"] == 6
    assert count_media(known)["image_bytes"] == 10
    assert count_media([*known, *url]) == {
        "images": 2, "image_bytes": None, "image_pixels": None, "audio_s": None,
        "asked_input_tokens": None,
    }  # fmt: skip
    assert count_media(broken)["images"] == 1
    assert (
        count_media(
            [
                {"role": "user", "content": "hi"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ]
        )
        == {}
    )


# -- of a dataset ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset's folder with pictures below it, beside a picture that is not its own."""
    home = tmp_path / "data"
    (home / "pics").mkdir(parents=True)
    picture = file_of(begin_png(30, 20, Random(1)).finished(Random(1)))
    (home / "pics" / "a.png").write_bytes(picture)
    (home / "a.wav").write_bytes(file_of(begin_wav(0.5, 8000, Random(1)).finished(Random(1))))
    (tmp_path / "secret.png").write_bytes(picture)
    (home / "link.png").symlink_to(tmp_path / "secret.png")
    (home / "passwords.txt").write_text("root:x:0:0")
    (home / "cut.png").write_bytes(picture[:20])
    return home


def written(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("../secret.png", "outside the folder of the dataset"),
        ("pics/../../secret.png", "outside the folder of the dataset"),
        ("/etc/passwd", "outside the folder of the dataset"),
        ("../../nobody/knows.png", "outside the folder of the dataset"),
        ("link.png", "outside the folder of the dataset"),
        ("file:///etc/passwd", "a URL is http, https or data"),
        ("passwords.txt", "neither an image"),
        ("rows.jsonl", "neither an image"),
        ("a.wav", "the file is audio/wav"),
        ("cut.png", "a broken image"),
        ("none.png", "cannot be read: No such file"),
        ("pics", "not a regular file"),
        ("a\0b", "it is not a valid path"),
        ("data:image/png;base64,AAA", "not valid base64"),
        ("data:text/plain,hi", "a data URL is"),
        ("", "a path, a URL or a data URL"),
        (7, "a path, a URL or a data URL"),
    ],
)
def test_what_a_row_must_not_name(folder: Path, ref: Any, said: str) -> None:
    """Told with row and column, before any load; and a process that sends does not read it
    either."""
    path = written(folder, {"text": "hi"}, {"text": "hi", "image": ref})
    with pytest.raises(DatasetError, match=rf"line 2, column 1\d: .*{said}"):
        check_dataset(path)
    assert check_dataset(path, skip_broken=True).broken == 1
    if isinstance(ref, str) and ref and ref != "a.wav":
        with pytest.raises(MediaError):
            MediaStore(path).parts([("image", ref)])


def test_rows_with_media_become_messages(folder: Path) -> None:
    path = written(
        folder,
        {
            "turns": [
                {"text": "a", "images": ["pics/a.png", "http://x/b.png"]},
                {"text": "b", "audio": "a.wav"},
            ]
        },
        {"turns": [{"text": "c", "image": f"data:image/gif;base64,{PIXEL}"}]},
    )
    found = check_dataset(path)
    assert (found.turns, found.images, found.sounds) == (3, 2, 1)
    paused: list[int] = []
    sessions = ConversationSource(
        Prompts(PromptLengthModel(), seed=1),
        parts=MediaStore(path, pause=lambda: paused.append(1)).parts,
    )
    first, second = map(sessions.begin, Dataset(path))
    ask = first.next()
    assert ask is not None
    text, own, url = ask.messages[-1]["content"]
    assert text == {"type": "text", "text": "a"}
    assert file_of(medium(own)) == (folder / "pics" / "a.png").read_bytes()
    assert url == {"type": "image_url", "image_url": {"url": "http://x/b.png"}}
    assert paused
    first.add_answer("yes")
    later = first.next()
    assert later is not None
    assert count_media(later.messages) | {"asked_input_tokens": 0} == {
        "images": 2, "image_bytes": None, "image_pixels": None, "audio_s": 0.5,
        "asked_input_tokens": 0,
    }  # fmt: skip
    last = second.next()
    assert last is not None
    assert (
        json.loads(bytes(medium(last.messages[-1]["content"][1]).url))
        == f"data:image/gif;base64,{PIXEL}"
    )


def test_a_picture_of_a_sharegpt_row_is_in_its_first_turn(folder: Path) -> None:
    said = [{"from": who, "value": "x"} for who in ("human", "gpt", "human", "gpt")]
    (item,) = Dataset(written(folder, {"conversations": said, "image": "pics/a.png"}))
    assert [turn.media for turn in item.turns] == [(("image", "pics/a.png"),), ()]


def test_what_is_read_once_stays_while_there_is_room(folder: Path) -> None:
    (folder / "b.png").write_bytes((folder / "pics" / "a.png").read_bytes())
    kept, small = (
        MediaStore(str(folder / "rows.jsonl")),
        MediaStore(str(folder / "rows.jsonl"), most=1),
    )
    for store, same in ((kept, True), (small, False)):
        first, _, again = store.parts(
            [("image", "pics/a.png"), ("image", "b.png"), ("image", "pics/a.png")]
        )
        assert (medium(first) is medium(again)) == same


VALUES = (
    st.none()
    | st.text(max_size=20)
    | st.lists(st.text(max_size=5) | st.integers(), max_size=3)
    | st.integers()
)


@examples(200)
@given(st.dictionaries(st.sampled_from([*COLUMNS, "text"]), VALUES))
def test_columns_are_read_whole_or_refused(fields: dict[str, Any]) -> None:
    try:
        found = list_media_refs(fields)
    except MediaError as wrong:
        told = wrong.field in fields
        assert told
        return
    wanted = [fields[column] for column in COLUMNS if fields.get(column) is not None]
    flat = [text for value in wanted for text in ([value] if isinstance(value, str) else value)]
    assert [text for _, text in found] == flat
    assert all(flat)


HEADS = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBPVP8 ",
    b"RIFF\x40\0\0\0WAVEfmt ",
    b"",
)


@examples(300)
@given(st.sampled_from(HEADS), st.binary(max_size=80), st.integers(0, 200))
def test_whatever_a_file_holds_it_is_something_or_refused(
    head: bytes, rest: bytes, size: int
) -> None:
    try:
        facts = read_media_facts(head + rest, size)
    except MediaError:
        return
    assert facts.media_type
    assert facts.pixels is None or facts.pixels > 0
    assert facts.seconds is None or facts.seconds >= 0


def test_begun_is_aligned() -> None:
    """What comes behind is encoded alone."""
    for width in (1, 2, 3, 4):
        begun: UnfinishedMedium = begin_png(width, 2, Random(1))
        assert len(begun.base64) % 4 == begun.size % 3 == 0
        assert len(begun.rest) < 3
