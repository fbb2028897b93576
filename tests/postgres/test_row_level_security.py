"""Row-level security keeps organizations apart, whatever a statement asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.postgres.test_organizations import Two
from traceplane.model.resources import Resources
from traceplane.postgres import workers
from traceplane.postgres.database import ORG_ROLE, SCHEMA, OrgDatabase
from traceplane.postgres.workers import WorkerKey

SHARED = {"code_bundles", "processes"}
"""What every organization may read: code by the hash of its content, and which processes there are."""
READ_ONLY = {"signal_minutes", "workers"}
"""What an organization sees, and only the platform changes."""
OF_THE_PLATFORM = {
    "completed_sign_ins",
    "openlineage_progress",
    "openlineage_runs",
    "retention_rounds",
    "schema_migrations",
    "signing_keys",
    "trigger_offsets",
    "wake_dead_letters",
    "wake_messages",
}
"""Tables that no session of an organization can name."""


@pytest_asyncio.fixture
async def two(database_url: str, tmp_path: Path) -> AsyncIterator[Two]:
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        GatewayHttp.open(plane) as http,
    ):
        made = Two(plane, http)
        await made.fill()
        await made.emit(made.second, "shop.in", 1, 2)
        yield made


async def tables(plane: ControlPlane) -> dict[str, bool]:
    """Every table, and whether row-level security is on."""
    rows = await plane.sql(
        f"select relname, relrowsecurity from pg_class where relnamespace = '{SCHEMA}'::regnamespace"
        " and relkind in ('r', 'p') order by 1"
    )
    return {row["relname"]: row["relrowsecurity"] for row in rows}


async def org_id(plane: ControlPlane, slug: str) -> UUID:
    found: UUID = await plane.value("select org_id from orgs where slug = $1", slug)
    return found


async def seen(database: OrgDatabase, table: str) -> set[str]:
    async with database.autocommit() as tx:
        return {str(row["ctid"]) for row in await tx.rows(f"select ctid::text from {table}")}


async def test_every_table_has_a_policy_or_is_closed_to_organizations(two: Two) -> None:
    protected = await tables(two.plane)
    assert {table for table, on in protected.items() if not on} == SHARED | OF_THE_PLATFORM
    for table in OF_THE_PLATFORM:
        for right in ("select", "insert", "update", "delete"):
            assert not await two.plane.value(
                "select has_table_privilege($1, $2, $3)", ORG_ROLE, f"{SCHEMA}.{table}", right
            )


async def test_no_table_shows_one_organization_a_row_of_another(two: Two) -> None:
    plane = two.plane
    first, second = [plane.orgs.of(await org_id(plane, slug)) for slug in ("default", "other")]
    async with plane.database.transaction() as tx:
        for slug in ("default", "other"):
            await workers.see(tx, WorkerKey(frozenset({slug}), "w"), "python", Resources())
    shown = 0
    for table, on in (await tables(plane)).items():
        if not on:
            continue
        everything = {str(row["ctid"]) for row in await plane.sql(f"select ctid::text from {table}")}
        of_first, of_second = await seen(first, table), await seen(second, table)
        assert not of_first & of_second, table
        assert of_first | of_second == everything, table
        shown += bool(of_first)
        if table in READ_ONLY:
            continue
        async with second.transaction() as tx:
            deleted = await tx.rows(f"delete from {table} returning ctid::text") if not of_second else []
        assert deleted == [], table
    assert shown > 15, "the first organization has something of everything"


async def test_a_session_that_acts_for_nobody_sees_nothing(two: Two, database_url: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"search_path": SCHEMA})
    try:
        await connection.execute(f"set role {ORG_ROLE}")
        for table, on in (await tables(two.plane)).items():
            if on:
                assert await connection.fetch(f"select 1 from {table}") == [], table
    finally:
        await connection.close()


async def test_no_row_can_be_written_for_another_organization(two: Two) -> None:
    plane = two.plane
    first, second = await org_id(plane, "default"), plane.orgs.of(await org_id(plane, "other"))
    dag = await plane.value("select dag_id from dags where org_id = $1 limit 1", first)
    for statement, value in (
        ("insert into dags (org_id, name) values ($1, 'theirs')", first),
        ("insert into job_pauses (dag_id, job, paused_by, since) values ($1, 'copy', 'x', now())", dag),
        ("update dags set org_id = $1", first),
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with second.transaction() as tx:
                await tx.rows(statement, value)


async def test_connections_that_serve_both_in_turn_do_not_mix_them_up(two: Two) -> None:
    plane = two.plane
    ids = [await org_id(plane, slug) for slug in ("default", "other")]
    for turn in range(20):
        wanted = ids[turn % 2]
        async with plane.orgs.of(wanted).transaction() as tx:
            assert await tx.value("select array_agg(org_id) from orgs") == [wanted]
