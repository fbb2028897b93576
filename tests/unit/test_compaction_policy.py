"""Which files are merged: small ones, one after the other, and none of them again and again."""

from __future__ import annotations

import itertools
import random

from traceplane.model.compaction import ListedCommit, Policy, Run, runs

MIB = 1 << 20
POLICY = Policy(target_bytes=100 * MIB, min_files=4)
EVERYTHING = [(-(2**63), 2**63 - 1)]


def one(
    position: int, size: int = MIB, *, files: int = 1, last: int | None = None, stays: bool = False
) -> ListedCommit:
    return ListedCommit((position, position), (position, last or position), files, size, stays)


def spans(found: list[Run]) -> list[tuple[int, int]]:
    return [run.positions for run in found]


def test_small_files_one_after_the_other_are_merged_up_to_the_target() -> None:
    found = runs([one(n, 10 * MIB) for n in range(25)], EVERYTHING, POLICY)
    assert spans(found) == [(0, 9), (10, 19), (20, 24)]
    assert [run.bytes for run in found] == [100 * MIB, 100 * MIB, 50 * MIB]


def test_too_few_files_stay_as_they_are() -> None:
    assert not runs([one(n) for n in range(3)], EVERYTHING, POLICY)
    assert not runs([one(n, 0, files=0) for n in range(9)], EVERYTHING, POLICY), "of empty commits"


def test_a_large_file_and_one_that_stays_divide_the_others() -> None:
    commits = [one(n) for n in range(10)]
    commits[4] = one(4, 90 * MIB)
    assert spans(runs(commits, EVERYTHING, POLICY)) == [(0, 3), (5, 9)]
    commits[4] = one(4, stays=True)
    assert spans(runs(commits, EVERYTHING, POLICY)) == [(0, 3), (5, 9)]


def test_positions_that_the_dataset_lacks_divide_files_and_scopes_without_rows_do_not() -> None:
    commits = [one(n) for n in (0, 1, 2, 3, 7, 8, 9, 10)]
    assert spans(runs(commits, EVERYTHING, POLICY)) == [(0, 10)]
    assert spans(runs(commits, [(0, 4), (7, 10)], POLICY)) == [(0, 3), (7, 10)]


def test_a_file_that_is_most_of_a_run_is_not_written_again() -> None:
    commits = [one(0, 60 * MIB), *(one(n) for n in range(1, 6))]
    assert spans(runs(commits, EVERYTHING, POLICY)) == [(1, 5)]


def test_a_row_is_written_about_as_often_as_its_file_doubles() -> None:
    """A thousand small files that arrive one by one, each of a thousandth of the target."""
    commits: list[ListedCommit] = []
    size, rewritten = POLICY.target_bytes // 1000, 0
    for n in range(1000):
        commits.append(one(n, size))
        for run in runs(commits, EVERYTHING, POLICY):
            first, last = run.positions
            rewritten += run.bytes
            merged = one(first, run.bytes, last=last)
            commits = [c for c in commits if not first <= c.positions[0] <= last] + [merged]
            commits.sort(key=lambda c: c.positions)
    assert rewritten < 12 * 1000 * size
    assert len(commits) < 40


def test_runs_never_overlap_and_hold_whole_commits() -> None:
    dice = random.Random(7)
    for _ in range(200):
        commits = [
            one(n, dice.choice([1, MIB, 30 * MIB, 99 * MIB]), stays=dice.random() < 0.1)
            for n in sorted(dice.sample(range(60), 40))
        ]
        found = runs(commits, [(0, 29), (31, 59)], POLICY)
        assert all(a.positions[1] < b.positions[0] for a, b in itertools.pairwise(found))
        for run in found:
            held = [c for c in commits if run.positions[0] <= c.positions[0] <= run.positions[1]]
            assert (len(held), sum(c.bytes for c in held)) == (run.commits, run.bytes)
            assert not any(c.stays for c in held)
