"""Picks the object store from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceplane.adapters.object_store import ObjectStore
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import InvalidInput
from traceplane.settings import Settings

if TYPE_CHECKING:
    from traceplane.adapters.object_store_s3 import S3ObjectStore


def bucket_for(settings: Settings, bucket: str) -> S3ObjectStore:
    """A bucket that is not the platform's own."""
    return _s3_client(f"s3://{bucket}")(
        bucket, region=settings.aws_region, endpoint_url=settings.s3_endpoint_url
    )


def object_store_for(settings: Settings) -> ObjectStore:
    """The store that the setting `object_store` names."""
    if settings.object_bucket is None:
        return FolderObjectStore(settings.object_store_root)
    return bucket_store_for(settings)


def bucket_store_for(settings: Settings) -> S3ObjectStore:
    """The same, where it is known to be in S3."""
    return _s3_client(settings.object_store).from_settings(settings)


def _s3_client(address: str | None) -> type[S3ObjectStore]:
    try:
        from traceplane.adapters.object_store_s3 import S3ObjectStore  # boto is an optional extra
    except ImportError as error:
        raise InvalidInput(
            "object_store.no_client",
            "files in S3 need the AWS client, which is not installed",
            value=address,
            next_step='pip install ".[aws]" in a clone of Traceplane',
        ) from error
    return S3ObjectStore
