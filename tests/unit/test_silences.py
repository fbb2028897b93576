"""Silences hold for the alerts whose subjects have their values."""

from __future__ import annotations

import pytest

from traceplane.model.silences import Silences

SUBJECT = {"tx": "a", "block": 7, "kind": None}


@pytest.mark.parametrize(
    ("silences", "hold"),
    [
        ([], False),
        ([{}], True),
        ([{"tx": "a"}], True),
        ([{"tx": "b"}, {"tx": "a", "block": 8}], False),
        ([{"tx": "b"}, {"block": 7, "tx": "a"}], True),
        ([{"block": "7"}], False),
        ([{"kind": None}], True),
        ([{"missing": None}], True),  # JSON of a row leaves out what is null
        ([{"missing": "a"}], False),
    ],
)
def test_a_silence_holds_for_subjects_that_have_its_values(
    silences: list[dict[str, object]], hold: bool
) -> None:
    assert Silences(silences).hold(SUBJECT) is hold


def test_a_subject_is_looked_up_once_for_all_silences_that_name_the_same_columns() -> None:
    looked_up: list[str] = []

    class Subject(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            looked_up.append(name)
            return super().get(name, default)

    assert not Silences({"tx": f"b{n}"} for n in range(1000)).hold(Subject(SUBJECT))
    assert looked_up == ["tx"]
