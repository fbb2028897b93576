"""A value that does not fit is named with its field and what it must be, without a library's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from traceplane.model.invalid_values import in_words


class Item(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=3)] = "x"
    kind: Literal["big", "small"] = "big"
    task: UUID | None = None
    ratio: float = 1.0
    on: bool = False
    code: Annotated[str, msgspec.Meta(pattern="^a")] = "a"
    parts: Annotated[list[int], msgspec.Meta(max_length=2)] = []
    counts: dict[str, int] = {}


class Body(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Item]

    def __post_init__(self) -> None:
        if len(self.items) == 3:
            raise ValueError("three are too many")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"items": [{"size": "x"}]}, "`items[0].size` must be a whole number, not text"),
        ({"items": [{"size": 9}]}, "`items[0].size` must be at most 5"),
        ({"items": [{"size": 0}]}, "`items[0].size` must be at least 1"),
        ({"items": [{"size": 1.5}]}, "`items[0].size` must be a whole number, not a number"),
        ({"items": [{"name": ""}]}, "`items[0].name` must have at least 1 character"),
        ({"items": [{"name": "long"}]}, "`items[0].name` must have at most 3 characters"),
        ({"items": [{"kind": "odd"}]}, "`items[0].kind` must be one of big, small"),
        ({"items": [{"task": "z"}]}, "`items[0].task` must be a UUID"),
        ({"items": [{"task": 5}]}, "`items[0].task` must be a UUID, not a whole number"),
        ({"items": [{"ratio": "z"}]}, "`items[0].ratio` must be a number, not text"),
        ({"items": [{"on": 1}]}, "`items[0].on` must be true or false, not a whole number"),
        ({"items": [{"code": "b"}]}, "`items[0].code` must be text that matches '^a'"),
        ({"items": [{}, {"parts": [1, "2"]}]}, "`items[1].parts[1]` must be a whole number, not text"),
        ({"items": [{"parts": [1, 2, 3]}]}, "`items[0].parts` must have at most 2 items"),
        ({"items": [{"counts": {"a": "b"}}]}, "`items[0].counts[...]` must be a whole number, not text"),
        ({"items": [{"siez": 1}]}, "there is no field `items[0].siez`"),
        ({"items": 5}, "`items` must be a list, not a whole number"),
        ({}, "`items` is missing"),
        ([], "it must be an object, not a list"),
        ({"items": [{}, {}, {}]}, "three are too many"),
    ],
)
def test_a_value_that_does_not_fit_is_described_by_its_field(body: Any, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(msgspec.json.encode(body), type=Body)
    kinds = {"items[0].kind": ("big", "small")}
    assert in_words(refused.value, lambda place: kinds.get(place, ())) == expected
