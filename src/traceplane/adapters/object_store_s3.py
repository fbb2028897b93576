"""An S3 bucket, or one of a compatible server, as the object store.

Files larger than one part are uploaded in parts, several in parallel. The client retries calls by itself; a download
that breaks off is retried here. Stored files carry a checksum that the client computes and S3 verifies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.parsers import ResponseParserError

from traceplane.adapters import s3_policies
from traceplane.adapters.object_store import (
    BucketAccess,
    StagingPrefix,
    StoredFile,
    changed,
    missing,
    relative,
    size_mismatch,
    staging_prefix_of,
)
from traceplane.errors import Conflict, PlatformError, TooLarge
from traceplane.linux.plain_files import open_plain
from traceplane.runtime.in_parallel import in_parallel
from traceplane.runtime.retrying import pauses, retrying
from traceplane.settings import Settings

_BATCH = 500
_MOST_KEYS_DELETED = 1000
_MOST_PARTS = 10_000
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_CHUNK_BYTES = 1 << 20
_CALLS_AT_ONCE = 16
"""Per caller; all callers share the connections."""
_CONNECTIONS = 64

_READ_SECONDS = 3600
"""For which credentials of readers are valid: the most that a role allows unless told otherwise."""
_NOT_IN_A_SESSION_NAME = re.compile(r"[^\w+=,.@-]", re.ASCII)

_FAILURES = (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, TimeoutError, OSError)
_NOT_THERE = frozenset({"404", "NoSuchKey", "NotFound"})
_REFUSED = frozenset({"AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch"})

_BROKEN_OFF = (BotoCoreError, aiohttp.ClientError, TimeoutError, ConnectionError)


@dataclass(frozen=True, slots=True)
class ListedObject:
    path: str
    bytes: int
    etag: str
    modified_at: datetime


class S3ObjectStore:
    """Credentials come from botocore's usual sources, unless a session has its own."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        region: str,
        endpoint_url: str | None = None,
        session: AioSession | None = None,
        read_role: str | None = None,
        task_role: str | None = None,
        tries: int = 5,
        keys_per_page: int = 1000,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._region = region
        self._endpoint_url = endpoint_url
        self._session = session or get_session()
        self._read_role = read_role
        self._task_role = task_role
        self._tries = tries
        self._paging = {"PageSize": keys_per_page}
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()
        self._client: Any = None

    @classmethod
    def from_settings(cls, settings: Settings) -> S3ObjectStore:
        assert settings.object_bucket is not None
        bucket, prefix = settings.object_bucket
        return cls(
            bucket,
            prefix,
            region=settings.aws_region,
            endpoint_url=settings.s3_endpoint_url,
            read_role=settings.s3_read_role,
            task_role=settings.s3_task_role,
        )

    async def close(self) -> None:
        self._client = None
        await self._open.aclose()

    async def check(self) -> None:
        await self._call("", lambda s3: s3.list_objects_v2(**self._below(""), MaxKeys=1))

    # Files -----------------------------------------------------------------------------------------

    async def listing(self, prefix: str) -> AsyncIterator[list[ListedObject]]:
        """All objects below a prefix, in pages. Keys that no file system could have are left out."""
        async for page in self._pages("list_objects_v2", prefix):
            entries = ((self._path(entry["Key"]), entry) for entry in page.get("Contents", ()))
            yield [
                ListedObject(path, entry["Size"], entry["ETag"], entry["LastModified"])
                for path, entry in entries
                if posixpath.normpath(path) == path and not path.startswith(("/", "../"))
            ]

    async def below(self, prefix: str) -> AsyncIterator[list[StoredFile]]:
        async for page in self.listing(prefix):
            yield [StoredFile(entry.path, entry.bytes) for entry in page]

    def location(self, path: str) -> str:
        return f"s3://{self._bucket}/{self._key(path)}"

    async def get(self, file: StoredFile, target: Path, *, etag: str | None = None) -> None:
        # The client itself retries only calls without an answer, not an answer that breaks off.
        tries = pauses(0.4, 5.0, attempts=self._tries)
        try:
            size = await retrying(lambda: self._download(file, target, etag), on=_BROKEN_OFF, pauses=tries)
        except _BROKEN_OFF as error:
            raise _unavailable(file.path, error) from error
        if size != file.bytes:
            raise size_mismatch(file, size)

    async def _download(self, file: StoredFile, target: Path, etag: str | None) -> int:
        key = self._key(file.path)
        answer = await self._call(
            file.path, lambda s3: s3.get_object(Bucket=self._bucket, Key=key), absent=missing
        )
        async with answer["Body"] as body:
            if etag is not None and answer["ETag"] != etag:
                raise changed(file.path)
            if answer["ContentLength"] != file.bytes:
                raise size_mismatch(file, answer["ContentLength"])
            return await _saved(body, target)

    async def read(self, file: StoredFile, start: int, count: int) -> bytes:
        tries = pauses(0.4, 5.0, attempts=self._tries)
        try:
            data = await retrying(lambda: self._range(file, start, count), on=_BROKEN_OFF, pauses=tries)
        except _BROKEN_OFF as error:
            raise _unavailable(file.path, error) from error
        if len(data) != count:
            raise size_mismatch(file, start + len(data))
        return data

    async def _range(self, file: StoredFile, start: int, count: int) -> bytes:
        key, part = self._key(file.path), f"bytes={start}-{start + count - 1}"
        answer = await self._call(
            file.path, lambda s3: s3.get_object(Bucket=self._bucket, Key=key, Range=part), absent=missing
        )
        async with answer["Body"] as body:
            size = int(answer["ContentRange"].rpartition("/")[2])
            if size != file.bytes:
                raise size_mismatch(file, size)
            data: bytes = await body.read()
            return data

    async def put(self, source: Path, path: str) -> None:
        key = self._key(path)
        with await asyncio.to_thread(open_plain, source) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _PART_BYTES:
                await self._put_in_parts(file, size, key, path)
                return
            body = await asyncio.to_thread(file.read)
            await self._call(path, lambda s3: s3.put_object(Bucket=self._bucket, Key=key, Body=body))

    async def _put_in_parts(self, file: BinaryIO, size: int, key: str, path: str) -> None:
        place = {"Bucket": self._bucket, "Key": key}
        length = max(_PART_BYTES, -(-size // _MOST_PARTS))
        upload = (await self._call(path, lambda s3: s3.create_multipart_upload(**place)))["UploadId"]

        async def put_part(start: int) -> dict[str, str | int]:
            body = await asyncio.to_thread(os.pread, file.fileno(), length, start)
            number = start // length + 1
            answer = await self._call(
                path, lambda s3: s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=body)
            )
            sums = {name: answer[name] for name in answer if name.startswith("Checksum")}
            sums.pop("ChecksumType", None)
            return {"PartNumber": number, "ETag": answer["ETag"], **sums}

        try:
            parts = await in_parallel(put_part, range(0, size, length), _PARTS_AT_ONCE)
            whole = {"Parts": parts}
            await self._call(
                path,
                lambda s3: s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=whole),
            )
        except BaseException:
            with contextlib.suppress(PlatformError):  # otherwise `traceplane gc` removes it
                await self._abort(key, upload)
            raise

    async def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(_Absent):
            await self._call(
                key,
                lambda s3: s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload),
                absent=_Absent,
            )

    # Looking after them ----------------------------------------------------------------------------

    async def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        """Prefixes of files, and of incomplete multipart uploads, which no listing of files shows."""
        prefixes: dict[str, StagingPrefix] = {}
        async for page in self._pages("list_objects_v2", ""):
            for entry in page.get("Contents", ()):
                path = self._path(entry["Key"])
                if (prefix := staging_prefix_of(path)) is not None:
                    known_prefix = prefixes.setdefault(prefix.path, prefix)
                    known_prefix.files.append(StoredFile(path, entry["Size"]))
            while len(prefixes) > _BATCH:  # keys come in order: all but the last prefix are complete
                yield [prefixes.pop(path) for path in list(prefixes)[:_BATCH]]
        async for page in self._pages("list_multipart_uploads", ""):
            for entry in page.get("Uploads", ()):
                if (prefix := staging_prefix_of(self._path(entry["Key"]))) is not None:
                    prefixes.setdefault(prefix.path, prefix)
        if prefixes:
            yield list(prefixes.values())

    async def sizes(self, paths: Sequence[str]) -> list[StoredFile]:
        async def size(path: str) -> StoredFile | None:
            key = self._key(path)
            try:
                answer = await self._call(
                    path, lambda s3: s3.head_object(Bucket=self._bucket, Key=key), absent=_Absent
                )
            except _Absent:
                return None
            return StoredFile(path, answer["ContentLength"])

        return [file for file in await in_parallel(size, paths, _CALLS_AT_ONCE) if file is not None]

    async def delete(self, paths: Sequence[str]) -> None:
        keys = [{"Key": self._key(path)} for path in dict.fromkeys(paths)]

        async def delete_some(first: int) -> None:
            some = {"Objects": keys[first : first + _MOST_KEYS_DELETED], "Quiet": True}
            answer = await self._call(
                paths[first], lambda s3: s3.delete_objects(Bucket=self._bucket, Delete=some)
            )
            for failed in answer.get("Errors", ()):
                if failed.get("Code") not in _NOT_THERE:
                    raise _cannot_delete(self._path(failed["Key"]), failed)

        await in_parallel(delete_some, range(0, len(keys), _MOST_KEYS_DELETED), _PARTS_AT_ONCE)

    async def delete_empty(self, prefix: str) -> None:
        async for page in self._pages("list_multipart_uploads", prefix):
            for entry in page.get("Uploads", ()):
                await self._abort(entry["Key"], entry["UploadId"])

    # Readers elsewhere -----------------------------------------------------------------------------

    async def read_access(self, folders: Sequence[str], reader: str) -> BucketAccess | None:
        if self._read_role is None:
            raise Conflict(
                "object_store.no_read_role",
                "the files are in S3, and there is no role whose credentials readers could get",
                next_step="set s3_read_role, or have the reader ask for no credentials and use its own",
            )
        policy = s3_policies.reading(self._bucket, [self._key(folder) for folder in folders])
        if policy is None:
            raise TooLarge(
                "object_store.too_many_folders",
                f"the files are in {len(folders)} folders, more than credentials can be limited to",
                value=len(folders),
                next_step="rebuild the dataset, so that its files are in one folder, or read it by queries",
            )
        return await self._assume(self._read_role, policy, reader, _READ_SECONDS, setting="s3_read_role")

    async def task_access(
        self, files: Sequence[str], prefixes: Sequence[str], holder: str, *, seconds: int
    ) -> BucketAccess:
        """For one attempt of a task: reads these files, and writes below these prefixes."""
        assert self._task_role is not None, "asked only where there is one"
        policy = s3_policies.working(
            self._bucket,
            [self._key(file) for file in files],
            [self._key(prefix) for prefix in prefixes],
            write_once=self._endpoint_url is None,
        )
        if policy is None:
            generations = {file.partition("/staging/")[0] for file in files}
            raise TooLarge(
                "object_store.too_many_folders",
                f"the files of one input are in {len(generations)} folders, more than credentials can be limited to",
                value=len(generations),
                next_step="rebuild the dataset, so that its files are in one folder",
            )
        return await self._assume(self._task_role, policy, holder, seconds, setting="s3_task_role")

    async def _assume(
        self, role: str, policy: str, holder: str, seconds: int, *, setting: str
    ) -> BucketAccess:
        try:
            async with self._session.create_client(
                "sts", region_name=self._region, endpoint_url=self._endpoint_url, config=_config(self._tries)
            ) as sts:
                answer = await sts.assume_role(
                    RoleArn=role,
                    RoleSessionName=_NOT_IN_A_SESSION_NAME.sub("-", holder)[:64].ljust(2, "-"),
                    DurationSeconds=seconds,
                    Policy=policy,
                )
        except (ClientError, NoCredentialsError, PartialCredentialsError) as error:
            raise PlatformError(
                "object_store.role_refused",
                f"the role of {setting} cannot be assumed: {error}",
                value=role,
                next_step=f"check {setting}, whom the role trusts, and how long its sessions may last",
            ) from error
        except _FAILURES as error:
            raise _unavailable("", error) from error
        made = answer["Credentials"]
        return BucketAccess(
            *(made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"], made["Expiration"]),
            region=self._region,
            endpoint_url=self._endpoint_url,
        )

    # Calls -----------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        return self._prefix + relative(path)

    def _path(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    def _below(self, prefix: str) -> dict[str, str]:
        key = self._key(prefix) if prefix else self._prefix
        return {"Bucket": self._bucket, "Prefix": key if not key or key.endswith("/") else f"{key}/"}

    async def _pages(self, operation: str, prefix: str) -> AsyncIterator[dict[str, Any]]:
        below = self._below(prefix)
        s3 = await self._connected()
        pages = aiter(s3.get_paginator(operation).paginate(**below, PaginationConfig=self._paging))
        while True:
            page = await self._call(prefix, lambda _: anext(pages, None))
            if page is None:
                return
            yield page

    async def _call(
        self,
        path: str,
        call: Callable[[Any], Awaitable[Any]],
        *,
        absent: Callable[[str], Exception] | None = None,
    ) -> Any:
        try:
            return await call(await self._connected())
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if absent is not None and code in _NOT_THERE | {"NoSuchUpload"}:
                raise absent(path) from error
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            if code in _REFUSED or status == 403:
                raise _refused(self._bucket, error) from error
            raise _unavailable(path, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise _refused(self._bucket, error) from error
        except _FAILURES as error:
            raise _unavailable(path, error) from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is None:
                # Servers other than AWS rarely have a host name per bucket.
                style = {"addressing_style": "path"} if self._endpoint_url else {}
                self._client = await self._open.enter_async_context(
                    self._session.create_client(
                        "s3",
                        region_name=self._region,
                        endpoint_url=self._endpoint_url,
                        config=_config(self._tries, s3=style),
                    )
                )
            return self._client


def _config(tries: int, **more: Any) -> AioConfig:
    return AioConfig(
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": tries},
        **more,
    )


class _Absent(Exception):
    """The object does not exist, and that is fine."""


async def _saved(body: Any, target: Path) -> int:
    """Writes chunks to a file in a thread: a slow disk must not delay heartbeats."""
    total = 0
    with await asyncio.to_thread(open, target, "wb") as file:
        while chunk := await body.read(_CHUNK_BYTES):
            total += await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(file.flush)
    return total


def _unavailable(path: str, error: Exception) -> PlatformError:
    return PlatformError(
        "object_store.unavailable",
        f"a call to S3 failed: {type(error).__name__}: {error}",
        value=path or None,
        next_step="check the endpoint and the network; the call may be retried",
    )


def _refused(bucket: str, error: Exception) -> PlatformError:
    return PlatformError(
        "object_store.refused",
        f"S3 rejected the call: {error}",
        value=bucket,
        next_step="check that the bucket exists, the credentials, and their permissions",
    )


def _cannot_delete(path: str, failed: Mapping[str, str]) -> PlatformError:
    return PlatformError(
        "object_store.cannot_delete",
        f"a file cannot be deleted: {failed.get('Code')} {failed.get('Message', '')}",
        value=path,
        next_step="check who owns the object store and whether files may be deleted",
    )
