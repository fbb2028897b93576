"""Secrets that the platform's own settings refer to: `kafka_sasl_password = "${secret:platform/kafka}"`.

They are read when a process starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from traceplane.errors import InvalidInput, PlatformError
from traceplane.postgres.database import Database
from traceplane.secrets.references import found_in, malformed_in, replaced
from traceplane.secrets.vault import Vault
from traceplane.settings import REFERRING, Settings


async def with_secrets(
    settings: Settings, database: Database, master_keys: Callable[[], Sequence[bytes]]
) -> Settings:
    """The settings with values in place of the references."""
    texts = {name: value for name in REFERRING if (value := getattr(settings, name)) and "${" in value}
    if not texts:
        return settings
    for setting, text in texts.items():
        names = found_in(text)
        if (wrong := malformed_in(text)) or any(name.namespace != "platform" for name in names):
            raise InvalidInput(
                "settings.invalid",
                f"{setting} must refer to a secret of the platform",
                value=wrong or ", ".join(map(str, sorted(names))),
                next_step="write ${secret:platform/NAME}",
            )
    vault = Vault.of(settings, master_keys)
    wanted = found_in(texts)
    try:
        values = await vault.own_values(database, settings.own_org, wanted)
    finally:
        await vault.close()
    for name in sorted(wanted):
        match values.get(name):
            case None:
                raise InvalidInput(
                    "settings.secret_unknown",
                    "a setting refers to a secret that does not exist",
                    value=str(name),
                    next_step=f"set it with `traceplane secret set {name}`",
                )
            case PlatformError() as error:
                raise error
    known = {name: value for name, value in values.items() if isinstance(value, str)}
    return replace(settings, **{setting: replaced(text, known) for setting, text in texts.items()})
