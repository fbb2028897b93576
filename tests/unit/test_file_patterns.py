"""Which names of files match a pattern, and the partition that each says; and which places may be listed."""

from __future__ import annotations

import time

import pytest

from traceplane.file_sources.pattern import EXAMPLES, BadPattern, Pattern
from traceplane.model import file_places
from traceplane.model.partitions import By


@pytest.mark.parametrize(
    ("by", "pattern", "name", "partition"),
    [
        (By.DAY, "orders_{YYYY}-{MM}-{DD}.csv", "orders_2026-11-16.csv", "2026-11-16"),
        (By.DAY, "orders_{YYYY}-{MM}-{DD}.csv", "orders_2026-11-16xcsv", None),
        (By.DAY, "orders_{YYYY}-{MM}-{DD}.csv", "a/orders_2026-11-16.csv", None),
        (By.DAY, "{DD}.{MM}.{YYYY}*", "16.11.2026 final (2).csv", "2026-11-16"),
        (By.DAY, "*/{YYYY}{MM}{DD}*", "x/20261116", "2026-11-16"),
        (By.DAY, "*/{YYYY}{MM}{DD}*", "x/y/20261116", None),
        (By.DAY, "{YYYY}/{MM}/{DD}/{YYYY}{MM}{DD}", "2026/11/16/20261116", "2026-11-16"),
        (By.DAY, "{YYYY}/{MM}/{DD}/{YYYY}{MM}{DD}", "2026/11/16/20261117", None),
        (By.HOUR, "{YYYY}{MM}{DD}T{HH}", "20261116T05", "2026-11-16T05"),
        (By.WEEK, "{YYYY}w{WW}", "2026w47", "2026-W47"),
        (By.MONTH, "{YYYY}-{MM}", "2026-11", "2026-11"),
        (By.MONTH, "{YYYY}-{MM}", "٢٠٢٦-11", None),
        (By.POSITION, "part-{position}.parquet", "part-00017.parquet", "00017"),
        (By.POSITION, "part-{position}.parquet", "part--17.parquet", None),
        (By.NAME, "{name}.csv", "eu.west.csv", "eu.west"),
        (By.NAME, "{name}_*.csv", "eu_west_1.csv", "eu"),
        (By.NAME, "{name}/*", "eu/x", "eu"),
        (By.NAME, "{name}/*", "eu/x\ny", "eu"),
        (By.NAME, "a+(b)[{name}]", "a+(b)[eu]", "eu"),
    ],
)
def test_a_name_says_its_partition(by: By, pattern: str, name: str, partition: str | None) -> None:
    assert Pattern(pattern, by).partition_of(name) == partition


@pytest.mark.parametrize("by", By)
def test_the_examples_are_patterns(by: By) -> None:
    Pattern(EXAMPLES[by], by)


def test_where_to_begin() -> None:
    pattern = Pattern("in/orders/x_{position}/*", By.POSITION)
    assert (pattern.beginning, pattern.folders) == ("in/orders/x_", 3)


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "/{position}", "a//{position}", "./{position}", "{position}/", "{{position}}", "{position"),
        *("}{position}", "*" * 9 + "{position}", "x" * 501 + "{position}", "{position}\n", "{Position}", "x"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(pattern, By.POSITION)


def test_a_hostile_name_takes_no_time() -> None:
    started = time.perf_counter()
    for pattern in ("*a*a*a*a*a*a*a*{name}", "*{name}*a*b", "{name}*{name}*{name}"):
        assert Pattern(pattern, By.NAME).partition_of("a" * 250 + "!") is None
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ("/data/in", True),
        ("/data/in/", True),
        ("/data/in/deep/er", True),
        ("/data/in2", False),
        ("/data", False),
        ("/", False),
        ("s3://bucket/in", True),
        ("s3://bucket/in/deep", True),
        ("s3://bucket/internal", False),
        ("s3://bucket", False),
        ("s3://bucket2/in", False),
    ],
)
def test_only_places_below_allowed_ones_are_allowed(place: str, allowed: bool) -> None:
    assert file_places.problem(place) is None
    assert file_places.is_allowed(place, ("/data/in", "s3://bucket/in/")) is allowed


@pytest.mark.parametrize(
    "place",
    ["", "data", "/data/../etc", "/data/./x", "//data", "/a\nb", "s3://", "s3://B/x", "s3://bucket/a/../b"],
)
def test_what_is_no_place_is_refused(place: str) -> None:
    assert file_places.problem(place) is not None
