"""Wake-ups over Amazon SQS, for workers that run apart from the dispatcher.

Standard queues, not FIFO. `claim` settles order and repetition, so FIFO's order would only make tasks wait for one
another, and its deduplication would do harm: for five minutes it swallows a second message of the same task, which is
exactly what a retry is, and what the reconciler sends when a wake-up was lost.

Each queue `<prefix><name>` is created when it is first used, with the dead letters in `<prefix><name>-dead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NotRequired, TypedDict, TypeVar
from uuid import UUID

import aiohttp
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from traceplane import telemetry
from traceplane.adapters.wake_queue import MAX_RECEIVES, Depth, Message
from traceplane.errors import QueueUnavailable
from traceplane.runtime.retrying import pauses
from traceplane.settings import Settings

# Limits of SQS.
_BATCH = 10
_LONGEST_POLL_SECONDS = 20
_LONGEST_VISIBILITY_SECONDS = 12 * 3600
_LONGEST_RETENTION_SECONDS = 14 * 24 * 3600

_BATCHES_AT_ONCE = 16
_TRIES = 3
# The relay waits for `send` inside a transaction, and Postgres ends one that idles for 30 seconds.
_PATIENCE_SECONDS = 10.0

_FAILURES = (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, TimeoutError, OSError)

Answer = TypeVar("Answer")


class _Received(TypedDict):
    """A message, as SQS hands it over."""

    MessageId: str
    ReceiptHandle: str
    Body: str
    Attributes: NotRequired[dict[str, str]]


class _FailedEntry(TypedDict):
    """Why SQS did not do what one entry of a batch asked for."""

    Id: str
    SenderFault: bool
    Code: str
    Message: NotRequired[str]


class _Batched(TypedDict):
    """The answer to a batch."""

    Failed: NotRequired[list[_FailedEntry]]


_Entry = dict[str, str | int]
_BatchCall = Callable[[Any, str, list[_Entry]], Awaitable[_Batched]]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task_id: UUID


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode


class SqsWakeQueue:
    """Credentials come from botocore's usual sources, unless a session has its own.

    SQS counts in whole seconds: visibility is rounded up, waiting time to the nearest second.
    """

    def __init__(
        self,
        *,
        region: str,
        queue_prefix: str = "",
        endpoint_url: str | None = None,
        session: AioSession | None = None,
    ) -> None:
        self._region = region
        self._queue_prefix = queue_prefix
        self._endpoint_url = endpoint_url
        self._session = session or get_session()
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()
        self._client: Any = None
        self._urls: dict[str, str] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> SqsWakeQueue:
        return cls(
            region=settings.aws_region,
            queue_prefix=settings.sqs_queue_prefix,
            endpoint_url=settings.sqs_endpoint_url,
        )

    async def close(self) -> None:
        self._client = None
        await self._open.aclose()

    async def send(self, queue: str, task_ids: Sequence[UUID]) -> None:
        entries: list[_Entry] = [{"MessageBody": _encode(_Body(task_id)).decode()} for task_id in task_ids]
        refused = await self._in_batches(
            queue, entries, lambda sqs, url, batch: sqs.send_message_batch(QueueUrl=url, Entries=batch)
        )
        if refused:
            raise _unavailable(queue, f"{len(refused)} messages rejected, the first with {refused[0]}")

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]:
        deadline = time.monotonic() + wait_seconds
        messages: list[Message] = []
        while len(messages) < limit:
            count = min(limit - len(messages), _BATCH)
            remaining = 0 if messages else _seconds_until(deadline)
            wait = min(remaining, _LONGEST_POLL_SECONDS)
            try:
                received = await self._receive_once(queue, count, wait, visibility_seconds)
            except QueueUnavailable:
                if messages:
                    break  # received messages are hidden from all other receivers
                raise
            messages += await self._understood(queue, received)
            if len(received) < count and (messages or _seconds_until(deadline) == 0):
                break
        return messages

    async def _receive_once(
        self, queue: str, count: int, wait_seconds: int, visibility_seconds: float
    ) -> list[_Received]:
        answer = await self._call(
            queue,
            lambda sqs, url: sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=_visibility(visibility_seconds),
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            ),
            patience=_PATIENCE_SECONDS + wait_seconds,
        )
        received: list[_Received] = answer.get("Messages", [])
        return received

    async def _understood(self, queue: str, received: list[_Received]) -> list[Message]:
        """The wake-ups among the received messages. Others are deleted, or they would come back forever."""
        messages, foreign = [], []
        for raw in received:
            try:
                task_id = _decode(raw["Body"]).task_id
            except ValueError:
                foreign.append(raw["ReceiptHandle"])
                telemetry.emit(
                    "wake.foreign_message",
                    "warning",
                    queue=queue,
                    message_id=raw["MessageId"],
                    body=raw["Body"][:200],
                )
                continue
            receives = int(raw.get("Attributes", {}).get("ApproximateReceiveCount", 1))
            messages.append(Message(raw["ReceiptHandle"], task_id, receives))
        if foreign:
            with contextlib.suppress(QueueUnavailable):  # then it is received and deleted again
                await self.delete(queue, foreign)
        return messages

    async def delete(self, queue: str, receipts: Sequence[str]) -> None:
        await self._in_batches(
            queue,
            [{"ReceiptHandle": receipt} for receipt in dict.fromkeys(receipts)],
            lambda sqs, url, batch: sqs.delete_message_batch(QueueUrl=url, Entries=batch),
        )

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int:
        """SQS returns a message twelve hours after it was received, however often it was extended."""
        return await self._set_visibility(queue, receipts, _visibility(visibility_seconds))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        await self._set_visibility(queue, receipts, 0)

    async def _set_visibility(self, queue: str, receipts: Sequence[str], seconds: int) -> int:
        entries: list[_Entry] = [
            {"ReceiptHandle": r, "VisibilityTimeout": seconds} for r in dict.fromkeys(receipts)
        ]
        refused = await self._in_batches(
            queue,
            entries,
            lambda sqs, url, batch: sqs.change_message_visibility_batch(QueueUrl=url, Entries=batch),
        )
        return len(entries) - len(refused)

    async def depth(self, queue: str) -> Depth:
        """SQS's own approximate figures."""
        counts = await self._call(queue, _counts)
        return Depth(counts["visible"], counts["hidden"], await self._dead(queue))

    async def _dead(self, queue: str) -> int:
        async def count(sqs: Any, url: str) -> dict[str, int]:
            try:
                dead = await sqs.get_queue_url(QueueName=f"{self._queue_prefix}{queue}-dead")
            except sqs.exceptions.QueueDoesNotExist:  # somebody else created the queue
                return {"visible": 0, "hidden": 0}
            return await _counts(sqs, dead["QueueUrl"])

        counts = await self._call(queue, count)
        return counts["visible"] + counts["hidden"]

    async def _in_batches(self, queue: str, entries: Sequence[_Entry], call: _BatchCall) -> list[str]:
        """Makes the call for all entries; returns the reasons of those rejected as the caller's fault."""
        refused: list[str] = []
        batches = [entries[i : i + _BATCH] for i in range(0, len(entries), _BATCH)]
        for i in range(0, len(batches), _BATCHES_AT_ONCE):
            wave = batches[i : i + _BATCHES_AT_ONCE]
            outcomes = await asyncio.gather(
                *(self._one_batch(queue, batch, call) for batch in wave), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
                refused += outcome
        return refused

    async def _one_batch(self, queue: str, entries: Sequence[_Entry], call: _BatchCall) -> list[str]:
        """A batch may succeed in part; entries that failed on SQS's side are retried."""
        refused: list[str] = []
        remaining = {str(i): {"Id": str(i), **entry} for i, entry in enumerate(entries)}
        tries = pauses(0.1, 1.0, attempts=_TRIES)
        while True:
            failed = await self._failed(queue, list(remaining.values()), call)
            refused += [_reason(f) for f in failed if f["SenderFault"]]
            remaining = {f["Id"]: remaining[f["Id"]] for f in failed if not f["SenderFault"]}
            if not remaining:
                return refused
            if (pause := next(tries, None)) is None:
                raise _unavailable(
                    queue, f"{len(remaining)} of {len(entries)} failed {_TRIES} times: {_reason(failed[-1])}"
                )
            await asyncio.sleep(pause)

    async def _failed(self, queue: str, batch: list[_Entry], call: _BatchCall) -> list[_FailedEntry]:
        answer = await self._call(queue, lambda sqs, url: call(sqs, url, batch))
        return answer.get("Failed", [])

    async def _call(
        self,
        queue: str,
        call: Callable[[Any, str], Awaitable[Answer]],
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> Answer:
        try:
            async with asyncio.timeout(patience):
                sqs = await self._connected()
                url = await self._url(sqs, queue)
                try:
                    return await call(sqs, url)
                except sqs.exceptions.QueueDoesNotExist:
                    self._urls.pop(queue, None)  # deleted since; the next call creates it again
                    raise
        except _FAILURES as error:
            raise _unavailable(queue, f"{type(error).__name__}: {error}") from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is None:
                self._client = await self._open.enter_async_context(
                    self._session.create_client(
                        "sqs",
                        region_name=self._region,
                        endpoint_url=self._endpoint_url,
                        config=AioConfig(
                            connect_timeout=5,
                            read_timeout=_PATIENCE_SECONDS + _LONGEST_POLL_SECONDS,
                            max_pool_connections=4 * _BATCHES_AT_ONCE,
                            retries={"mode": "standard", "total_max_attempts": 2},
                        ),
                    )
                )
            return self._client

    async def _url(self, sqs: Any, queue: str) -> str:
        if queue not in self._urls:
            name = self._queue_prefix + queue
            self._urls[queue] = await _found(sqs, name) or await _created(sqs, name)
        return self._urls[queue]


async def _found(sqs: Any, name: str) -> str | None:
    try:
        return str((await sqs.get_queue_url(QueueName=name))["QueueUrl"])
    except sqs.exceptions.QueueDoesNotExist:
        return None


async def _created(sqs: Any, name: str) -> str:
    """Creating a queue that exists with the same attributes is no error, so several processes may do it at once."""
    dead = await _found(sqs, f"{name}-dead")
    if dead is None:
        retention = {"MessageRetentionPeriod": str(_LONGEST_RETENTION_SECONDS)}
        dead = (await sqs.create_queue(QueueName=f"{name}-dead", Attributes=retention))["QueueUrl"]
    arn = (await sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"]))["Attributes"][
        "QueueArn"
    ]
    redrive = {"deadLetterTargetArn": arn, "maxReceiveCount": MAX_RECEIVES}
    answer = await sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(redrive)})
    telemetry.emit("wake.queue_created", queue=name)
    return str(answer["QueueUrl"])


async def _counts(sqs: Any, url: str) -> dict[str, int]:
    names = {
        "visible": "ApproximateNumberOfMessages",
        "hidden": "ApproximateNumberOfMessagesNotVisible",
    }
    answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names.values()))
    return {key: int(answer["Attributes"][name]) for key, name in names.items()}


def _seconds_until(deadline: float) -> int:
    return max(0, round(deadline - time.monotonic()))


def _visibility(seconds: float) -> int:
    return min(max(math.ceil(seconds), 0), _LONGEST_VISIBILITY_SECONDS)


def _reason(failure: _FailedEntry) -> str:
    return f"{failure['Code']}: {failure.get('Message', '')}"


def _unavailable(queue: str, value: str) -> QueueUnavailable:
    return QueueUnavailable(
        "queue.unavailable",
        f"a call to SQS failed for queue {queue!r}",
        value=value,
        next_step="check the region, the credentials and their permissions; the call may be retried",
    )
