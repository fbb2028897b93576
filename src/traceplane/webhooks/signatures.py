"""Who signed a delivery, and when.

A delivery is checked in two steps, so that a body is read only if its headers can be right: `read` finds the signature
and the time in the headers, `Signature.matches` compares it with the bytes of the body, in constant time. A header
that is given twice is refused: the sender and a proxy in between might mean different ones.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from traceplane.webhooks.config import DEFAULT_TOLERANCE_SECONDS, Algorithm, Encoding, Preset, Verify

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, as ASGI has them."""

_BODY, _TIMESTAMP = "{body}", "{timestamp}"
_SECONDS = re.compile(rb"[0-9]{1,12}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")
_MOST_SIGNATURES = 10
"""In one header; a sender that is changing its key sends two."""


class SignatureRefused(Exception):
    """The headers or the signature of a delivery are not right; `code` is stable."""

    def __init__(self, code: str, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code, self.message, self.next_step = code, message, next_step


@dataclass(frozen=True, slots=True)
class Scheme:
    header: str
    algorithm: Algorithm = Algorithm.SHA256
    prefix: str = ""
    encoding: Encoding = Encoding.HEX
    before_body: str = ""
    """What is signed in front of the body; may hold `{timestamp}`."""
    timestamp_header: str | None = None
    as_pairs: bool = False
    """Whether the header is a list of pairs: `t=` the time, and one or more signatures, each after the prefix."""
    tolerance_seconds: float = DEFAULT_TOLERANCE_SECONDS

    @property
    def has_timestamp(self) -> bool:
        return self.as_pairs or self.timestamp_header is not None


_PRESETS = {
    Preset.GITHUB: Scheme("X-Hub-Signature-256", prefix="sha256="),
    Preset.STRIPE: Scheme("Stripe-Signature", prefix="v1=", before_body=f"{_TIMESTAMP}.", as_pairs=True),
    Preset.SLACK: Scheme(
        "X-Slack-Signature",
        prefix="v0=",
        before_body=f"v0:{_TIMESTAMP}:",
        timestamp_header="X-Slack-Request-Timestamp",
    ),
}


@dataclass(frozen=True, slots=True)
class Signature:
    """What the headers of a delivery say."""

    digests: tuple[bytes, ...]
    algorithm: Algorithm
    before_body: bytes

    def matches(self, keys: Iterable[bytes], body: bytes) -> bool:
        """Whether one of the signatures was made with one of the keys. All are compared, whichever matches."""
        found = False
        for key in keys:
            digest = hmac.digest(key, self.before_body + body, str(self.algorithm))
            for given in self.digests:
                found |= hmac.compare_digest(given, digest)
        return found


def scheme_of(verify: Verify) -> Scheme:
    """Of a `verify` that passed the checks of its DAG file."""
    timestamp = verify.timestamp
    if verify.preset is not None:
        preset = _PRESETS[verify.preset]
        if timestamp is None:
            return preset
        return replace(preset, tolerance_seconds=timestamp.tolerance_seconds)
    assert verify.header is not None
    signed = verify.signed or (f"{_TIMESTAMP}.{_BODY}" if timestamp is not None else _BODY)
    return Scheme(
        verify.header,
        verify.algorithm,
        verify.prefix,
        verify.encoding,
        before_body=signed.removesuffix(_BODY),
        timestamp_header=timestamp.header if timestamp is not None else None,
        tolerance_seconds=timestamp.tolerance_seconds if timestamp is not None else DEFAULT_TOLERANCE_SECONDS,
    )


def signed_text_problem(signed: str, *, timestamp: bool) -> str | None:
    """What is wrong with `signed`, in words."""
    if not signed.endswith(_BODY) or signed.count(_BODY) != 1:
        return f"it must end with {_BODY}, once"
    if signed.count(_TIMESTAMP) != int(timestamp):
        return f"it must have {_TIMESTAMP} once" if timestamp else f"{_TIMESTAMP} needs a timestamp header"
    return None


def read(scheme: Scheme, headers: Headers, now: float) -> Signature:
    """What the headers say; raises `SignatureRefused`. `now`: in seconds since 1970."""
    value = the_one(headers, scheme.header)
    if value is None:
        raise _refused("webhook.signature_missing", f"there must be one header {scheme.header}")
    if scheme.as_pairs:
        stamp, signatures = _pairs(scheme, value)
    else:
        signatures = [value]
        stamp = the_one(headers, scheme.timestamp_header) if scheme.timestamp_header is not None else None
    digests = tuple(_digest(scheme, signature) for signature in signatures)
    if scheme.has_timestamp:
        _check_time(stamp, scheme, now)
    text = (stamp or b"").decode("latin-1")
    return Signature(digests, scheme.algorithm, scheme.before_body.replace(_TIMESTAMP, text).encode())


def wrong() -> SignatureRefused:
    return _refused("webhook.signature_wrong", "no key of this source made this signature over this body")


def the_one(headers: Headers, name: str) -> bytes | None:
    """The value of a header; None if it is absent, or given more than once."""
    wanted = name.lower().encode("latin-1")
    values = [value for header, value in headers if header == wanted]
    return values[0] if len(values) == 1 else None


def _pairs(scheme: Scheme, value: bytes) -> tuple[bytes | None, list[bytes]]:
    """The time and the signatures of `t=1492774577,v1=5257a8…,v0=6ffbb5…`; other pairs are not looked at."""
    pairs = [pair.strip() for pair in value.split(b",")]
    times = [pair[2:] for pair in pairs if pair.startswith(b"t=")]
    signatures = [pair for pair in pairs if pair.startswith(scheme.prefix.encode())]
    if len(times) != 1 or not 1 <= len(signatures) <= _MOST_SIGNATURES:
        form = f"t=SECONDS,{scheme.prefix}SIGNATURE"
        raise _refused("webhook.signature_malformed", f"the header {scheme.header} must have the form {form}")
    return times[0], signatures


def _digest(scheme: Scheme, value: bytes) -> bytes:
    prefix = scheme.prefix.encode()
    text = value.removeprefix(prefix)
    if value.startswith(prefix):
        if scheme.encoding is Encoding.HEX and _HEX.fullmatch(text):
            return bytes.fromhex(text.decode())
        if scheme.encoding is Encoding.BASE64:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                pass
    form = f"{scheme.prefix}SIGNATURE, in {scheme.encoding}"
    raise _refused("webhook.signature_malformed", f"the header {scheme.header} must have the form {form}")


def _check_time(stamp: bytes | None, scheme: Scheme, now: float) -> None:
    if stamp is None or not _SECONDS.fullmatch(stamp):
        raise SignatureRefused(
            "webhook.timestamp_invalid",
            "the time of the signature must be given once, in whole seconds since 1970",
            "send it as the source's `verify` says",
        )
    late = now - int(stamp)
    if abs(late) > scheme.tolerance_seconds:
        raise SignatureRefused(
            "webhook.timestamp_outside",
            f"the signature is {abs(late):.0f} seconds {'old' if late > 0 else 'ahead'},"
            f" more than {scheme.tolerance_seconds:g}",
            "sign the delivery anew, and check the sender's clock",
        )


def _refused(code: str, message: str) -> SignatureRefused:
    return SignatureRefused(code, message, "sign the raw body with the key, as the source's `verify` says")
