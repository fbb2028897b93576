"""Picks the object store from the settings."""

from __future__ import annotations

from traceplane.adapters.object_store import ObjectStore
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import InvalidInput
from traceplane.settings import Settings


def object_store_for(settings: Settings) -> ObjectStore:
    """The store that the setting `object_store` names."""
    if settings.object_bucket is None:
        return FolderObjectStore(settings.object_store_root)
    try:
        from traceplane.adapters.object_store_s3 import S3ObjectStore  # boto is an optional extra
    except ImportError as error:
        raise InvalidInput(
            "object_store.no_client",
            "an object store in S3 needs the AWS client, which is not installed",
            value=settings.object_store,
            next_step='pip install "traceplane[aws]"',
        ) from error
    return S3ObjectStore.from_settings(settings)
