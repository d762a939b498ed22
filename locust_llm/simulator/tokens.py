"""Text to token counts: a tokenizer that looks like Llama's, cheap and without its vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from zlib import crc32

from .cost import BLOCK_SIZE

# Like BPE on English: letters in pieces of up to 6 (so a word of n letters is ceil(n/6) tokens), digits by three as in
# Llama 3, newlines together, every other character alone. A space belongs to the word after it.
_PIECE = re.compile(r"[a-zA-Z]{1,6}|[0-9]{1,3}|\n+|[^\sa-zA-Z0-9]")

_NUM_WORD_IDS = 128_000  # Llama 3's special tokens begin here
_BEGIN_OF_TEXT, _START_HEADER, _END_HEADER, _EOT = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
_SPECIAL_IDS = {_BEGIN_OF_TEXT: 128_000, _START_HEADER: 128_006, _END_HEADER: 128_007, _EOT: 128_009}

# What the simulator says, over and over: each word one token, alone or after a space.
_TEXT = (
    "the river runs slow past the old mill and on to the sea where small boats wait for the wind to turn while rain "
    "falls on the far hills and fills the stream that feeds it so that in spring it comes up over the road and the "
    "people of the town walk home by the upper path with their lamps lit and talk of the year when it took the bridge"
)
WORDS = _TEXT.split()


def count_text(text: str) -> int:
    return len(_PIECE.findall(text))


def chat_pieces(messages: Iterable[tuple[str, str]]) -> list[str]:
    """A piece a token, of (role, text) messages in Llama 3's chat template, up to where the answer begins."""
    pieces = [_BEGIN_OF_TEXT]
    for role, text in messages:
        pieces += [_START_HEADER, role, _END_HEADER, "\n\n"]
        pieces += _PIECE.findall(text)
        pieces.append(_EOT)
    return [*pieces, _START_HEADER, "assistant", _END_HEADER, "\n\n"]


def encode(pieces: Iterable[str]) -> list[int]:
    """Token ids: the same piece always has the same one; two pieces may share one."""
    return [_SPECIAL_IDS.get(piece) or crc32(piece.encode()) % _NUM_WORD_IDS for piece in pieces]


def block_keys(pieces: Sequence[str]) -> list[int]:
    """A number for each whole block, the same for the same text up to the block's end (in this process)."""
    keys: list[int] = []
    key = 0
    for end in range(BLOCK_SIZE, len(pieces) + 1, BLOCK_SIZE):
        key = hash((key, *pieces[end - BLOCK_SIZE : end]))
        keys.append(key)
    return keys


def prompt_pieces(text: str, *, add_special_tokens: bool = True) -> list[str]:
    return [_BEGIN_OF_TEXT] * add_special_tokens + _PIECE.findall(text)
