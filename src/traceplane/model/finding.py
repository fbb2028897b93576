"""What an examination of the platform found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    level: Literal["ok", "warning", "problem"]
    code: str
    sentence: str
    next_step: str | None = None
