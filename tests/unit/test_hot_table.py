"""Where the rows of a hot range are, against counting position by position."""

from __future__ import annotations

import random

import pytest

from traceplane.model.committed_file import CommittedFile
from traceplane.model.hot_table import HeldCommit, moved_rows, parts, state_of, stored_as


def random_commits(chance: random.Random) -> list[HeldCommit]:
    found = []
    for number in range(chance.randrange(8)):
        start = chance.randrange(-20, 20)
        file = CommittedFile(path=str(number), rows=1, bytes=1)
        files = (file,) if chance.random() < 0.5 else ()
        found.append(
            HeldCommit(number, start, start + chance.choice([0, 3, 15]), chance.randrange(30), files)
        )
    return found


@pytest.mark.parametrize("seed", range(50))
def test_a_position_is_read_from_the_newest_commit_that_covers_it(seed: int) -> None:
    chance = random.Random(seed)
    held = random_commits(chance)
    start = chance.randrange(-20, 10)
    end = start + chance.randrange(20)
    for replaces in (True, False):
        found = {
            commit.commit_id: [p for low, high in kept for p in range(low, high + 1)]
            for commit, kept in moved_rows(held, start, end, replaces=replaces)
        }
        for commit in held:
            newer = [c for c in held if c.commit_id > commit.commit_id] if replaces else []
            expected = [
                p
                for p in range(max(start, commit.start), min(end, commit.end) + 1)
                if commit.files and not any(c.start <= p <= c.end for c in newer)
            ]
            assert found.get(commit.commit_id, []) == expected


@pytest.mark.parametrize("seed", range(50))
def test_parts_cover_a_range_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    start = chance.randrange(-20, 10)
    end = start + chance.randrange(20)
    found = parts(random_commits(chance), start, end, rows_per_part=chance.randrange(1, 20))
    assert [p for low, high in found for p in range(low, high + 1)] == list(range(start, end + 1))
    assert all(low <= high for low, high in found)


def test_parts_have_about_the_requested_size() -> None:
    blocks = [HeldCommit(n, n, n, 40) for n in range(10)]
    assert parts(blocks, 0, 9, rows_per_part=100) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert parts([HeldCommit(1, 0, 99, 1000)], 0, 99, rows_per_part=500) == [(0, 49), (50, 99)]
    assert parts([], -(2**63), 2**63 - 1, rows_per_part=1) == [(-(2**63), 2**63 - 1)]


def test_a_state_depends_only_on_the_commits() -> None:
    one, two = HeldCommit(1, 0, 9, 5), HeldCommit(2, 4, 4, 1)
    assert state_of([one, two]) == state_of([two, one]) != state_of([one])
    assert state_of([]) == ""


def test_types_that_a_hot_table_cannot_have_map_to_none() -> None:
    assert stored_as("DECIMAL(38, 0)") == ("numeric(38, 0)", "decimal128(38, 0)")
    assert stored_as("decimal(39, 0)") is None
    assert stored_as("array<int>") is None
