"""Named boundaries at which a process can be made to kill itself, for the tests of recovery.

`arm` is called by a process's main with the setting `crash_at`; unarmed, a boundary costs a comparison. The
kill is a SIGKILL: no cleanup runs, as when the machine dies.
"""

from __future__ import annotations

import os
import signal

TRANSACTIONS = (
    "emit",
    "claim",
    "heartbeat",
    "events",
    "complete",
    "relay",
    "valve",
    "reaper",
    "reconciler",
    "in_process",
    "source_monitor",
    "backpressure",
    "wake_receive",
    "deploy",
    "replay",
    "cutover",
    "launch",
)
"""Labelled transactions; each has a boundary before its commit and one after it, before anybody is told. Only
transactions that changed or locked something have them: the idle pass of a loop is no boundary."""

STEPS = (
    "complete.after_fence",
    "complete.after_outputs",
    "cutover.after_pointers",
    "cutover.after_jobs",
    "relay.after_send",
    "worker.after_receive",
    "worker.after_claim",
    "worker.after_run",
    "worker.after_stage",
    "worker.after_complete",
    "worker.after_settle",
)

ALL = tuple(f"{name}.{side}_commit" for name in TRANSACTIONS for side in ("before", "after")) + STEPS

_armed: str | None = None


def arm(name: str | None) -> None:
    global _armed
    if name is not None and name not in ALL:
        raise ValueError(f"there is no boundary named {name}")
    _armed = name


def armed(transaction: str) -> bool:
    """Whether a boundary of this transaction is armed."""
    return _armed is not None and _armed in (f"{transaction}.before_commit", f"{transaction}.after_commit")


def crash_point(name: str) -> None:
    if _armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
