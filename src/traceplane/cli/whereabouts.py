"""Calls to a platform: which one it is, and what to print if it is unreachable or not the one the user expects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from traceplane.client.local_platform import where_it_runs
from traceplane.errors import Forbidden, PlatformError, TraceplaneError, Unauthenticated
from traceplane.http_service.client import Caller
from traceplane.settings import Settings, user_token, with_tokens
from traceplane.wire.scalars import Wire

Answer = TypeVar("Answer", bound=Wire)


def with_user_token(settings: Settings) -> tuple[Settings, str]:
    """The settings with the tokens of the home folder, and the user's token."""
    return with_tokens(settings), user_token(settings)


def call(settings: Settings, work: Callable[[Caller], Awaitable[Answer]]) -> Answer:
    """One conversation with the gateway."""
    chosen, token = with_user_token(settings)

    async def run() -> Answer:
        caller = Caller(chosen.gateway_address, token, tls_ca=chosen.tls_ca, org=chosen.org)
        try:
            return await work(caller)
        finally:
            await caller.close()

    with explained(settings):
        return asyncio.run(run())


@contextlib.contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Makes errors caused by the wrong address say so."""
    try:
        yield
    except TraceplaneError as error:
        if error.code == "token.unknown":
            raise _other_platform(settings) from error
        if error.code == "access.other_org":
            raise Forbidden(
                "cli.other_org",
                f"the setting org is {settings.org}, but {error.message}",
                value=settings.org,
                next_step="set TRACEPLANE_USER_TOKEN to a token of that organization, or unset TRACEPLANE_ORG",
            ) from error
        if error.code == "service.unreachable" and settings.gateway_url is None:
            raise PlatformError(
                error.code, error.message, value=error.value, next_step=where_it_runs(settings)
            ) from error
        raise


def _other_platform(settings: Settings) -> Unauthenticated:
    home = settings.home.resolve()
    if settings.user_token is not None:
        return Unauthenticated(
            "cli.other_platform",
            "the platform at this address did not issue the token in user_token",
            value=settings.gateway_address,
            next_step="set TRACEPLANE_GATEWAY_URL to the platform that issued it, or use a token of this one",
        )
    return Unauthenticated(
        "cli.other_platform",
        f"the platform at this address is not the one of {home}: it did not issue the token in that folder",
        value=settings.gateway_address,
        next_step=where_it_runs(settings),
    )
