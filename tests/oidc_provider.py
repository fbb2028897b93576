"""A small identity provider over real HTTP: authorization code with PKCE, device code, keys that rotate.

It signs in whoever `person` says, without asking unless it `asks`. Tests also let it lie: `issuer_in_document`,
`claims`, `sign`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
"""Takes a while to make, so all providers begin with the same one."""

_LOGIN_PAGE = "<title>Identity provider</title><form method=post><button>Sign in</button></form>"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Key:
    kid: str
    private: PrivateKey

    @property
    def algorithm(self) -> str:
        return "RS256" if isinstance(self.private, rsa.RSAPrivateKey) else "ES256"

    @property
    def jwk(self) -> dict[str, Any]:
        if isinstance(self.private, rsa.RSAPrivateKey):
            public = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            public = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.kid, "use": "sig", "alg": self.algorithm}


@dataclass
class Grant:
    """A code that may become tokens once."""

    claims: dict[str, Any]
    challenge: str | None
    redirect_uri: str | None = None
    approved: bool = True
    denied: bool = False


def rsa_key(kid: str = "rsa-1") -> Key:
    return Key(kid, RSA_KEY)


def ec_key(kid: str = "ec-1") -> Key:
    return Key(kid, ec.generate_private_key(ec.SECP256R1()))


@dataclass
class OidcProvider:
    client_id: str = "traceplane"
    client_secret: str | None = None
    keys: list[Key] = field(default_factory=lambda: [rsa_key()])
    person: dict[str, Any] = field(
        default_factory=lambda: {
            "sub": "ada-1",
            "email": "ada@example.com",
            "email_verified": True,
            "groups": ["engineers"],
        }
    )
    url: str = ""
    issuer_in_document: str | None = None
    reuses_codes: bool = False
    """Whether it forgets to end a code that was used."""
    asks: bool = False
    """Whether it shows a page first, with a form to sign in."""
    broken: bool = False
    requests: list[str] = field(default_factory=list)
    grants: dict[str, Grant] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    """Device codes, by the codes that people enter."""
    device_begun: asyncio.Event = field(default_factory=asyncio.Event)
    hangs: bool = False
    """Whether requests for device codes are left without an answer."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, **options: Any) -> AsyncIterator[OidcProvider]:
        provider = cls(**options)
        app = web.Application(middlewares=[provider._note])
        app.add_routes(
            [
                web.get("/.well-known/openid-configuration", provider._document),
                web.get("/keys", provider._keys),
                web.get("/authorize", provider._authorize),
                web.post("/authorize", provider._authorize),
                web.post("/token", provider._token),
                web.post("/device", provider._device),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield provider
        finally:
            await runner.cleanup()

    # What tests do with it --------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """For the setting `outgoing_allow`."""
        return self.url.removeprefix("http://")

    def fetched(self, path: str) -> int:
        return sum(request == path for request in self.requests)

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        base = {"iss": self.url, "aud": self.client_id, "iat": now, "exp": now + 300, **self.person}
        return {name: value for name, value in {**base, **changes}.items() if value is not None}

    def sign(self, claims: dict[str, Any], key: Key | None = None, **header: Any) -> str:
        key = key or self.keys[-1]
        return jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid, **header})

    def machine_token(self, **changes: Any) -> str:
        return self.sign(self.claims(**{"sub": "robot-1", "aud": "traceplane-api", "email": None, **changes}))

    def approve(self, user_code: str) -> None:
        self.grants[self.devices[user_code]].approved = True

    def deny(self, user_code: str) -> None:
        self.grants[self.devices[user_code]].denied = True

    # What it answers --------------------------------------------------------------------------------

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path)
        if self.broken:
            return web.Response(status=500, text="broken")
        response: web.StreamResponse = await handler(request)
        return response

    async def _document(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer_in_document or self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "device_authorization_endpoint": f"{self.url}/device",
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [key.jwk for key in self.keys]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        if asked.get("client_id") != self.client_id or asked.get("response_type") != "code":
            return _refusal("invalid_request")
        if asked.get("code_challenge_method") != "S256" or not asked.get("code_challenge"):
            return _refusal("invalid_request")  # PKCE is not optional here
        if self.asks and request.method == "GET":
            return web.Response(text=_LOGIN_PAGE, content_type="text/html")
        code = self.new_code(
            nonce=asked.get("nonce"), challenge=asked["code_challenge"], redirect_uri=asked["redirect_uri"]
        )
        answer = urlencode({"code": code, "state": asked.get("state", ""), "iss": self.url})
        return web.Response(status=302, headers={"location": f"{asked['redirect_uri']}?{answer}"})

    def new_code(self, *, nonce: str | None, challenge: str, redirect_uri: str) -> str:
        code = secrets.token_urlsafe(16)
        self.grants[code] = Grant(self.claims(nonce=nonce), challenge, redirect_uri)
        return code

    async def _device(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.Event().wait()
        form = await request.post()
        if not self._is_client(request, dict(form)):
            return _refusal("invalid_client", 401)
        code, user_code = secrets.token_urlsafe(16), secrets.token_hex(4).upper()
        self.devices[user_code] = code
        self.device_begun.set()
        self.grants[code] = Grant(self.claims(), _text(form.get("code_challenge")), approved=False)
        return web.json_response(
            {
                "device_code": code,
                "user_code": user_code,
                "verification_uri": f"{self.url}/activate",
                "expires_in": 600,
                "interval": 1,
            }
        )

    async def _token(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        if not self._is_client(request, form):
            return _refusal("invalid_client", 401)
        by_device = form.get("grant_type") == "urn:ietf:params:oauth:grant-type:device_code"
        code = _text(form.get("device_code" if by_device else "code")) or ""
        grant = self.grants.get(code)
        if grant is None or grant.redirect_uri != form.get("redirect_uri"):
            return _refusal("invalid_grant")
        if grant.denied:
            return _refusal("access_denied")
        if not grant.approved:
            return _refusal("authorization_pending")
        verifier = _text(form.get("code_verifier")) or ""
        shown = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        if grant.challenge is not None and shown != grant.challenge:
            return _refusal("invalid_grant")
        if not self.reuses_codes:
            del self.grants[code]
        return web.json_response(
            {"id_token": self.sign(grant.claims), "token_type": "Bearer", "access_token": "unused"}
        )

    def _is_client(self, request: web.Request, form: dict[str, Any]) -> bool:
        if self.client_secret is None:
            return form.get("client_id") == self.client_id
        scheme, _, pair = request.headers.get("authorization", "").partition(" ")
        name, _, password = base64.b64decode(pair).decode().partition(":")
        return scheme == "Basic" and (unquote(name), unquote(password)) == (
            self.client_id,
            self.client_secret,
        )


def _refusal(error: str, status: int = 400) -> web.Response:
    return web.json_response({"error": error}, status=status)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def unsigned(claims: dict[str, Any], header: dict[str, Any], signature: bytes = b"") -> str:
    """A JWT with any header, whatever that means."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
