"""The end of a Kafka topic. Needs the extra `trigger`."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from traceplane.adapters.signal_source_kafka import KafkaAddress, client_of, is_clear, unavailable
from traceplane.errors import QueueUnavailable
from traceplane.settings import Settings

_SECONDS = 5.0


def kafka_tail(settings: Settings, count: int) -> tuple[dict[int, int], list[bytes]]:
    address = KafkaAddress.from_settings(settings)
    trouble: list[KafkaError] = []
    options = {"group.id": f"{address.group}-doctor", "enable.auto.commit": False, "error_cb": trouble.append}
    consumer = client_of(Consumer, {**address.client, **options})
    try:
        topic = consumer.list_topics(address.topic, timeout=_SECONDS).topics[address.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        ends: dict[int, int] = {}
        begin, total = [], 0
        for partition in sorted(topic.partitions):
            low, high = consumer.get_watermark_offsets(
                TopicPartition(address.topic, partition), timeout=_SECONDS
            )
            ends[partition] = high
            first = max(low, high - count)
            total += high - first
            if first < high:
                begin.append(TopicPartition(address.topic, partition, first))
        consumer.assign(begin)
        payloads: list[bytes] = []
        deadline = time.monotonic() + _SECONDS
        while len(payloads) < total and time.monotonic() < deadline:
            for message in consumer.consume(min(count, 500), 0.5):
                if message.error() is None:
                    payloads.append(message.value() or b"")
        return ends, payloads
    except KafkaException as error:
        # The client's own error; the exception only says that there was no answer.
        consumer.poll(0)
        if clear := next(filter(is_clear, trouble), None):
            raise unavailable(clear, address) from error
        raise QueueUnavailable(
            "queue.unavailable",
            "Kafka does not answer, or has no such topic",
            value=f"{address.bootstrap_servers} {address.topic}: {error}",
            next_step="check kafka_bootstrap_servers, kafka_signal_topic and the security settings",
        ) from error
    finally:
        consumer.close()
