"""A real Keycloak for the long tests: one process in development mode, with a realm of its own, in memory.

Its archive comes from Maven Central, once, by `mvn`, into `.venv`. Where there is no Java, no Maven or no network,
`KeycloakUnavailable` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.platform import die_with_parent
from tests.ports import free_port

VERSION = "26.7.0"
HOME = Path(__file__).parents[1] / ".venv" / f"keycloak-{VERSION}"
REALM, CLIENT, ROBOT, ROBOT_SECRET, AUDIENCE = "acme", "traceplane", "robot", "robot secret", "traceplane-api"
USER, PASSWORD = "ada", "correct horse"


class KeycloakUnavailable(Exception):
    """There is no Keycloak here; the message says why."""


def installed() -> Path:
    """Its folder, fetched if it is not there."""
    if (HOME / "bin/kc.sh").exists():
        return HOME
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise KeycloakUnavailable("Keycloak needs java and mvn")
    draft = HOME.with_name(f"{HOME.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        artifact = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={artifact}",
            f"-DoutputDirectory={draft}",
        ]
        done = subprocess.run(command, check=False, cwd=draft, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise KeycloakUnavailable(
                f"mvn could not fetch Keycloak: {(done.stdout + done.stderr).strip()[:300]}"
            )
        (archive,) = draft.glob("*.zip")
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(draft)
        (draft / f"keycloak-{VERSION}/bin/kc.sh").chmod(0o755)
        shutil.rmtree(HOME, ignore_errors=True)
        (draft / f"keycloak-{VERSION}").rename(HOME)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeycloakUnavailable(f"mvn could not fetch Keycloak: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return HOME


def realm(gateway: str) -> dict[str, object]:
    """A client for people, with PKCE, one for a machine, and Ada, who has the role `data-writer`."""
    audience = {
        "name": "audience",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-audience-mapper",
        "config": {"included.custom.audience": AUDIENCE, "access.token.claim": "true"},
    }
    roles_in_id_token = {
        "name": "roles",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-usermodel-realm-role-mapper",
        "config": {
            "claim.name": "realm_access.roles",
            "multivalued": "true",
            "jsonType.label": "String",
            "id.token.claim": "true",
            "access.token.claim": "true",
        },
    }
    return {
        "realm": REALM,
        "enabled": True,
        "sslRequired": "none",
        "roles": {"realm": [{"name": "data-writer"}, {"name": "data-reader"}]},
        "clients": [
            {
                "clientId": CLIENT,
                "publicClient": True,
                "standardFlowEnabled": True,
                "redirectUris": [f"{gateway}/auth/callback"],
                "attributes": {
                    "pkce.code.challenge.method": "S256",
                    "oauth2.device.authorization.grant.enabled": "true",
                },
                "protocolMappers": [roles_in_id_token],
            },
            {
                "clientId": ROBOT,
                "secret": ROBOT_SECRET,
                "standardFlowEnabled": False,
                "serviceAccountsEnabled": True,
                "protocolMappers": [audience, roles_in_id_token],
            },
        ],
        "users": [
            {
                "username": USER,
                "enabled": True,
                "email": "ada@example.com",
                "emailVerified": True,
                "firstName": "Ada",
                "lastName": "Lovelace",
                "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
                "realmRoles": ["data-writer"],
            },
            {
                "username": f"service-account-{ROBOT}",
                "enabled": True,
                "serviceAccountClientId": ROBOT,
                "realmRoles": ["data-reader"],
            },
        ],
    }


@contextlib.contextmanager
def running(folder: Path, gateway: str) -> Iterator[str]:
    """The issuer of the realm, while Keycloak runs."""
    home, port = folder / "keycloak", free_port()
    shutil.copytree(installed(), home)  # it builds itself anew in its own folder
    (home / "data/import").mkdir(parents=True, exist_ok=True)
    (home / "data/import/acme.json").write_text(json.dumps(realm(gateway)))
    options = ["--http-host=127.0.0.1", f"--http-port={port}", "--db=dev-mem", "--import-realm"]
    issuer = f"http://127.0.0.1:{port}/realms/{REALM}"
    with (folder / "keycloak.log").open("wb") as log:
        process = subprocess.Popen(
            [home / "bin/kc.sh", "start-dev", *options],
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env={**os.environ, "JAVA_OPTS_KC_HEAP": "-Xms128m -Xmx512m"},
        )
        try:
            _until_it_answers(f"{issuer}/.well-known/openid-configuration", process, folder / "keycloak.log")
            yield issuer
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 600
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)
