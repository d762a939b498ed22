"""Simulated tokenizer: splits texts by a cheap tokenizer that resembles Llama's, without its
vocabulary."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

from .scheduling.step_cost import BLOCK_SIZE

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
    """Returns a piece per token, of (role, text) messages in Llama 3's chat template, up to the
    begin of the answer."""
    pieces = [_BEGIN_OF_TEXT]
    for role, text in messages:
        pieces += [_START_HEADER, role, _END_HEADER, "\n\n"]
        pieces += _PIECE.findall(text)
        pieces.append(_EOT)
    return [*pieces, _START_HEADER, "assistant", _END_HEADER, "\n\n"]


def encode_text(pieces: Iterable[str]) -> list[int]:
    """Returns token ids. Equal pieces have equal ids, and different pieces may share one."""
    return [_SPECIAL_IDS.get(piece) or crc32(piece.encode()) % _NUM_WORD_IDS for piece in pieces]


def block_keys(pieces: Sequence[str]) -> list[int]:
    """Returns a number for each whole block. It depends on the text up to the block's end only (in
    this process)."""
    keys: list[int] = []
    key = 0
    for end in range(BLOCK_SIZE, len(pieces) + 1, BLOCK_SIZE):
        key = hash((key, *pieces[end - BLOCK_SIZE : end]))
        keys.append(key)
    return keys


def prompt_pieces(text: str, *, add_special_tokens: bool = True) -> list[str]:
    return [_BEGIN_OF_TEXT] * add_special_tokens + _PIECE.findall(text)


def piece_texts(text: str) -> list[str]:
    """Returns the text of each piece as byte-level BPE writes it: a blank belongs to the word after
    it."""
    ends = [0, *(match.end() for match in _PIECE.finditer(text))]
    return [text[start:end].replace(" ", _BLANK) for start, end in pairwise(ends)]


# -- images and audio ------------------------------------------------------------------------------

_PATCH = 28  # pixels of the side of what is one token: Qwen2-VL, 14 and two of them merged
_MOST_TOKENS = 16_384  # of a picture: larger ones are scaled down to so many
_UNKNOWN_TOKENS = 1024  # of one that is not at hand: that of 896 x 896
_A_SECOND = 25  # tokens of a sound: Qwen2-Audio, 40 ms each
_HEAD = 1 << 16  # characters of base64 in which a file says what it is


def part_text(part: dict[str, Any]) -> str:
    """Returns a text that stands for a part of a message. An image or audio gives as many
    characters as it has tokens, and each is a token. Another image gives other characters."""
    kind = str(part.get("type"))
    fields = {"image": "source", "input_image": "image_url"}
    held = part.get(fields.get(kind, kind))
    if kind not in ("image_url", "input_image", "image", "input_audio", "audio_url"):
        return str(part.get("text", ""))
    value = held.get("url", held.get("data")) if isinstance(held, dict) else held
    data = str(value)
    if data.startswith("data:"):
        data = data.partition(",")[2]
    own = chr(0xE000 + crc32(data[-4096:].encode("utf-8", "replace"), len(data)) % 6400)
    try:
        head = b64decode(data[:_HEAD], validate=True)
    except ValueError:
        head = b""
    if "audio" in kind:
        return own * _audio_tokens(head, len(data) * 3 // 4)
    return own * _image_tokens(*_image_size(head))


def _image_tokens(width: int, height: int) -> int:
    if not width or not height:
        return _UNKNOWN_TOKENS
    return min(-(-width // _PATCH) * -(-height // _PATCH), _MOST_TOKENS)


def _audio_tokens(head: bytes, size: int) -> int:
    """Returns the tokens of an audio by the bytes per second in a WAV header. Other formats count
    as 128 kbit/s."""
    wav = head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt "
    a_second = (int.from_bytes(head[28:32], "little") if wav else 0) or 16_000
    if not head:
        return _UNKNOWN_TOKENS
    return min(max(1, round(size / a_second * _A_SECOND)), _MOST_TOKENS)


def _image_size(head: bytes) -> tuple[int, int]:
    """Returns width and height of a PNG or JPEG, or (0, 0)."""
    if head[12:16] == b"IHDR":
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    frame = re.match(rb"\xff\xd8(?s:.*?)\xff[\xc0-\xc3]..\x08(..)(..)", head, re.DOTALL)
    if frame is None:
        return 0, 0
    return int.from_bytes(frame[2], "big"), int.from_bytes(frame[1], "big")
