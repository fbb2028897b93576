"""Where signals are published: the topic or folder that triggers with the same settings read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from traceplane.adapters import signal_source_folder
from traceplane.errors import QueueUnavailable
from traceplane.settings import Settings


class SignalPublisher(Protocol):
    """Blocks. If it raises QueueUnavailable, some signals may have been published; the call may be retried."""

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publishes keys and payloads; returns when all are durable. Messages with the same key stay in order."""


class FolderPublisher:
    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        try:
            signal_source_folder.publish(self._folder, self._topic, [payload for _, payload in messages])
        except OSError as error:
            raise QueueUnavailable(
                "queue.unavailable", "the signal folder cannot be written", value=str(error)
            ) from error


def signal_publisher(settings: Settings) -> SignalPublisher:
    if settings.kafka_bootstrap_servers is None:
        return FolderPublisher(settings.signals_folder, settings.kafka_signal_topic)
    from traceplane.adapters.signal_publisher_kafka import KafkaPublisher  # an optional extra

    return KafkaPublisher.from_settings(settings)
