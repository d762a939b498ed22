"""The KV cache in blocks: how many are free, and which hold text that others may share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class CacheBlock:
    """A full block whose text is known by its key."""

    __slots__ = ("key", "users")

    def __init__(self, key: int) -> None:
        self.key, self.users = key, 1


class Blocks:
    """vLLM's block pool (0.32, vllm/v1/core/block_pool.py). A block without a key is as good as any
    other, so those are only counted. A full one with a key can be found by others, stays so after
    its last user is gone, and is emptied, least recently used first, when no block without a key is
    left: vLLM puts these at the front of its queue of free blocks. Of two with the same key,
    computed side by side, the older is found until it is emptied.
    """

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
        """Blocks without a key; there must be that many free."""
        self._num_blank -= count
        while self._num_blank < 0:
            self._forget(self._idle.popitem(last=False)[0])
            self._num_blank += 1

    def find(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many of the first keys are there, and how many of these are free until they are
        shared."""
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
        """One more user of each; they must be there."""
        blocks = [self._oldest[key] for key in keys]
        for block in blocks:
            if not block.users:
                del self._idle[block]
            block.users += 1
        return blocks

    def name(self, key: int) -> CacheBlock:
        """Give one of the taken blocks its key."""
        block = CacheBlock(key)
        if self._oldest.setdefault(key, block) is not block:
            self._copies.setdefault(key, []).append(block)
        return block

    def free(self, blocks: list[CacheBlock], num_blank: int) -> None:
        """``blocks`` in the order of the text: the last is emptied first, for who needs it needs
        those before it too."""
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
