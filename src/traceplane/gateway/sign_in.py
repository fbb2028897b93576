"""Sign-in: who calls by a JWT or a session, and how a browser and the command line get a session or a token.

A sign-in that is under way leaves no trace here: what a browser needs to complete it is in its cookie, and a device
code is the provider's. So nobody can fill anything by beginning sign-ins, and any gateway can complete what another
began. Calls to providers are few at a time, since anybody can cause one; each organization has its own share, so that
a provider that does not answer keeps nobody else out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.access import KNOWN, bearer, check_org, required_role
from traceplane.auth.callers import Caller, CallerKind
from traceplane.auth.opaque import Principal, hash_token
from traceplane.auth.roles import Rights, Role, rights
from traceplane.auth.store import BY_SIGN_IN, RolesOfOrgs, issue_token
from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    PlatformError,
    TooManyRequests,
    TraceplaneError,
    Unauthenticated,
)
from traceplane.gateway.audit import AuditApi, act_of, audited
from traceplane.gateway.browser_links import check_browser, is_browser_token
from traceplane.gateway.rate_limits import RateLimits
from traceplane.http_service.outgoing import Outgoing
from traceplane.http_service.routes import PUBLIC, Call, Incoming, Reply, Route
from traceplane.postgres import audit, sign_in
from traceplane.postgres.audit import Act
from traceplane.postgres.database import Database, OrgDatabases, Transaction, retry_on_conflict
from traceplane.postgres.sign_in import Machine, SignedIn, StoredSession
from traceplane.runtime.process import Outcome
from traceplane.secrets.references import PROVIDERS, SecretName
from traceplane.secrets.vault import Denied, JobNeeds, Vault
from traceplane.settings import Settings
from traceplane.signin import browser, jwts, providers
from traceplane.signin.browser import Attempt, Site, check_next, hashed, new_secret
from traceplane.signin.conversation import Conversation, Pending
from traceplane.signin.issuers import Issuers
from traceplane.signin.jwts import Verified
from traceplane.signin.providers import Provider
from traceplane.wire.sign_in import (
    CallbackQuery,
    DeviceRequest,
    DeviceResponse,
    DeviceTokenRequest,
    DeviceTokenResponse,
    LoginQuery,
    SignedOut,
)

SIGNED_IN_SECONDS = 12 * 3600
"""Of a session, and of a token of the command line. After it, the provider is asked again who somebody is."""
_CONVERSATIONS_OF_ORG = 8
_NOTED_SECONDS = 60.0
_MOST_NOTED = 10_000
_UNKNOWN_PERSON = "unknown person"
"""In the audit log, until the provider has said who signs in. No member is called so: names have no blanks."""
_FORGET_PAGES = (b"clear-site-data", b'"cache"')
"""Browsers keep whole pages to go back to, also those that say `no-store`."""

_Subject = tuple[UUID, str, str]
"""An organization, and an issuer's subject."""
Given = TypeVar("Given")


@dataclass(slots=True)
class _Known:
    """What is stored about sign-in, as it was last read."""

    providers: list[Provider] = field(default_factory=list)
    org_ids: dict[str, UUID] = field(default_factory=dict)
    roles: RolesOfOrgs = field(default_factory=dict)
    disabled: frozenset[tuple[UUID, str, str]] = frozenset()
    roles_of_machines: Mapping[tuple[UUID, str, str], frozenset[str]] = field(default_factory=dict)
    clock: float = 0.0
    read_at: float = 0.0

    @property
    def now(self) -> float:
        return self.clock + time.monotonic() - self.read_at


class SignIn:
    def __init__(
        self,
        database: Database,
        orgs: OrgDatabases,
        settings: Settings,
        vault: Vault,
        outgoing: Outgoing,
        issuers: Issuers,
        rate_limits: RateLimits,
        audit: AuditApi,
    ) -> None:
        self._database, self._orgs, self._vault = database, orgs, vault
        self._outgoing, self._issuers, self._rate_limits = outgoing, issuers, rate_limits
        self._audit = audit
        self._gateway_address = settings.gateway_address
        self._known = _Known()
        self._conversations: dict[str, asyncio.Semaphore] = {}
        self._noted: dict[_Subject, tuple[float, SignedIn]] = {}
        """When a call of each machine was last noted, by this process's monotonic clock."""
        self._looked_up: dict[_Subject, tuple[float, Machine]] = {}

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/auth/login", None, Reply, self.login, PUBLIC,
                  "Send a browser to the identity provider.", query=LoginQuery, statuses=(303,)),
            Route("GET", browser.CALLBACK, None, Reply, self.callback, PUBLIC,
                  "Where the identity provider sends the browser back to.", query=CallbackQuery,
                  statuses=(303, 401, 403)),
            Route("POST", "/auth/logout", None, Reply, self.logout, KNOWN, "End the session or the token."),
            Route("POST", "/auth/device", DeviceRequest, DeviceResponse, self.device, PUBLIC,
                  "Begin a sign-in of the command line."),
            Route("POST", "/auth/device/token", DeviceTokenRequest, DeviceTokenResponse, self.device_token, PUBLIC,
                  "The token, once the person has signed in.", statuses=(401, 403)),
        ]  # fmt: skip

    # What is known ---------------------------------------------------------------------------------

    async def read(self, tx: Transaction, roles: RolesOfOrgs, clock: float) -> None:
        """Reads what is stored about sign-in anew."""
        stored = await sign_in.providers(tx)
        self._known = _Known(
            providers=[_provider(asdict(one)) for one in stored],
            org_ids={one.org: one.org_id for one in stored},
            roles=roles,
            disabled=await sign_in.disabled_subjects(tx),
            roles_of_machines=await sign_in.roles_of_machines(tx),
            clock=clock,
            read_at=time.monotonic(),
        )

    async def refresh_issuers(self) -> Outcome:
        """Fetches anew what providers publish; runs as a loop."""
        await self._issuers.refresh({provider.issuer for provider in self._known.providers})
        return Outcome()

    # Who calls -------------------------------------------------------------------------------------

    async def caller_of_jwt(self, token: str, incoming: Incoming) -> Caller:
        issuer = jwts.unverified_issuer(token)
        candidates = [p for p in self._known.providers if p.issuer == issuer and p.audience is not None]
        if not candidates:
            raise Unauthenticated(
                "jwt.unknown_issuer",
                "no organization accepts JWTs of this issuer",
                next_step="ask an admin to set an identity provider with an audience",
            )
        audiences = {provider.audience for provider in candidates if provider.audience is not None}
        verified = await self._verified(issuer, token, audiences)
        org = incoming.header("traceplane-org")
        meant = providers.meant(candidates, verified, org)
        with self._audited_refusal(
            None if meant is None else await self._act_of_machine(incoming, meant, verified)
        ):
            provider = providers.chosen(candidates, verified, org)
        org_id = self._known.org_ids[provider.org]
        subject = (org_id, verified.issuer, verified.subject)
        act = await self._act_of_machine(incoming, provider, verified)
        with self._audited_refusal(act):
            if subject in self._known.disabled:
                raise _disabled(act.principal)
            claimed = providers.roles_of(provider, verified)
        named = claimed | self._known.roles_of_machines.get(subject, frozenset())
        granted = rights(self._known.roles.get(org_id, {}), None, sorted(named))
        counted_as = f"subject {verified.issuer} {verified.subject}"
        role = self._admitted(provider.org, counted_as, granted, incoming, act)
        member = await self._noted_machine(act, provider, verified)
        return self._caller(provider.org, member, counted_as, granted, role, incoming, act)

    async def _noted_machine(self, act: Act, provider: Provider, verified: Verified) -> SignedIn:
        """The machine as a member; its call is noted at most once a minute. The first one makes it a member, so that
        admins see it and can disable it; somebody who has signed in as a person stays one."""
        subject, now = (act.org_id, verified.issuer, verified.subject), time.monotonic()
        if (noted := _recent(self._noted, subject, now)) is not None:
            return noted

        async def once() -> SignedIn:
            async with self._database.transaction() as tx:
                if (known := await sign_in.note_member(tx, *subject)) is not None:
                    return known
                name = providers.machine_name(provider, verified)
                member = await sign_in.sign_in_member(
                    tx,
                    act.org_id,
                    issuer=verified.issuer,
                    subject=verified.subject,
                    name=name,
                    name_if_taken=name,
                    email=None,
                    kind=CallerKind.SERVICE,
                )
                added = replace(act, principal=member.name, object={**act.object, "member": member.name})
                await audit.record_changes(tx, [added])
                return member

        member = await retry_on_conflict(once)
        _remember(self._noted, subject, now, member)
        return member

    async def _machine(self, provider: Provider, verified: Verified) -> Machine:
        """As whom a JWT calls, also if the call will be refused. Looked up at most once a minute, so that nobody keeps
        the database busy with JWTs that are not accepted."""
        org_id, now = self._known.org_ids[provider.org], time.monotonic()
        subject = (org_id, verified.issuer, verified.subject)
        if (machine := _recent(self._looked_up, subject, now)) is None:
            async with self._database.transaction() as tx:
                machine = await sign_in.machine(tx, *subject, providers.machine_name(provider, verified))
            _remember(self._looked_up, subject, now, machine)
        return machine

    def session_of(self, incoming: Incoming) -> str | None:
        """What the cookie of a session holds, if nothing else says who calls."""
        return None if incoming.header("authorization") is not None else self._session_of(incoming.headers)

    def check_browser(self, incoming: Incoming, token: str) -> None:
        check_browser(self._site(), incoming, token)

    async def caller_of_session(self, incoming: Incoming) -> Caller:
        site, secret = self._site(), self._session_of(incoming.headers)
        headers = tuple(incoming.headers.items())
        assert secret is not None
        site.check_host(headers, incoming.remote)
        async with self._database.transaction() as tx:
            found = await sign_in.session(tx, hashed(secret))
        if found is None:
            raise _session_ended()
        with self._audited_refusal(act_of(incoming, found.org_id, found.name, found.kind)):
            if found.revoked or found.expired:
                raise _session_ended()
            if found.disabled:
                raise _disabled(found.name)
            site.check_from_own_page(incoming.method, headers, found.csrf_hash)
            check_org("session", found.org, incoming.header("traceplane-org"))
        defined = self._known.roles.get(found.org_id, {})
        granted = rights(defined, found.roles, None)
        counted_as = f"member {found.member_id}"
        act = act_of(incoming, found.org_id, found.name, found.kind)
        role = self._admitted(found.org, counted_as, granted, incoming, act)
        return self._caller(found.org, found, counted_as, granted, role, incoming, act)

    def _admitted(
        self, org: str, counted_as: str, granted: Rights, incoming: Incoming, act: Act
    ) -> Role | None:
        """The role that the call is made with; raises if it may not be made."""
        with self._audited_refusal(act):
            self._rate_limits.count(org, counted_as, act.principal)
            return required_role(granted.role, incoming.auth, act.principal)

    def _caller(
        self,
        org: str,
        member: SignedIn | StoredSession,
        counted_as: str,
        granted: Rights,
        role: Role | None,
        incoming: Incoming,
        act: Act,
    ) -> Caller:
        act = replace(act, principal=member.name, kind=member.kind)
        return Caller(
            org=org,
            org_id=act.org_id,
            name=member.name,
            counted_as=counted_as,
            kind=CallerKind(member.kind),
            roles=granted.roles,
            role=role,
            sees_pii=granted.sees_pii,
            datasets=None,
            database=audited(self._orgs, incoming, act),
            act=act,
            member_id=member.member_id,
        )

    async def _act_of_machine(self, incoming: Incoming, provider: Provider, verified: Verified) -> Act:
        machine = await self._machine(provider, verified)
        return act_of(incoming, self._known.org_ids[provider.org], machine.name, machine.kind)

    @contextlib.contextmanager
    def _audited_refusal(self, act: Act | None) -> Iterator[None]:
        """None: it is not known in which organization, so there is no log that it belongs in."""
        try:
            yield
        except (Unauthenticated, Forbidden, TooManyRequests) as error:
            if act is not None:
                self._audit.refuse(act, error.code)
            raise

    async def _verified(self, issuer: str, token: str, audiences: set[str]) -> Verified:
        keys = await self._issuers.keys(issuer, jwts.unverified_kid(token))
        return jwts.verify(token, keys, issuer=issuer, audiences=audiences, now=self._known.now)

    # Browsers --------------------------------------------------------------------------------------

    def _site(self) -> Site:
        return Site.at(self._gateway_address)

    def _session_of(self, headers: Any) -> str | None:
        try:
            return self._site().cookie(tuple(headers.items()), "session")
        except InvalidInput:
            return None  # a site that browsers cannot sign in to has no sessions

    async def login(self, call: Call[None]) -> Reply:
        query: LoginQuery = call.query
        site = self._site()
        check_next(query.next)
        provider = providers.named(self._known.providers, query.org, query.provider)
        published = await self._issuers.published(provider.issuer)
        if published.authorization_endpoint is None:
            raise Conflict(
                "sign_in.not_offered",
                f"the identity provider {provider.name} does not sign browsers in",
                value=provider.issuer,
                next_step="use another provider",
            )
        attempt = Attempt.begin(provider, query.next, self._known.now)
        url = browser.authorization_url(published.authorization_endpoint, provider, attempt, site)
        return _redirect(url, site.set_cookie("sign_in", attempt.cookie, browser.ATTEMPT_SECONDS))

    async def callback(self, call: Call[None]) -> Reply:
        query: CallbackQuery = call.query
        site, headers = self._site(), call.headers_sent
        site.check_host(headers, call.remote)
        attempt = Attempt.from_cookie(site.cookie(headers, "sign_in"), self._known.now)
        attempt.check_state(query.state)
        provider = providers.named(self._known.providers, attempt.org, attempt.provider)
        act = self._act_of_sign_in(call, f"GET {browser.CALLBACK}", provider)
        session, csrf = new_secret(), new_secret()

        async def open_session(tx: Transaction, org_id: UUID, member: SignedIn) -> None:
            if not await sign_in.complete(tx, attempt.attempt_hash, org_id):
                raise Unauthenticated(
                    "sign_in.completed_before",
                    "this sign-in was completed before",
                    next_step="sign in again",
                )
            await sign_in.add_session(
                tx,
                hashed(session),
                org_id,
                member.member_id,
                csrf_hash=hashed(csrf),
                seconds=SIGNED_IN_SECONDS,
            )

        with self._audited_refusal(act):
            id_token = await self._id_token_of_callback(query, attempt, provider, site)
            verified = await self._identity(act, provider, id_token, nonce=attempt.nonce)
            member, _ = await self._signed_in(act, provider, verified, open_session)
        _note(provider, member, "browser")
        # The address is absolute and begins with ours, so no `next` can lead elsewhere.
        return _redirect(
            site.origin + attempt.next,
            site.set_cookie("session", session, SIGNED_IN_SECONDS),
            site.set_cookie("csrf", csrf, SIGNED_IN_SECONDS, readable=True),
            site.set_cookie("sign_in", "", 0),
        )

    async def _id_token_of_callback(
        self, query: CallbackQuery, attempt: Attempt, provider: Provider, site: Site
    ) -> str:
        if query.error is not None or query.code is None:
            raise Forbidden(
                "sign_in.denied",
                "the identity provider did not sign anybody in",
                value=(query.error or "no code")[:100],
                next_step="sign in again",
            )
        published = await self._issuers.published(provider.issuer)
        announced = published.authorization_response_iss_parameter_supported
        if (query.iss is not None or announced) and query.iss != provider.issuer:
            raise Unauthenticated("jwt.wrong_issuer", "another identity provider answered", value=query.iss)
        async with self._conversation(provider) as conversation:
            return await conversation.id_token_of_code(
                query.code, verifier=attempt.verifier, callback=site.callback
            )

    async def logout(self, call: Call[None]) -> Reply:
        if call.header("authorization") is None:
            secret = self._session_of(call.raw_headers)
            assert secret is not None, "the call was authenticated by it"
            async with call.principal.database.transaction() as tx:
                if is_browser_token(secret):
                    await sign_in.end_token(tx, hash_token(secret))
                else:
                    await sign_in.end_session(tx, hashed(secret))
            site = self._site()
            cleared = (site.set_cookie("session", "", 0), site.set_cookie("csrf", "", 0, readable=True))
            return _json(SignedOut("session"), (*cleared, _FORGET_PAGES))
        token = bearer(call.header("authorization"))
        async with call.principal.database.transaction() as tx:
            if jwts.is_jwt(token) or not await sign_in.end_token(tx, hash_token(token)):
                raise Conflict(
                    "sign_in.not_signed_in",
                    "this token was not made by a sign-in, so signing out does not end it",
                    value=call.principal.name,
                    next_step="an admin can revoke it with `traceplane token revoke`",
                )
        return _json(SignedOut("token"))

    # The command line ------------------------------------------------------------------------------

    async def device(self, call: Call[DeviceRequest]) -> DeviceResponse:
        provider = providers.named(self._known.providers, call.body.org, call.body.provider)
        verifier = new_secret()
        async with self._conversation(provider) as conversation:
            code = await conversation.begin_device(verifier)
        for address in (code.verification_uri, code.verification_uri_complete):
            if address is not None:
                self._outgoing.check(address)  # people open it
        return DeviceResponse(
            provider=provider.name,
            device_code=code.device_code,
            verifier=verifier,
            user_code=code.user_code,
            verification_uri=code.verification_uri,
            verification_uri_complete=code.verification_uri_complete,
            expires_in=code.expires_in,
            interval=max(1, code.interval),
        )

    async def device_token(self, call: Call[DeviceTokenRequest]) -> DeviceTokenResponse:
        asked = call.body
        provider = providers.named(self._known.providers, asked.org, asked.provider)
        act = self._act_of_sign_in(call, "POST /auth/device/token", provider)

        async def issue(tx: Transaction, _: UUID, member: SignedIn) -> str:
            return await issue_token(
                tx,
                Principal.USER,
                org=provider.org,
                member_id=member.member_id,
                name=member.name,
                lifetime_seconds=SIGNED_IN_SECONDS,
                created_by=BY_SIGN_IN,
            )

        with self._audited_refusal(act):
            async with self._conversation(provider) as conversation:
                answer = await conversation.id_token_of_device(asked.device_code, asked.verifier)
            if isinstance(answer, Pending):
                return DeviceTokenResponse("slow_down" if answer.slower else "pending")
            verified = await self._identity(act, provider, answer, nonce=None)
            member, token = await self._signed_in(act, provider, verified, issue)
        _note(provider, member, "device")
        return DeviceTokenResponse("signed_in", token, member.name, SIGNED_IN_SECONDS)

    # Both ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _conversation(self, provider: Provider) -> AsyncIterator[Conversation]:
        conversations = self._conversations.setdefault(provider.org, asyncio.Semaphore(_CONVERSATIONS_OF_ORG))
        if conversations.locked():
            raise PlatformError(
                "sign_in.busy",
                "too many people of the organization are signing in at this moment",
                next_step="try again",
            )
        async with conversations:
            published = await self._issuers.published(provider.issuer)
            secret = await self._client_secret(provider)
            yield Conversation(self._outgoing.of(provider.org), published, provider, secret)

    async def _client_secret(self, provider: Provider) -> str | None:
        if provider.client_secret is None:
            return None
        name = SecretName("platform", provider.client_secret)
        needs = JobNeeds(provider.org, PROVIDERS, provider.name, frozenset({name}))
        async with self._database.transaction() as tx:
            found = await self._vault.look_up(tx, [needs])
        handed = (await found.values())[needs]
        if isinstance(handed, Denied):
            raise PlatformError(
                "sign_in.no_client_secret",
                f"the client secret of the identity provider cannot be had: {handed.why}",
                value=str(name),
                next_step=f"set it with `traceplane secret set {name}`",
            )
        return handed[name]

    def _act_of_sign_in(self, call: Call[Any], action: str, provider: Provider) -> Act:
        return Act(
            self._known.org_ids[provider.org],
            _UNKNOWN_PERSON,
            CallerKind.USER,
            action,
            call.remote,
            call.request_id,
            {"provider": provider.name},
        )

    async def _identity(self, act: Act, provider: Provider, id_token: str, *, nonce: str | None) -> Verified:
        verified = await self._verified(provider.issuer, id_token, {provider.client_id})
        jwts.check_id_token(verified, client_id=provider.client_id, nonce=nonce)
        act.principal = (await self._machine(provider, verified)).name
        if not providers.accepts(provider, verified):
            raise Unauthenticated(
                "jwt.not_accepted",
                "the organization does not accept people with these claims",
                value=provider.org,
                next_step="sign in with an account of the organization",
            )
        return verified

    async def _signed_in(
        self,
        act: Act,
        provider: Provider,
        verified: Verified,
        let_in: Callable[[Transaction, UUID, SignedIn], Awaitable[Given]],
    ) -> tuple[SignedIn, Given]:
        """Whoever signed in, as a member with the roles of the claims, and what `let_in` gives to the member."""
        roles = await self._roles(act, provider, verified)

        async def once() -> tuple[SignedIn, Given]:
            async with self._database.transaction() as tx:
                member = await self._member(tx, act, provider, verified, roles)
                given = await let_in(tx, act.org_id, member)
                await audit.record_changes(tx, [act])
                return member, given

        return await retry_on_conflict(once)

    async def _roles(self, act: Act, provider: Provider, verified: Verified) -> frozenset[str]:
        """Those that the claims mean. Whoever has none any more is refused, and keeps none of earlier sign-ins."""
        try:
            return providers.roles_of(provider, verified)
        except Forbidden:
            async with self._database.transaction() as tx:
                name = await sign_in.forget_roles_of_subject(
                    tx, act.org_id, verified.issuer, verified.subject
                )
                act.principal = name or act.principal
                await audit.record_changes(tx, [act])
            raise

    async def _member(
        self, tx: Transaction, act: Act, provider: Provider, verified: Verified, roles: frozenset[str]
    ) -> SignedIn:
        org_id, email = act.org_id, verified.claims.get("email")
        member = await sign_in.sign_in_member(
            tx,
            org_id,
            issuer=verified.issuer,
            subject=verified.subject,
            name=providers.display_name(provider, verified),
            name_if_taken=providers.machine_name(provider, verified),
            email=email if isinstance(email, str) else None,
        )
        act.principal = member.name
        if member.disabled:
            raise _disabled(member.name)
        # Somebody whom an admin has disabled does not come back as another member.
        address = providers.verified_email(verified)
        if address is not None and await sign_in.disabled_of_email(tx, org_id, address):
            raise _disabled(address)
        await sign_in.set_claimed_roles(
            tx, org_id, member.member_id, roles, by=f"{BY_SIGN_IN} {provider.name}"
        )
        return member


def _recent(kept: Mapping[_Subject, tuple[float, Given]], subject: _Subject, now: float) -> Given | None:
    since, value = kept.get(subject, (-_NOTED_SECONDS, None))
    return value if now - since < _NOTED_SECONDS else None


def _remember(kept: dict[_Subject, tuple[float, Given]], subject: _Subject, now: float, value: Given) -> None:
    if len(kept) >= _MOST_NOTED:
        kept.clear()
    kept[subject] = now, value


def _provider(stored: dict[str, Any]) -> Provider:
    return Provider(**{name: stored[name] for name in Provider.__struct_fields__})


def _note(provider: Provider, member: SignedIn, way: str) -> None:
    telemetry.emit(
        "sign_in.succeeded", org=provider.org, provider=provider.name, principal=member.name, way=way
    )


def _session_ended() -> Unauthenticated:
    return Unauthenticated(
        "session.ended", "the session has ended", next_step="sign in again: GET /auth/login"
    )


def _disabled(name: str) -> TraceplaneError:
    return Forbidden(
        "sign_in.disabled",
        "this member of the organization is disabled",
        value=name,
        next_step="ask an admin of the organization",
    )


def _redirect(url: str, *cookies: tuple[bytes, bytes]) -> Reply:
    return Reply(b"", status=303, headers=((b"location", url.encode("ascii")), *cookies))


def _json(body: SignedOut, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    return Reply(msgspec.json.encode(body), headers=headers)
