"""Where operators with the network may connect to."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from traceplane.errors import InvalidInput
from traceplane.linux.connect_supervisor import Destinations
from traceplane.settings import load

DATABASE = ipaddress.ip_address("10.0.0.5")


@pytest.mark.parametrize("allowed", [[], ["10.0.0.0/8"], ["*"]], ids=str)
def test_a_denied_destination_is_unreachable_even_if_allowed(allowed: list[str]) -> None:
    known = Destinations(allowed)
    assert known.permit(DATABASE, 5432)
    told = Destinations(allowed, never=["10.0.0.5:5432", "10.1.0.0/16"])
    assert not told.permit(DATABASE, 5432)
    assert not told.permit(ipaddress.ip_address("::ffff:10.0.0.5"), 5432)
    assert not told.permit(ipaddress.ip_address("10.1.2.3"), 80)
    assert told.permit(DATABASE, 443)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:42::42",
    ],
)
def test_operators_cannot_reach_any_clouds_metadata_service(address: str) -> None:
    assert not Destinations().permit(ipaddress.ip_address(address), 80)
    assert Destinations([f"[{address}]:53"]).permit(ipaddress.ip_address(address), 53)


def test_denied_destinations_are_read_from_the_settings(tmp_path: Path) -> None:
    environment = {"TRACEPLANE_OPERATOR_NETWORK_DENY": "10.0.0.5:5432,fd00::/8"}
    assert load(environment=environment).operator_network_deny == ("10.0.0.5:5432", "fd00::/8")
    for text in ("*", "db.internal"):
        with pytest.raises(InvalidInput, match="operator_network_deny"):
            load(environment={"TRACEPLANE_OPERATOR_NETWORK_DENY": text})
