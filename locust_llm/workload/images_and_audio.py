"""Images and audio of a request, encoded once, counted, and read only from beside
their dataset.

A row names them by a path below the dataset's own folder, an http(s) URL (passed on as it is) or a
data URL. Whoever can upload a dataset chooses these texts. So a path that leads out of the folder,
by ``..`` or by a link, is refused before anything there is touched. A file that is neither image
nor audio is never sent.
"""

import io
import os
import re
import stat
import wave
from binascii import Error, a2b_base64, b2a_base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

IMAGE, AUDIO = "image", "audio"
COLUMNS: Final = {"image": IMAGE, "images": IMAGE, "audio": AUDIO, "audios": AUDIO}
"""The fields of a row (each a text or a list of them) and their content. The names are AIPerf's."""
MAX_BYTES: Final = 64 << 20
"""A file has at most so many bytes."""
KEPT_BYTES: Final = 256 << 20
"""The bytes of files that a process keeps encoded. Beyond them, files are read again."""
HEAD_BYTES: Final = 1 << 18
"""The begin of an image that holds its size. In a JPEG the camera's notes and a preview may come
before."""
_SLICE: Final = 3 << 16
"""So many bytes are encoded in one go: half a millisecond, in which nobody else runs. Three bytes
become four characters."""
_DATA_URL: Final = re.compile(
    r"data:(image|audio)/([a-z0-9.+-]+);base64,(?=[A-Za-z0-9+/])", re.IGNORECASE
)
_JPEG_SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
"""The JPEG markers of a frame, and the markers without a length."""

_PLACE: Final = msgspec.Raw(b"\0")
"""The place of a medium. No JSON has this byte, not even in a text."""

Refs = Iterable[tuple[str, str]]
"""(field of the row, its text) pairs."""


class MediaError(ValueError):
    """Why it cannot be sent. ``field`` is the row's, where it is known."""

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(what)
        self.field = field


class MediaFacts(NamedTuple):
    """What is known of an image or audio."""

    media_type: str
    pixels: int | None = None
    seconds: float | None = None
    width: int = 0
    height: int = 0


class JSONPieces:
    """A text of JSON in pieces that follow on each other."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


class EncodedMedium:
    """One image or audio in base64. It goes into a request as it is, without another pass over its
    megabytes."""

    __slots__ = ("_base64", "facts", "size")

    def __init__(self, facts: MediaFacts, base64: Iterable[bytes], size: int) -> None:
        """``base64`` has its parts, ``size`` the bytes of the file."""
        self.facts = facts
        self.size = size
        self._base64 = tuple(base64)

    @property
    def url(self) -> JSONPieces:
        """A data URL as JSON. It has megabytes, and most of its pieces are shared."""
        return JSONPieces(b'"data:%b;base64,' % self.facts.media_type.encode(), *self._base64, b'"')

    @property
    def base64(self) -> JSONPieces:
        """The content as a JSON text."""
        return JSONPieces(b'"', *self._base64, b'"')

    @property
    def part(self) -> dict[str, Any]:
        """The part of a message's content in the form of chat completions. The protocols know where
        the medium stands."""
        if self.facts.media_type.startswith(IMAGE):
            return {"type": "image_url", "image_url": {"url": self}}
        return {
            "type": "input_audio",
            "input_audio": {"data": self, "format": self.facts.media_type.partition("/")[2]},
        }


def encode_in_pieces(value: Any) -> list[bytes]:
    """The JSON of a value, in pieces that follow on each other. No image and no audio is copied, as
    a copy of megabytes takes milliseconds of the event loop."""
    media = list[JSONPieces]()

    def place(value: Any) -> msgspec.Raw:
        if isinstance(value, EncodedMedium):
            value = value.url if value.facts.media_type.startswith(IMAGE) else value.base64
        if not isinstance(value, JSONPieces):
            raise NotImplementedError(f"{type(value).__name__} is no JSON")
        media.append(value)
        return _PLACE

    between = msgspec.json.encode(value, enc_hook=place).split(b"\0")
    pieces = [between[0]]
    for medium, text in zip(media, between[1:], strict=True):
        pieces += (*medium.pieces, text)
    return pieces


# -- what is in a request --------------------------------------------------------------------------


def count_media(messages: Iterable[dict[str, Any]]) -> dict[str, int | float | None]:
    """The record's fields for the images and audio in messages of chat completions; none without
    any. None: one of them is unknown, as it is behind a URL. Nobody knows the tokens of such a
    request beforehand."""
    parts = list(chain.from_iterable(map(_of_message, messages)))
    if not parts:
        return {}
    images = [(facts, size) for kind, facts, size in parts if kind == IMAGE]
    sounds = [facts.seconds for kind, facts, _ in parts if kind == AUDIO]
    sizes = [size for _, size in images]
    pixels = [facts.pixels for facts, _ in images]
    return {
        "images": len(images) or None,
        "image_bytes": sum(sizes) if sizes and all(sizes) else None,
        "image_pixels": _sum_if_known(pixels),
        "audio_s": _sum_if_known(sounds),
        "asked_input_tokens": None,
    }


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    """None: there are no values, or one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _of_message(message: dict[str, Any]) -> Iterator[tuple[str, MediaFacts, int]]:
    """(kind, facts, bytes) of each medium."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        held = part.get(kind) if kind in ("image_url", "input_audio", "audio_url") else None
        value = held.get("url", held.get("data")) if isinstance(held, dict) else held
        if value is None and kind != "image":
            continue
        if isinstance(value, EncodedMedium):
            yield IMAGE if kind == "image_url" else AUDIO, value.facts, value.size
            continue
        facts = MediaFacts("")
        size = 0
        if isinstance(value, str) and (match := _DATA_URL.match(value)):
            try:
                facts, size = parse_data_url(value)
            except MediaError:  # it is the server's to say
                facts = MediaFacts("")
                size = (len(value) - match.end()) * 3 // 4
        yield IMAGE if kind.startswith(IMAGE) else AUDIO, facts, size


# -- of a dataset ----------------------------------------------------------------------------------


def list_media_refs(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The media that a row names: images, then audio. Raises MediaError."""
    refs: list[tuple[str, str]] = []
    for column in COLUMNS:
        value = fields.get(column)
        texts = [value] if isinstance(value, str) else value
        if texts is None:
            continue
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise MediaError(
                f"{column} takes a path, a URL or a data URL, or a list of them", column
            )
        refs += [(column, text) for text in texts]
    return tuple(refs)


def check_media_file(folder: str, column: str, ref: str) -> None:
    """Check that a file is there, and holds what its column names. It reads the begin of the file.
    Raises MediaError."""
    kind = COLUMNS[column]
    shown = ref if len(ref) <= 60 else ref[:57] + "..."
    try:
        if ref.startswith("data:"):
            facts, _ = parse_data_url(ref)
        elif _is_url(ref):
            return
        else:
            with _opened(folder, ref) as file:
                facts = read_media_facts(file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size)
    except MediaError as wrong:
        raise MediaError(f"{column} {shown!r}: {wrong}", column) from None
    if not facts.media_type.startswith(kind):
        raise MediaError(f"{column} {shown!r}: the file is {facts.media_type}", column)


class MediaStore:
    """The media of a dataset in one process. Each file is read and encoded once, as long as there
    is room for it."""

    def __init__(
        self, dataset: str, pause: Callable[[], object] = lambda: None, most: int = KEPT_BYTES
    ) -> None:
        """``pause`` lets others run between two slices of a large file."""
        self._folder = os.path.dirname(dataset)
        self._pause = pause
        self._most = most
        self._kept: OrderedDict[str, EncodedMedium] = OrderedDict()
        self._bytes = 0

    def parts(self, named: Refs) -> list[dict[str, Any]]:
        """The parts of a message's content. Raises MediaError."""
        return [self._part(COLUMNS[column], ref) for column, ref in named]

    def _part(self, kind: str, ref: str) -> dict[str, Any]:
        if ref.startswith("data:"):
            facts, size = parse_data_url(ref)
            return EncodedMedium(facts, [ref.partition(",")[2].encode()], size).part
        if _is_url(ref):
            name = f"{kind}_url"
            return {"type": name, name: {"url": ref}}
        if (medium := self._kept.get(ref)) is None:
            medium = self._kept[ref] = self._read(ref)
            self._bytes += medium.size
        self._kept.move_to_end(ref)
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size
        return medium.part

    def _read(self, ref: str) -> EncodedMedium:
        blocks: list[bytes] = []
        head, size = b"", 0
        with _opened(self._folder, ref) as file:
            while block := file.read(_SLICE):
                head = head if len(head) >= HEAD_BYTES else head + block
                size += len(block)
                blocks.append(b2a_base64(block, newline=False))
                self._pause()
        return EncodedMedium(read_media_facts(head, size), blocks, size)


def _is_url(ref: str) -> bool:
    """Whether it is http or https. Raises MediaError for another kind."""
    scheme, colon, _ = ref.partition("://")
    if not colon:
        return False
    if scheme.lower() not in ("http", "https"):
        raise MediaError("a URL is http, https or data; a file is named by its path")
    return True


def _opened(folder: str, ref: str) -> io.BufferedReader:
    """A regular file below the folder that is not too large. Raises MediaError."""
    home = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(home, ref))
    except ValueError:  # a NUL
        raise MediaError("it is not a valid path") from None
    if os.path.commonpath((home, path)) != home:
        raise MediaError("it is outside the folder of the dataset, and such files are not read")
    try:
        # not followed if it has become a link since; a pipe does not block
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MediaError(f"cannot be read: {error.strerror}") from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        os.close(file)
        large = (
            f"over {MAX_BYTES >> 20} MB" if stat.S_ISREG(status.st_mode) else "not a regular file"
        )
        raise MediaError(f"cannot be read: {large}")
    return open(file, "rb")


# -- what it is ------------------------------------------------------------------------------------


def parse_data_url(url: str) -> tuple[MediaFacts, int]:
    """(facts, bytes) of an image or audio in base64. Raises MediaError."""
    match = _DATA_URL.match(url)
    if match is None:
        raise MediaError("a data URL is data:image/png;base64,... or data:audio/wav;base64,...")
    try:
        data = a2b_base64(url[match.end() :].encode(), strict_mode=True)
    except (Error, UnicodeEncodeError) as error:
        raise MediaError(f"not valid base64: {error}") from None
    return read_media_facts(data[:HEAD_BYTES], len(data)), len(data)


def read_media_facts(head: bytes, size: int) -> MediaFacts:
    """The facts of a file of ``size`` bytes with this begin: PNG (W3C), JPEG (ITU T.81), GIF, WebP;
    WAV, MP3, FLAC, Ogg. Raises MediaError where it is none of them, or broken."""
    width = height = 0
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        kind = "png"
        width = int.from_bytes(head[16:20])
        height = int.from_bytes(head[20:24])
    elif head.startswith((b"GIF87a", b"GIF89a")):
        kind = "gif"
        width = int.from_bytes(head[6:8], "little")
        height = int.from_bytes(head[8:10], "little")
    elif head.startswith(b"\xff\xd8\xff"):
        kind = "jpeg"
        width, height = _jpeg_size(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        kind = "webp"
        width, height = _webp_size(head)
    else:
        return _sound(head, size)
    if not width or not height:
        raise MediaError(f"a broken image: {kind} without a width and a height")
    return MediaFacts(f"image/{kind}", width * height, None, width, height)


def _jpeg_size(head: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _JPEG_SIZES:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        if marker == 0xFF:  # a filling byte
            at += 1
            continue
        at += 2
        if marker not in _BARE:
            at += int.from_bytes(head[at : at + 2])
    return 0, 0


def _webp_size(head: bytes) -> tuple[int, int]:
    """The size in the lossy, lossless and extended form (RFC 9649)."""
    form, data = head[12:16], head[20:30]
    if form == b"VP8 " and len(data) == 10:
        return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(
            data[8:10], "little"
        ) & 0x3FFF
    if form == b"VP8L" and len(data) >= 5:
        bits = int.from_bytes(data[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8X" and len(data) == 10:
        return int.from_bytes(data[4:7], "little") + 1, int.from_bytes(data[7:10], "little") + 1
    return 0, 0


def _sound(head: bytes, size: int) -> MediaFacts:
    """WAV has its length at its begin. The length of other formats is not known."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        try:
            with wave.open(io.BytesIO(head)) as sound:
                frame = sound.getnchannels() * sound.getsampwidth()
                rate = sound.getframerate()
                seconds = min(sound.getnframes(), size // frame) / rate
        except (wave.Error, EOFError, ArithmeticError, RuntimeError) as error:
            raise MediaError(f"broken audio: {str(error) or 'the WAV is cut off'}") from None
        return MediaFacts("audio/wav", None, seconds)
    if head.startswith(b"ID3") or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2):
        return MediaFacts("audio/mp3")
    for magic, kind in ((b"fLaC", "flac"), (b"OggS", "ogg")):
        if head.startswith(magic):
            return MediaFacts(f"audio/{kind}")
    raise MediaError("neither an image (PNG, JPEG, GIF, WebP) nor audio (WAV, MP3, FLAC, Ogg)")
