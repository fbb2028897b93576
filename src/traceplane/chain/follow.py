"""Compares the recorded chain with the node's: which blocks are new, or which recorded ones are no longer canonical.

The decision is a generator without I/O: `decide` yields the numbers of blocks whose headers it needs, is sent the
node's headers, and returns a step. `poll` runs it once with a client; `follow` does so forever.

A reorg is detected when the block after the recorded head does not name it as its parent. Then headers are fetched
further and further back, in doubling strides, until one has the hash that was recorded at its height. The walk checks
that the headers link up; if they do not, the chain moved during the walk, which then starts again. The depth is
unbounded: beyond the record, older hashes come from `lookup`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from traceplane.chain.answers import Header
from traceplane.chain.rpc import RpcClient
from traceplane.errors import InvalidInput

_LONGEST_STRIDE = 256
UNCHANGED = "unchanged"


class Recorded(NamedTuple):
    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """Blocks first…last follow the record; `hashes` are their hashes, in order."""

    first: int
    last: int
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reorg:
    """The recorded blocks first_changed…old_head are no longer canonical; the node's head is new_head.

    `record_exhausted` means that no recorded block is canonical: the fork point lies before the oldest one, which
    is then `first_changed`. The blocks that replace them come next, as NewBlocks.
    """

    first_changed: int
    old_head: int
    new_head: int
    record_exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do: the head is unchanged, the node is behind the record, or the chain moved during the read."""

    reason: str


Step = NewBlocks | Reorg | Idle
Lookup = Callable[[int], str | None]
Headers = Sequence[Header | None]


def nothing_older(number: int) -> str | None:
    """The lookup of a complete record."""
    return None


class BlockRecord:
    """Recent blocks, ascending and without a gap, and a lookup for older ones. An empty record begins at `start`."""

    def __init__(
        self, blocks: Sequence[Recorded] = (), *, lookup: Lookup = nothing_older, start: int = 0
    ) -> None:
        for before, after in itertools.pairwise(blocks):
            if after.number != before.number + 1:
                raise InvalidInput("chain.record_invalid", "the record has a gap", value=after.number)
        self.blocks = list(blocks)
        self.start = start
        self._lookup = lookup

    @property
    def head(self) -> Recorded | None:
        return self.blocks[-1] if self.blocks else None

    def hash_at(self, number: int) -> str | None:
        if self.blocks and number >= self.blocks[0].number:
            at = number - self.blocks[0].number
            return self.blocks[at].hash if at < len(self.blocks) else None
        return self._lookup(number) if number >= 0 else None

    def apply(self, step: Step, keep: int) -> None:
        """Applies a step, keeping the newest `keep` blocks in memory."""
        match step:
            case NewBlocks():
                self.blocks.extend(Recorded(step.first + i, one) for i, one in enumerate(step.hashes))
                del self.blocks[:-keep]
            case Reorg():
                base = step.first_changed - 1
                base_hash = self.hash_at(base)
                self.blocks = [block for block in self.blocks if block.number < step.first_changed]
                if not self.blocks:
                    self.start = step.first_changed
                    self.blocks = [] if base_hash is None else [Recorded(base, base_hash)]


def decide(record: BlockRecord, head: int, *, most: int = 500) -> Generator[Sequence[int], Headers, Step]:
    """The step for a node whose (confirmed) head has this number; NewBlocks has at most `most` blocks.

    Yields the heights of the headers that it needs, and is sent these headers.
    """
    recorded = record.head
    first = record.start if recorded is None else recorded.number + 1
    if recorded is not None and head < first:
        return (yield from _compare(record, recorded, head))
    if head < first:
        return Idle(f"the first block, {first}, does not exist yet")
    numbers = range(first, min(head, first + most - 1) + 1)
    headers = present((yield numbers))
    if not headers or not linked(headers):
        return Idle("the chain moved while its new blocks were read")
    if recorded is not None and headers[0].parent_hash != recorded.hash:
        return (yield from _walk_back(record, recorded.number, head, headers[0]))
    hashes = tuple([one.hash for one in headers])
    return NewBlocks(first, first + len(hashes) - 1, hashes)


def _compare(record: BlockRecord, recorded: Recorded, head: int) -> Generator[Sequence[int], Headers, Step]:
    """The head is not above the record: unchanged, behind, or a fork that is not longer."""
    recorded_hash = record.hash_at(head)
    if recorded_hash is None:
        return Idle(f"the node's head {head} is before everything recorded")
    [header] = yield [head]
    if header is None:
        return Idle("the head went back while it was read")
    if header.hash == recorded_hash:
        return Idle(UNCHANGED if head == recorded.number else f"the node is behind, at {head}")
    return (yield from _walk_back(record, recorded.number, head, header))


def _walk_back(
    record: BlockRecord, old_head: int, new_head: int, changed: Header
) -> Generator[Sequence[int], Headers, Step]:
    """Walks from a block that is not on the record, or not on top of it, down to the first that differs."""
    first_changed, stride = int(changed.number, 16), 1
    while True:
        below = record.hash_at(first_changed - 1)
        if below is None:
            return Reorg(first_changed, old_head, new_head, record_exhausted=first_changed > 0)
        if below == changed.parent_hash:
            return Reorg(first_changed, old_head, new_head)
        numbers = range(max(0, first_changed - stride), first_changed)
        headers = present((yield numbers))
        if len(headers) < len(numbers) or not linked([*headers, changed]):
            return Idle("the chain moved during the walk back")
        for header in reversed(headers):
            recorded_hash = record.hash_at(int(header.number, 16))
            if recorded_hash is None or recorded_hash == header.hash:
                break
            first_changed, changed = int(header.number, 16), header
        stride = min(stride * 2, _LONGEST_STRIDE)


def present(headers: Headers) -> list[Header]:
    """The headers before the first one that the node does not have (any more)."""
    before: list[Header] = []
    for header in headers:
        if header is None:
            break
        before.append(header)
    return before


def linked(headers: Sequence[Header]) -> bool:
    return all(after.parent_hash == before.hash for before, after in itertools.pairwise(headers))


async def poll(client: RpcClient, record: BlockRecord, *, confirmations: int = 0, most: int = 500) -> Step:
    """Polls the node once. The record is not changed: apply the step once it is stored."""
    head = await client.head() - confirmations
    if head < 0:
        return Idle("the chain is shorter than the required confirmations")
    decision = decide(record, head, most=most)
    try:
        numbers = next(decision)
        while True:
            numbers = decision.send(await client.headers(numbers))
    except StopIteration as decided:
        step: Step = decided.value
        return step


async def follow(
    client: RpcClient,
    recorded: Sequence[Recorded] = (),
    *,
    lookup: Lookup = nothing_older,
    start: int = 0,
    interval_seconds: float = 2.0,
    confirmations: int = 0,
    most: int = 500,
    keep: int = 1024,
) -> AsyncGenerator[NewBlocks | Reorg, None]:
    """Yields steps forever. A step counts as recorded when the next one is requested.

    Raises if a node is unreachable after the client's retries. The owner of the record then starts again from it, and
    nothing is lost: after an outage of any length the next step is just longer.
    """
    record = BlockRecord(recorded, lookup=lookup, start=start)
    while True:
        step = await poll(client, record, confirmations=confirmations, most=most)
        if isinstance(step, Idle):
            await asyncio.sleep(interval_seconds)
            continue
        yield step
        record.apply(step, keep)
