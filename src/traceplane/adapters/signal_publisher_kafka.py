"""Signals to a Kafka topic. Needs the extra `trigger`."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from traceplane.adapters.signal_source_kafka import ClientOptions, KafkaAddress, client_of
from traceplane.errors import QueueUnavailable
from traceplane.settings import Settings

_SECONDS = 10.0


class KafkaPublisher:
    def __init__(self, client: ClientOptions, topic: str) -> None:
        self._topic = topic
        options = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": int(_SECONDS * 1000)}
        self._producer = client_of(Producer, {**client, **options})

    @classmethod
    def from_settings(cls, settings: Settings) -> KafkaPublisher:
        address = KafkaAddress.from_settings(settings)
        return cls(address.client, address.topic)

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        delivered, problem = 0, ""

        def count_delivery(error: KafkaError | None, _: Message) -> None:
            nonlocal delivered, problem
            delivered += error is None
            problem = problem if error is None else str(error)

        try:
            for key, payload in messages:
                self._producer.produce(self._topic, payload, key=key, on_delivery=count_delivery)
                self._producer.poll(0)
            self._producer.flush(_SECONDS + 1)
        except (BufferError, KafkaException) as error:
            problem = str(error)
        if delivered < len(messages):
            raise QueueUnavailable(
                "queue.unavailable",
                f"Kafka accepted {delivered} of {len(messages)} signals",
                value=problem or "timed out",
                next_step="check the brokers; the signals will be published again",
            )
