"""What the gateway says to a provider: codes and device codes become tokens."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from traceplane.errors import Conflict, Forbidden, PlatformError, Unauthenticated
from traceplane.http_service.outgoing import Answer, Outgoing, json_of
from traceplane.signin.browser import challenge
from traceplane.signin.issuers import Published
from traceplane.signin.providers import Provider

_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_PENDING = ("authorization_pending", "slow_down")


class DeviceCode(msgspec.Struct, frozen=True):
    """What a provider answers to a device that wants to sign a person in."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str | None = None
    interval: int = 5


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str


class _Refusal(msgspec.Struct, frozen=True):
    error: str


@dataclass(frozen=True, slots=True)
class Pending:
    """The person has not decided yet."""

    slower: bool
    """The provider was asked too often."""


class Conversation:
    """With one provider. `client_secret` is its value; None for a public client."""

    def __init__(
        self, outgoing: Outgoing, published: Published, provider: Provider, client_secret: str | None
    ) -> None:
        self._outgoing, self._published, self._provider = outgoing, published, provider
        self._secret = client_secret

    async def id_token_of_code(self, code: str, *, verifier: str, callback: str) -> str:
        """The code was handed to a browser; the verifier shows that it is ours."""
        answer = await self._ask(
            _required(self._published.token_endpoint, self._provider, "token_endpoint"),
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": callback,
                "code_verifier": verifier,
            },
        )
        if answer.status != 200:
            raise Unauthenticated(
                "sign_in.code_refused",
                "the identity provider does not accept the code: it was used before, is too old or of another sign-in",
                value=_error_of(answer),
                next_step="sign in again",
            )
        return self._id_token(answer)

    async def begin_device(self, verifier: str) -> DeviceCode:
        # Not part of RFC 8628, but some providers require PKCE of a client whatever the flow; others ignore it.
        fields = {
            "scope": " ".join(self._provider.scopes),
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = _required(
            self._published.device_authorization_endpoint, self._provider, "device_authorization_endpoint"
        )
        answer = await self._ask(endpoint, fields)
        if answer.status != 200:
            raise Conflict(
                "sign_in.no_device_flow",
                "the identity provider does not let this client sign in by device code",
                value=_error_of(answer),
                next_step="allow the device flow (RFC 8628) for the client there",
            )
        return json_of(answer, endpoint, DeviceCode)

    async def id_token_of_device(self, device_code: str, verifier: str) -> str | Pending:
        endpoint = _required(self._published.token_endpoint, self._provider, "token_endpoint")
        fields = {"grant_type": _DEVICE_GRANT, "device_code": device_code, "code_verifier": verifier}
        answer = await self._ask(endpoint, fields)
        if answer.status == 200:
            return self._id_token(answer)
        error = _error_of(answer)
        if error in _PENDING:
            return Pending(slower=error == "slow_down")
        if error == "access_denied":
            raise Forbidden("sign_in.denied", "the sign-in was refused at the identity provider")
        raise Unauthenticated(
            "sign_in.code_refused",
            "the identity provider does not accept the device code: it was used before, or is too old",
            value=error,
            next_step="run `traceplane login` again",
        )

    async def _ask(self, endpoint: str, fields: dict[str, str]) -> Answer:
        client, headers = self._provider.client_id, {}
        fields = {**fields, "client_id": client}
        if self._secret is not None:
            methods = self._published.token_endpoint_auth_methods_supported
            if methods and "client_secret_basic" not in methods:
                fields["client_secret"] = self._secret
            else:
                pair = f"{quote(client, safe='')}:{quote(self._secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await self._outgoing.post_form(endpoint, fields, headers=headers)
        if answer.status >= 500:
            raise PlatformError(
                "sign_in.issuer_unavailable",
                "the identity provider could not answer",
                value=f"status {answer.status}",
                next_step="try again",
            )
        return answer

    def _id_token(self, answer: Answer) -> str:
        return json_of(answer, self._provider.issuer, _Tokens).id_token


def _error_of(answer: Answer) -> str | None:
    try:
        return msgspec.json.decode(answer.body, type=_Refusal).error[:100]
    except (ValueError, RecursionError):
        return None


def _required(address: str | None, provider: Provider, what: str) -> str:
    if address is None:
        raise Conflict(
            "sign_in.not_offered",
            f"the identity provider {provider.name} publishes no {what}",
            value=provider.issuer,
            next_step="use another way to sign in, or another provider",
        )
    return address
