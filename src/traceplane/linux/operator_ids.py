"""The users that operators run as when the worker is root: numbers that an ordinary system does not assign."""

from __future__ import annotations

UID_RANGE = (60_720, 61_180)
"""First and last; each slot and each Spark server leases one, and a group of the same number."""

GROUP = 60_719
"""A group of all of them, so that they can pass platform folders that are closed to everybody else."""
