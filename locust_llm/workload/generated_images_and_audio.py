"""Generated images and audio from a seed: PNG, JPEG and WAV of noise, of
requested sizes, each with its own end.

No two are alike, so that no cache makes a server look faster. But a megapixel takes 50 ms, and
requests come faster than that. So a few are made and encoded before the load, without their end. A
request adds the last row of pixels, or the last samples. A PNG is a deflate stream whose last block
may follow later, as it is (RFC 1951, 3.2.4). A JPEG may begin anew with each row of blocks (restart
intervals, ITU T.81, F.1.1.5.2).
"""

import io
import struct
import wave
import zlib
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple

from .images_and_audio import AUDIO, IMAGE, EncodedMedium, MediaFacts
from .length_distributions import normal_length

MISSING: Final = "JPEG images need Pillow: pip install 'locust-llm[images]', or --image-format png"
MADE: Final = 16
"""So many sizes are drawn before the load, where they differ."""
MAX_SIDE: Final = 16_384
MADE_BYTES: Final = 64 << 20
"""The bytes of their encoded files. With larger files there are fewer."""
QUALITY: Final = 85
"""JPEG's quality, as cameras and web sites commonly use it."""
_BLOCK_ROWS: Final = 16
"""The rows of pixels in a row of JPEG's blocks, with colours at half the resolution (4:2:0)."""
_COARSE: Final = 4
"""The side of a spot in a JPEG, in pixels. Noise of single pixels would take three times a
photograph's bytes."""
_SHADES: Final = bytes(120 + (byte & 15) for byte in range(256))
"""16 of 256 shades. A PNG then takes 1.5 bytes a pixel, as many photographs do; full noise takes
3."""
_OWN_SAMPLES: Final = 64
_DEPTH: Final = 16
"""The bits of a sample, of one channel."""


class GeneratedMediaSettings(NamedTuple):
    """The media that a run requests. A mean of 0 means none."""

    width: tuple[float, float] = (0.0, 0.0)
    """Mean and standard deviation in pixels."""
    height: tuple[float, float] = (0.0, 0.0)
    images: int = 1
    """The images of a request."""
    formats: tuple[str, ...] = ("png",)
    """The formats, of which each image has one: png, jpeg."""
    seconds: tuple[float, float] = (0.0, 0.0)
    rates: tuple[float, ...] = (16.0,)
    """The sample rates in kHz, of which each audio has one."""
    sounds: int = 1
    seed: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of media: image, audio."""
        image = self.width[0] and self.height[0] and self.images
        audio = self.seconds[0] and self.sounds
        return (IMAGE,) * bool(image) + (AUDIO,) * bool(audio)


def parse_sample_rates(text: str) -> tuple[float, ...]:
    """Reads numbers with commas or blanks between, in kHz. Raises ValueError of one sentence."""
    try:
        rates = tuple(float(rate) for rate in text.replace(",", " ").split())
    except ValueError:
        rates = ()
    if not rates or len(rates) > MADE or not all(1 <= rate <= 384 for rate in rates):
        raise ValueError(
            f"--audio-sample-rates takes rates in kHz from 1 to 384, as in 16,44.1, got {text!r}"
        )
    return rates


class UnfinishedMedium(NamedTuple):
    """An image or audio without its end."""

    facts: MediaFacts
    base64: bytes
    """The begin in base64, without the bytes that do not fill three."""
    rest: bytes
    size: int
    """The bytes that are encoded so far."""
    end: Callable[[Random], bytes]

    def finished(self, random: Random) -> EncodedMedium:
        end = self.rest + self.end(random)
        return EncodedMedium(
            self.facts, (self.base64, b2a_base64(end, newline=False)), self.size + len(end)
        )


class MediaGenerator:
    """The media of one process's requests. The same seed gives the same bytes."""

    def __init__(self, asked: GeneratedMediaSettings, seed: str | None) -> None:
        """``seed`` decides what differs between requests."""
        self._asked = asked
        self._random = Random(seed)
        self._images, self._sounds = prepare_generated_media(asked)

    def begin_block(self, seed: str) -> None:
        """Draw what differs from this seed from now on."""
        self._random = Random(seed)

    def parts(self) -> list[dict[str, Any]]:
        """The media parts of one message's content. Empty: none are requested."""
        random, parts_drawn = self._random, []
        for source, count in (
            (self._images, self._asked.images),
            (self._sounds, self._asked.sounds),
        ):
            parts_drawn += [
                random.choice(source).finished(random).part for _ in range(count if source else 0)
            ]
        return parts_drawn


@lru_cache(maxsize=1)
def prepare_generated_media(
    asked: GeneratedMediaSettings,
) -> tuple[Sequence[UnfinishedMedium], Sequence[UnfinishedMedium]]:
    """(images, audio) without their ends. They are kept, so that forked processes have them.

    Raises ImportError where a JPEG is requested and Pillow is missing.
    """
    random = Random(f"{asked.seed}/media")
    images: list[UnfinishedMedium] = []
    if IMAGE in asked.kinds:
        width = normal_length(*asked.width)
        height = normal_length(*asked.height)
        sizes = (
            (min(width(random), MAX_SIDE), min(height(random), MAX_SIDE))
            for _ in range(MADE * len(asked.formats))
        )
        for kind in asked.formats:
            begun = (MAKERS[kind](*next(sizes), random) for _ in range(MADE))
            images += _take_unfinished_media(begun, bool(asked.width[1] or asked.height[1]))
    sounds: list[UnfinishedMedium] = []
    if AUDIO in asked.kinds:
        milliseconds = normal_length(asked.seconds[0] * 1000, asked.seconds[1] * 1000)
        for rate in asked.rates:
            lasting = (
                begin_wav(milliseconds(random) / 1000, round(rate * 1000), random)
                for _ in range(MADE)
            )
            sounds += _take_unfinished_media(lasting, bool(asked.seconds[1]))
    return images, sounds


def _take_unfinished_media(
    begun: Iterator[UnfinishedMedium], differ: bool
) -> list[UnfinishedMedium]:
    """One medium; many, as long as there is room, where sizes differ."""
    files = [next(begun)]
    while differ and len(files) < MADE and sum(file.size for file in files) < MADE_BYTES:
        files.append(next(begun))
    return files


def _begun(facts: MediaFacts, data: bytes, end: Callable[[Random], bytes]) -> UnfinishedMedium:
    whole = len(data) // 3 * 3
    return UnfinishedMedium(
        facts, b2a_base64(memoryview(data)[:whole], newline=False), data[whole:], whole, end
    )


# -- the files -------------------------------------------------------------------------------------


def begin_png(width: int, height: int, random: Random) -> UnfinishedMedium:
    """A PNG of 24 bits a pixel."""
    row = 3 * width
    noise = _noise(random, row * (height - 1))
    pixels = b"".join(b"\0" + noise[at : at + row] for at in range(0, len(noise), row))
    pack = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    packed = pack.compress(pixels) + pack.flush(zlib.Z_SYNC_FLUSH)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checked = zlib.adler32(pixels)

    def end(random: Random) -> bytes:
        last = b"\0" + _noise(random, row)
        stored = struct.pack("<BHH", 1, len(last), len(last) ^ 0xFFFF) + last
        return _chunk(b"IDAT", stored + struct.pack(">I", zlib.adler32(last, checked))) + _chunk(
            b"IEND", b""
        )

    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed)
    return _begun(MediaFacts("image/png", width * height, None, width, height), data, end)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _noise(random: Random, size: int) -> bytes:
    return random.randbytes(size).translate(_SHADES)


def begin_jpeg(width: int, height: int, random: Random) -> UnfinishedMedium:
    """A JPEG, whose last row of blocks is made for each request. Raises ImportError."""
    whole = _jpeg(width, height, random)
    restart = max((whole.rfind(b"\xff%c" % marker) for marker in range(0xD0, 0xD8)), default=-1)
    last = restart + 2 if height > _BLOCK_ROWS else _scan(whole)

    def end(random: Random) -> bytes:
        strip = _jpeg(width, _BLOCK_ROWS, random)
        return strip[_scan(strip) :]

    return _begun(MediaFacts("image/jpeg", width * height, None, width, height), whole[:last], end)


def _jpeg(width: int, height: int, random: Random) -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(MISSING) from None
    across, down = -(-width // _COARSE), -(-height // _COARSE)
    spots = Image.frombytes("RGB", (across, down), random.randbytes(3 * across * down))
    out = io.BytesIO()
    picture = spots.resize((width, height), Image.Resampling.BICUBIC)
    picture.save(out, "JPEG", quality=QUALITY, subsampling="4:2:0", restart_marker_rows=1)
    return out.getvalue()


def _scan(data: bytes) -> int:
    """Where the scan begins, after its header."""
    at = data.index(b"\xff\xda") + 2
    return at + int.from_bytes(data[at : at + 2])


def begin_wav(seconds: float, rate: int, random: Random) -> UnfinishedMedium:
    """White noise, 16 bits, one channel."""
    frame = _DEPTH // 8
    samples = max(1, round(seconds * rate))
    own = min(samples, _OWN_SAMPLES)
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(frame)
        sound.setframerate(rate)
        sound.writeframes(random.randbytes(samples * frame))
    data = out.getvalue()[: -own * frame]
    return _begun(
        MediaFacts("audio/wav", None, samples / rate),
        data,
        lambda random: random.randbytes(own * frame),
    )


MAKERS: Final[dict[str, Callable[[int, int, Random], UnfinishedMedium]]] = {
    "png": begin_png,
    "jpeg": begin_jpeg,
}
