"""Links that sign a browser in with the rights of a token: on a laptop nobody has an account to sign in with.

Whoever has a user token gets a code, which works once and for some minutes. The browser that opens the link hands it in
and gets a user token of its own in a cookie, with the same rights and the same name: who revokes tokens by that
name, or disables their member, ends both. The code is no token: it opens nothing but this door.

The code stands behind the `#` of the link, so that neither the server's logs nor other sites see it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from traceplane import telemetry
from traceplane.auth.access import KNOWN, bearer
from traceplane.auth.callers import Caller, CallerKind
from traceplane.auth.opaque import PREFIXES, Principal, TokenRecord, hash_token
from traceplane.auth.store import BY_SIGN_IN, add_code, exchange_code
from traceplane.errors import Conflict, Unauthenticated
from traceplane.http_service.routes import PUBLIC, Call, Incoming, Reply, Route
from traceplane.postgres import audit
from traceplane.postgres.audit import Act
from traceplane.postgres.database import Database
from traceplane.signin.browser import Site, hashed, new_secret
from traceplane.wire.sign_in import BrowserCode, BrowserLink, BrowserSignedIn, SignedInAs

LINK_SECONDS = 600
SESSION_SECONDS = 12 * 3600


class BrowserLinks:
    def __init__(
        self, database: Database, gateway_address: str, find: Callable[[str], TokenRecord | None]
    ) -> None:
        self._database, self._gateway_address, self._find = database, gateway_address, find

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/auth/browser-link", None, BrowserLink, self.link, KNOWN,
                  "A link that signs a browser in, once."),
            Route("POST", "/auth/browser", BrowserCode, Reply, self.enter, PUBLIC,
                  "Sign this browser in with the code of a link.", statuses=(401, 403, 409)),
        ]  # fmt: skip

    async def link(self, call: Call[None]) -> BrowserLink:
        site = Site.at(self._gateway_address)
        caller: Caller = call.principal
        header = call.header("authorization")
        record = None if header is None else self._find(bearer(header))
        if record is None or record.made_from is not None:
            raise Conflict(
                "sign_in.link_needs_token",
                "only a user token makes links that sign browsers in",
                value=caller.name,
                next_step="sign in at /auth/login, or call with a user token that was issued to you",
            )
        code = new_secret()
        async with self._database.transaction() as tx:
            await add_code(tx, record, _hash_of_code(code), LINK_SECONDS)
            await audit.record_changes(tx, [caller.act])
        return BrowserLink(f"{site.origin}/#sign-in={code}", LINK_SECONDS)

    async def enter(self, call: Call[BrowserCode]) -> Reply:
        site = Site.at(self._gateway_address)
        site.check_host(call.headers_sent, call.remote)
        site.check_origin(call.headers_sent)
        async with self._database.transaction() as tx:
            exchanged = await exchange_code(
                tx, _hash_of_code(call.body.code), SESSION_SECONDS, created_by=BY_SIGN_IN
            )
            if exchanged is None:
                raise _unknown_code()
            token, record = exchanged
            assert record.org_id is not None
            member = record.member
            name = record.name if member is None else member.name
            _check_same(call.body.signed_in, record.org, name)
            act = Act(
                record.org_id,
                name,
                CallerKind.TOKEN if member is None else member.kind,
                "POST /auth/browser",
                call.remote,
                call.request_id,
            )
            await audit.record_changes(tx, [act])
        telemetry.emit("sign_in.by_link", org=record.org, principal=act.principal)
        return Reply(
            msgspec.json.encode(BrowserSignedIn(act.principal, SESSION_SECONDS)),
            headers=(
                site.set_cookie("session", token, SESSION_SECONDS, strict=True),
                site.set_cookie("csrf", csrf_of(token), SESSION_SECONDS, readable=True, strict=True),
            ),
        )


def is_browser_token(session: str) -> bool:
    """Whether the cookie of a session holds a user token, rather than the session of a member who signed in."""
    return session.startswith(PREFIXES[Principal.USER])


def check_browser(site: Site, incoming: Incoming, token: str) -> None:
    """A token in a cookie is valid for calls of our own pages only."""
    headers = tuple(incoming.headers.items())
    site.check_host(headers, incoming.remote)
    site.check_from_own_page(incoming.method, headers, hashed(csrf_of(token)))


def csrf_of(token: str) -> str:
    """What a page sends along to show that it is ours; derived, so that nothing more is stored."""
    return hash_token(f"csrf {token}")


def _hash_of_code(code: str) -> str:
    return hash_token(f"browser link {code}")


def _check_same(browser: SignedInAs | None, org: str | None, name: str) -> None:
    """A link of somebody else must not change whom an open page works for before its reader has agreed."""
    if browser is not None and (browser.org, browser.name) != (org, name):
        raise Conflict(
            "sign_in.other_person",
            f"this link signs in {name} of {org}, and the browser is signed in as {browser.name} of {browser.org}",
            value=f"{name} of {org}",
            next_step="agree to it, or stay signed in; the link is not used up",
        )


def _unknown_code() -> Unauthenticated:
    return Unauthenticated(
        "sign_in.link_used",
        "this link has been used, is older than ten minutes, or was never made here",
        next_step="make a new one with `traceplane ui`",
    )
