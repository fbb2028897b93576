"""Signals as they are published, and what is wrong with those that cannot be used."""

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
    """Unknown fields are kept with the execution, and otherwise ignored: publishers may add some at any time."""

    signal_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    timestamp: float
    """Unix time in seconds."""
    signal_type: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    tickers: Annotated[tuple[TickerSignal, ...], msgspec.Meta(min_length=1, max_length=1000)]


class Refused(msgspec.Struct, frozen=True):
    """The n-th message of a batch cannot be used."""

    nth: int
    code: str
    reason: str


_decode = msgspec.json.Decoder(Signal).decode
_encode = msgspec.json.Encoder().encode
_LARGE_NUMBER = re.compile(rb"[0-9](?:[eE]|[0-9]{18})")
"""A number that may be too large for Postgres or a reader; or a text that looks like one, which costs only time."""


def decode(payloads: Sequence[bytes]) -> tuple[list[Signal | None], list[Refused]]:
    """The signals in their order, None where there is none, and why."""
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
        return "signal.too_large", f"{len(payload)} bytes are more than {MOST_BYTES}"
    if "\x00" in signal.signal_id:
        return "signal.invalid", "signal_id holds a null character"
    return (
        "signal.from_the_future",
        f"timestamp {signal.timestamp!r} is more than minutes ahead; is it in seconds?",
    )


def as_stored(payload: bytes, signal: Signal) -> Any:
    """The signal as it is kept with an execution: all that was published, if Postgres can hold it."""
    if _plain(payload):
        return msgspec.Raw(payload)
    try:
        whole = msgspec.json.decode(payload)
        if b"\\u0000" not in payload and _storable(whole):
            return msgspec.Raw(_encode(whole))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        pass
    return msgspec.to_builtins(signal)


def _plain(payload: bytes) -> bool:
    """Whether Postgres holds it for sure. Most signals are like this, and need not be taken apart for it."""
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
