"""Sends the messages that wait for channels, each at least once and always under the same key.

One process at a time works on a channel, so that its pace and its pauses hold. That a message is tried is committed
before it is sent, and what became of it after that; a message whose outcome was not recorded is sent again. No channel
waits for another as long as the process has connections, and no message for another one, except within an incident.
What a receiver asked for, and how often it failed, is forgotten when the channel leads to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import assert_never
from uuid import UUID, uuid4

import msgspec

from traceplane import telemetry
from traceplane.delivery.breaker import Breaker, Pace
from traceplane.delivery.connections import Connections
from traceplane.delivery.outcome import Dead, Delivered, Retry
from traceplane.delivery.outcome import Outcome as Became
from traceplane.delivery.sending import Channel, Channels, Sender, pace_of, secrets_of
from traceplane.errors import DatabaseUnavailable
from traceplane.model.message import Message
from traceplane.model.task import AttemptFacts, TaskState, state_after_failure
from traceplane.postgres import channels, deliveries
from traceplane.postgres.database import Database
from traceplane.postgres.deliveries import ClaimedDelivery, Recorded, State
from traceplane.runtime.process import Outcome, describe
from traceplane.runtime.retrying import backoff, happens, pauses, retrying
from traceplane.secrets.references import CHANNELS
from traceplane.secrets.vault import Denied, JobNeeds, Vault

MOST_TRIES = 20
_LEASE = timedelta(seconds=5)
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 4 * 3600.0
"""Twenty tries take about a day."""
_MOST_IN_FLIGHT = 64
"""Of one channel, if its pace allows it."""
_MOST_CLAIMED = 512
"""With those in flight."""
_CONFIG_SECONDS = 1.0
"""How long a channel is used before its config and its secrets are read again."""
_LOOK_SECONDS = 1.0
"""How often a channel that must not be used yet is looked at again."""


@dataclass(frozen=True, slots=True)
class Passed(Outcome):
    delivered: int = 0
    postponed: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class _Used:
    """How a channel is used now."""

    org: str
    receiver: bytes
    """Changes with the config and its secrets, one of which may be the address."""
    pace: Pace
    send: Sender


class Deliveries:
    def __init__(
        self, database: Database, channels: Channels, vault: Vault, connections: Connections | None = None
    ) -> None:
        self._database, self._channels, self._vault = database, channels, vault
        self.connections = connections or Connections()
        self._process = uuid4()
        self._senders: dict[UUID, _Sender] = {}
        self._breakers: dict[UUID, tuple[bytes, Breaker]] = {}
        """They outlive their senders: a channel that is left alone stays so."""
        self._passed = Passed()
        """Since the last pass."""

    async def run_once(self) -> Passed:
        """Starts to send over those channels that have something to send, and keeps the leases of those in use."""
        async with self._database.autocommit() as tx:
            leased = await deliveries.lease(tx, self._process, _LEASE)
        for channel_id in leased:
            if (sender := self._senders.get(channel_id)) is not None:
                sender.look()
                continue
            self._senders[channel_id] = sender = _Sender(self, channel_id)
            sender.task.add_done_callback(partial(self._end, channel_id))
        passed, self._passed = self._passed, Passed()
        return passed

    def _end(self, channel_id: UUID, _: asyncio.Task[None]) -> None:
        del self._senders[channel_id]

    async def finish(self) -> None:
        """Waits for what is being sent, and lets other processes take over."""
        senders = list(self._senders.values())
        for sender in senders:
            sender.stop()
        await asyncio.gather(*(sender.task for sender in senders))
        with contextlib.suppress(DatabaseUnavailable):
            async with self._database.autocommit() as tx:
                await deliveries.release(tx, self._process)

    # For senders -------------------------------------------------------------------------------------

    async def breaker(self, channel_id: UUID, used: _Used) -> Breaker:
        known = self._breakers.get(channel_id)
        if known is not None and known[0] == used.receiver:
            return known[1]
        self._breakers[channel_id] = used.receiver, Breaker(used.pace, time.monotonic)
        if (
            known is not None
        ):  # answers of the receiver before may have been recorded after the channel was set
            async with self._database.transaction() as tx:
                await deliveries.hasten(tx, channel_id)
        return self._breakers[channel_id][1]

    async def channel(self, channel_id: UUID) -> _Used | None:
        """How to send over a channel; None: it was removed."""
        async with self._database.transaction() as tx:
            used = await channels.in_use(tx, channel_id)
            if used is None:
                return None
            try:
                channel = msgspec.convert(used.config, Channel)
            except msgspec.ValidationError as error:  # it was accepted by another version of the platform
                invalid = Dead("delivery.bad_channel", f"the channel's config is invalid: {error}")
                return _Used(used.org, _digest(used.config), Pace(), _always(invalid))
            need = JobNeeds(used.org, CHANNELS, used.name, frozenset(secrets_of(channel)))
            lookup = await self._vault.look_up(tx, [need]) if need.names else None
        handed = (await lookup.values())[need] if lookup is not None else {}
        if isinstance(handed, Denied):
            denied = _always(Dead("delivery.secret_denied", str(handed)))
            return _Used(used.org, _digest(used.config), pace_of(channel), denied)
        secrets = sorted((str(name), value) for name, value in handed.items())
        send = self._channels.sender(channel, handed, org=used.org)
        return _Used(used.org, _digest(used.config, secrets), pace_of(channel), send)

    async def claim(self, channel_id: UUID, holder: UUID, most: int) -> list[ClaimedDelivery]:
        async with self._database.statement("deliver_claim") as tx:
            return await deliveries.claim(tx, channel_id, self._process, holder, most)

    async def record(self, holder: UUID, outcomes: list[Recorded]) -> None:
        async with self._database.statement("deliver") as tx:
            counted = await deliveries.record(tx, holder, outcomes)
        ended: Counter[str] = Counter()
        for outcome in outcomes:
            if outcome.delivery_id in counted and not (outcome.state == "waiting" and outcome.is_unsent):
                ended["postponed" if outcome.state == "waiting" else outcome.state] += 1
                self._tell(outcome)
        for became, number in ended.items():
            telemetry.count("deliveries_total", number, outcome=became)
        before, dead = self._passed, ended.total() - ended["delivered"] - ended["postponed"]
        self._passed = Passed(
            before.delivered + ended["delivered"], before.postponed + ended["postponed"], before.dead + dead
        )

    def _tell(self, outcome: Recorded) -> None:
        if outcome.state not in ("delivered", "waiting"):
            telemetry.emit(
                "delivery.dead",
                "error",
                delivery=str(outcome.delivery_id),
                code=outcome.code,
                **({} if outcome.status is None else {"status": outcome.status}),
            )


class _Sender:
    """Sends over one channel until nothing is ready. If that fails, the next pass starts again.

    Messages are claimed ahead of those in flight, and outcomes are recorded while others are sent, so that a fast
    receiver does not wait for Postgres.
    """

    def __init__(self, owner: Deliveries, channel_id: UUID) -> None:
        self._owner, self._channel_id = owner, channel_id
        self._holder = uuid4()
        """Not the process: what a sender that failed left unrecorded is sent by the next one."""
        self._wake = asyncio.Event()
        self._stops = False
        self._has_all = False
        """Nothing else was ready when it last looked."""
        self._claimed: deque[ClaimedDelivery] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._ended: list[Recorded] = []
        self._recording: asyncio.Task[None] | None = None
        self._org = ""
        self._send: Sender = _always(Retry("delivery.unavailable", "not ready"))
        self._breaker = Breaker(Pace(), time.monotonic)
        self._config_until = 0.0
        self.task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """When everything in flight has ended and is recorded."""
        self._stops = True
        self._wake.set()

    def look(self) -> None:
        """There may be more to send."""
        self._has_all = False
        self._wake.set()

    async def _run(self) -> None:
        try:
            while await self._turn():
                pass
        except Exception as error:
            telemetry.emit("delivery.failed", "error", channel=str(self._channel_id), **describe(error))
        finally:
            self._claimed.clear()
            self._owner.connections.forget(self._channel_id)
            for task in (*self._in_flight, *((self._recording,) if self._recording else ())):
                task.cancel()

    async def _turn(self) -> bool:
        """Whether there is more to do."""
        self._wake.clear()
        wait = None if self._stops else await self._claim()
        if self._stops or self._breaker.is_paused:
            self._give_back()
        self._start()
        is_busy = bool(self._claimed or self._in_flight or self._ended or self._recording)
        if not is_busy and wait is None:
            return False
        await happens(self._wake, within=_LOOK_SECONDS if wait is None else min(wait, _LOOK_SECONDS))
        if self._recording is not None and self._recording.done():
            recording, self._recording = self._recording, None
            recording.result()
            self._has_all = False  # what comes after these in an incident may be sent now
            self._record()
        return True

    async def _claim(self) -> float | None:
        """Claims as much as the pace allows; the seconds until more is allowed. None: nothing else is ready."""
        room = _MOST_CLAIMED - len(self._claimed) - len(self._in_flight)
        if self._has_all and room == _MOST_CLAIMED:
            return None
        if time.monotonic() >= self._config_until:
            used = await self._owner.channel(self._channel_id)
            if used is None:
                self._claimed.clear()
                return None
            self._org, self._send = used.org, used.send
            self._breaker = await self._owner.breaker(self._channel_id, used)
            self._config_until = time.monotonic() + _CONFIG_SECONDS
        if self._has_all:
            return None
        if room < _MOST_CLAIMED // 2:
            return _LOOK_SECONDS
        allowed, wait = 0, 0.0
        while allowed < room and not (wait := self._breaker.take()):
            allowed += 1
        if not allowed:
            return wait
        claimed = await self._owner.claim(self._channel_id, self._holder, allowed)
        for _ in range(allowed - len(claimed)):
            self._breaker.put_back()
        self._claimed += claimed
        self._has_all = len(claimed) < allowed
        return None if self._has_all else wait

    def _give_back(self) -> None:
        """What is claimed and was not sent is as if nobody had claimed it."""
        for delivery in self._claimed:
            self._ended.append(Recorded(delivery.delivery_id, "waiting", is_unsent=True))
            self._breaker.put_back()
        self._claimed.clear()
        self._record()

    def _start(self) -> None:
        connections = self._owner.connections
        while self._claimed and len(self._in_flight) < _MOST_IN_FLIGHT:
            org = self._org
            if not connections.take(org, self._channel_id):
                if not self._in_flight:
                    connections.wait(self._channel_id, self._start_if_used)
                return
            task = asyncio.create_task(self._deliver(self._claimed.popleft()))
            self._in_flight.add(task)
            task.add_done_callback(partial(self._end, org))

    def _start_if_used(self) -> None:
        if not self._breaker.is_paused:
            self._start()

    def _end(self, org: str, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._owner.connections.give_back(org, self._channel_id)
        self._record()
        self._start_if_used()
        is_paused = self._breaker.is_paused
        is_short = len(self._claimed) + len(self._in_flight) <= _MOST_CLAIMED // 2
        if is_paused or not self._in_flight or (is_short and not self._has_all):
            self._wake.set()

    async def _deliver(self, delivery: ClaimedDelivery) -> None:
        if delivery.tries == 1:
            telemetry.observe("delivery_wait_seconds", delivery.age_seconds)
        started, breaker = time.perf_counter(), self._breaker
        try:
            became = await self._send(delivery.message)
        except Exception as error:
            telemetry.emit("delivery.failed", "error", channel=str(self._channel_id), **describe(error))
            became = Retry("internal.unexpected", f"{type(error).__name__} while the message was sent")
        telemetry.observe("delivery_send_seconds", time.perf_counter() - started)
        breaker.record(became)
        if breaker is not self._breaker and isinstance(became, Retry):
            became = replace(became, after_seconds=None)  # it is sent to another receiver next
        self._ended.append(recorded(delivery, became))

    def _record(self) -> None:
        """Outcomes that come while others are recorded are recorded together after those."""
        if self._ended and self._recording is None:
            ended, self._ended = self._ended, []
            self._recording = asyncio.create_task(self._record_all(ended))
            self._recording.add_done_callback(lambda _: self._wake.set())

    async def _record_all(self, ended: list[Recorded]) -> None:
        # Rather than to send them all again, if Postgres is back before another process may take over.
        await retrying(
            lambda: self._owner.record(self._holder, ended),
            on=DatabaseUnavailable,
            pauses=pauses(0.1, 1.0, seconds=_LEASE.total_seconds()),
        )


def recorded(delivery: ClaimedDelivery, became: Became) -> Recorded:
    """By the one retry rule."""
    match became:
        case Delivered(note):
            code = None if note is None else "delivery.partial"
            return Recorded(delivery.delivery_id, "delivered", code, note)
        case Retry() | Dead():
            tries = AttemptFacts(
                attempt=delivery.tries, max_attempts=MOST_TRIES, cancel_requested=False, endless=False
            )
            asked_for = became.after_seconds if isinstance(became, Retry) else None
            pause = max(backoff(delivery.tries, _FIRST_PAUSE, _LONGEST_PAUSE), asked_for or 0.0)
            is_dead = state_after_failure(tries, retryable=isinstance(became, Retry)) is TaskState.DEAD
            state: State = "dead" if is_dead else "waiting"
            return Recorded(
                delivery.delivery_id,
                state,
                became.code,
                became.reason,
                0.0 if is_dead else pause,
                status=became.status,
            )
        case _:
            assert_never(became)


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).digest()


def _always(became: Became) -> Sender:
    async def send(_: Message) -> Became:
        return became

    return send
