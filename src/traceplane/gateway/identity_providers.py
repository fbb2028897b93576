"""The identity providers of an organization, as its admins set them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from traceplane import telemetry
from traceplane.errors import NotFound
from traceplane.http_service.outgoing import Outgoing
from traceplane.http_service.routes import Call, Route
from traceplane.model.near_names import near
from traceplane.postgres import sign_in
from traceplane.postgres.database import retry_on_conflict
from traceplane.postgres.sign_in import StoredProvider
from traceplane.signin import providers
from traceplane.signin.issuers import Issuers
from traceplane.signin.providers import Provider
from traceplane.wire.sign_in import ProviderRemoved, ProviderSettings, ProvidersResponse, ProviderView

ADMIN = "admin"


class IdentityProviderApi:
    def __init__(self, outgoing: Outgoing, issuers: Issuers) -> None:
        self._outgoing, self._issuers = outgoing, issuers

    def routes(self) -> list[Route]:
        path = "/api/v1/identity-providers"
        return [
            Route("GET", path, None, ProvidersResponse, self.listed, ADMIN,
                  "Identity providers of the organization."),
            Route("GET", path + "/{name}", None, ProviderView, self.one, ADMIN, "One identity provider."),
            Route("PUT", path + "/{name}", ProviderSettings, ProviderView, self.set, ADMIN,
                  "Set an identity provider."),
            Route("DELETE", path + "/{name}", None, ProviderRemoved, self.remove, ADMIN,
                  "Remove an identity provider, and end the sessions of its people."),
        ]  # fmt: skip

    async def listed(self, call: Call[None]) -> ProvidersResponse:
        return ProvidersResponse([_view(provider) for provider in await _stored(call)])

    async def one(self, call: Call[Any]) -> ProviderView:
        stored, name = await _stored(call), call.path_params["name"]
        for provider in stored:
            if provider.name == name:
                return _view(provider)
        raise _unknown(name, stored)

    async def set(self, call: Call[ProviderSettings]) -> ProviderView:
        """An issuer that does not answer is refused here, where somebody reads the reason."""
        caller, asked, name = call.principal, call.body, call.path_params["name"]
        values = {field: getattr(asked, field) for field in asked.__struct_fields__}
        async with caller.database.transaction() as tx:
            roles = await sign_in.role_names(tx, caller.org_id)
        providers.check(Provider(org=caller.org, name=name, **values), roles=roles)
        self._outgoing.check(asked.issuer)
        await self._issuers.published(asked.issuer)
        provider = StoredProvider(
            org_id=caller.org_id, org=caller.org, name=name, set_by=caller.name, **values
        )

        async def once() -> None:
            async with caller.database.transaction() as tx:
                before = {p.name: p for p in await sign_in.providers_of_org(tx, caller.org_id)}.get(name)
                await sign_in.set_provider(tx, provider)
                if before is not None and before.issuer != provider.issuer:
                    await sign_in.end_sessions_of_issuer(tx, caller.org_id, before.issuer)

        await retry_on_conflict(once)
        telemetry.emit(
            "sign_in.provider_set", name=name, issuer=provider.issuer, org=caller.org, principal=caller.name
        )
        return await self.one(call)

    async def remove(self, call: Call[None]) -> ProviderRemoved:
        caller, name = call.principal, call.path_params["name"]
        async with caller.database.transaction() as tx:
            stored = await sign_in.providers_of_org(tx, caller.org_id)
            if not await sign_in.remove_provider(tx, caller.org_id, name):
                raise _unknown(name, stored)
            for provider in stored:
                if provider.name == name:
                    await sign_in.end_sessions_of_issuer(tx, caller.org_id, provider.issuer)
        telemetry.emit("sign_in.provider_removed", name=name, org=caller.org, principal=caller.name)
        return ProviderRemoved(name)


async def _stored(call: Call[Any]) -> list[StoredProvider]:
    async with call.principal.database.transaction() as tx:
        return await sign_in.providers_of_org(tx, call.principal.org_id)


def _view(provider: StoredProvider) -> ProviderView:
    known = asdict(provider)
    return ProviderView(**{field: known[field] for field in ProviderView.__struct_fields__})


def _unknown(name: str, stored: list[StoredProvider]) -> NotFound:
    return NotFound(
        "provider.unknown",
        "the organization has no identity provider of this name",
        value=name[:200],
        next_step=near(name, [provider.name for provider in stored]) or "see `traceplane provider list`",
    )
