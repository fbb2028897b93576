"""Signals from a Kafka topic. The group's coordinator assigns partitions; offsets are never committed to Kafka.

Every rebalance revokes all partitions and assigns the new ones (the eager protocol): the group is small, and the rule
"whatever was polled around a rebalance is read again" is easy to follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from traceplane import telemetry
from traceplane.adapters.signal_source import NOTHING, DeadLetter, Offsets, Polled, Position
from traceplane.errors import InvalidInput, QueueUnavailable
from traceplane.settings import Settings

_BURY_SECONDS = 1.0
_FETCH_BYTES = 64 * 1024
_FETCH_SHARE = 0.1
"""Fraction of the time that a batch may take to fill."""
_HISTORY_SECONDS = 30.0
_PUBLISHED_LATE_SECONDS = 60.0
_FIRST_LOOK_BACK = 1000

_REFUSED = (
    "trigger.kafka_refused",
    "the broker rejected this user; nothing was consumed",
    "check kafka_sasl_username, kafka_sasl_password and kafka_sasl_mechanism",
)
_UNTRUSTED = (
    "trigger.kafka_untrusted",
    "no secure connection to the broker could be established; nothing was consumed",
    "check that kafka_ssl_ca_location contains the authority of the broker's certificate, and kafka_security_protocol",
)
_CLEAR = {
    KafkaError._AUTHENTICATION: _REFUSED,
    KafkaError.SASL_AUTHENTICATION_FAILED: _REFUSED,
    KafkaError._SSL: _UNTRUSTED,
}
"""Permanent errors: a setting must be corrected, here or at the broker."""

Client = TypeVar("Client")
ClientOptions = dict[str, object]
"""By the names that librdkafka gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """A topic, and how to reach and read it."""

    bootstrap_servers: str
    topic: str
    group: str
    begin_at: str
    """latest | earliest: for partitions that nobody has consumed yet."""
    session_timeout_seconds: float = 10.0
    fetch_wait_seconds: float = 0.01
    """How long the broker waits for more messages if it has few."""
    dead_letter_topic: str
    security: dict[str, str]

    @classmethod
    def from_settings(cls, settings: Settings) -> KafkaAddress:
        assert settings.kafka_bootstrap_servers is not None
        security = {
            "security.protocol": settings.kafka_security_protocol,
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_sasl_username,
            "sasl.password": settings.kafka_sasl_password,
            "ssl.ca.location": settings.kafka_ssl_ca_location,
        }
        return cls(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            topic=settings.kafka_signal_topic,
            group=settings.kafka_consumer_group,
            begin_at=settings.kafka_auto_offset_reset,
            session_timeout_seconds=settings.kafka_session_timeout_seconds,
            fetch_wait_seconds=settings.batching.timeout_seconds * _FETCH_SHARE,
            dead_letter_topic=settings.kafka_dead_letter_topic
            or f"{settings.kafka_signal_topic}.dead-letter",
            security={name: str(value) for name, value in security.items() if value is not None},
        )

    @property
    def client(self) -> ClientOptions:
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **self.security}


def client_of(kind: Callable[[ClientOptions], Client], options: ClientOptions) -> Client:
    try:
        return kind(options)
    except KafkaException as error:
        raise InvalidInput(
            "trigger.kafka_settings",
            f"the Kafka client rejects these settings: {error.args[0].str()}",
            next_step="check kafka_security_protocol, kafka_ssl_ca_location and the kafka_sasl_… settings",
        ) from error


def is_clear(error: KafkaError) -> bool:
    return error.code() in _CLEAR


def unavailable(error: object, address: KafkaAddress) -> QueueUnavailable:
    """The client's error, with a next step."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code, sentence, next_step = (isinstance(cause, KafkaError) and _CLEAR.get(cause.code())) or (
        "trigger.kafka_unavailable",
        "Kafka did not answer; nothing was consumed",
        f"check that {address.bootstrap_servers} can be reached, and kafka_security_protocol",
    )
    return QueueUnavailable(code, sentence, value=str(cause), next_step=next_step)


class KafkaSignalSource:
    def __init__(self, address: KafkaAddress, offsets: Offsets, options: ClientOptions | None = None) -> None:
        self._address = address
        self._offsets = offsets
        self._positions: dict[int, int] = {}
        self._changed = False
        self._topic_was_missing = False
        self.generation = 0
        self._producer: Producer | None = None
        self._complained_at: dict[str, float] = {}
        self._consumer = client_of(
            Consumer,
            {
                **address.client,
                "group.id": address.group,
                "session.timeout.ms": int(address.session_timeout_seconds * 1000),
                "heartbeat.interval.ms": int(address.session_timeout_seconds * 1000 / 4),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Only for a stored offset that the topic no longer has: the remaining messages are not skipped.
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
                "queued.min.messages": 200_000,
                # Answers with a signal or two each would load the broker more than the signals do.
                "fetch.wait.max.ms": int(address.fetch_wait_seconds * 1000),
                "fetch.min.bytes": _FETCH_BYTES,
                # Checks a full queue again soon: the default of one second would starve a fast reader.
                "fetch.queue.backoff.ms": 20,
                "error_cb": self._complain,
                **(options or {}),
            },
        )
        self._consumer.subscribe([address.topic], on_assign=self._assigned, on_revoke=self._revoked)

    def poll(self, least: int, wait: float, most: int) -> Polled:
        messages = self._consume(least, wait)
        if len(messages) >= least and not self._changed:
            messages += self._consume(most - len(messages), 0.0)
        if self._changed:
            self._changed = False
            self._assign()
            return NOTHING
        return self._polled(messages)

    def _consume(self, most: int, wait: float) -> list[Message]:
        try:
            return self._consumer.consume(most, wait) if most > 0 else []
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _polled(self, messages: list[Message]) -> Polled:
        failed = [m for m in messages if m.error() is not None]
        if failed:
            for message in failed:
                self._complain(message.error())
            messages = [m for m in messages if m.error() is None]
        if self._reads_again(messages):
            messages = [m for m in messages if m.offset() >= self._positions[m.partition()]]  # type: ignore[index,operator]
        if not messages:
            return NOTHING
        ends: dict[int, int] = {}
        for message in reversed(messages):
            if (partition := message.partition()) not in ends:
                ends[partition] = message.offset()  # type: ignore[index,assignment]
                if len(ends) == len(self._positions):
                    break
        positions = []
        for partition, last in sorted(ends.items()):
            positions.append(Position(partition, self._positions[partition], last + 1))
            self._positions[partition] = last + 1
        return Polled(
            [message.value() or b"" for message in messages],
            positions,
            lambda n: (messages[n].partition(), messages[n].offset()),  # type: ignore[return-value,arg-type]
            messages[0].timestamp()[1],
        )

    def _reads_again(self, messages: list[Message]) -> bool:
        """Whether the client delivers what was already read, as it may after a rebalance."""
        seen: set[int] = set()
        for message in messages:
            partition: int = message.partition()  # type: ignore[assignment]
            if partition not in seen:
                if message.offset() < self._positions[partition]:  # type: ignore[operator]
                    return True
                seen.add(partition)
                if len(seen) == len(self._positions):
                    break
        return False

    def rewind(self) -> None:
        self._positions.update(self._offsets.stored(list(self._positions)))
        self._assign()

    def history(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        options = {**self._address.client, "group.id": f"{self._address.group}-history"}
        more = {
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
        reader = Consumer({**options, **more})
        try:
            for partition, position in self._positions.items():
                yield from self._before(reader, partition, position, seconds)
        except KafkaException as error:
            raise self._unavailable(error) from error
        finally:
            reader.close()

    def _before(
        self, reader: Consumer, partition: int, position: int, seconds: float
    ) -> Iterator[tuple[int, bytes]]:
        topic = self._address.topic
        low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        if position <= low:
            return
        unread = next(self._from(reader, partition, position), None) if position < high else None
        since = unread.timestamp()[1] if unread is not None else time.time() * 1000
        # Signals may be published some time after their own timestamp.
        earliest = since - (seconds + _PUBLISHED_LATE_SECONDS) * 1000
        back = _FIRST_LOOK_BACK
        while True:
            start = max(low, position - back)
            oldest = next(self._from(reader, partition, start), None)
            if start == low or oldest is None or oldest.timestamp()[1] < earliest:
                break
            back *= 4
        for message in self._from(reader, partition, start):
            offset: int = message.offset()  # type: ignore[assignment]
            if offset < position:
                yield partition, message.value() or b""
            if offset >= position - 1:
                return

    def _from(self, reader: Consumer, partition: int, offset: int) -> Iterator[Message]:
        """The messages of the partition from an offset to its end."""
        reader.assign([TopicPartition(self._address.topic, partition, offset)])
        while True:
            message = reader.poll(_HISTORY_SECONDS)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)

    def lag(self) -> int:
        behind = 0
        for partition, position in self._positions.items():
            _, high = self._consumer.get_watermark_offsets(
                TopicPartition(self._address.topic, partition), cached=True
            )
            behind += max(0, high - position) if high >= 0 else 0
        return behind

    def partitions(self) -> Collection[int]:
        return tuple(self._positions)

    def bury(self, letters: Sequence[DeadLetter]) -> int:
        if self._producer is None:
            self._producer = Producer({**self._address.client, "linger.ms": 5, "acks": "all"})
        delivered = 0

        def count_delivery(error: KafkaError | None, _: Message) -> None:
            nonlocal delivered
            delivered += error is None

        for letter in letters:
            headers: dict[str, str | bytes | None] = {
                "topic": self._address.topic,
                "partition": str(letter.partition),
                "offset": str(letter.offset),
                "code": letter.code,
                "reason": letter.reason,
            }
            try:
                self._producer.produce(
                    self._address.dead_letter_topic,
                    letter.payload,
                    headers=headers,
                    on_delivery=count_delivery,
                )
            except (BufferError, KafkaException) as error:
                self._complain(error)
        self._producer.flush(_BURY_SECONDS)
        return delivered

    def close(self) -> None:
        self._consumer.close()
        if self._producer is not None:
            self._producer.flush(_BURY_SECONDS)

    # Rebalances; called by the client from within `consume` -----------------------------------------

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [p.partition for p in partitions]
        offsets = dict(self._offsets.stored(numbers))
        if len(offsets) < len(numbers):
            offsets = dict(self._offsets.begin(self._beginnings()))
        self._positions = {n: offsets[n] for n in numbers}
        self._changed = True
        # Otherwise the client assigns them itself, and begins to read where the group has committed: nowhere.
        self._assign()
        telemetry.emit("kafka_partitions_assigned", topic=self._address.topic, partitions=numbers)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._offsets.settle()
        self._positions = {}
        self._changed = True
        telemetry.emit(
            "kafka_partitions_revoked",
            topic=self._address.topic,
            partitions=[p.partition for p in partitions],
        )

    def _beginnings(self) -> dict[int, int]:
        """Where each partition of the topic begins. `latest` is meant for a new group: partitions added later to
        the topic of an existing group are read from their start, as is a topic that this process has waited for:
        whoever created it did so by publishing."""
        latest = self._address.begin_at == "latest" and not self._topic_was_missing
        try:
            described = self._consumer.list_topics(self._address.topic, timeout=30)
            everywhere = list(described.topics[self._address.topic].partitions)
            new = not self._offsets.stored(everywhere)
            beginnings = {}
            for number in everywhere:
                partition = TopicPartition(self._address.topic, number)
                low, high = self._consumer.get_watermark_offsets(partition, timeout=30)
                beginnings[number] = int(high if new and latest else low)
        except KafkaException as error:
            raise self._unavailable(error) from error
        return beginnings

    def _assign(self) -> None:
        self.generation += 1
        self._consumer.assign(
            [TopicPartition(self._address.topic, n, offset) for n, offset in self._positions.items()]
        )

    # Trouble ------------------------------------------------------------------------------------------

    def _complain(self, error: object) -> None:
        """The client retries by itself and reports that several times a second; one log line a second is enough."""
        if isinstance(error, KafkaError) and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._topic_was_missing = True
        trouble = unavailable(error, self._address)
        if time.monotonic() - self._complained_at.get(trouble.code, 0.0) >= 1.0:
            self._complained_at[trouble.code] = time.monotonic()
            telemetry.emit(
                "kafka_error",
                "error" if isinstance(error, KafkaError) and is_clear(error) else "warning",
                topic=self._address.topic,
                code=trouble.code,
                message=trouble.value,
                next_step=trouble.next_step,
            )

    def _unavailable(self, error: Exception) -> QueueUnavailable:
        return unavailable(error, self._address)
