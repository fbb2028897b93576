"""Which platform a command talks to, and what to say when it is not there or is another one than the user thinks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from traceplane.cli import profile
from traceplane.errors import PlatformError, TraceplaneError, Unauthenticated
from traceplane.settings import Settings, user_token, with_tokens


def with_user_token(settings: Settings) -> tuple[Settings, str]:
    """The settings with the tokens of the home folder, and the one that proves who calls."""
    return with_tokens(settings), user_token(settings)


@contextlib.contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Errors that come of talking to the wrong address say so."""
    try:
        yield
    except TraceplaneError as error:
        if error.code == "token.unknown":
            raise _other_platform(settings) from error
        if error.code == "service.unreachable" and settings.gateway_url is None:
            raise PlatformError(
                error.code, error.message, value=error.value, next_step=_where_it_runs(settings)
            ) from error
        raise


def _other_platform(settings: Settings) -> Unauthenticated:
    home = settings.home.resolve()
    if settings.user_token is not None:
        return Unauthenticated(
            "cli.other_platform",
            "this is another platform than the one that issued the token in user_token",
            value=settings.gateway_address,
            next_step="set TRACEPLANE_GATEWAY_URL to that one's address, or use a token of this one",
        )
    return Unauthenticated(
        "cli.other_platform",
        f"this is another platform than the one of {home}: it did not issue the token that is there",
        value=settings.gateway_address,
        next_step=_where_it_runs(settings),
    )


def _where_it_runs(settings: Settings) -> str:
    home, here = settings.home.resolve(), profile.running_here(settings)
    if here is None:
        return (
            f"no platform runs in {home} now: start it with `traceplane up`, on ports that are free,"
            " or go to the folder of the one that runs"
        )
    if here.url != settings.gateway_address:
        return f"the platform of {home} is at {here.url}: set TRACEPLANE_GATEWAY_URL={here.url}"
    return f"the platform of {home} runs as process {here.pid}: see what it prints, and try again"
