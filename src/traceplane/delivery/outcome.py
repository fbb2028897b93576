"""What became of a message."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "delivery.refused"


@dataclass(frozen=True, slots=True)
class Delivered:
    note: str | None = None
    """What the other side did not do, for example for one of several addresses."""


@dataclass(frozen=True, slots=True)
class Retry:
    code: str
    reason: str
    after_seconds: float | None = None
    """Not sooner: the other side asked for it."""
    status: int | None = None
    """Of its answer."""


@dataclass(frozen=True, slots=True)
class Dead:
    """To send it again would not help."""

    code: str
    reason: str
    status: int | None = None
    """Of the answer of the other side."""

    @property
    def is_refusal(self) -> bool:
        """By the other side, which was reached; otherwise it was not sent at all."""
        return self.code == REFUSED


Outcome = Delivered | Retry | Dead
