"""What a browser brings along: cookies, where it may go next, and whether a call comes from our pages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import msgspec

from traceplane.errors import Forbidden, InvalidInput, Unauthenticated
from traceplane.signin.providers import Provider

ATTEMPT_SECONDS = 600
"""How long a person may take to sign in at the provider."""
CALLBACK = "/auth/callback"
HOME = "/api/v1/whoami"
"""Where a browser goes that was not on its way anywhere."""
SAFE_METHODS = frozenset({"GET", "HEAD"})

_LONGEST_NEXT = 1000
_NEXT = re.compile(r"/(?![/\\])[!-\[\]-~]*")  # printable ASCII without a backslash
_COOKIE_VALUE = re.compile(r"[A-Za-z0-9_-]{1,3500}")

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Site:
    """The gateway as browsers reach it.

    Over https, cookies have the prefix `__Host-`: browsers then send them to this host alone, never in clear text, and
    accept them from nobody else. Over plain http that is not possible, so it is only for a browser on this machine.
    """

    origin: str
    secure: bool

    @classmethod
    def at(cls, gateway_address: str) -> Site:
        parts = urlsplit(gateway_address)
        origin = f"{parts.scheme}://{parts.netloc}".lower()
        if parts.scheme == "https":
            return cls(origin, True)
        if not _is_loopback(parts.hostname or ""):
            raise InvalidInput(
                "sign_in.needs_https",
                "a browser can sign in over https only, or on the machine of the gateway",
                value=gateway_address,
                next_step="set gateway_url to the https address of the gateway",
            )
        return cls(origin, False)

    @property
    def callback(self) -> str:
        return self.origin + CALLBACK

    def cookie_name(self, what: str) -> str:
        return f"{'__Host-' if self.secure else ''}traceplane_{what}"

    def set_cookie(
        self, what: str, value: str, seconds: int, *, readable: bool = False, strict: bool = False
    ) -> tuple[bytes, bytes]:
        """`readable`: by the page's own scripts; no seconds: it is removed. `strict`: no other site can make a browser
        send it, not by a link either; what a provider redirects back must arrive, so there it is not."""
        attributes = [f"{self.cookie_name(what)}={value}", "Path=/", f"Max-Age={seconds}"]
        attributes += ["SameSite=Strict" if strict else "SameSite=Lax"]
        attributes += ["Secure"] if self.secure else []
        attributes += [] if readable else ["HttpOnly"]
        return b"set-cookie", "; ".join(attributes).encode("ascii")

    def cookie(self, headers: Headers, what: str) -> str | None:
        """None also if it was sent twice: then somebody else has set one of them."""
        name, values = self.cookie_name(what), []
        for header, content in headers:
            if header == b"cookie":
                for pair in content.decode("latin-1").split(";"):
                    key, _, value = pair.strip().partition("=")
                    if key == name:
                        values.append(value)
        return values[0] if len(values) == 1 and _COOKIE_VALUE.fullmatch(values[0]) else None

    def check_host(self, headers: Headers, remote_address: str | None) -> None:
        """Cookies over plain http are accepted from this machine alone, and under the name that it is called by."""
        if self.secure:
            return
        host = (_header(headers, b"host") or "").lower()
        if f"http://{host}" != self.origin or not _is_loopback(remote_address or ""):
            raise Unauthenticated(
                "session.not_local",
                "a session over plain http is valid on the gateway's own machine only",
                next_step="sign in over https",
            )

    def check_origin(self, headers: Headers) -> None:
        origin, fetched_from = _header(headers, b"origin"), _header(headers, b"sec-fetch-site")
        from_here = origin == self.origin if origin is not None else fetched_from == "same-origin"
        if not from_here or fetched_from not in (None, "same-origin"):
            raise Forbidden(
                "session.other_site",
                "the call comes from another site",
                value=(origin or fetched_from or "")[:200],
            )

    def check_from_own_page(self, method: str, headers: Headers, csrf_hash: str) -> None:
        """A call by cookie that may change something must come from a page of this site: other sites can make a
        browser send the cookie too."""
        if method in SAFE_METHODS:
            return
        self.check_origin(headers)
        token = _header(headers, b"x-csrf-token") or ""
        if not hmac.compare_digest(hashed(token), csrf_hash):
            raise Forbidden(
                "session.csrf",
                "the call lacks the header X-CSRF-Token, or has a wrong one",
                next_step=f"send the value of the cookie {self.cookie_name('csrf')}",
            )


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A sign-in that a browser has begun: all of it is in the browser's cookie.

    Only who has the cookie can derive the state that comes back with the code, so a code that was issued to another
    browser is of no use.
    """

    secret: str
    org: str
    provider: str
    next: str
    begun_at: float

    @classmethod
    def begin(cls, provider: Provider, next_: str, now: float) -> Attempt:
        return cls(_encoded(os.urandom(32)), provider.org, provider.name, next_, now)

    @classmethod
    def from_cookie(cls, value: str | None, now: float) -> Attempt:
        try:
            raw = base64.urlsafe_b64decode((value or "") + "=" * (-len(value or "") % 4))
            attempt = msgspec.json.decode(raw, type=cls)
        except (ValueError, RecursionError):
            raise _other_browser() from None
        if not attempt.begun_at <= now + 60 < attempt.begun_at + ATTEMPT_SECONDS + 120:
            raise _other_browser()
        check_next(attempt.next)
        return attempt

    @property
    def cookie(self) -> str:
        return _encoded(msgspec.json.encode(self))

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        return self._derived("verifier")

    @property
    def attempt_hash(self) -> str:
        return hashed(self.secret)

    def check_state(self, state: str) -> None:
        if not hmac.compare_digest(state.encode(), self.state.encode()):
            raise _other_browser()

    def _derived(self, purpose: str) -> str:
        message = msgspec.json.encode([purpose, self.org, self.provider, self.next, self.begun_at])
        return _encoded(hmac.digest(self.secret.encode(), message, "sha256"))


def check_next(text: str) -> str:
    """A path of this site; whatever could lead a browser elsewhere is refused."""
    if len(text) > _LONGEST_NEXT or not _NEXT.fullmatch(text):
        raise InvalidInput(
            "sign_in.bad_next",
            "`next` must be a path of this site",
            value=text[:100],
            next_step="for example /datasets",
        )
    return text


def authorization_url(endpoint: str, provider: Provider, attempt: Attempt, site: Site) -> str:
    question = {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": site.callback,
        "scope": " ".join(provider.scopes),
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": challenge(attempt.verifier),
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(question)}"


def challenge(verifier: str) -> str:
    """What PKCE shows first of a verifier."""
    return _encoded(hashlib.sha256(verifier.encode()).digest())


def new_secret() -> str:
    """For a session, its CSRF token, or a PKCE verifier."""
    return _encoded(os.urandom(32))


def hashed(secret: str) -> str:
    """What is stored of it. 32 random bytes need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _other_browser() -> Unauthenticated:
    return Unauthenticated(
        "sign_in.not_begun_here",
        "this sign-in was not begun in this browser, was begun again since, or took too long",
        next_step="sign in again",
    )


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _header(headers: Headers, name: bytes) -> str | None:
    """None also if it was sent twice with different values."""
    values = {value for header, value in headers if header == name}
    return values.pop().decode("latin-1") if len(values) == 1 else None


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
