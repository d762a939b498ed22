"""Text to token counts: a tokenizer that looks like Llama's, cheap and without its vocabulary."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

from .scheduling.cost import BLOCK_SIZE

# Like BPE on English: letters in pieces of up to 6 (so a word of n letters is ceil(n/6) tokens),
# digits by three as in Llama 3, newlines together, every other character alone. A space belongs to
# the word after it.
_PIECE = re.compile(r"[a-zA-Z]{1,6}|[0-9]{1,3}|\n+|[^\sa-zA-Z0-9]")

_BLANK = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"

_NUM_WORD_IDS = 128_000  # Llama 3's special tokens begin here
_BEGIN_OF_TEXT, _START_HEADER, _END_HEADER, _EOT = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
_SPECIAL_IDS = {
    _BEGIN_OF_TEXT: 128_000,
    _START_HEADER: 128_006,
    _END_HEADER: 128_007,
    _EOT: 128_009,
}

# What the simulator says, over and over: each word one token, alone or after a space.
_TEXT = (
    "the river runs slow past the old mill and on to the sea where small boats wait for the wind "
    "to turn while rain "
    "falls on the far hills and fills the stream that feeds it so that in spring it comes up over "
    "the road and the "
    "people of the town walk home by the upper path with their lamps lit and talk of the year when "
    "it took the bridge"
)
WORDS = _TEXT.split()


def count_text(text: str) -> int:
    return len(_PIECE.findall(text))


def chat_pieces(messages: Iterable[tuple[str, str]]) -> list[str]:
    """A piece a token, of (role, text) messages in Llama 3's chat template, up to where the answer
    begins."""
    pieces = [_BEGIN_OF_TEXT]
    for role, text in messages:
        pieces += [_START_HEADER, role, _END_HEADER, "\n\n"]
        pieces += _PIECE.findall(text)
        pieces.append(_EOT)
    return [*pieces, _START_HEADER, "assistant", _END_HEADER, "\n\n"]


def encode_text(pieces: Iterable[str]) -> list[int]:
    """Token ids: the same piece always has the same one; two pieces may share one."""
    return [_SPECIAL_IDS.get(piece) or crc32(piece.encode()) % _NUM_WORD_IDS for piece in pieces]


def block_keys(pieces: Sequence[str]) -> list[int]:
    """A number for each whole block, the same for the same text up to the block's end (in this
    process)."""
    keys: list[int] = []
    key = 0
    for end in range(BLOCK_SIZE, len(pieces) + 1, BLOCK_SIZE):
        key = hash((key, *pieces[end - BLOCK_SIZE : end]))
        keys.append(key)
    return keys


def prompt_pieces(text: str, *, add_special_tokens: bool = True) -> list[str]:
    return [_BEGIN_OF_TEXT] * add_special_tokens + _PIECE.findall(text)


def piece_texts(text: str) -> list[str]:
    """What each piece of a text has of it, as byte-level BPE writes it: a blank belongs to the word
    after it."""
    ends = [0, *(match.end() for match in _PIECE.finditer(text))]
    return [text[start:end].replace(" ", _BLANK) for start, end in pairwise(ends)]


# -- pictures and sounds ---------------------------------------------------------------------------

_PATCH = 28  # pixels of the side of what is one token: Qwen2-VL, 14 and two of them merged
_MOST_TOKENS = 16_384  # of a picture: larger ones are scaled down to so many
_UNKNOWN_TOKENS = 1024  # of one that is not at hand: that of 896 x 896
_A_SECOND = 25  # tokens of a sound: Qwen2-Audio, 40 ms each
_HEAD = 1 << 16  # characters of base64 in which a file says what it is


def part_text(part: dict[str, Any]) -> str:
    """Of a part of a message: a text; of a picture or a sound as many characters as it has tokens,
    each of which is a token, and others where it is another one."""
    kind = str(part.get("type"))
    held = (
        part.get("source")
        if kind == "image"
        else part.get("image_url" if kind == "input_image" else kind)
    )
    if kind not in ("image_url", "input_image", "image", "input_audio", "audio_url"):
        return str(part.get("text", ""))
    value = held.get("url", held.get("data")) if isinstance(held, dict) else held
    data = (
        value.partition(",")[2]
        if isinstance(value, str) and value.startswith("data:")
        else str(value)
    )
    own = chr(0xE000 + crc32(data[-4096:].encode("utf-8", "replace"), len(data)) % 6400)
    try:
        head = b64decode(data[:_HEAD], validate=True)
    except ValueError:
        head = b""
    count = (
        _audio_tokens(head, len(data) * 3 // 4) if "audio" in kind else _image_tokens(*_size(head))
    )
    return own * count


def _image_tokens(width: int, height: int) -> int:
    if not width or not height:
        return _UNKNOWN_TOKENS
    return min(-(-width // _PATCH) * -(-height // _PATCH), _MOST_TOKENS)


def _audio_tokens(head: bytes, size: int) -> int:
    """By the bytes a second in the header of a WAV; anything else is taken for 128 kbit/s."""
    wav = head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt "
    a_second = (int.from_bytes(head[28:32], "little") if wav else 0) or 16_000
    return (
        min(max(1, round(size / a_second * _A_SECOND)), _MOST_TOKENS) if head else _UNKNOWN_TOKENS
    )


def _size(head: bytes) -> tuple[int, int]:
    """Width and height of a PNG or a JPEG; (0, 0) of anything else."""
    if head[12:16] == b"IHDR":
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    frame = (
        re.match(rb"\xff\xd8(?s:.*?)\xff[\xc0-\xc3]..\x08(..)(..)", head, re.DOTALL)
        if head
        else None
    )
    return (int.from_bytes(frame[2], "big"), int.from_bytes(frame[1], "big")) if frame else (0, 0)
