"""Secrets, as people set them. No route returns a value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from traceplane import telemetry
from traceplane.auth.access import cut_down
from traceplane.auth.callers import Caller
from traceplane.errors import Forbidden, InvalidInput, NotFound
from traceplane.http_service.routes import Call, Route
from traceplane.model import hidden_values
from traceplane.model.near_names import near, nearest
from traceplane.postgres import channels, people, registry, sign_in
from traceplane.postgres.database import Transaction, retry_on_conflict
from traceplane.secrets.references import CHANNELS, PROVIDERS, SecretName, parse_name, reference
from traceplane.secrets.vault import Setting, Vault
from traceplane.wire.secrets import (
    SecretRemoved,
    SecretRightsRequest,
    SecretRightsView,
    SecretSet,
    SecretsResponse,
    SecretValue,
    SecretView,
)

READER, ADMIN = "reader", "admin"
_JOB = re.compile(r"[^/\s]{1,200}/[^/\s]{1,200}")
_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class SecretApi:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/secrets", None, SecretsResponse, self.listed, READER,
                  "Secrets that the caller may set, without their values."),
            Route("PUT", "/api/v1/secrets/{namespace}/{name}", SecretValue, SecretSet, self.set, READER,
                  "Set a secret, or a new version of it: admins, and who has one of its roles."),
            Route("POST", "/api/v1/secrets/{namespace}/{name}/rights", SecretRightsRequest, SecretRightsView,
                  self.allow, ADMIN, "Change who may use and who may set a secret."),
            Route("DELETE", "/api/v1/secrets/{namespace}/{name}", None, SecretRemoved, self.remove, ADMIN,
                  "Remove a secret with all its versions."),
        ]  # fmt: skip

    async def listed(self, call: Call[None]) -> SecretsResponse:
        found = await self._vault.listed(call.principal.database, call.principal.org)
        return SecretsResponse(
            [
                SecretView(
                    name=str(s.name),
                    version=s.version,
                    set_by=s.set_by,
                    set_at=s.set_at,
                    last_used_at=s.last_used_at,
                    allowed_jobs=None if s.rights.allowed_jobs is None else list(s.rights.allowed_jobs),
                    roles=list(s.rights.roles),
                )
                for s in found
                if _may_set(call.principal, s.rights.roles)
            ]
        )

    async def set(self, call: Call[SecretValue]) -> SecretSet:
        name, asked, by = _name(call), call.body, call.principal.name
        jobs = _jobs(asked)
        _check_roles(asked)
        exists = call.principal.is_admin or await self._exists(call.principal, name)

        async def once() -> tuple[Setting, list[str]]:
            async with call.principal.database.transaction() as tx:
                await self._check_may_set(tx, call, name, exists=exists)
                setting = await self._vault.set(
                    tx, call.principal.org, name, asked.value, by=by, jobs=jobs, roles=asked.roles
                )
                return setting, await _warnings(tx, call.principal, asked)

        setting, warnings = await retry_on_conflict(once)
        if len(asked.value.strip()) < hidden_values.SHORTEST:
            warnings.append(
                f"a value of fewer than {hidden_values.SHORTEST} characters is not hidden in logs and errors"
            )
        version = await setting.complete(call.principal.database)
        async with call.principal.database.transaction() as tx:
            await channels.retry_with(tx, call.principal.org_id, reference(name))
        telemetry.emit("secret.set", name=str(name), version=version, principal=by)
        return SecretSet(str(name), version, warnings)

    async def _exists(self, caller: Caller, name: SecretName) -> bool:
        return bool(await self._vault.existing(caller.database, caller.org, [name]))

    async def _check_may_set(
        self, tx: Transaction, call: Call[SecretValue], name: SecretName, *, exists: bool
    ) -> None:
        """Whoever has one of a secret's roles gives it a value, and changes nothing about who may use it."""
        if call.principal.is_admin:
            return
        if call.principal.datasets is not None:
            raise cut_down(call.principal.name)
        rights = (await self._vault.rights(tx, call.principal.org, [name]))[name]
        if not exists or not _may_set(call.principal, rights.roles):
            raise Forbidden(
                "secret.not_yours",
                "only admins, and those who have one of its roles, set a secret",
                value=str(name),
                next_step="ask an admin of the organization: `traceplane secret allow NAME --role ROLE`",
            )
        if _jobs(call.body) is not None or call.body.roles is not None:
            raise Forbidden(
                "secret.rights_are_admins",
                "only admins change who may use a secret and who may set it",
                value=str(name),
                next_step="set only its value",
            )

    async def allow(self, call: Call[SecretRightsRequest]) -> SecretRightsView:
        name, asked, org = _name(call), call.body, call.principal.org
        jobs = _jobs(asked)
        _check_roles(asked)
        if not await self._exists(call.principal, name):
            raise await self._unknown(call.principal, name)
        async with call.principal.database.transaction() as tx:
            rights = await self._vault.allow(tx, org, name, jobs=jobs, roles=asked.roles)
            warnings = await _warnings(tx, call.principal, asked)
        telemetry.emit("secret.allowed", name=str(name), principal=call.principal.name)
        allowed = None if rights.allowed_jobs is None else list(rights.allowed_jobs)
        return SecretRightsView(str(name), allowed, list(rights.roles), warnings)

    async def remove(self, call: Call[None]) -> SecretRemoved:
        name, org = _name(call), call.principal.org
        if not await self._vault.remove(call.principal.database, org, name):
            raise await self._unknown(call.principal, name)
        telemetry.emit("secret.removed", name=str(name), principal=call.principal.name)
        return SecretRemoved(str(name))

    async def _unknown(self, caller: Caller, name: SecretName) -> NotFound:
        names = [str(s.name) for s in await self._vault.listed(caller.database, caller.org)]
        return NotFound(
            "secret.unknown",
            "there is no secret of this name",
            value=str(name),
            next_step=near(str(name), names) or "see `traceplane secret list`",
        )


def _may_set(caller: Caller, roles: Sequence[str]) -> bool:
    """A secret belongs to no dataset, so a token for some datasets sets none."""
    return caller.is_admin or (caller.datasets is None and not caller.roles.isdisjoint(roles))


def _jobs(asked: SecretRightsRequest) -> tuple[list[str] | None] | None:
    """None: they stay as they are; a tuple with None: every job."""
    for job in asked.allowed_jobs or ():
        if not _JOB.fullmatch(job):
            raise InvalidInput(
                "secret.bad_job", "a job is written dag/job, or dag/* for all of a DAG", value=job
            )
    if asked.any_job:
        return (None,)
    return None if asked.allowed_jobs is None else (asked.allowed_jobs,)


_KINDS = {CHANNELS: "channel", PROVIDERS: "identity provider"}
"""What uses secrets like the jobs of a DAG, by the name of that DAG."""


async def _warnings(tx: Transaction, caller: Caller, asked: SecretRightsRequest) -> list[str]:
    """Names that do not exist may be those of a job that is deployed later, or misspelled."""
    warnings = []
    if asked.roles:
        roles = [role.name for role in await people.roles(tx)]
        for role in asked.roles:
            if role not in roles:
                warnings.append(f"there is no role {role} yet{_meant(role, roles)}")
    if asked.allowed_jobs:
        dags = await registry.job_names(tx, caller.org)
        dags[PROVIDERS] = {provider.name for provider in await sign_in.providers_of_org(tx, caller.org_id)}
        dags[CHANNELS] = set(await channels.names(tx, caller.org_id))
        jobs = [f"{dag}/{job}" for dag, names in dags.items() for job in ("*", *sorted(names))]
        for job in asked.allowed_jobs:
            if job not in jobs:
                group, _, name = job.partition("/")
                what = _KINDS.get(group) or ("DAG" if name == "*" else "job")
                # One of the same kind: a group of them would be more than was asked for.
                alike = [
                    other
                    for other in jobs
                    if _KINDS.get(other.partition("/")[0]) == _KINDS.get(group)
                    and other.endswith("/*") == (name == "*")
                ]
                named = {"DAG": group, "job": job}.get(what, name)
                warnings.append(f"there is no {what} {named} yet{_meant(job, alike)}")
    return warnings


def _meant(name: str, names: Sequence[str]) -> str:
    suggestion = nearest(name, names)
    return "" if suggestion is None else f"; {suggestion}"


def _check_roles(asked: SecretRightsRequest) -> None:
    for role in asked.roles or ():
        if not _ROLE.fullmatch(role):
            raise InvalidInput(
                "secret.bad_role",
                "a role is a lower-case letter and up to 62 lower-case letters, digits, _ and -",
                value=role,
                next_step="for example finance or writer",
            )


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
