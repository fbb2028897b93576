"""What providers publish: their addresses and keys, fetched, kept and fetched again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from traceplane import telemetry
from traceplane.errors import PlatformError, TraceplaneError
from traceplane.http_service.outgoing import Outgoing, json_of
from traceplane.signin.jwts import ProviderKey, keys_of

FRESH_SECONDS = 600.0
"""After this, what an issuer publishes is fetched again, so that a key that it withdrew is not accepted for long."""
USABLE_SECONDS = 24 * 3600.0
"""How long keys are used if their issuer does not answer."""
APART_SECONDS = 30.0
"""The shortest time between two fetches because of a key that is not known: anybody can make such a JWT."""
_AFTER_FAILURE_SECONDS = 5.0


class Published(msgspec.Struct, frozen=True):
    """The discovery document of a provider, as far as it is needed."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] = []
    authorization_response_iss_parameter_supported: bool = False


@dataclass(slots=True)
class _Known:
    published: Published | None = None
    keys: list[ProviderKey] = field(default_factory=list)
    fetched_at: float = float("-inf")
    failed_at: float = float("-inf")
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class Issuers:
    """Kept by issuer, for all organizations that trust it: what it publishes is the same for all."""

    def __init__(self, outgoing: Outgoing, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._outgoing = outgoing
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def published(self, issuer: str) -> Published:
        known = self._known.setdefault(issuer, _Known())
        if known.published is None or self._age(known) > USABLE_SECONDS:
            await self._fetch(issuer, known, unless_newer_than=USABLE_SECONDS)
        assert known.published is not None
        return known.published

    async def keys(self, issuer: str, kid: str) -> list[ProviderKey]:
        """The keys of an issuer; fetched again if this one is not among them, but only so often."""
        known = self._known.setdefault(issuer, _Known())
        if self._age(known) > USABLE_SECONDS:
            await self._fetch(issuer, known, unless_newer_than=USABLE_SECONDS)
        elif all(key.kid != kid for key in known.keys) and self._age(known) > APART_SECONDS:
            await self._fetch(issuer, known, unless_newer_than=APART_SECONDS)
        return known.keys

    async def refresh(self, issuers: Collection[str]) -> int:
        """Fetches again what is no longer fresh, and forgets all other issuers; the number of those that failed."""
        for issuer in self._known.keys() - set(issuers):
            del self._known[issuer]
        due = [(issuer, known) for issuer, known in self._known.items() if self._age(known) > FRESH_SECONDS]
        fetches = (self._fetch(issuer, known, unless_newer_than=FRESH_SECONDS) for issuer, known in due)
        outcomes = await asyncio.gather(*fetches, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, TraceplaneError):
                raise outcome
        return sum(outcome is not None for outcome in outcomes)

    def _age(self, known: _Known) -> float:
        return self._clock() - known.fetched_at

    async def _fetch(self, issuer: str, known: _Known, *, unless_newer_than: float) -> None:
        async with known.one_at_a_time:
            if self._age(known) <= unless_newer_than:
                return  # another call has fetched it meanwhile
            if self._clock() - known.failed_at < _AFTER_FAILURE_SECONDS:
                raise _unavailable(issuer)
            try:
                published, keys = await self._fetched(issuer)
            except TraceplaneError as error:
                known.failed_at = self._clock()
                telemetry.emit("sign_in.issuer_failed", "warning", issuer=issuer, reason=str(error))
                if isinstance(error, PlatformError):
                    raise _unavailable(issuer) from error
                raise
            known.published, known.keys, known.fetched_at = published, keys, self._clock()

    async def _fetched(self, issuer: str) -> tuple[Published, list[ProviderKey]]:
        url = issuer.rstrip("/") + "/.well-known/openid-configuration"
        outgoing = self._outgoing.of(issuer)  # organizations have it in common
        answer = await outgoing.get(url)
        if answer.status != 200:
            raise _not_published(url, f"status {answer.status}")
        published = json_of(answer, url, Published)
        if published.issuer != issuer:
            raise _not_published(url, f"it is of the issuer {published.issuer[:200]}")
        for address in (
            published.authorization_endpoint,
            published.token_endpoint,
            published.device_authorization_endpoint,
        ):
            if address is not None:
                outgoing.check(address)
        answer = await outgoing.get(published.jwks_uri)
        if answer.status != 200:
            raise _not_published(published.jwks_uri, f"status {answer.status}")
        try:
            return published, keys_of(answer.body)
        except (ValueError, RecursionError):
            raise _not_published(published.jwks_uri, "it is not a JWKS document") from None


def _not_published(url: str, why: str) -> PlatformError:
    return PlatformError(
        "sign_in.bad_issuer", f"what the identity provider publishes cannot be used: {why}", value=url[:200]
    )


def _unavailable(issuer: str) -> PlatformError:
    return PlatformError(
        "sign_in.issuer_unavailable",
        "the identity provider does not answer, or not as it should; the gateway's log says more",
        value=issuer,
        next_step="check its issuer address, and try again",
    )
