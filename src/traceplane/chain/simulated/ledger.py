"""Which block is at each height, now and on abandoned branches.

A chain is a list of hashes and a list of runs `(first number, branch)`; nothing else is kept. Blocks are built from the
seed on request and dropped when the cache is full, so a chain of 100 000 blocks needs a few megabytes. Hashes are
computed up to the highest requested number.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass

from traceplane.chain.simulated.world import Block, World
from traceplane.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class _Identity:
    number: int
    branch: int
    parent: bytes


class Ledger:
    def __init__(self, world: World, blocks: int, *, cached_blocks: int = 1024) -> None:
        self.world = world
        self.head = blocks
        self._runs = [(0, 0)]
        self._branches = 1
        self._hashes: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._orphans: dict[bytes, _Identity] = {}
        self._cache: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._cached_blocks = cached_blocks
        self._transactions: dict[str, int] = {}  # hash → number, filled once receipts are requested by hash
        self._indexed: set[int] = set()
        self._next_to_index = 0

    def mine(self, count: int) -> int:
        if count < 0:
            raise InvalidInput(
                "chain.simulated_invalid", "cannot mine a negative number of blocks", value=count
            )
        self.head += count
        return self.head

    def fork(self, depth: int, length: int) -> int:
        """Abandons the last `depth` blocks and adds `length` others in their place."""
        if not 0 <= depth <= self.head or length < 0:
            raise InvalidInput(
                "chain.simulated_invalid", f"a fork's depth must be between 0 and {self.head}", value=depth
            )
        first = self.head - depth + 1
        for number in range(first, len(self._hashes)):
            self._orphans[self._hashes[number]] = _Identity(
                number, self._branch(number), self._hashes[number - 1]
            )
            del self._numbers[self._hashes[number]]
            self._indexed.discard(number)
        del self._hashes[first:]
        self._runs = [run for run in self._runs if run[0] < first]
        self._runs.append((first, self._branches))
        self._branches += 1
        self.head = first - 1 + length
        self._next_to_index = min(self._next_to_index, first)
        return self.head

    def block(self, number: int) -> Block | None:
        if not 0 <= number <= self.head:
            return None
        parent = self.hash(number - 1) if number else bytes(32)
        block = self._built(_Identity(number, self._branch(number), parent))
        if number == len(self._hashes):  # built in order, a chain is hashed only once
            self._append(block.hash)
        return block

    def by_hash(self, block_hash: bytes) -> Block | None:
        """Also finds an abandoned block, as a node does, but only if its hash was ever computed."""
        if (orphan := self._orphans.get(block_hash)) is not None:
            return self._built(orphan)
        self.hash(self.head)
        number = self._numbers.get(block_hash)
        return None if number is None else self.block(number)

    def hash(self, number: int) -> bytes:
        hashes = self._hashes
        while len(hashes) <= number:
            at = len(hashes)
            parent = hashes[-1] if at else bytes(32)
            self._append(self.world.header_hash(self._branch(at), at, parent))
        return hashes[number]

    def _append(self, block_hash: bytes) -> None:
        self._numbers[block_hash] = len(self._hashes)
        self._hashes.append(block_hash)

    def receipt(self, transaction_hash: str) -> bytes | None:
        """Uses an index that grows from the last hit on: requests in order never wait for a scan."""
        number = self._transactions.get(transaction_hash)
        if number is None or not self._holds(number, transaction_hash):
            number = self._index_until(transaction_hash)
        if number is None or (block := self.block(number)) is None:
            return None
        return block.receipts[block.transaction_hashes.index(transaction_hash)]

    def _holds(self, number: int, transaction_hash: str) -> bool:
        block = self.block(number)
        return block is not None and transaction_hash in block.transaction_hashes

    def _index_until(self, transaction_hash: str) -> int | None:
        start = self._next_to_index
        for number in itertools.chain(range(start, self.head + 1), range(start)):
            if number in self._indexed or (block := self.block(number)) is None:
                continue
            self._indexed.add(number)
            self._transactions.update(dict.fromkeys(block.transaction_hashes, number))
            if transaction_hash in block.transaction_hashes:
                self._next_to_index = number + 1
                return number
        return None

    def _branch(self, number: int) -> int:
        return self._runs[bisect_right(self._runs, (number, self._branches)) - 1][1]

    def _built(self, identity: _Identity) -> Block:
        key = (identity.branch, identity.number)
        block = self._cache.get(key)
        if block is None:
            block = self._cache[key] = self.world.build(identity.branch, identity.number, identity.parent)
            if len(self._cache) > self._cached_blocks:
                self._cache.popitem(last=False)
        return block
