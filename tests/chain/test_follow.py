"""The follower's record becomes the canonical chain, and its reorg steps name exactly what changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.chain.answers import Header
from traceplane.chain.follow import BlockRecord, Idle, NewBlocks, Recorded, Reorg, Step, decide, follow, poll
from traceplane.chain.rpc import RpcClient, RpcSettings
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.ledger import Ledger
from traceplane.chain.simulated.server import serve
from traceplane.chain.simulated.world import World
from traceplane.errors import InvalidInput

WORLD = World(5, transactions_per_block=2)


def header(ledger: Ledger, number: int) -> Header | None:
    if number > ledger.head:
        return None
    parent = ledger.hash(number - 1) if number else bytes(32)
    return Header(hex(number), "0x" + ledger.hash(number).hex(), "0x" + parent.hex())


def look(ledger: Ledger, record: BlockRecord, *, most: int = 500) -> Step:
    """One decision, fed from the ledger instead of a node."""
    decision = decide(record, ledger.head, most=most)
    try:
        numbers = next(decision)
        while True:
            numbers = decision.send([header(ledger, number) for number in numbers])
    except StopIteration as decided:
        step: Step = decided.value
        return step


def canonical(ledger: Ledger) -> dict[int, str]:
    return {number: "0x" + ledger.hash(number).hex() for number in range(ledger.head + 1)}


class Archive:
    """The full record that a consumer keeps, of which the follower holds only the newest few in memory."""

    def __init__(self, keep: int, most: int) -> None:
        self.hashes: dict[int, str] = {}
        self.keep, self.most = keep, most
        self.record = BlockRecord(lookup=self.hashes.get)

    def catch_up(self, ledger: Ledger) -> None:
        while not isinstance(step := look(ledger, self.record, most=self.most), Idle):
            if isinstance(step, Reorg):
                self.check(step, ledger)
                for number in range(step.first_changed, step.old_head + 1):
                    del self.hashes[number]
            else:
                assert len(step.hashes) <= self.most
                self.hashes.update(zip(range(step.first, step.last + 1), step.hashes, strict=True))
            self.record.apply(step, self.keep)
            assert len(self.record.blocks) <= self.keep

    def check(self, step: Reorg, ledger: Ledger) -> None:
        truth = canonical(ledger)
        changed = [number for number, recorded in self.hashes.items() if truth.get(number) != recorded]
        assert step == Reorg(min(changed), max(self.hashes), ledger.head)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("mine"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("fork"), st.integers(1, 30), st.integers(1, 30)),
        st.just(("poll", 0, 0)),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(changes=changes, keep=st.integers(1, 8), most=st.integers(1, 7))
def test_after_any_mines_forks_and_outages_the_record_is_the_canonical_chain(
    changes: Sequence[tuple[str, int, int]], keep: int, most: int
) -> None:
    ledger, archive = Ledger(WORLD, 3), Archive(keep, most)
    for kind, amount, length in changes:
        if kind == "mine":
            ledger.mine(amount)
        elif kind == "fork":
            ledger.fork(min(amount, ledger.head), length)
        else:
            archive.catch_up(ledger)
    archive.catch_up(ledger)
    assert archive.hashes == canonical(ledger)


def recorded(ledger: Ledger, first: int, last: int) -> list[Recorded]:
    return [Recorded(number, "0x" + ledger.hash(number).hex()) for number in range(first, last + 1)]


def test_a_reorg_deeper_than_the_record_says_how_far_the_record_goes() -> None:
    ledger = Ledger(WORLD, 100)
    record = BlockRecord(recorded(ledger, 91, 100))
    ledger.fork(50, 55)
    step = look(ledger, record)
    assert step == Reorg(91, 100, 105, record_exhausted=True)
    record.apply(step, 10)
    following = look(ledger, record)
    assert isinstance(following, NewBlocks)
    assert (following.first, following.last) == (91, 105)


def test_older_hashes_from_the_lookup_find_the_ancestor_of_a_reorg_deeper_than_the_window() -> None:
    ledger = Ledger(WORLD, 2000)
    older = {one.number: one.hash for one in recorded(ledger, 0, 2000)}
    record = BlockRecord(recorded(ledger, 1990, 2000), lookup=older.get)
    ledger.fork(1500, 1600)
    assert look(ledger, record) == Reorg(501, 2000, 2100)


def test_an_unchanged_head_is_no_step() -> None:
    ledger = Ledger(WORLD, 10)
    assert look(ledger, BlockRecord(recorded(ledger, 0, 10))) == Idle("unchanged")


def test_a_node_that_is_behind_on_the_same_chain_is_no_reorg() -> None:
    ledger = Ledger(WORLD, 10)
    record = BlockRecord(recorded(ledger, 5, 10))
    ledger.head = 7
    assert look(ledger, record) == Idle("the node is behind, at 7")
    ledger.head = 3
    assert isinstance(look(ledger, record), Idle)


def test_a_fork_that_is_shorter_than_the_record_is_a_reorg() -> None:
    ledger = Ledger(WORLD, 10)
    record = BlockRecord(recorded(ledger, 0, 10))
    ledger.fork(5, 2)
    assert look(ledger, record) == Reorg(6, 10, 7)


def test_a_fork_back_to_genesis_is_found() -> None:
    ledger = Ledger(WORLD, 10)
    record = BlockRecord(recorded(ledger, 0, 10))
    ledger.fork(10, 20)
    assert look(ledger, record) == Reorg(1, 10, 20)


def test_a_different_chain_changes_everything_recorded() -> None:
    record = BlockRecord(recorded(Ledger(WORLD, 10), 0, 10))
    assert look(Ledger(World(6, transactions_per_block=2), 10), record) == Reorg(0, 10, 10)


def test_a_reorg_during_the_walk_ends_the_walk_without_a_step() -> None:
    ledger = Ledger(WORLD, 20)
    record = BlockRecord(recorded(ledger, 0, 20))
    ledger.fork(8, 12)
    decision = decide(record, ledger.head)
    numbers = next(decision)
    numbers = decision.send([header(ledger, number) for number in numbers])
    ledger.fork(15, 20)
    with pytest.raises(StopIteration) as ended:
        decision.send([header(ledger, number) for number in numbers])
    assert ended.value.value == Idle("the chain moved during the walk back")
    assert look(ledger, record) == Reorg(10, 20, 29)


def test_blocks_that_vanish_while_they_are_read_are_no_step() -> None:
    decision = decide(BlockRecord(), 5)
    numbers = next(decision)
    with pytest.raises(StopIteration) as ended:
        decision.send([None for _ in numbers])
    assert isinstance(ended.value.value, Idle)


def test_new_blocks_of_two_forks_are_never_one_step() -> None:
    ledger = Ledger(WORLD, 9)
    decision = decide(BlockRecord(), 9)
    before = [header(ledger, number) for number in next(decision)]
    ledger.fork(5, 5)
    mixed = [*before[:7], header(ledger, 7), header(ledger, 8), header(ledger, 9)]
    with pytest.raises(StopIteration) as ended:
        decision.send(mixed)
    assert isinstance(ended.value.value, Idle)


def test_a_record_with_a_gap_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="gap"):
        BlockRecord([Recorded(1, "0x1"), Recorded(3, "0x3")])


async def test_follow_over_http_through_mining_forks_and_a_stale_node() -> None:
    async with serve(seed=5, blocks=10) as node, RpcClient(RpcSettings((node.url,))) as client:
        steps_seen: list[NewBlocks | Reorg] = []
        steps = follow(client, start=8, interval_seconds=0.01, most=2)
        async with aclosing(steps):
            steps_seen.append(await anext(steps))
            steps_seen.append(await anext(steps))
            node.faults.arm(Fault("stale_head", requests=2))
            node.ledger.fork(2, 4)
            steps_seen.append(await anext(steps))
            steps_seen.append(await anext(steps))
            steps_seen.append(await anext(steps))
        first = NewBlocks(8, 9, steps_seen[0].hashes if isinstance(steps_seen[0], NewBlocks) else ())
        assert steps_seen[0] == first
        assert isinstance(steps_seen[1], NewBlocks)
        assert (steps_seen[1].first, steps_seen[1].last) == (10, 10)
        assert steps_seen[2] == Reorg(9, 10, 12)
        assert steps_seen[3] == NewBlocks(9, 10, tuple("0x" + node.ledger.hash(n).hex() for n in (9, 10)))
        assert steps_seen[4] == NewBlocks(11, 12, tuple("0x" + node.ledger.hash(n).hex() for n in (11, 12)))


async def test_confirmations_hold_back_recent_blocks() -> None:
    async with serve(seed=5, blocks=10) as node, RpcClient(RpcSettings((node.url,))) as client:
        step = await poll(client, BlockRecord(), confirmations=4)
        assert isinstance(step, NewBlocks)
        assert step.last == 6
        assert await poll(client, BlockRecord(), confirmations=11) == Idle(
            "the chain is shorter than the required confirmations"
        )
