"""Decodes published signals and says why a message is rejected."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from traceplane.adapters.signal_source import MOST_BYTES

HIGHEST_CONFIDENCE = 100.0
CLOCK_SKEW_SECONDS = 300.0
"""How far ahead of this machine's clock a signal may be."""


class TickerSignal(msgspec.Struct, frozen=True, gc=False):
    """What a signal says about one ticker; `signal` is a direction such as BULLISH."""

    ticker: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    signal: str | None = None
    confidence: Annotated[float, msgspec.Meta(ge=0, le=HIGHEST_CONFIDENCE)] = HIGHEST_CONFIDENCE


class Signal(msgspec.Struct, frozen=True, gc=False):
    """Unknown fields are stored with the execution and otherwise ignored: publishers may add some at any time."""

    signal_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    timestamp: float
    """Unix time in seconds."""
    signal_type: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    tickers: Annotated[tuple[TickerSignal, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Refused(msgspec.Struct, frozen=True):
    """Why the n-th message of a batch is rejected."""

    nth: int
    code: str
    reason: str


_decode = msgspec.json.Decoder(Signal).decode
_encode = msgspec.json.Encoder().encode
_LARGE_NUMBER = re.compile(rb"[0-9](?:[eE]|[0-9]{18})")
"""A number that may be too large for Postgres or a reader. Text that looks like one matches too, which only costs
time."""


def decode(payloads: Sequence[bytes]) -> tuple[list[Signal | None], list[Refused]]:
    """The signals in order, None for rejected messages, and the reasons."""
    signals: list[Signal | None] = []
    refused: list[Refused] = []
    keep = signals.append
    latest = time.time() + CLOCK_SKEW_SECONDS
    for payload in payloads:
        try:
            signal = _decode(payload)
            if signal.timestamp <= latest and "\x00" not in signal.signal_id and len(payload) <= MOST_BYTES:
                keep(signal)
                continue
            code, reason = _why(payload, signal)
        except msgspec.ValidationError as error:
            code, reason = "signal.invalid", str(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            code, reason = "signal.malformed", str(error)
        refused.append(Refused(len(signals), code, reason[:500]))
        keep(None)
    return signals, refused


def _why(payload: bytes, signal: Signal) -> tuple[str, str]:
    if len(payload) > MOST_BYTES:
        return "signal.too_large", f"the message has {len(payload)} bytes; at most {MOST_BYTES} are allowed"
    if "\x00" in signal.signal_id:
        return "signal.invalid", "signal_id contains a null character"
    return (
        "signal.from_the_future",
        f"timestamp {signal.timestamp!r} is more than {CLOCK_SKEW_SECONDS:.0f} s in the future; is it in seconds?",
    )


def as_stored(payload: bytes, signal: Signal) -> Any:
    """The signal as stored with an execution: everything that was published, if Postgres can hold it."""
    if _plain(payload):
        return msgspec.Raw(payload)
    try:
        value = msgspec.json.decode(payload)
        if b"\\u0000" not in payload and _storable(value):
            return msgspec.Raw(_encode(value))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        pass
    return msgspec.to_builtins(signal)


def _plain(payload: bytes) -> bool:
    """Whether Postgres can certainly hold it. That is true of most signals, which need no parsing then."""
    return (
        len(payload) < 10_000
        and payload.isascii()
        and b"\\u" not in payload
        and _LARGE_NUMBER.search(payload) is None
        and payload.count(b"[") + payload.count(b"{") < 100
    )


def _storable(value: Any, depth: int = 0) -> bool:
    if depth > 100:
        return False
    if isinstance(value, dict):
        return all(_storable(v, depth + 1) for v in value.values())
    if isinstance(value, list):
        return all(_storable(v, depth + 1) for v in value)
    return not isinstance(value, float) or math.isfinite(value)
