"""What `traceplane up` checks before it starts anything: what is wrong now would fail at every restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from traceplane.cli.output import note
from traceplane.errors import InvalidInput
from traceplane.http_service.tls import ServerCertificate
from traceplane.runtime.process import listen
from traceplane.settings import Settings, checked_code_paths


def checked(settings: Settings, *, trigger: bool) -> Settings:
    """The settings, with the code folders that exist."""
    ports = _ports(settings, trigger=trigger)
    for name, port in ports.items():
        if port == 0 or list(ports.values()).count(port) > 1:
            raise InvalidInput(
                "settings.invalid", f"{name} must be a port from 1 to 65535 that no other uses", value=port
            )
    if settings.tls_certificate is not None and settings.tls_key is not None:
        ServerCertificate(settings.tls_certificate, settings.tls_key)
    if settings.object_bucket is None and settings.object_store is not None:
        _make_folder(settings.object_store_root)
    paths = checked_code_paths(settings)
    if not paths:
        folder = settings.worker_code_paths[0].absolute() if settings.worker_code_paths else Path("code")
        note(
            "up.no_code_folder",
            f"No folder {folder}: jobs run the code that they are deployed with.",
            folder=folder,
        )
    return replace(settings, worker_code_paths=paths)


def check_ports(settings: Settings, *, trigger: bool) -> None:
    for name, port in _ports(settings, trigger=trigger).items():
        listen(settings.host, port, name).close()


def _ports(settings: Settings, *, trigger: bool) -> dict[str, int]:
    names = ("dispatcher_port", "gateway_port", *(("trigger_port",) if trigger else ()))
    return {name: getattr(settings, name) for name in names}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            "settings.invalid",
            f"the folder of the object store cannot be created: {error.strerror}",
            value=folder.absolute(),
            next_step="set object_store to another folder",
        ) from error
