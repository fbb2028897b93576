"""Deliveries to webhook sources: checked, and answered once they are committed.

The order is fixed, so that what anybody may send costs little: find the source, look at the headers, read the body up
to its limit, compare the signature, and only then parse. Deliveries that arrive together share a transaction, which
adds their keys, their rows and their events, or nothing. A key that is there already makes a delivery a repetition,
whoever crashed in between.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.rights import access_of
from traceplane.errors import Forbidden, InvalidInput, NotFound, PlatformError, TooLarge, TraceplaneError
from traceplane.gateway import partition_names as names
from traceplane.http_service.routes import JSON, PUBLIC, Call, Route, UnsupportedMediaType
from traceplane.model import hook_keys
from traceplane.model.partitions import By
from traceplane.postgres import events, partition_names, tokens, webhooks
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.postgres.webhooks import KeptDelivery, SourceAsRead, WebhookSource
from traceplane.runtime.group_commit import GroupCommit
from traceplane.runtime.process import Outcome
from traceplane.secrets.references import SecretName, found_in, replaced
from traceplane.secrets.vault import Denied, JobNeeds, Lookup, Vault, place_of
from traceplane.settings import Settings
from traceplane.webhooks import bodies, signatures
from traceplane.webhooks.bodies import Body
from traceplane.webhooks.config import LONGEST_KEY, Preset
from traceplane.webhooks.signatures import Scheme, SignatureRefused
from traceplane.wire.webhooks import DeliveryResponse, RefusalView, WebhooksResponse, WebhookView

READER = "reader"
REFRESH_SECONDS = 2.0
_APART_SECONDS = 0.2
"""The shortest time between two reads of the sources for the sake of unknown paths."""
_AT_ONCE = 256
"""Deliveries of one transaction. There is one at a time: those of one source would wait for each other anyway, and
fewer, larger groups cost less."""
_DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A source, with what its checks need."""

    source: WebhookSource
    scheme: Scheme | None
    keys: tuple[bytes, ...]
    missing: tuple[str, ...]
    """Keys that this process does not have: variables, or references to secrets."""
    needs: JobNeeds

    @property
    def label(self) -> str:
        return f"{self.source.org}/{self.source.config.path}"

    @property
    def preset(self) -> Preset | None:
        verify = self.source.config.verify
        return verify.preset if verify is not None else None


class _Delivery(msgspec.Struct, frozen=True):
    source: WebhookSource
    key: str
    kept: KeptDelivery | None
    """None: only its event is wanted."""
    scope: int | str | None = None
    """Of that event: a position, or a name whose position the transaction finds."""


class _Committed(msgspec.Struct, frozen=True):
    outcome: str
    """accepted | duplicate | gone: the source was changed in the meantime"""
    number: int | None = None


@dataclass(slots=True)
class _Sources:
    """What was deployed when it was last read, and the database's clock at that moment."""

    endpoints: dict[tuple[str, str], Endpoint | None] = field(default_factory=dict)
    """By organization and path; None: several sources have the path."""
    clock: float = 0.0
    read_at: float = 0.0

    @property
    def now(self) -> float:
        return self.clock + time.monotonic() - self.read_at


class Webhooks:
    def __init__(self, database: Database, settings: Settings, vault: Vault) -> None:
        self._database = database
        self._settings = settings
        self._vault = vault
        self._sources = _Sources()
        self._one_look_at_a_time = asyncio.Lock()
        self._looked_at = 0.0
        self._commits: GroupCommit[_Delivery, _Committed] = GroupCommit(
            "webhook", self._commit, max_items=_AT_ONCE, concurrency=1
        )
        self._bytes = 0
        """Of all bodies in memory."""
        self._waiting: Counter[UUID] = Counter()
        """Deliveries of each source that wait for their commit."""
        self._refused: Counter[tuple[UUID, str]] = Counter()
        """Not yet stored."""
        self._checked_with: set[JobNeeds] = set()
        """Whose signing keys deliveries were checked with; not yet noted as used."""

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/hooks/{org}/{path}", bytes, DeliveryResponse, self.receive, PUBLIC,
                  "Deliver to a webhook source.", reads_own_body=True),
            Route("GET", "/api/v1/webhooks", None, WebhooksResponse, self.views, READER,
                  "Webhook sources, and what they refused."),
        ]  # fmt: skip

    # Sources -----------------------------------------------------------------------------------------

    async def refresh(self) -> Outcome:
        """Reads the sources anew, and stores what was refused and which keys were used; runs as a loop."""
        refused, self._refused = self._refused, Counter()
        checked_with, self._checked_with = self._checked_with, set()
        try:
            async with self._database.transaction() as tx:
                if refused:
                    await webhooks.add_refusals(tx, refused)
                sources = await webhooks.sources(tx)
                lookup = await self._look_up(tx, sources)
                if checked_with:
                    places = {place_of(need.org, name) for need in checked_with for name in need.names}
                    await self._vault.note_use(tx, places)
                clock = await tokens.clock(tx)
        except BaseException:
            self._refused.update(refused)
            self._checked_with |= checked_with
            raise
        handed = await lookup.values() if lookup is not None else {}
        endpoints: dict[tuple[str, str], Endpoint | None] = {}
        for source in sources:
            place = (source.org, source.config.path)
            endpoints[place] = (
                None if place in endpoints else self._endpoint(source, handed.get(_needs(source)))
            )
        self._sources = _Sources(endpoints, clock, time.monotonic())
        self._log(refused)
        return Outcome()

    async def _look_up(self, tx: Transaction, sources: Sequence[WebhookSource]) -> Lookup | None:
        """A gateway reads the keys all the time; only a delivery uses them."""
        needs = {need for source in sources if (need := _needs(source)).names}
        return await self._vault.look_up(tx, needs, used=False) if needs else None

    def _endpoint(self, source: WebhookSource, handed: Mapping[SecretName, str] | Denied | None) -> Endpoint:
        verify, named = source.config.verify, source.config.keys
        secrets = handed if isinstance(handed, Mapping) else {}
        found = {
            name: key
            for name in named
            if (key := replaced(name, secrets) if found_in(name) else self._variable(name, source))
        }
        missing = tuple(name for name in named if name not in found or found_in(found[name]))
        found = {name: key for name, key in found.items() if name not in missing}
        scheme = signatures.scheme_of(verify) if verify is not None else None
        return Endpoint(
            source, scheme, tuple(key.encode() for key in found.values()), missing, _needs(source)
        )

    def _variable(self, name: str, source: WebhookSource) -> str | None:
        return self._settings.hook_keys.get(name) if hook_keys.belongs_to(name, source.org) else None

    def _log(self, refused: Mapping[tuple[UUID, str], int]) -> None:
        """One line for each reason, however often: whoever sends rubbish must not fill the disk."""
        labels = {e.source.dataset_uuid: e.label for e in self._sources.endpoints.values() if e is not None}
        for (dataset, code), count in refused.items():
            if code != _DUPLICATE:
                source = labels.get(dataset, str(dataset))
                telemetry.emit("webhook.refused", "warning", source=source, code=code, count=count)

    async def _find(self, org: str, path: str) -> Endpoint:
        place = (org, path)
        if place not in self._sources.endpoints:
            await self._look_again()
        if place not in self._sources.endpoints:
            telemetry.count("webhook_refused_total", source="?", code="webhook.unknown")
            raise NotFound(
                "webhook.unknown",
                "no webhook source has this path",
                value=f"{org}/{path}"[:200],
                next_step="see `traceplane webhooks` for the sources that there are",
            )
        endpoint = self._sources.endpoints[place]
        if endpoint is None:
            raise PlatformError(
                "webhook.path_ambiguous",
                "two sources have this path since a rollback, so nothing is accepted",
                value=f"{org}/{path}",
                next_step="give one of them another path",
            )
        return endpoint

    async def _look_again(self) -> None:
        """The path may be only seconds old."""
        asked_at = time.monotonic()
        async with self._one_look_at_a_time:
            if self._looked_at < asked_at:
                await asyncio.sleep(self._looked_at + _APART_SECONDS - asked_at)
                self._looked_at = time.monotonic()
                await self.refresh()

    async def views(self, call: Call[None]) -> WebhooksResponse:
        org = call.principal.org
        await self.refresh()
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, org, call.principal)
            refusals: dict[UUID, list[RefusalView]] = {}
            for r in await webhooks.refusals(tx, org):
                refusals.setdefault(r.dataset_uuid, []).append(RefusalView(r.code, r.count, r.last_at))
        endpoints = [e for e in self._sources.endpoints.values() if e is not None and e.source.org == org]
        return WebhooksResponse(
            [
                WebhookView(
                    org=e.source.org,
                    path=e.source.config.path,
                    dag=e.source.dag,
                    job=e.source.job,
                    dataset=e.source.dataset_id,
                    verification="none" if e.scheme is None else str(e.preset or "hmac"),
                    keys_missing=list(e.missing),
                    refusals=refusals.get(e.source.dataset_uuid, []),
                )
                for e in sorted(endpoints, key=lambda e: e.source.config.path)
                if access.reads(e.source.dataset_id)
            ]
        )

    # One delivery ------------------------------------------------------------------------------------

    async def receive(self, call: Call[bytes]) -> DeliveryResponse:
        endpoint = await self._find(call.path_params["org"], call.path_params["path"])
        try:
            answer = await self._receive(endpoint, call)
        except TraceplaneError as error:
            self._count(endpoint, error.code)
            telemetry.count("webhook_refused_total", source=endpoint.label, code=error.code)
            raise
        telemetry.count("webhook_deliveries_total", source=endpoint.label, outcome=answer.status)
        if answer.status == _DUPLICATE:
            self._count(endpoint, _DUPLICATE)
        return answer

    def _count(self, endpoint: Endpoint, code: str) -> None:
        self._refused[endpoint.source.dataset_uuid, code] += 1

    async def _receive(self, endpoint: Endpoint, call: Call[bytes]) -> DeliveryResponse:
        config, headers = endpoint.source.config, call.headers_sent
        form = _is_form(call.header("content-type") or "")
        signature = None
        try:
            if endpoint.scheme is not None:
                _check_keys(endpoint)
                signature = signatures.read(endpoint.scheme, headers, self._sources.now)
            pieces: list[bytes] = []
            try:
                raw = await self._body(call, pieces)
                if signature is not None and not signature.matches(endpoint.keys, raw):
                    raise signatures.wrong()
                if endpoint.needs.names:
                    self._checked_with.add(endpoint.needs)
                body = _parsed(raw, form=form)
                if (answer := _answered(endpoint, headers, body)) is not None:
                    return answer
                key = _key(endpoint, headers, body)
                delivery = (
                    _Delivery(
                        endpoint.source, key, KeptDelivery(key, _kept(config.headers, headers), body.text)
                    )
                    if config.scope is None
                    else _Delivery(endpoint.source, key, None, _scope(endpoint.source, config.scope, body))
                )
                return await self._deliver(delivery)
            finally:
                self._bytes -= sum(map(len, pieces))
        except SignatureRefused as refused:
            raise Forbidden(refused.code, refused.message, next_step=refused.next_step) from None

    async def _body(self, call: Call[bytes], pieces: list[bytes]) -> bytes:
        """The whole body; its pieces are added to `pieces` as they arrive. All bodies together have a limit: what
        was received counts, not what was announced, so a slow sender takes only the room of what it has sent."""
        limit, most = self._settings.webhook_max_body_bytes, self._settings.webhook_memory_mb << 20
        size = int(call.header("content-length") or 0)
        held = 0
        if size <= limit:
            async for piece in call.pieces():
                pieces.append(piece)
                held += len(piece)
                self._bytes += len(piece)
                if held > limit:
                    break
                if self._bytes > most:
                    raise _overloaded("the gateway holds as many deliveries as it may")
        if max(size, held) > limit:
            raise TooLarge(
                "request.too_large",
                f"the body is longer than {limit} bytes",
                next_step="send less at once",
            )
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _deliver(self, delivery: _Delivery) -> DeliveryResponse:
        source = delivery.source
        if self._waiting[source.job_id] >= self._settings.webhook_max_waiting:
            raise _overloaded("as many deliveries of this source wait for their commit as may")
        self._waiting[source.job_id] += 1
        try:
            (committed,) = await self._commits.submit([delivery])
        finally:
            self._waiting[source.job_id] -= 1
            if not self._waiting[source.job_id]:
                del self._waiting[source.job_id]
        match committed.outcome:
            case "accepted":
                return DeliveryResponse("accepted", committed.number)
            case "duplicate":
                return DeliveryResponse("duplicate")
        raise PlatformError(
            "webhook.source_changed",
            "the source was deployed anew at this moment",
            next_step="repeat the delivery",
        )

    # A group of them ---------------------------------------------------------------------------------

    async def _commit(self, deliveries: Sequence[_Delivery]) -> Sequence[_Committed]:
        async def once() -> tuple[list[_Committed], events.AcceptedEvents]:
            async with self._database.transaction("webhook") as tx:
                return await _commit(tx, deliveries)

        committed, accepted = await retry_on_conflict(once)
        if any(c.outcome == "gone" for c in committed):
            self._sources.endpoints.clear()  # the next delivery reads them anew
        telemetry.count("events_accepted_total", sum(c.outcome == "accepted" for c in committed))
        telemetry.count("tasks_created_total", accepted.tasks_created)
        return committed


async def _commit(
    tx: Transaction, deliveries: Sequence[_Delivery]
) -> tuple[list[_Committed], events.AcceptedEvents]:
    serving, new = await _new_ones(tx, deliveries)
    positions = await _positions(tx, new)
    now = time.time_ns()
    accepted = await events.accept(
        tx,
        [_event(d, *position, now) for d, position in zip(new, positions, strict=True)],
        notify_dispatchers=True,
    )
    numbers = {
        id(d): position[1] if d.kept is not None else None
        for d, position, event_id in zip(new, positions, accepted.event_ids, strict=True)
        if event_id is not None
        or d.kept is not None  # or it was accepted so long ago that its key is forgotten
    }
    return [
        _Committed("gone")
        if d.source.as_read not in serving
        else _Committed("accepted", numbers[id(d)])
        if id(d) in numbers
        else _Committed("duplicate")
        for d in deliveries
    ], accepted


async def _new_ones(
    tx: Transaction, deliveries: Sequence[_Delivery]
) -> tuple[set[SourceAsRead], list[_Delivery]]:
    """The sources that are still as they were read, and of their deliveries those that are new: in their
    order, and of those with the same key the first."""
    first: dict[tuple[SourceAsRead, str], _Delivery] = {}
    for delivery in deliveries:
        first.setdefault((delivery.source.as_read, delivery.key), delivery)
    sources = {delivery.source.as_read: delivery.source for delivery in deliveries}
    serving, added = await webhooks.add_keys(tx, list(sources.values()), list(first))
    return serving, [delivery for place, delivery in first.items() if place in added]


async def _positions(tx: Transaction, new: Sequence[_Delivery]) -> list[tuple[str | None, int]]:
    """The partition, if it has a name, and the position of each event; deliveries that are kept get theirs here."""
    named: dict[str, list[str]] = {}
    kept: dict[UUID, tuple[UUID, list[KeptDelivery]]] = {}
    for d in new:
        if isinstance(d.scope, str):
            named.setdefault(d.source.org, []).append(d.scope)
        elif d.kept is not None:
            kept.setdefault(d.source.generation_id, (d.source.voice, []))[1].append(d.kept)
    registered = {org: await partition_names.register(tx, org, named[org]) for org in sorted(named)}
    free = await webhooks.keep(tx, kept) if kept else {}
    positions: list[tuple[str | None, int]] = []
    for d in new:
        match d.scope:
            case str():
                positions.append((d.scope, registered[d.source.org][d.scope]))
            case int():
                partitions = d.source.partitions
                positions.append((partitions.name(d.scope) if partitions.is_named else None, d.scope))
            case None:
                positions.append((None, free[d.source.generation_id]))
                free[d.source.generation_id] += 1
    return positions


def _event(delivery: _Delivery, partition: str | None, position: int, now: int) -> NewEvent:
    source = delivery.source
    return NewEvent(
        producer_id=source.voice,
        generation_id=source.generation_id,
        kind="data",
        partition_key=partition,
        start=position,
        end=position,
        emission=delivery.key,
        traceparent=telemetry.record_span("event", None, now, now, dataset=source.dataset_id),
    )


def _needs(source: WebhookSource) -> JobNeeds:
    return JobNeeds(source.org, source.dag, source.job, frozenset(found_in(source.config.keys)))


# What a delivery says --------------------------------------------------------------------------------


def _is_form(content_type: str) -> bool:
    if bodies.is_form(content_type):
        return True
    if bodies.is_json(content_type):
        return False
    raise UnsupportedMediaType(
        "request.unsupported_media_type",
        "the body must be JSON or a form",
        value=content_type[:200] or None,
        next_step=f"send content-type: {JSON} or {bodies.FORM}",
    )


def _check_keys(endpoint: Endpoint) -> None:
    if not endpoint.keys:
        raise PlatformError(
            "webhook.no_key",
            "the gateway does not have the key that deliveries are signed with",
            next_step="tell the owner of the source, whom `traceplane webhooks` shows what is missing",
        )


def _parsed(raw: bytes, *, form: bool) -> Body:
    try:
        return bodies.parse(raw, form=form)
    except bodies.NotABody as error:
        raise InvalidInput("webhook.body_invalid", f"the body cannot be read: {error}") from None


def _answered(endpoint: Endpoint, headers: signatures.Headers, body: Body) -> DeliveryResponse | None:
    """The answer to a sender that only tests whether somebody listens."""
    if endpoint.preset is Preset.GITHUB and signatures.the_one(headers, "X-GitHub-Event") == b"ping":
        return DeliveryResponse("answered")
    if endpoint.preset is Preset.SLACK and isinstance(body.value, dict):
        challenge = body.value.get("challenge")
        if body.value.get("type") == "url_verification" and isinstance(challenge, str):
            return DeliveryResponse("answered", challenge=challenge[:1000])
    return None


def _key(endpoint: Endpoint, headers: signatures.Headers, body: Body) -> str:
    """What identifies the delivery."""
    dedupe = endpoint.source.config.dedupe
    if dedupe.header is not None:
        place, value = f"header {dedupe.header}", signatures.the_one(headers, dedupe.header)
        key: Any = None if value is None else value.decode("latin-1")
    else:
        assert dedupe.pointer is not None
        place, key = f"body at {dedupe.pointer or 'its top'}", _at(body, dedupe.pointer)
    if key is None:
        raise InvalidInput(
            "webhook.key_missing",
            f"the {place} must identify the delivery, once",
            next_step="send it, or correct the source's `dedupe`",
        )
    text = str(key) if _is_whole(key) else key
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_KEY or not text.isprintable():
        raise InvalidInput(
            "webhook.key_invalid",
            f"the {place} must be a whole number, or 1 to {LONGEST_KEY} visible characters",
            next_step="correct it, or the source's `dedupe`",
        )
    return text


def _kept(wanted: Sequence[str], headers: signatures.Headers) -> str:
    """The headers that are kept, as a JSON object with names in lower case."""
    found = {name.lower(): signatures.the_one(headers, name) for name in wanted}
    return json.dumps({name: value.decode("latin-1") for name, value in found.items() if value is not None})


def _scope(source: WebhookSource, pointer: str, body: Body) -> int | str:
    """The position that the body names; of partitions by name, the name."""
    value = _at(body, pointer)
    if not _is_whole(value) and not isinstance(value, str):
        raise InvalidInput(
            "webhook.scope_missing",
            f"the body must have a position or the name of a partition at {pointer or 'its top'}",
            next_step="send it, or correct the source's `scope`",
        )
    text, partitions = str(value), source.partitions
    if partitions.by is By.NAME and partitions.may_have(text):
        return text
    position = names.position(partitions, text[:200])
    if not -(2**63) <= position < 2**63:
        raise InvalidInput("scope.bad_partition", "a position fits 64 bits", value=text[:200])
    return position


def _at(body: Body, pointer: str) -> Any:
    try:
        return bodies.find(body.value, pointer)
    except LookupError:
        return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _overloaded(why: str) -> PlatformError:
    return PlatformError("webhook.overloaded", why, next_step="repeat the delivery")
