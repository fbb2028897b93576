"""Tables whose files are in S3: readers get credentials that read this table, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from tests.aws import REGION
from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.iceberg.engines import ENGINES, rows_of
from tests.iceberg.served_shop import ServedShop
from tests.query.published import DAG, Shop, items, orders
from tests.seaweedfs import KEY, READ_ROLE, SECRET, seaweedfs
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.auth.roles import Role
from traceplane.gateway.api import PublicApi
from traceplane.settings import Settings


class ShopInS3(Shop):
    """Its files are written to a folder first, and then uploaded."""

    uploads: S3ObjectStore

    async def publish(self, *arguments: Any, **more: Any) -> str:
        path = await super().publish(*arguments, **more)
        await self.uploads.put(self.store / path, path)
        return path


@pytest_asyncio.fixture
async def served(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServedShop]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with seaweedfs(tmp_path / "weed") as endpoint:
        async with get_session().create_client("s3", region_name=REGION, endpoint_url=endpoint) as s3:
            await s3.create_bucket(Bucket="shop")
        settings = Settings(
            object_store="s3://shop/data",
            s3_endpoint_url=endpoint,
            aws_region=REGION,
            s3_read_role=READ_ROLE,
            home=tmp_path / "home",
        )
        async with ControlPlane.open(database_url, home=tmp_path / "home") as plane:
            plane.api = PublicApi(database=plane.database, orgs=plane.orgs, settings=settings)
            async with GatewayHttp.open(plane) as http, _published(plane, tmp_path, endpoint) as shop:
                yield ServedShop(shop, http, await http.token(Role.ADMIN))


@contextlib.asynccontextmanager
async def _published(plane: ControlPlane, folder: Path, endpoint: str) -> AsyncIterator[Shop]:
    await plane.deploy(DAG)
    shop = ShopInS3(plane, folder / "written")
    shop.uploads = S3ObjectStore("shop", "data", region=REGION, endpoint_url=endpoint)
    for first in (1, 21, 41):
        await shop.publish("shop.orders", orders(first, first + 19), first, first + 19)
    await shop.publish("shop.orders", orders(15, 25).slice(0, 3), 15, 25)
    await shop.publish("shop.items", items(1, 30), 1, 30)
    yield shop
    await shop.uploads.close()


async def test_engines_read_from_s3_with_the_credentials_they_are_given(served: ServedShop) -> None:
    expected = await served.query("select * from shop.orders")
    assert expected.num_rows == 52
    for engine in ENGINES:
        assert rows_of(await served.read(engine, "shop.orders")) == rows_of(expected), engine


async def test_credentials_read_one_table_and_nothing_else(served: ServedShop) -> None:
    headers = {"authorization": f"Bearer {served.token}"}
    path = "/iceberg/v1/live/namespaces/shop/tables/shop.items"
    async with served.http.session.get(path, headers=headers) as answer:
        assert (await answer.json())["config"] == {}  # none were asked for
    status, text = await served.http.send(served.token, "GET", f"{path}/credentials")
    assert status == 200, text
    config = json.loads(text)["storage-credentials"][0]["config"]
    session = get_session()
    session.set_credentials(
        config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"]
    )
    keys = {}
    for dataset in ("shop.items", "shop.orders"):
        rows = await served.shop.plane.sql(
            "select f ->> 'path' from datasets d join dataset_commits c on c.generation_id = d.current_generation_id,"
            " jsonb_array_elements(c.files) f where d.dataset_id = $1 limit 1",
            dataset,
        )
        keys[dataset] = f"data/{rows[0][0]}"
    async with session.create_client("s3", region_name=REGION, endpoint_url=config["s3.endpoint"]) as s3:
        answer = await s3.get_object(Bucket="shop", Key=keys["shop.items"])
        assert (await answer["Body"].read())[:4] == b"PAR1"
        for call in (
            s3.get_object(Bucket="shop", Key=keys["shop.orders"]),
            s3.put_object(Bucket="shop", Key=keys["shop.items"], Body=b"x"),
            s3.delete_object(Bucket="shop", Key=keys["shop.items"]),
            s3.list_objects_v2(Bucket="shop"),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                await call


async def test_without_a_role_there_are_no_credentials(
    served: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = served.shop.plane.api.iceberg._derived.store
    monkeypatch.setattr(store, "_read_role", None)
    with pytest.raises(Exception, match=r"object_store\.no_read_role.*s3_read_role"):
        await asyncio.to_thread(ENGINES["pyiceberg"], served.url, served.token, "shop", "shop.items")
