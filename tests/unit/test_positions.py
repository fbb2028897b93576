"""What a reader gets of a commit, against a simple model: position by position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.positions import kept

Range = tuple[int, int]
ranges = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda r: (r[0], r[0] + r[1]))


@given(commit=ranges, scope=ranges, hidden=st.lists(ranges, max_size=4))
def test_only_common_positions_that_are_not_hidden_are_kept(
    commit: Range, scope: Range, hidden: list[Range]
) -> None:
    expected = {
        n
        for n in range(commit[0], commit[1] + 1)
        if scope[0] <= n <= scope[1] and not any(a <= n <= b for a, b in hidden)
    }
    found = kept(commit, scope, hidden)
    if found is None:
        assert expected == set(range(commit[0], commit[1] + 1))
    else:
        listed = [n for a, b in found for n in range(a, b + 1)]
        assert sorted(set(listed)) == listed == sorted(expected)
