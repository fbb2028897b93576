"""Databases made, closed and dropped by the administrator."""

from __future__ import annotations

from collections.abc import Mapping

from traceplane.postgres.embedded.folders import Role
from traceplane.postgres.embedded.problems import server_problem
from traceplane.postgres.embedded.processes import ENVIRONMENT, run_as
from traceplane.postgres.embedded.server import PORT, EmbeddedPostgres


def create_database(
    server: EmbeddedPostgres, name: str, *, template: str = "template1", owner: Role = "traceplane_state"
) -> str:
    """Create a database that only its owner may connect to; answers with its URL."""
    _psql(
        server,
        'CREATE DATABASE :"name" OWNER :"owner" TEMPLATE :"template";\n'
        'REVOKE ALL ON DATABASE :"name" FROM PUBLIC;\n',
        {"name": name, "owner": owner, "template": template},
    )
    return server.url(owner, name)


def template_database(server: EmbeddedPostgres, name: str) -> None:
    """Close a database to connections, so that copying it never meets an open session."""
    _psql(server, 'ALTER DATABASE :"name" WITH ALLOW_CONNECTIONS false;\n', {"name": name})


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    """Drop a database, ending the sessions in it; one that is not there is no error."""
    _psql(server, 'DROP DATABASE IF EXISTS :"name" WITH (FORCE);\n', {"name": name})


def _psql(server: EmbeddedPostgres, statements: str, variables: Mapping[str, str]) -> None:
    connection = {
        "PGHOST": str(server.socket_folder),
        "PGPORT": str(PORT),
        "PGUSER": "postgres",
        "PGDATABASE": "postgres",
        "PGPASSWORD": server.passwords["postgres"],
        "PGOPTIONS": "-c client_min_messages=warning",
    }
    assignments = [f"--set={name}={value}" for name, value in variables.items()]
    done = run_as(
        None,
        [str(server.binaries.folder / "psql"), "-X", "-q", "--set=ON_ERROR_STOP=1", *assignments],
        input=statements,
        env=ENVIRONMENT | connection,
    )
    if done.returncode != 0:
        raise server_problem("statement_failed", done.stderr, server.folder)
