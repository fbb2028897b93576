"""The end of a signal topic: lengths of its partitions, and their last messages. Only reads, and joins no group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceplane.settings import Settings


@dataclass(frozen=True, slots=True)
class Tail:
    ends: dict[int, int]
    """Per partition, the offset of the next message."""
    payloads: list[bytes]


def signal_tail(settings: Settings, count: int) -> Tail:
    """Blocks for up to a few seconds; raises QueueUnavailable if there is no answer."""
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
