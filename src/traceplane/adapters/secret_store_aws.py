"""Secrets in AWS Secrets Manager, as `/ENVIRONMENT/ORGANIZATION/{platform|user}/NAME`.

Values are set here or by whoever else may write there, such as Terraform or a rotation function. A value that was read
is used for a moment before it is asked for again: a claim must not cost a call for each of its tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from traceplane.adapters.secret_store import (
    LONGEST_VALUE,
    Reading,
    StoredSecret,
    Writing,
    is_place,
    unreadable,
)
from traceplane.errors import PlatformError
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.secrets import SecretPlace
from traceplane.runtime.in_parallel import in_parallel
from traceplane.settings import Settings

FRESH_SECONDS = 2.0
_CALLS_AT_ONCE = 16
_PATIENCE_SECONDS = 10.0
_CURRENT = "AWSCURRENT"
_RECOVERABLE_DAYS = 7
_FAILURES = (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, TimeoutError, OSError)
_ABSENT = "ResourceNotFoundException"
_BEING_DELETED = "InvalidRequestException"


class AwsSecretStore:
    """Credentials come from botocore's usual sources, unless a session has its own."""

    def __init__(
        self,
        environment: str,
        *,
        region: str,
        endpoint_url: str | None = None,
        session: AioSession | None = None,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._environment = environment
        self._region = region
        self._endpoint_url = endpoint_url
        self._session = session or get_session()
        self._fresh_seconds = fresh_seconds
        self._read_at: dict[SecretPlace, tuple[float, str]] = {}
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()
        self._client: Any = None

    @classmethod
    def from_settings(cls, settings: Settings) -> AwsSecretStore:
        return cls(
            settings.secret_environment,
            region=settings.aws_region,
            endpoint_url=settings.secretsmanager_endpoint_url,
        )

    async def check(self) -> None:
        await self._call(lambda aws: aws.list_secrets(MaxResults=1))

    async def close(self) -> None:
        self._client = None
        await self._open.aclose()

    async def put(self, tx: Transaction, place: SecretPlace, value: str, by: str) -> Writing:
        return partial(self._put, place, value)

    async def _put(self, place: SecretPlace, value: str) -> str:
        self._read_at.pop(place, None)
        where, new = self._path(place), {"SecretString": value}
        try:
            found = await self._call(lambda aws: aws.describe_secret(SecretId=where), _Absent)
        except _Absent:
            answer = await self._call(lambda aws: aws.create_secret(Name=where, **new))
            return str(answer["VersionId"])
        if "DeletedDate" in found:
            await self._call(lambda aws: aws.restore_secret(SecretId=where))
        answer = await self._call(lambda aws: aws.put_secret_value(SecretId=where, **new))
        return str(answer["VersionId"])

    async def remove(self, place: SecretPlace) -> bool:
        """It can be restored for some days, as is usual there; nothing is handed out from now on."""
        self._read_at.pop(place, None)
        days = {"RecoveryWindowInDays": _RECOVERABLE_DAYS}
        try:
            if not await self._exists(place):
                return False
            await self._call(lambda aws: aws.delete_secret(SecretId=self._path(place), **days), _Absent)
        except _Absent:
            return False
        return True

    async def listed(self, database: Database, org: str) -> list[StoredSecret]:
        prefix = self._path(SecretPlace(org, "", "")).rstrip("/") + "/"
        filters = [{"Key": "name", "Values": [prefix]}]
        aws = await self._connected()
        pages = aiter(aws.get_paginator("list_secrets").paginate(Filters=filters))
        listed: list[StoredSecret] = []
        while (page := await self._call(lambda _: anext(pages, None))) is not None:
            for entry in page["SecretList"]:
                namespace, _, name = entry["Name"].removeprefix(prefix).partition("/")
                place = SecretPlace(org, namespace, name)
                if entry["Name"].startswith(prefix) and is_place(place):
                    versions = entry.get("SecretVersionsToStages", {})
                    current = next((v for v, stages in versions.items() if _CURRENT in stages), None)
                    listed.append(StoredSecret(place, current, set_at=entry.get("LastChangedDate")))
        return sorted(listed, key=lambda secret: secret.place)

    async def existing(self, database: Database, places: Collection[SecretPlace]) -> set[SecretPlace]:
        asked = list(places)
        answers = await in_parallel(self._exists, asked, _CALLS_AT_ONCE)
        return {place for place, exists in zip(asked, answers, strict=True) if exists}

    async def _exists(self, place: SecretPlace) -> bool:
        try:
            answer = await self._call(lambda aws: aws.describe_secret(SecretId=self._path(place)), _Absent)
        except _Absent:
            return False
        return "DeletedDate" not in answer

    async def look_up(self, tx: Transaction, places: Collection[SecretPlace]) -> Reading:
        async def read() -> Mapping[SecretPlace, str | PlatformError]:
            asked = sorted(set(places))
            values = await in_parallel(self._value, asked, _CALLS_AT_ONCE)
            return {place: value for place, value in zip(asked, values, strict=True) if value is not None}

        return read

    async def _value(self, place: SecretPlace) -> str | PlatformError | None:
        asked_at = time.monotonic()
        read_at, known = self._read_at.get(place, (0.0, None))
        if known is not None and asked_at - read_at < self._fresh_seconds:
            return known
        try:
            answer = await self._call(lambda aws: aws.get_secret_value(SecretId=self._path(place)), _Absent)
        except _Absent:
            self._read_at.pop(place, None)
            return None
        except PlatformError as error:
            return error
        value = answer.get("SecretString")
        if not isinstance(value, str) or not 0 < len(value.encode()) <= LONGEST_VALUE:
            return unreadable(place, "it is binary, empty or too long")
        self._read_at[place] = asked_at, value
        return value

    def _path(self, place: SecretPlace) -> str:
        return f"/{self._environment}/{place.org}/{place.namespace}/{place.name}"

    async def _call(self, call: Callable[[Any], Awaitable[Any]], absent: type[_Absent] | None = None) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await call(await self._connected())
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if absent is not None and code in (_ABSENT, _BEING_DELETED):
                raise absent from None
            raise _unavailable(code) from error
        except _FAILURES as error:
            raise _unavailable(type(error).__name__) from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is None:
                self._client = await self._open.enter_async_context(
                    self._session.create_client(
                        "secretsmanager",
                        region_name=self._region,
                        endpoint_url=self._endpoint_url,
                        config=AioConfig(
                            connect_timeout=3,
                            read_timeout=5,
                            max_pool_connections=4 * _CALLS_AT_ONCE,
                            retries={"mode": "standard", "total_max_attempts": 3},
                        ),
                    )
                )
            return self._client


class _Absent(Exception):
    """There is no such secret, or it is being deleted."""


def _unavailable(reason: str) -> PlatformError:
    """Without the text of the failure, which may repeat what was sent."""
    return PlatformError(
        "secret.store_unavailable",
        f"a call to AWS Secrets Manager failed: {reason}",
        next_step="check the region, the credentials and their permissions; the call may be repeated",
    )
