"""How configs and jobs refer to secrets, and how the references are replaced by values.

`${secret:mainnet_rpc}` stands for a value within a text of a config; `${secret:platform/mainnet_rpc}` for one of the
platform's own. A config with references is what is stored, compared and shown; the values are put in when a task
starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Namespace = Literal["platform", "user"]
NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,99}"
_REFERENCE = re.compile(rf"\$\{{secret:(?P<name>(?:platform/)?{NAME})\}}")
_LOOKS_LIKE_ONE = re.compile(r"\$\{secret[^}]*\}?")


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


def found_in(value: Any) -> set[SecretName]:
    """The secrets that a JSON value refers to."""
    match value:
        case str():
            names = (parse_name(match["name"]) for match in _REFERENCE.finditer(value))
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
                if not _REFERENCE.fullmatch(match[0]):
                    return match[0]
            return None
        case dict():
            return next((text for item in value.values() if (text := malformed_in(item)) is not None), None)
        case list() | tuple():
            return next((text for item in value if (text := malformed_in(item)) is not None), None)
        case _:
            return None


def replaced(value: Any, values: Mapping[SecretName, str]) -> Any:
    """The JSON value with each reference replaced; what is not in `values` stays a reference."""
    match value:
        case str():
            return _REFERENCE.sub(lambda match: _value(match, values), value)
        case dict():
            return {key: replaced(item, values) for key, item in value.items()}
        case list() | tuple():
            return [replaced(item, values) for item in value]
        case _:
            return value


def _value(match: re.Match[str], values: Mapping[SecretName, str]) -> str:
    name = parse_name(match["name"])
    assert name is not None
    return values.get(name, match[0])
