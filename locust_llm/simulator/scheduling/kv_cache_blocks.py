"""KV cache blocks: counts the free blocks of the KV cache, and finds blocks whose text can be
shared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class CacheBlock:
    """Is a full block with a known text, named by its key."""

    __slots__ = ("key", "users")

    def __init__(self, key: int) -> None:
        self.key = key
        self.users = 1


class Blocks:
    """Models vLLM's block pool (0.32, vllm/v1/core/block_pool.py). Blocks without a key are
    interchangeable, so they are only counted. A full block with a key can be shared, and stays
    after its last user has left. It is emptied when no block without a key is left, least recently
    used first: vLLM puts these blocks at the front of its queue of free blocks. Of two blocks with
    the same key, computed side by side, the older one is found until it is emptied."""

    def __init__(self, num_blocks: int, *, caching: bool = False) -> None:
        self.num_blocks = num_blocks
        self.caching = caching
        self._num_blank = num_blocks
        self._oldest: dict[int, CacheBlock] = {}  # by key
        self._copies: dict[int, list[CacheBlock]] = {}  # the others with that key, the oldest first
        # without a user: free, and still to be found
        self._idle: OrderedDict[CacheBlock, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return self._num_blank + len(self._idle)

    def take(self, count: int) -> None:
        """Takes blocks without a key. That many must be free."""
        self._num_blank -= count
        while self._num_blank < 0:
            self._forget(self._idle.popitem(last=False)[0])
            self._num_blank += 1

    def find(self, keys: Sequence[int]) -> tuple[int, int]:
        """Returns how many of the first keys are there, and how many of these have no user."""
        num_found = idle = 0
        get = self._oldest.get
        for key in keys:
            block = get(key)
            if block is None:
                break
            num_found += 1
            if not block.users:
                idle += 1
        return num_found, idle

    def share(self, keys: Iterable[int]) -> list[CacheBlock]:
        """Adds a user to each block. All must be there."""
        blocks = [self._oldest[key] for key in keys]
        for block in blocks:
            if not block.users:
                del self._idle[block]
            block.users += 1
        return blocks

    def name(self, key: int) -> CacheBlock:
        """Gives one of the taken blocks its key."""
        block = CacheBlock(key)
        if self._oldest.setdefault(key, block) is not block:
            self._copies.setdefault(key, []).append(block)
        return block

    def free(self, blocks: list[CacheBlock], num_blank: int) -> None:
        """Frees blocks. ``blocks`` are in the order of the text. The last is emptied first, as it
        is useless without the earlier ones."""
        self._num_blank += num_blank
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                self._idle[block] = None

    def _forget(self, block: CacheBlock) -> None:
        copies = self._copies.get(block.key)
        if copies is None:
            del self._oldest[block.key]
            return
        if self._oldest[block.key] is block:
            self._oldest[block.key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[block.key]
