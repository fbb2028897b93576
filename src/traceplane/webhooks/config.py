"""A webhook source as deployed: the config of the job that stands for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from traceplane.operators.spec import Config

DEFAULT_TOLERANCE_SECONDS = 300.0
LONGEST_KEY = 255
"""Of what identifies a delivery."""


class Preset(StrEnum):
    GITHUB = "github"
    STRIPE = "stripe"
    SLACK = "slack"


class Algorithm(StrEnum):
    SHA256 = "sha256"
    SHA384 = "sha384"
    SHA512 = "sha512"


class Encoding(StrEnum):
    HEX = "hex"
    BASE64 = "base64"


class Timestamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time at which a delivery was signed, in seconds since 1970."""

    header: str | None = None
    """None: the preset says where it is."""
    tolerance_seconds: float = DEFAULT_TOLERANCE_SECONDS


class Verify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How deliveries are signed: as a preset says, or an HMAC in a header."""

    preset: Preset | None = None
    header: str | None = None
    algorithm: Algorithm = Algorithm.SHA256
    prefix: str = ""
    encoding: Encoding = Encoding.HEX
    signed: str | None = None
    """What is signed: text that ends with `{body}` and, if there is a timestamp, has `{timestamp}` before it."""
    timestamp: Timestamp | None = None


class Dedupe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What identifies a delivery: a header, or a value in its body."""

    header: str | None = None
    pointer: str | None = None


PRESET_DEDUPE = {
    Preset.GITHUB: Dedupe(header="X-GitHub-Delivery"),
    Preset.STRIPE: Dedupe(pointer="/id"),
    Preset.SLACK: Dedupe(pointer="/event_id"),
}


# fmt: off
class WebhookConfig(Config, frozen=True, kw_only=True):
    path: Annotated[str, Meta(
        description="The last part of the URL: `POST /hooks/{org}/{path}`.")]
    verify: Annotated[Verify | None, Meta(
        description="How deliveries are signed; null: anybody may deliver.")]
    keys: Annotated[tuple[str, ...], Meta(
        description="The signing keys: references to secrets, or variables in the gateway's environment.")] = ()
    dedupe: Annotated[Dedupe, Meta(
        description="What identifies a delivery.")]
    scope: Annotated[str | None, Meta(
        description="A JSON pointer to the scope of the event; null: deliveries are kept and numbered.")] = None
    headers: Annotated[tuple[str, ...], Meta(
        description="Headers that are kept with a delivery.")] = ()
# fmt: on
