"""How configs and jobs refer to secrets, and how the references are replaced by values.

A config with references is what is stored, compared and shown; the values are put in when a task starts. Whoever may
give a secret a new value may not change what the config does with it: a value does not replace the host of a URL, and
in a query it is a string (`worker.payload`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from traceplane.errors import InvalidInput
from traceplane.model.secret_texts import NAME, REFERENCE

Namespace = Literal["platform", "user"]
_LOOKS_LIKE_ONE = re.compile(r"\$\{secret[^}]*\}?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_AFTER_HOST = re.compile(r"[/?#]|\Z")
_ENDS_A_USER = re.compile(r"[/?#\\\s]")
_ENDS_A_HOST = re.compile(r"[/?#\\\s@]")

PROVIDERS = "sign-in"
"""Identity providers use client secrets like jobs of a DAG of this name, which no DAG can have."""
CHANNELS = "channel"
"""Channels do, too."""


@dataclass(frozen=True, slots=True, order=True)
class SecretName:
    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return self.name if self.namespace == "user" else f"{self.namespace}/{self.name}"


def parse_name(text: str) -> SecretName | None:
    """None: it is no name of a secret."""
    namespace, slash, name = text.rpartition("/")
    if (
        not re.fullmatch(NAME, name)
        or namespace not in ("", "user", "platform")
        or bool(slash) != bool(namespace)
    ):
        return None
    return SecretName("platform" if namespace == "platform" else "user", name)


def reference(name: SecretName) -> str:
    """As configs write it."""
    return f"${{secret:{name}}}"


def found_in(value: Any) -> set[SecretName]:
    """The secrets that a JSON value refers to."""
    match value:
        case str():
            names = (parse_name(match["name"]) for match in REFERENCE.finditer(value))
            return {name for name in names if name is not None}
        case dict():
            return {name for item in value.values() for name in found_in(item)}
        case list() | tuple():
            return {name for item in value for name in found_in(item)}
        case _:
            return set()


def secrets_of(config: Mapping[str, Any], named: Mapping[str, str]) -> frozenset[SecretName]:
    """The secrets of a job: those that its config refers to, and those that its code receives by name."""
    own = (parse_name(text) for text in named.values())
    return frozenset(found_in(dict(config)) | {name for name in own if name is not None})


def malformed_in(value: Any) -> str | None:
    """The first text that looks like a reference and is none."""
    match value:
        case str():
            for match in _LOOKS_LIKE_ONE.finditer(value):
                if not REFERENCE.fullmatch(match[0]):
                    return match[0]
            return None
        case dict():
            return next((text for item in value.values() if (text := malformed_in(item)) is not None), None)
        case list() | tuple():
            return next((text for item in value if (text := malformed_in(item)) is not None), None)
        case _:
            return None


def replaced(
    value: Any, values: Mapping[SecretName, str], written: Callable[[str], str] = lambda value: value
) -> Any:
    """The JSON value with each reference replaced; what is not in `values` stays a reference. `written`: how a value
    is written in its place. Raises InvalidInput for a value that would change the host of a URL."""
    match value:
        case str():
            _check_address(value, values)
            return REFERENCE.sub(lambda match: _value(match, values, written), value)
        case dict():
            return {key: replaced(item, values, written) for key, item in value.items()}
        case list() | tuple():
            return [replaced(item, values, written) for item in value]
        case _:
            return value


def _value(match: re.Match[str], values: Mapping[SecretName, str], written: Callable[[str], str]) -> str:
    name = parse_name(match["name"])
    assert name is not None
    return written(values[name]) if name in values else match[0]


def _check_address(text: str, values: Mapping[SecretName, str]) -> None:
    """A password with a `/` would end the user, and its beginning be taken for the host. A secret that is the whole
    host, or all of the URL, is not looked at: whoever sets it chooses the host anyway."""
    if (scheme := _SCHEME.match(text)) is None:
        return
    masked = REFERENCE.sub(lambda reference: "x" * len(reference[0]), text)
    after = _AFTER_HOST.search(masked, scheme.end())
    assert after is not None
    host = masked.rfind("@", scheme.end(), after.start()) + 1 or scheme.end()
    for reference in REFERENCE.finditer(text, scheme.end(), after.start()):
        if reference.span() == (host, after.start()):
            continue
        ends = _ENDS_A_USER if reference.start() < host else _ENDS_A_HOST
        name = parse_name(reference["name"])
        if name is not None and ends.search(values.get(name, "")):
            raise InvalidInput(
                "secret.other_host",
                "the value of a secret would change the host of the URL that refers to it",
                value=reference[0],
                next_step="set the secret again, with / ? # @ and spaces encoded (%2F); or write the URL so that the "
                "reference comes after the / behind its host",
            )
