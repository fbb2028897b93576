"""Whom operators run as when the worker is root: numbers that a usual system gives to nobody."""

from __future__ import annotations

UID_RANGE = (60_720, 61_180)
"""First and last; each slot, and each Spark server, leases one, and a group of the same number."""

GROUP = 60_719
"""All of them are in it, so that they can pass folders of the platform that are closed to everybody else."""
