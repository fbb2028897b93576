"""Secrets, as people set them. No route returns a value."""

from __future__ import annotations

import re
from typing import Any

from traceplane import telemetry
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.errors import InvalidInput, NotFound
from traceplane.http_service.routes import Call, Route
from traceplane.model.near_names import near
from traceplane.postgres.database import retry_on_conflict
from traceplane.secrets.references import SecretName, parse_name
from traceplane.secrets.sealing import MasterKeys
from traceplane.secrets.vault import Vault
from traceplane.wire.secrets import SecretRemoved, SecretSet, SecretsResponse, SecretValue, SecretView

ADMIN = "admin"
_JOB = re.compile(r"[^/\s]{1,200}/[^/\s]{1,200}")


class SecretApi:
    def __init__(self, master_keys: MasterKeyFile) -> None:
        self._master_keys = master_keys

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/secrets", None, SecretsResponse, self.listed, ADMIN,
                  "Secrets, without their values."),
            Route("PUT", "/api/v1/secrets/{namespace}/{name}", SecretValue, SecretSet, self.set, ADMIN,
                  "Set a secret, or a new version of it."),
            Route("DELETE", "/api/v1/secrets/{namespace}/{name}", None, SecretRemoved, self.remove, ADMIN,
                  "Remove a secret with all its versions."),
        ]  # fmt: skip

    def _vault(self) -> Vault:
        return Vault(MasterKeys(self._master_keys.keys()))

    async def listed(self, call: Call[None]) -> SecretsResponse:
        async with call.principal.database.transaction() as tx:
            found = await self._vault().listed(tx, call.principal.org)
        return SecretsResponse(
            [
                SecretView(
                    name=s.name if s.namespace == "user" else f"{s.namespace}/{s.name}",
                    version=s.version,
                    set_by=s.set_by,
                    set_at=s.set_at,
                    last_used_at=s.last_used_at,
                    allowed_jobs=None if s.allowed_jobs is None else list(s.allowed_jobs),
                )
                for s in found
            ]
        )

    async def set(self, call: Call[SecretValue]) -> SecretSet:
        name, asked, by = _name(call), call.body, call.principal.name
        for job in asked.allowed_jobs or ():
            if not _JOB.fullmatch(job):
                raise InvalidInput(
                    "secret.bad_job", "a job is written dag/job, or dag/* for all of a DAG", value=job
                )

        async def once() -> int:
            async with call.principal.database.transaction() as tx:
                return await self._vault().set(
                    tx,
                    call.principal.org,
                    name,
                    asked.value,
                    by=by,
                    allowed_jobs=None if asked.any_job else asked.allowed_jobs,
                    allow_anew=asked.any_job or asked.allowed_jobs is not None,
                )

        version = await retry_on_conflict(once)
        telemetry.emit("secret.set", name=str(name), version=version, principal=by)
        return SecretSet(str(name), version)

    async def remove(self, call: Call[None]) -> SecretRemoved:
        name, org = _name(call), call.principal.org
        async with call.principal.database.transaction() as tx:
            vault = self._vault()
            if not await vault.remove(tx, org, name):
                names = [str(SecretName(s.namespace, s.name)) for s in await vault.listed(tx, org)]  # type: ignore[arg-type]
                raise NotFound(
                    "secret.unknown",
                    "there is no secret of this name",
                    value=str(name),
                    next_step=near(str(name), names) or "see `traceplane secret list`",
                )
        telemetry.emit("secret.removed", name=str(name), principal=call.principal.name)
        return SecretRemoved(str(name))


def _name(call: Call[Any]) -> SecretName:
    text = f"{call.path_params['namespace']}/{call.path_params['name']}"
    name = parse_name(text)
    if name is None:
        raise InvalidInput(
            "secret.bad_name",
            "a secret is named by a letter and up to 99 letters, digits, _ . and -; after platform/ or user/, if given",
            value=text[:200],
            next_step="for example mainnet_rpc or platform/mainnet_rpc",
        )
    return name
