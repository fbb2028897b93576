"""Named boundaries at which a process can be made to kill itself, for recovery tests.

A process's main calls `arm` with the setting `crash_at`; an unarmed boundary costs one comparison. The kill is a
SIGKILL: no cleanup runs, as if the machine had died.
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
    "hand_over",
    "sink",
    "deliver_claim",
    "deliver",
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
    "cron",
    "files",
    "webhook",
)
"""Labelled transactions. Each has a boundary before its commit and one after it, before the result is reported. Only
transactions that changed or locked rows have them: an idle pass of a loop is not a boundary."""

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
    global _armed  # noqa: PLW0603 -- one boundary per process, set at its start
    if name is not None and name not in ALL:
        raise ValueError(f"unknown crash point {name}")
    _armed = name


def armed(transaction: str) -> bool:
    """Whether a boundary of this transaction is armed."""
    return _armed is not None and _armed in (f"{transaction}.before_commit", f"{transaction}.after_commit")


def crash_point(name: str) -> None:
    if _armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
