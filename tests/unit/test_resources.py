"""What workers offer and jobs require, as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.resources import BadResources, Resources, parsed, parsed_memory, sorted_labels

RESOURCES = st.builds(
    Resources,
    st.integers(0, 1 << 20).map(lambda n: n << 20),
    st.integers(0, 9999),
    st.sets(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,5}", fullmatch=True)).map(sorted_labels),
)


@pytest.mark.parametrize(("text", "size"), [("512m", 512 << 20), ("8g", 8 << 30), ("1t", 1 << 40)])
def test_memory_is_written_with_a_unit(text: str, size: int) -> None:
    assert parsed_memory(text) == size


@pytest.mark.parametrize("text", ["", "8", "8G", "8gb", "-1g", "0g", "1.5g", "８g", "g", "8 g"])
def test_other_amounts_of_memory_are_refused(text: str) -> None:
    with pytest.raises(BadResources):
        parsed_memory(text)


@pytest.mark.parametrize(
    "text", ["gpu", "gpu=", "gpu=-1", "gpu=x", "label=", "label=a b", "disk=3g", "memory=8"]
)
def test_an_offer_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadResources):
        parsed([text])


@given(RESOURCES.filter(lambda r: r.memory % (1 << 20) == 0 and r.memory < 1 << 39))
def test_what_is_written_is_read_back(offers: Resources) -> None:
    assert parsed(offers.in_words().split(", ") if offers else []) == offers


@given(RESOURCES, RESOURCES)
def test_what_is_lacking_is_what_would_have_to_be_added(offers: Resources, needed: Resources) -> None:
    lacking = offers.lacks(needed)
    assert not offers.lacks(offers)
    assert not needed.lacks(lacking)
    both = Resources(
        max(offers.memory, lacking.memory),
        max(offers.gpu, lacking.gpu),
        sorted_labels((*offers.labels, *lacking.labels)),
    )
    assert not both.lacks(needed)
