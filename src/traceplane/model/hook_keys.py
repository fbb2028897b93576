"""Which variables hold the signing keys of webhook sources, and whose they are."""

from __future__ import annotations

import re

PREFIX = "TRACEPLANE_HOOK_KEY_"
_OF_ORGANIZATION = re.compile(rf"{PREFIX}(?P<org>.+?)__.+")


def belongs_to(variable: str, org: str) -> bool:
    """Whether sources of an organization may use a key: `…_ACME__ORDERS` is for acme, `…_ORDERS` for default.

    Otherwise an organization could have signatures checked with the keys of another one.
    """
    match = _OF_ORGANIZATION.fullmatch(variable)
    return org == "default" if match is None else match["org"] == re.sub(r"\W", "_", org).upper()
