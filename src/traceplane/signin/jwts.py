"""Whether a JWT was signed by a provider for us, and is valid now."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from traceplane.errors import Unauthenticated

SKEW_SECONDS = 60.0
"""How far the clock of a provider may be off."""
LONGEST = 16 * 1024
_LEAST_RSA_BITS = 2048

# With a secret that both sides know, whoever can check a JWT could also make one.
_ALGORITHMS_OF: dict[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA",),
}
_ALGORITHMS = tuple(algorithm for algorithms in _ALGORITHMS_OF.values() for algorithm in algorithms)
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_JWS = jwt.PyJWS(algorithms=_ALGORITHMS)

Claims = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a provider says, once its signature is checked."""

    issuer: str
    subject: str
    claims: Claims

    @property
    def audiences(self) -> frozenset[str]:
        named = self.claims.get("aud")
        return frozenset(
            one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)
        )


@dataclass(frozen=True, slots=True)
class ProviderKey:
    kid: str
    algorithms: tuple[str, ...]
    key: jwt.PyJWK


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str = ""
    use: str | None = None
    alg: str | None = None
    crv: str | None = None
    key_ops: list[str] | None = None


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[dict[str, object]]


class _Known(msgspec.Struct, frozen=True):
    iss: str
    sub: str
    exp: float
    iat: float
    aud: str | list[str]
    nbf: float | None = None
    azp: str | None = None
    nonce: str | None = None


class _Issuer(msgspec.Struct, frozen=True):
    iss: str


def is_jwt(token: str) -> bool:
    """Our own tokens begin otherwise, and have no dots."""
    return token.startswith("eyJ") and token.count(".") == 2


def unverified_issuer(token: str) -> str:
    """Whose keys to try; nothing else of a JWT is looked at before its signature is checked."""
    if len(token) > LONGEST:
        raise _malformed(f"it is longer than {LONGEST} characters")
    try:
        payload = jwt.utils.base64url_decode(token.split(".")[1].encode("ascii"))
        return msgspec.json.decode(payload, type=_Issuer).iss
    except (ValueError, IndexError, RecursionError):
        raise _malformed("its claims cannot be read") from None


def unverified_kid(token: str) -> str:
    """The key that a JWT says it is signed with. Whatever else its header offers as a key is ignored."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _malformed("its header cannot be read") from None
    kid, algorithm, kind = header.get("kid"), header.get("alg"), header.get("typ")
    if algorithm not in _ALGORITHMS:
        raise Unauthenticated(
            "jwt.bad_algorithm",
            "the JWT is not signed with a public-key algorithm",
            value=str(algorithm)[:20],
            next_step="let the provider sign with RS256 or ES256",
        )
    if "crit" in header or (kind is not None and str(kind).lower() not in _TYPES):
        raise _malformed("its header asks for something that is not supported")
    if not isinstance(kid, str) or not kid:
        raise _malformed("its header names no key (kid)")
    return kid


def keys_of(jwks: bytes) -> list[ProviderKey]:
    """The keys of a provider's JWKS document that may sign; raises ValueError if it is none.

    What cannot be used is left out: providers also publish keys for encryption, and of kinds that nobody knows yet.
    """
    keys = []
    for raw in msgspec.json.decode(jwks, type=_Jwks).keys:
        try:
            described = msgspec.convert(raw, _Jwk)
        except msgspec.ValidationError:
            continue
        key = _usable(described, raw)
        if key is not None:
            keys.append(key)
    return keys


def _usable(described: _Jwk, raw: Mapping[str, object]) -> ProviderKey | None:
    kind = described.kty if described.kty == "RSA" else f"{described.kty} {described.crv}"
    algorithms = _ALGORITHMS_OF.get(kind, ())
    if described.alg is not None:
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm == described.alg)
    signs = described.use in (None, "sig") and (described.key_ops is None or "verify" in described.key_ops)
    if not algorithms or not signs or not described.kid:
        return None
    try:
        key = jwt.PyJWK(dict(raw), algorithm=algorithms[0])
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < _LEAST_RSA_BITS:
        return None
    return ProviderKey(described.kid, algorithms, key)


def verify(
    token: str, keys: Sequence[ProviderKey], *, issuer: str, audiences: Collection[str], now: float
) -> Verified:
    """What the JWT says; raises Unauthenticated with the reason, which never repeats the JWT."""
    if len(token) > LONGEST:
        raise _malformed(f"it is longer than {LONGEST} characters")
    kid = unverified_kid(token)
    candidates = [key for key in keys if key.kid == kid]
    if not candidates:
        raise unknown_key()
    payload = next((body for key in candidates if (body := _opened(token, key)) is not None), None)
    if payload is None:
        raise Unauthenticated("jwt.bad_signature", "the signature of the JWT does not match its key")
    try:
        known = msgspec.json.decode(payload, type=_Known)
        claims = msgspec.json.decode(payload, type=dict[str, object])
    except (ValueError, RecursionError):
        raise _malformed("it lacks iss, sub, aud, exp or iat, or one of them has the wrong type") from None
    if known.iss != issuer:
        raise Unauthenticated("jwt.wrong_issuer", "the JWT is of another issuer", value=known.iss[:200])
    if not known.sub or len(known.sub) > 255 or "\0" in payload.decode():
        raise _malformed("its subject (sub) cannot be used")
    named = {known.aud} if isinstance(known.aud, str) else set(known.aud)
    if named.isdisjoint(audiences):
        raise Unauthenticated(
            "jwt.wrong_audience",
            "the JWT is for another service",
            value=", ".join(sorted(named))[:200],
            next_step="ask the provider for one with the audience that the organization expects",
        )
    _check_times(known, now)
    return Verified(known.iss, known.sub, claims)


def check_id_token(verified: Verified, *, client_id: str, nonce: str | None) -> None:
    """What an ID token must say beyond that: it answers this very sign-in, and is for nobody else."""
    claims = verified.claims
    audience, presenter = claims.get("aud"), claims.get("azp")
    several = isinstance(audience, list) and len(audience) > 1
    if (presenter is not None or several) and presenter != client_id:
        raise Unauthenticated("jwt.wrong_audience", "the ID token is for another client", value=presenter)
    if nonce is not None and claims.get("nonce") != nonce:
        raise Unauthenticated("jwt.wrong_nonce", "the ID token answers another sign-in")


def unknown_key() -> Unauthenticated:
    return Unauthenticated("jwt.unknown_key", "the JWT is signed with a key that its issuer does not publish")


def _opened(token: str, key: ProviderKey) -> bytes | None:
    try:
        payload = _JWS.decode(token, key.key.key, algorithms=list(key.algorithms))
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return payload if isinstance(payload, bytes) else None


def _check_times(known: _Known, now: float) -> None:
    times = [time for time in (known.exp, known.iat, known.nbf) if time is not None]
    if not all(math.isfinite(time) for time in times):
        raise _malformed("its times cannot be used")
    if known.exp + SKEW_SECONDS <= now:
        raise Unauthenticated(
            "jwt.expired", "the JWT has expired", next_step="ask the provider for a new one"
        )
    if max(known.nbf or 0.0, known.iat) > now + SKEW_SECONDS:
        raise Unauthenticated(
            "jwt.not_yet_valid", "the JWT is not valid yet", next_step="check the clocks of both machines"
        )


def _malformed(why: str) -> Unauthenticated:
    return Unauthenticated("jwt.malformed", f"the JWT cannot be used: {why}")
