"""Every error a caller can get, in one tree.

    TraceplaneError
    ├── UserError            the caller can fix it: HTTP 4xx, CLI exit code 2
    │   ├── InvalidInput     400  a value is malformed or out of range
    │   │   └── SpecInvalid       a DAG file is wrong; carries every problem with file:line:column
    │   ├── Unauthenticated  401  a missing or invalid token
    │   ├── Forbidden        403  a valid token that does not grant this
    │   ├── NotFound         404  it does not exist
    │   ├── Conflict         409  the current state does not allow it
    │   ├── TooLarge         413  more bytes or items than one call may carry
    │   └── TooManyRequests  429  one caller calls too often, or too much at once
    └── PlatformError        a fault of the platform or its environment: HTTP 503, a retry helps
        ├── DatabaseUnavailable
        ├── ConcurrentChange      another process changed the same rows at the same time
        └── QueueUnavailable

Each error is one sentence with a stable dotted code, the offending value if there is one, and the next step. A stale
fence is not an error: it is an outcome of the call (see `wire.tasks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


class TraceplaneError(Exception):
    """Base of the tree: a sentence, a stable code, the offending value, what to do next."""

    status: ClassVar[int] = 500
    otherwise: ClassVar[str] = "try again; if it fails again, look at the logs of the platform"
    """What to do about an error of this kind that does not say more."""

    def __init__(
        self, code: str, message: str, *, value: object = None, next_step: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.value = value
        self.next_step = next_step

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.value is not None:
            body["value"] = (
                self.value if isinstance(self.value, (int, float, bool)) else str(self.value)[:500]
            )
        if self.next_step is not None:
            body["next_step"] = self.next_step
        return body

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.message}"]
        if self.value is not None:
            parts.append(f"(value: {str(self.value)[:500]!r})")
        if self.next_step is not None:
            parts.append(f"→ {self.next_step}")
        return " ".join(parts)


class UserError(TraceplaneError):
    status = 400


class InvalidInput(UserError):
    status = 400
    otherwise = "correct it and try again"


class Unauthenticated(UserError):
    status = 401
    otherwise = "use a valid token; `traceplane whoami` tells whose yours is"


class Forbidden(UserError):
    status = 403
    otherwise = "ask an admin of the organization"


class NotFound(UserError):
    status = 404
    otherwise = "check the name"


class Conflict(UserError):
    status = 409
    otherwise = "see what is in its way, and try again once it is gone"


class TooLarge(UserError):
    status = 413
    otherwise = "send less at once"


class TooManyRequests(UserError):
    status = 429
    otherwise = "wait a little, and try again"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        value: object = None,
        next_step: str | None = None,
        retry_after_seconds: float = 1.0,
    ) -> None:
        super().__init__(code, message, value=value, next_step=next_step)
        self.retry_after_seconds = retry_after_seconds


class PlatformError(TraceplaneError):
    status = 503


class DatabaseUnavailable(PlatformError):
    pass


class ConcurrentChange(PlatformError):
    pass


class QueueUnavailable(PlatformError):
    pass


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One problem in a DAG file, where it is, and how to fix it."""

    code: str
    message: str
    file: str
    line: int
    column: int
    value: str | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.code}: {self.message}"
        return f"{text} → {self.suggestion}" if self.suggestion else text


class SpecInvalid(InvalidInput):
    """A DAG file with one or more problems, which are reported together."""

    def __init__(self, problems: tuple[SpecProblem, ...]) -> None:
        self.problems = problems
        count = len(problems)
        super().__init__("spec.invalid", f"the DAG file has {count} problem{'s' if count != 1 else ''}")

    def as_dict(self) -> dict[str, Any]:
        body = super().as_dict()
        body["problems"] = [
            {k: getattr(p, k) for k in ("code", "message", "file", "line", "column", "value", "suggestion")}
            for p in self.problems
        ]
        return body

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)
