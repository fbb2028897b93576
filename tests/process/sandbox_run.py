"""What tests see of a task that ran in a sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from traceplane.sandbox.assignment import RunResult


@dataclass
class Run:
    """A finished task: its result, and what it logged."""

    result: RunResult
    lines: list[str] = field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        """What it wrote down for the test, in lines of its log."""
        facts: dict[str, Any] = {}
        for line in self.lines:
            if line.startswith("TELL "):
                facts |= json.loads(line.removeprefix("TELL "))
        return facts

    @property
    def code(self) -> str | None:
        return self.result.error.code if self.result.error else None

    @property
    def message(self) -> str:
        return self.result.error.message if self.result.error else ""
