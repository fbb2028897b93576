"""Commands that set up a platform and rotate its secrets. They need the state database itself."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import click

from traceplane.adapters.object_stores import object_store_for
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.cli import people, profile
from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.errors import InvalidInput, NotFound
from traceplane.model import durations
from traceplane.model.counted import counted
from traceplane.model.near_names import near
from traceplane.settings import Settings

if TYPE_CHECKING:
    from traceplane.postgres.database import Transaction

Result = TypeVar("Result")

_FILES_LISTED = 20


def _in_transaction(
    settings: Settings,
    work: Callable[[Transaction], Awaitable[Result]],
    *,
    org: str | None = None,
    **names: str,
) -> Result:
    """`org`: the organization whose audit log names this command, and the `names` that it was about."""
    from traceplane.postgres import audit
    from traceplane.postgres.database import Database

    chosen = profile.existing_postgres(settings)
    assert chosen.state_url is not None
    url = chosen.state_url

    async def run() -> Result:
        database = await Database.connect(url, connections=1)
        try:
            async with database.transaction() as tx:
                result = await work(tx)
                if org is not None:
                    command = click.get_current_context().command_path
                    await audit.record_command(tx, org, _operator(), command, names)
                return result
        finally:
            await database.close()

    return asyncio.run(run())


def _operator() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"uid {os.getuid()}"


@click.command()
@as_json
@click.pass_obj
def migrate(settings: Settings, as_json: bool) -> None:
    """Set up or upgrade the state database, and write the first tokens to the home folder."""
    chosen, _ = profile.start_postgres(settings)
    asyncio.run(profile.prepare(chosen))
    folder = settings.home / "tokens"
    say_json({"tokens": str(folder)}) if as_json else say(f"ready; tokens are in {folder}")


@click.group(cls=Noun)
def org() -> None:
    """Create and list organizations."""


_ORG = re.compile(r"[a-z][a-z0-9-]{0,62}")


@org.command("create")
@click.argument("name")
@as_json
@click.pass_obj
def create_org(settings: Settings, name: str, as_json: bool) -> None:
    """Create the organization NAME, and print the token of its first admin. It is shown only once."""
    from traceplane.auth import store

    if _ORG.fullmatch(name) is None:
        raise InvalidInput(
            "org.bad_name",
            "an organization is named by a-z, then a-z, 0-9 and -, up to 63 in all",
            value=name,
            next_step="for example acme or market-data",
        )
    token = _in_transaction(settings, lambda tx: store.create_organization(tx, name), org=name, name=name)
    say_json({"org": name, "token": token}) if as_json else say(token)


@org.command("list")
@as_json
@click.pass_obj
def list_orgs(settings: Settings, as_json: bool) -> None:
    """List the organizations of this platform, with their ids."""
    from traceplane.auth import store

    organizations = _in_transaction(settings, store.organizations)
    if as_json:
        say_json([{"name": name, "org_id": org_id} for name, org_id in organizations.items()])
        return
    for name, org_id in organizations.items():
        say(f"{name}  {org_id}")


@click.group(cls=Noun)
def token() -> None:
    """Issue, list, rotate and revoke worker and user tokens."""


token.add_command(people.list_tokens)
token.add_command(people.revoke_by_id)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")

_principal = click.argument("principal", type=click.Choice(["worker", "user"]))


@token.command("issue")
@_principal
@click.argument("name")
@click.option("--role", type=click.Choice(["admin", "writer", "reader"]), help="Required for a user.")
@click.option("--pii", is_flag=True, help="Let queries with this token see columns marked as personal data.")
@click.option(
    "--org",
    "orgs",
    multiple=True,
    help="An organization that the worker serves; unset: the one of the settings.",
)
@click.option("--all-orgs", is_flag=True, help="The worker serves all organizations, also later ones.")
@as_json
@click.pass_obj
def issue(
    settings: Settings,
    principal: str,
    name: str,
    role: str | None,
    pii: bool,
    orgs: tuple[str, ...],
    all_orgs: bool,
    as_json: bool,
) -> None:
    """Print a new token. It is shown only once: only its hash is stored."""
    from traceplane.auth import store

    if (principal == "user") != (role is not None):
        raise click.UsageError("a user token needs --role; a worker token takes none")
    if pii and principal != "user":
        raise click.UsageError("only a user token takes --pii")
    if (orgs or all_orgs) and principal != "worker":
        raise click.UsageError("only a worker token takes --org or --all-orgs")
    if orgs and all_orgs:
        raise click.UsageError("choose either --org or --all-orgs")
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            "token.bad_name",
            f"the name of a {principal} has at most 100 letters, digits and _ . @ -, and starts with a letter or digit",
            value=name,
            next_step="for example ada, ci-deploys or ada@example.com",
        )
    chosen = Role(role) if role else None
    serves = None if principal == "user" or all_orgs else orgs or (settings.own_org,)

    async def issue(tx: Transaction) -> tuple[str, int]:
        live = await store.live_tokens(tx, Principal(principal), org=settings.own_org, name=name)
        token = await store.issue_token(
            tx,
            Principal(principal),
            org=settings.own_org,
            name=name,
            role=chosen,
            sees_pii=pii,
            serves=serves,
        )
        return token, live

    token, live = _in_transaction(settings, issue, org=settings.own_org, principal=principal, name=name)
    if live:
        say(
            f"{name} has {counted(live, 'older token')}, still valid: `traceplane token rotate` replaces tokens,"
            " `traceplane token revoke` ends all of a name",
            err=True,
        )
    say_json({"name": name, "token": token}) if as_json else say(token)


@token.command("rotate")
@_principal
@click.argument("name")
@click.option("--overlap", type=float, help="Seconds that the old token stays valid.")
@as_json
@click.pass_obj
def rotate(settings: Settings, principal: str, name: str, overlap: float | None, as_json: bool) -> None:
    """Print a successor of the token NAME; the old one works until the overlap ends."""
    from traceplane.auth import store

    seconds = settings.token_overlap_seconds if overlap is None else overlap
    token = _in_transaction(
        settings,
        lambda tx: store.rotate_token(
            tx, Principal(principal), org=settings.own_org, name=name, overlap_seconds=seconds
        ),
        org=settings.own_org,
        principal=principal,
        name=name,
    )
    say_json({"name": name, "token": token}) if as_json else say(token)


@token.command("revoke")
@_principal
@click.argument("name")
@as_json
@click.pass_obj
def revoke(settings: Settings, principal: str, name: str, as_json: bool) -> None:
    """Refuse the token NAME from now on."""
    from traceplane.auth import store

    async def revoke(tx: Transaction) -> tuple[int, list[str]]:
        count = await store.revoke_tokens(tx, Principal(principal), org=settings.own_org, name=name)
        return count, await store.token_names(tx, Principal(principal), org=settings.own_org)

    count, names = _in_transaction(settings, revoke, org=settings.own_org, principal=principal, name=name)
    if name not in names:
        raise NotFound(
            "token.not_found",
            f"there is no {principal} with this name",
            value=name,
            next_step=near(name, names) or f"no {principal} token was ever issued",
        )
    if as_json:
        say_json({"name": name, "revoked": count})
        return
    say(f"revoked {count}" if count else f"revoked 0: {name} was revoked before")


@click.group(cls=Noun)
def key() -> None:
    """Manage the keys that sign capability tokens."""


@key.command("rotate")
@click.option(
    "--overlap", type=float, help="Seconds until the new key signs, and again until the old one retires."
)
@as_json
@click.pass_obj
def rotate_keys(settings: Settings, overlap: float | None, as_json: bool) -> None:
    """Add a signing key that takes over after the overlap. Use an overlap of 0 for a leaked key."""
    from traceplane.auth import store
    from traceplane.auth.master_key_file import MasterKeyFile

    seconds = settings.token_overlap_seconds if overlap is None else overlap
    file = MasterKeyFile(settings.master_key_path)
    ring = _in_transaction(settings, lambda tx: store.rotate_signing_key(tx, file.keys, seconds))
    if as_json:
        say_json({"keys": [key.kid for key in ring.keys]})
        return
    for key in ring.keys:
        say(key.kid)


@key.command("rotate-master")
@click.option(
    "--forget-old", is_flag=True, help="Instead: remove earlier keys from the file, if nothing needs them."
)
@as_json
@click.pass_obj
def rotate_master(settings: Settings, forget_old: bool, as_json: bool) -> None:
    """Put a new master key into the file, and seal signing keys and secrets anew with it, while everything runs."""
    from traceplane.auth import store
    from traceplane.auth.master_key_file import MasterKeyFile, new_key
    from traceplane.secrets.sealed_store import SealedStore

    file = MasterKeyFile(settings.master_key_path)
    sealed_store = SealedStore(file.keys)

    async def add(tx: Transaction) -> None:
        await store.lock_keys(tx)
        file.put_first(new_key())

    async def seal_anew(tx: Transaction) -> int:
        await store.seal_signing_keys_anew(tx, file.keys)
        return await sealed_store.seal_anew(tx)

    async def forget(tx: Transaction) -> bool:
        """Changes nothing in the database: whatever happens now, what is there opens with the key that stays."""
        await store.lock_keys(tx)
        if not await store.are_sealed_with(tx, file.keys()[0]):
            return False
        if not await sealed_store.is_sealed_with_current(tx):
            return False
        file.keep_first()
        return True

    if not forget_old:
        _in_transaction(settings, add)
    sealed = 0
    while some := _in_transaction(settings, seal_anew):
        sealed += some
    if forget_old:
        while not _in_transaction(settings, forget):  # one was set meanwhile
            _in_transaction(settings, seal_anew)
    if as_json:
        say_json({"file": str(settings.master_key_path), "sealed": sealed})
    elif forget_old:
        say(f"{settings.master_key_path} has one key; nothing is sealed with another")
    else:
        say(
            f"{settings.master_key_path} begins with a new key, which {counted(sealed, 'secret')} are sealed with now"
        )
        say("When every process that seals has read it, run `traceplane key rotate-master --forget-old`")


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--all", "list_all", is_flag=True, help="With --dry-run: list all files, not only the first.")
@click.option("--grace", metavar="DURATION", help="Minimum age of files; by default the setting gc_grace.")
@click.option(
    "--history", metavar="DURATION", help="Minimum age of history, or `forever`; by default the setting."
)
@click.option(
    "--keep-versions",
    type=click.IntRange(min=0),
    help="Earlier versions of each DAG to keep for a rollback; by default the setting gc_keep_versions.",
)
@as_json
@click.pass_obj
def gc(
    settings: Settings,
    dry_run: bool,
    list_all: bool,
    grace: str | None,
    history: str | None,
    keep_versions: int | None,
    as_json: bool,
) -> None:
    """Delete data that nobody can read any more, and history that has ended, as dispatchers do in the background."""
    from traceplane.postgres.database import Database
    from traceplane.registry.garbage import Collected, Policy, collect

    policy = Policy(
        _duration(grace) if grace is not None else settings.grace,
        _age(history) if history is not None else settings.history_age,
        settings.gc_keep_versions if keep_versions is None else keep_versions,
    )
    if policy.history is not None and policy.history < policy.grace:
        raise InvalidInput(
            "cli.history_too_short",
            "history cannot be shorter than the grace period of files",
            value=history or settings.history,
            next_step="give a shorter --grace too",
        )
    chosen = profile.existing_postgres(settings)
    assert chosen.state_url is not None
    url = chosen.state_url

    listed = 0

    def list_file(path: str, size: int) -> None:
        nonlocal listed
        listed += 1
        if dry_run and not as_json and (list_all or listed <= _FILES_LISTED):
            say(f"{size:>12}  {path}")

    async def run() -> Collected:
        database = await Database.connect(url, connections=1)
        objects = object_store_for(settings)
        try:
            return await collect(database, objects, policy, dry_run=dry_run, found=list_file)
        finally:
            await objects.close()
            await database.close()

    garbage = asyncio.run(run())
    if as_json:
        say_json(garbage)
        return
    if dry_run and not list_all and listed > _FILES_LISTED:
        say(
            f"and {counted(listed - _FILES_LISTED, 'more file')}; `traceplane gc --dry-run --all` lists them too"
        )
    verb = "would delete" if dry_run else "deleted"
    say(
        f"{verb} {counted(garbage.files, 'file')}, "
        f"{counted(garbage.bytes, 'byte')}, of {counted(garbage.versions, 'old version')}, "
        f"{counted(garbage.commits, 'commit')} and {counted(garbage.attempts, 'attempt')}"
    )
    if garbage.partitions:
        verb_ = "would drop" if dry_run else "dropped"
        say(f"{verb_} {counted(garbage.partitions, 'partition')} older than the retention of their dataset")
    say(
        f"{verb} {counted(garbage.tasks, 'finished task')}, {counted(garbage.events, 'event')}, "
        f"{counted(garbage.executions, 'execution')}, {counted(garbage.code, 'code bundle')}, "
        f"{counted(garbage.audit, 'audit row')}, "
        f"{counted(garbage.dead_letters, 'dead wake-up')}, "
        f"{counted(garbage.check_failures, 'failed check')}, {counted(garbage.deliveries, 'message')}, "
        f"{counted(garbage.alerts, 'alert')} and "
        f"{counted(garbage.job_memory, 'row')} of jobs that cannot serve again"
    )


def _age(text: str) -> timedelta | None:
    return None if text == durations.FOREVER else _duration(text)


def _duration(text: str) -> timedelta:
    try:
        return durations.parsed(text)
    except durations.BadDuration as error:
        raise InvalidInput(
            "cli.bad_duration",
            "a duration must be a number with a unit",
            value=text,
            next_step="for example 30m, 24h or 7d",
        ) from error
