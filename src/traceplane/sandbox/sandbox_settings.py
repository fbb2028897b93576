"""The settings of a sandbox, and how weak it may be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux.operator_ids import UID_RANGE
from traceplane.sandbox import confinement
from traceplane.sandbox.frames import NetworkAccess, ReachNothing

NO_NETWORK = ReachNothing()


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    slots: int = 8
    """How many tasks run at once; others wait."""
    folder: Path | None = None
    """For temporary files, and for outputs without their own folder; unset: a new folder below /tmp."""
    network: NetworkAccess = NO_NETWORK
    private_network: tuple[int, ...] = ()
    """Descriptors of the network namespace of the tasks' Spark server."""
    hidden: tuple[Path, ...] = ()
    """Never readable, not even below a code path: the platform's home, the object store. Inputs and outputs
    of a task that lie there are shown to that task alone."""
    allow_weak: bool = False
    """Run even where tasks cannot be isolated: all operator code is trusted."""
    uid_range: tuple[int, int] = UID_RANGE
    """If the worker is root, each slot runs as one of these."""
    preload: tuple[str, ...] = ("pyarrow.parquet",)
    """Imported once by the fork server, so that operators need not wait for them."""
    grace_seconds: float = 0.5
    """Between SIGTERM and SIGKILL, on timeout and cancel."""
    tasks_per_child: int = 1000
    """How many tasks of one job a child may run, where it may run more than one."""
    child_seconds: float = 600.0
    """How old a child may be to get another task."""
    disabled_layers: frozenset[str] = frozenset()
    """Layers of isolation not to use even if available; see docs/concepts/sandbox.md."""

    def __post_init__(self) -> None:
        unknown = self.disabled_layers - set(confinement.OPTIONAL_LAYERS)
        if unknown:
            raise InvalidInput("sandbox.unknown_layer", "there is no such layer", value=min(unknown))
        if self.slots < 1:
            raise InvalidInput("sandbox.no_slots", "a sandbox needs at least one slot", value=self.slots)

    def refuse_weakness(self, weakness: str | None) -> None:
        """Raises PlatformError `sandbox.too_weak`, unless weakness is allowed."""
        if weakness is None:
            return
        if not self.allow_weak:
            raise PlatformError(
                "sandbox.too_weak",
                f"operator code cannot be isolated well enough here: {weakness}",
                next_step="see docs/concepts/sandbox.md; allow_weak_sandbox is only for trusted operator code",
            )
        telemetry.emit("sandbox.weak", "warning", reason=weakness)
