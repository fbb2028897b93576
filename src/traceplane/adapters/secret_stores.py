"""Picks the store of secrets outside Postgres from the settings."""

from __future__ import annotations

from traceplane.adapters.secret_store import SecretStore
from traceplane.adapters.secret_store_files import FileSecretStore
from traceplane.errors import InvalidInput
from traceplane.settings import Settings


def outside_store(settings: Settings) -> SecretStore | None:
    """None: the values are sealed in Postgres."""
    match settings.secret_store:
        case "aws":
            try:
                from traceplane.adapters.secret_store_aws import AwsSecretStore  # boto is an optional extra
            except ImportError as error:
                raise InvalidInput(
                    "secret.no_client",
                    "secrets in AWS Secrets Manager need the AWS client, which is not installed",
                    value=settings.secret_store,
                    next_step='pip install ".[aws]" in a clone of Traceplane',
                ) from error
            return AwsSecretStore.from_settings(settings)
        case "files":
            assert settings.secret_folder is not None, "checked with the other settings"
            return FileSecretStore(settings.secret_folder)
        case _:
            return None
