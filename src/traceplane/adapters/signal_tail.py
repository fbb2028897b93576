"""The end of a signal topic: how long its partitions are, and their last messages. Reads only, and joins no group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceplane.settings import Settings


@dataclass(frozen=True, slots=True)
class Tail:
    ends: dict[int, int]
    """Per partition, the offset that the next message will have."""
    payloads: list[bytes]


def signal_tail(settings: Settings, count: int) -> Tail:
    """Blocks for some seconds at most; QueueUnavailable if nobody answers."""
    if settings.kafka_bootstrap_servers is None:
        return _folder_tail(settings.signals_folder / settings.kafka_signal_topic, count)
    from traceplane.adapters.signal_tail_kafka import kafka_tail  # an optional extra

    return Tail(*kafka_tail(settings, count))


def _folder_tail(root: Path, count: int) -> Tail:
    ends: dict[int, int] = {}
    payloads: list[bytes] = []
    for path in sorted(root.glob("*.jsonl")):
        if path.stem.isdecimal():
            with path.open("rb") as file:
                ends[int(path.stem)] = end = file.seek(0, 2)
                file.seek(max(0, end - count * 1024))
                payloads += file.read().splitlines()[-count:]
    return Tail(ends, payloads)
