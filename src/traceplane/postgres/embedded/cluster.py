"""A cluster: made with its roles and its database, checked when it is there, and configured at each start."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from traceplane.postgres.embedded.binaries import Binaries
from traceplane.postgres.embedded.folders import make_private_folder
from traceplane.postgres.embedded.problems import RESERVED_SETTINGS, problem, server_problem

HOST_BASED_AUTHENTICATION = """\
local all all scram-sha-256
local replication postgres scram-sha-256
"""

_CREATE_ROLE_AND_DATABASE = """\
ALTER ROLE postgres PASSWORD '{postgres}';
CREATE ROLE traceplane_state LOGIN PASSWORD '{traceplane_state}';
CREATE DATABASE traceplane_state OWNER traceplane_state;
REVOKE ALL ON DATABASE postgres, template1, traceplane_state FROM PUBLIC;
"""
# What sessions of one organization run as; a cluster of an earlier version gets it when it is started.
_CREATE_ROLE_OF_ORGANIZATIONS = """\
DO 'BEGIN CREATE ROLE traceplane_org NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END';
GRANT traceplane_org TO traceplane_state;
"""
_HAS_ROLE_OF_ORGANIZATIONS = "traceplane_org"
"""A file in the cluster's folder."""


def create_if_absent(data: Path, binaries: Binaries, passwords: Mapping[str, str], *, fsync: str) -> None:
    """It is made under another name, and is there as a whole or not at all."""
    remove_drafts(data)
    if data.is_dir() and any(data.iterdir()):
        _check(data, binaries)
        if not (data / _HAS_ROLE_OF_ORGANIZATIONS).exists():
            _run_alone(data, binaries, _CREATE_ROLE_OF_ORGANIZATIONS, fsync)
            _mark(data, binaries)
        return
    draft = data.with_name(f"data.new-{secrets.token_hex(4)}")
    try:
        make_private_folder(draft, binaries.user)
        _initdb(draft, binaries, passwords, fsync)
        draft.rename(data)
    finally:
        remove_drafts(data)


def remove_drafts(data: Path) -> None:
    """Of interrupted runs too. An initdb whose caller died may still be writing into its own."""
    for draft in data.parent.glob("data.new-*"):
        shutil.rmtree(draft, ignore_errors=True)


def _check(data: Path, binaries: Binaries) -> None:
    version = data / "PG_VERSION"
    if not version.exists() or data.stat().st_uid != binaries.uid:
        raise problem("folder_foreign", data)
    major = version.read_text().strip()
    if major != str(binaries.major):
        raise problem("version_mismatch", f"{major} in {data}, {binaries.major} installed")


def _initdb(data: Path, binaries: Binaries, passwords: Mapping[str, str], fsync: str) -> None:
    _check_user_has_a_name(binaries.uid)
    initdb = binaries.run(
        "initdb",
        *("--pgdata", data, "--username=postgres", "--auth=reject", "--no-instructions"),
        # Byte order and Unicode rules of Postgres itself: an upgrade of the C library moves no index.
        *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        *(["--no-sync"] if fsync == "off" else []),
    )
    if initdb.returncode != 0:
        raise server_problem("initdb_failed", initdb.stderr, data.parent)
    _run_alone(
        data, binaries, _CREATE_ROLE_AND_DATABASE.format(**passwords) + _CREATE_ROLE_OF_ORGANIZATIONS, fsync
    )
    _mark(data, binaries)


def _run_alone(data: Path, binaries: Binaries, statements: str, fsync: str) -> None:
    """While no server runs on the cluster."""
    run = binaries.run(
        *("postgres", "--single", "-D", data, "-c", "exit_on_error=true"),
        *("-c", f"fsync={fsync}", "postgres"),
        input=statements,
    )
    if run.returncode != 0:
        raise server_problem("initdb_failed", run.stderr, data.parent)


def _mark(data: Path, binaries: Binaries) -> None:
    mark = data / _HAS_ROLE_OF_ORGANIZATIONS
    mark.touch(mode=0o600)
    if os.geteuid() != binaries.uid:
        os.chown(mark, binaries.uid, -1)


def _check_user_has_a_name(uid: int) -> None:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise problem("user_unknown", uid) from None


def check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name in RESERVED_SETTINGS or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise problem("setting_invalid", name)


def configuration(binaries: Binaries, settings: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The text of postgresql.conf: tuned values, the caller's settings over them, and the server's own over both."""
    configure = binaries.run("pg_config", "--configure").stdout
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    tuned = {
        "listen_addresses": "",
        "max_connections": "100",
        "shared_buffers": "256MB" if memory >= 8 * 10**9 else "128MB",
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        "wal_compression": "lz4" if "--with-lz4" in configure else "off",
        "fsync": "on",
        "jit": "off",
        "random_page_cost": "1.1",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %q%u@%d ",
        "log_error_verbosity": "terse",  # details quote rows; whoever caused an error gets them all the same
    }
    lines = [f"{name} = {_quoted(value)}" for name, value in {**tuned, **settings, **own}.items()]
    return "\n".join(["# Written at each start; give your own as settings.", *lines, ""])


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"
