"""Values of a channel's secrets, and texts without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traceplane.errors import InvalidInput
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.printable import one_line
from traceplane.secrets import references
from traceplane.secrets.references import SecretName

_LONGEST_REASON = 300


class SecretValues:
    """Only those that the config of a channel refers to."""

    def __init__(self, values: Mapping[SecretName, str]) -> None:
        self._values = {name: value for name, value in values.items() if name.namespace == "user"}
        self._hidden = HiddenValues(secrets=values.values())
        self._filled: dict[str, str] = {}

    def __getitem__(self, name: SecretName) -> str:
        if name not in self._values:
            raise InvalidInput(
                "delivery.secret_missing",
                "the channel refers to a secret that does not exist",
                value=name,
                next_step=f"traceplane secret set {name}",
            )
        return self._values[name]

    def put_into(self, text: str) -> str:
        """The text of a config with its references replaced."""
        if (filled := self._filled.get(text)) is None:
            names = references.found_in(text)
            filled = str(references.replaced(text, {name: self[name] for name in names}))
            self._filled[text] = filled
        return filled

    def reason(self, text: str) -> str:
        """A text of the other side on one line, without secrets, and not longer than anybody reads."""
        shown = one_line(str(self._hidden.without(text)).strip())
        return shown if len(shown) <= _LONGEST_REASON else f"{shown[:_LONGEST_REASON]}…"


def refer_to_secrets(texts: Iterable[str]) -> bool:
    return all(references.found_in(text) for text in texts)


def check_references(config: object) -> None:
    """Raises InvalidInput for a text that looks like a reference and is none; and for secrets of the platform, which
    whoever defines a channel could otherwise send to himself."""
    for name in references.found_in(config):
        if name.namespace != "user":
            raise InvalidInput(
                "delivery.bad_reference",
                "a channel cannot use secrets of the platform",
                value=f"${{secret:{name}}}",
                next_step=f"set one of your own: traceplane secret set {name.name}",
            )
    text = references.malformed_in(config)
    if text is not None:
        raise InvalidInput(
            "delivery.bad_reference",
            "this refers to no secret",
            value=text[:100],
            next_step="write ${secret:NAME}; a name is a letter, then letters, digits, _, . and -",
        )


def secret_expected(what: str, name: str) -> InvalidInput:
    """The value is not shown: it is probably the secret."""
    return InvalidInput(
        "delivery.secret_expected",
        f"{what} is secret, so it must not be written in the channel itself",
        next_step=f"traceplane secret set {name}, then write ${{secret:{name}}}",
    )
