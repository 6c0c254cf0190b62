"""The pool of KV-cache blocks: reference counts, prefix cache, LRU eviction."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """Blocks by number. Block 0 is the null block: it exists, is never handed out and counts as neither free nor used.

    A block whose last reference goes keeps its key and waits at the end of the free queue; until it is handed out
    again, a request with the same prefix may take it back. Blocks without a key can serve nobody and go first.
    """

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.usable = blocks - 1
        self._caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._references = [0] * blocks
        self._keys: list[Hashable | None] = [None] * blocks
        self._cached: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1, as `vllm:kv_cache_usage_perc` has it."""
        return 1 - len(self._free) / self.usable

    def lookup(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks of the longest cached prefix of `keys`."""
        found: list[int] = []
        if self._caching:
            for key in keys:
                block = self._cached.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def unreferenced(self, blocks: Sequence[int]) -> int:
        """How many of these cached blocks taking them would remove from the free queue."""
        references = self._references
        return sum(not references[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that `lookup` found."""
        references, free = self._references, self._free
        for block in blocks:
            if not references[block]:
                del free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, evicting what was unused for longest. The caller has checked that they are free."""
        free, keys, cached, references = self._free, self._keys, self._cached, self._references
        blocks = []
        for _ in range(count):
            block, _none = free.popitem(last=False)
            key = keys[block]
            if key is not None:
                del cached[key]
                keys[block] = None
            references[block] = 1
            blocks.append(block)
        return blocks

    def publish(self, blocks: Sequence[int], keys: Sequence[Hashable]) -> None:
        """Make full blocks findable. The first block with a key keeps it."""
        if not self._caching:
            return
        cached, held = self._cached, self._keys
        for block, key in zip(blocks, keys, strict=True):
            if held[block] is None and key not in cached:
                cached[key] = block
                held[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference each; the tail of a sequence is evicted before its head."""
        free, references, keys = self._free, self._references, self._keys
        unkeyed = []
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            free[block] = None
            if keys[block] is None:
                unkeyed.append(block)
        for block in reversed(unkeyed):
            free.move_to_end(block, last=False)

    def forget(self) -> None:
        """Drop every key, as a cache reset or a sleep that discards the cache does."""
        self._cached.clear()
        self._keys = [None] * len(self._keys)
