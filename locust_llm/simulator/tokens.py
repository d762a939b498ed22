"""Text to token counts: a tokenizer that looks like Llama's, cheap and without its vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from zlib import crc32

# Like BPE on English: letters in pieces of up to 6 (so a word of n letters is ceil(n/6) tokens), digits by three as in
# Llama 3, newlines together, every other character alone. A space belongs to the word after it.
_PIECE = re.compile(r"[a-zA-Z]{1,6}|[0-9]{1,3}|\n+|[^\sa-zA-Z0-9]")

_NUM_WORD_IDS = 128_000  # Llama 3's special tokens begin here
_BEGIN_OF_TEXT, _START_HEADER, _END_HEADER, _EOT = 128_000, 128_006, 128_007, 128_009
_NUM_MESSAGE_TOKENS = 5  # start header, role, end header, blank line; end of turn

# What the simulator says, over and over: each word one token, alone or after a space.
_TEXT = (
    "the river runs slow past the old mill and on to the sea where small boats wait for the wind to turn while rain "
    "falls on the far hills and fills the stream that feeds it so that in spring it comes up over the road and the "
    "people of the town walk home by the upper path with their lamps lit and talk of the year when it took the bridge"
)
WORDS = _TEXT.split()


def count_text(text: str) -> int:
    return len(_PIECE.findall(text))


def encode_text(text: str) -> list[int]:
    """Token ids: the same piece always has the same one; two pieces may share one."""
    return [crc32(piece.encode()) % _NUM_WORD_IDS for piece in _PIECE.findall(text)]


def count_chat(messages: Iterable[tuple[str, str]]) -> int:
    """Tokens of (role, text) messages in Llama 3's chat template, up to where the answer begins."""
    return 1 + sum(_NUM_MESSAGE_TOKENS + count_text(text) for _, text in messages) + _NUM_MESSAGE_TOKENS - 1


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    ids = [_BEGIN_OF_TEXT]
    for role, text in messages:
        ids += [*_header(role), *encode_text(text), _EOT]
    return ids + _header("assistant")


def encode_prompt(text: str, *, add_special_tokens: bool = True) -> list[int]:
    return [_BEGIN_OF_TEXT] * add_special_tokens + encode_text(text)


def _header(role: str) -> list[int]:
    return [_START_HEADER, crc32(role.encode()) % _NUM_WORD_IDS, _END_HEADER, crc32(b"\n\n") % _NUM_WORD_IDS]
