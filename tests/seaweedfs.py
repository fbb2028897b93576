"""A real S3 server that hands out temporary credentials, and enforces their policies: SeaweedFS."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.platform import die_with_parent
from tests.ports import free_port

KEY, SECRET = "platform-key", "platform-secret"
READ_ROLE = "arn:aws:iam::000000000000:role/readers"
TASK_ROLE = "arn:aws:iam::000000000000:role/tasks"


class SeaweedFS:
    """The user `platform` may do everything, and assume the roles `readers`, which may read, and `tasks`, which may
    write too. What it has is in a folder, so it can be killed and started again."""

    def __init__(self, folder: Path, *, sts: bool = True, session: str = "12h", volume_mb: int = 64) -> None:
        """Without `sts` there are no roles. `session`: how long credentials of a role last at most. It has room for a
        few volumes."""
        (folder / "data").mkdir(parents=True)
        _configure(folder, session)
        self._folder, self._sts, self._volume_mb = folder, sts, volume_mb
        self._ports = {name: _port() for name in ("master.port", "volume.port", "filer.port", "s3.port")}
        self.port = self._ports["s3.port"]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        folder = self._folder
        with (folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    *(str(Path(sys.executable).with_name("weed")), "server", f"-dir={folder / 'data'}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-volume.preStopSeconds=1"),
                    f"-s3.config={folder / 's3.json'}",
                    *([f"-s3.iam.config={folder / 'iam.json'}"] if self._sts else []),
                    *(
                        "-s3.port.iceberg=0",
                        "-s3.port.lance=0",
                        f"-master.volumeSizeLimitMB={self._volume_mb}",
                    ),
                    *(f"-{name}={number}" for name, number in self._ports.items()),
                ],
                env={"PATH": os.defpath, "HOME": str(folder)},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + 120
        while not _answers(self.port):
            assert self._server.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, "SeaweedFS does not answer"
            time.sleep(0.2)

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@contextlib.contextmanager
def seaweedfs(folder: Path, *, sts: bool = True) -> Iterator[str]:
    """Its address."""
    server = SeaweedFS(folder, sts=sts)
    try:
        server.start()
        yield server.endpoint
    finally:
        server.kill()


def _configure(folder: Path, session: str) -> None:
    identity = {
        "name": "platform",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    read = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::*"]}
    work = read | {"Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"]}
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::000000000000:user/platform"},
        "Action": ["sts:AssumeRole"],
    }
    iam = {
        "sts": {
            "tokenDuration": session,
            "maxSessionLength": session,
            "issuer": "seaweedfs-sts",
            "signingKey": "dGVzdC1zaWduaW5nLWtleS0zMi1jaGFyYWN0ZXJzLWxvbmc=",
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [
            {"name": name, "document": {"Version": "2012-10-17", "Statement": [statement]}}
            for name, statement in (("ReadAll", read), ("Work", work))
        ],
        "roles": [
            {
                "roleName": role.rpartition("/")[2],
                "roleArn": role,
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
                "attachedPolicies": [policy],
            }
            for role, policy in ((READ_ROLE, "ReadAll"), (TASK_ROLE, "Work"))
        ],
    }
    (folder / "iam.json").write_text(json.dumps(iam))


def _port() -> int:
    """Each port's server takes another one, ten thousand above."""
    while (port := free_port()) > 55_000:
        pass
    return port


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
