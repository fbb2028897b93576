"""Sign-in in the public API: the identity providers of an organization, and device codes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from traceplane.wire.scalars import Text, Wire

Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
ClaimValue = Annotated[str, msgspec.Meta(max_length=512)] | int | bool


class ProviderSettings(Wire, frozen=True):
    issuer: Url
    client_id: Text
    client_secret: Text | None = None
    """The name of the platform secret that holds it, not its value; unset: the client has none."""
    audience: Text | None = None
    """Of JWTs that machines send; unset: it accepts none."""
    roles_claim: Text | None = None
    """The claim that roles are read from, such as `groups` or `realm_access.roles`."""
    role_map: dict[Text, Text] = {}
    """Values of that claim, and the role that each means."""
    default_role: Text | None = None
    """Of those whom no value gives a role; unset: they are refused."""
    required_claims: dict[Text, ClaimValue] = {}
    """Claims without which nobody is accepted."""
    scopes: list[Text] = msgspec.field(default_factory=lambda: ["openid", "profile", "email"])


class ProviderView(ProviderSettings, frozen=True, kw_only=True):
    org: str
    name: str
    set_by: str
    set_at: datetime | None = None


class ProvidersResponse(Wire, frozen=True):
    providers: list[ProviderView]


class ProviderRemoved(Wire, frozen=True):
    name: str


class LoginQuery(Wire, frozen=True):
    org: Text
    provider: Text | None = None
    """Unset: the only one of the organization."""
    next: str = "/api/v1/whoami"
    """A path of this site, where the browser goes on."""


class CallbackQuery(msgspec.Struct, frozen=True):
    """What a provider sends a browser back with. It may add fields of its own."""

    state: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    code: Annotated[str, msgspec.Meta(max_length=4000)] | None = None
    iss: Annotated[str, msgspec.Meta(max_length=2000)] | None = None
    error: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class DeviceRequest(Wire, frozen=True):
    org: Text
    provider: Text | None = None
    """Unset: the only one of the organization."""


class DeviceResponse(Wire, frozen=True):
    provider: str
    device_code: str
    """Of this sign-in; sent with every question whether it is completed."""
    verifier: str
    """Sent along too."""
    user_code: str
    """What the person enters at the address."""
    verification_uri: str
    expires_in: int
    """Seconds."""
    interval: int
    """Seconds between two questions."""
    verification_uri_complete: str | None = None
    """The address with the code in it."""


class DeviceTokenRequest(Wire, frozen=True):
    org: Text
    provider: Text
    device_code: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
    verifier: Text


class DeviceTokenResponse(Wire, frozen=True):
    status: Literal["pending", "slow_down", "signed_in"]
    """`slow_down`: ask less often."""
    token: str | None = None
    """The user token, once."""
    name: str | None = None
    expires_in: int | None = None
    """Seconds."""


class BrowserLink(Wire, frozen=True):
    url: str
    """Opened in a browser, it signs that browser in. It works once."""
    expires_in: int
    """Seconds."""


class SignedInAs(Wire, frozen=True):
    org: Text
    name: Text


class BrowserCode(Wire, frozen=True):
    code: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{43}$")]
    """What stands in a link behind `#sign-in=`."""
    signed_in: SignedInAs | None = None
    """Who the browser is already; then the link of anybody else is refused, and not used up."""


class BrowserSignedIn(Wire, frozen=True):
    name: str
    expires_in: int
    """Seconds."""


class SignedOut(Wire, frozen=True):
    ended: Literal["session", "token"]
