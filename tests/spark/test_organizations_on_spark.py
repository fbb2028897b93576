"""Two organizations on one Spark worker: each has a server of its own, and finds no trace of the other in it."""

from __future__ import annotations

import pytest

from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from traceplane.auth.store import create_organization
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.postgres.database import Database
from traceplane.spark.remote import RemoteAddress
from traceplane.spark.servers import OneRemoteSpark
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.scalars import Scope

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


async def test_organizations_share_no_server_and_find_no_trace_of_each_other(spark: SparkPlatform) -> None:
    database = await Database.connect(spark.platform.url, connections=1)
    async with database.transaction() as tx:
        token = await create_organization(tx, "beta")
    await database.close()
    beta = Caller(spark.platform.gateway_url, token)
    admins = {"default": spark.platform.api, "beta": beta}
    try:
        for org, admin in admins.items():
            config = f'{{entrypoint: "spark_jobs:meets_others", own: {org}, others: [{", ".join(admins)}]}}'
            text = dag("meets", job("meets", "met", config))
            await admin.call("POST", "/api/v1/deploy", DeployResponse, DeployRequest(text))
        for n in range(3):
            for admin in admins.values():
                request = EmitRequest([ManualEvent("meets.in", Scope(cursor=n))])
                await admin.call("POST", "/api/v1/events", EmitResponse, request)
            await spark.platform.settled(seconds=240)
    finally:
        await beta.close()
    rows = await spark.rows("meets.met")
    assert len(rows) == 6
    of_server: dict[str, set[str]] = {}
    for row in rows:
        of_server.setdefault(row["server"], set()).update(filter(None, row["found"].split(",")))
    # The traces can be found: each server has those of one organization, which left them in earlier tasks.
    assert sorted(map(sorted, of_server.values())) == [["beta"], ["default"]]


async def test_a_server_of_somebody_else_has_tasks_of_one_organization() -> None:
    remote = OneRemoteSpark(RemoteAddress("sc://spark.example:15002"))
    for job_id in ("one", "two"):
        async with remote.for_job("acme", job_id):
            pass
    with pytest.raises(PlatformError) as refused:
        async with remote.for_job("beta", "one"):
            pass
    assert refused.value.code == "spark.other_organization"
