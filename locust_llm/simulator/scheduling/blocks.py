"""The KV cache in blocks: how many are free, and which hold text that others may share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Blocks:
    """vLLM's block pool (0.32, vllm/v1/core/block_pool.py). A block without a key is as good as any other, so those are
    only counted. A full one with a key can be found by others, stays so after its last user is gone, and is emptied, least
    recently used first, when no block without a key is left: vLLM puts these at the front of its queue of free blocks.
    Left out: a second copy of a block stays without a key; vLLM keeps both.
    """

    def __init__(self, num_blocks: int, *, caching: bool = False) -> None:
        self.num_blocks = num_blocks
        self.caching = caching
        self._num_blank = num_blocks
        self._users: dict[int, int] = {}  # by key
        self._idle: OrderedDict[int, None] = OrderedDict()  # keys without a user: free, and still to be found

    @property
    def num_free(self) -> int:
        return self._num_blank + len(self._idle)

    def take(self, count: int) -> None:
        """Blocks without a key; there must be that many free."""
        self._num_blank -= count
        while self._num_blank < 0:
            self._idle.popitem(last=False)
            self._num_blank += 1

    def find(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many of the first keys are there, and how many of these are free until they are shared."""
        found = idle = 0
        for key in keys:
            if key in self._idle:
                idle += 1
            elif key not in self._users:
                break
            found += 1
        return found, idle

    def share(self, keys: Iterable[int]) -> None:
        """One more user of each; they must be there."""
        for key in keys:
            self._idle.pop(key, None)
            self._users[key] = self._users.get(key, 0) + 1

    def name(self, key: int) -> bool:
        """Give one of the taken blocks its key. False if there is such a block: then this one stays without."""
        if key in self._users or key in self._idle:
            return False
        self._users[key] = 1
        return True

    def free(self, keys: list[int], num_blank: int) -> None:
        """``keys`` in the order of the text: the last is emptied first, for who needs it needs those before it too."""
        self._num_blank += num_blank
        for key in reversed(keys):
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._idle[key] = None
