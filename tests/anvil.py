"""A real EVM node for tests: foundry's anvil, which mines and reorganizes on request.

    node = Anvil.start()   # AnvilUnavailable says why there is none
    node.call("evm_mine"); ...; node.stop()

It comes from npm, once, into `.venv/anvil-VERSION`. Where there is no npm or no network, callers say so and do without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from tests.platform import die_with_parent
from tests.ports import free_port

VERSION = "1.7.1"
FOLDER = Path(__file__).parents[1] / ".venv" / f"anvil-{VERSION}"


class AnvilUnavailable(Exception):
    """There is no anvil here; the message says why."""


def installed() -> Path:
    """The program, which is fetched if it is not there."""
    if not FOLDER.exists():
        _fetch()
    programs = sorted(FOLDER.glob("node_modules/@foundry-rs/anvil-*/bin/anvil*"))
    if not programs:
        raise AnvilUnavailable("npm has no anvil for this platform")
    return programs[0]


def _fetch() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise AnvilUnavailable("anvil is installed with npm, which is not here")
    draft = FOLDER.with_name(f"{FOLDER.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    # The program is an optional dependency of the package; its install script would only link it.
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(draft)]
    try:
        done = subprocess.run(
            [npm, "install", *options, f"@foundry-rs/anvil@{VERSION}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise AnvilUnavailable(f"npm could not fetch anvil: {done.stderr.strip()[:300]}")
        draft.rename(FOLDER)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AnvilUnavailable(f"npm could not fetch anvil: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Anvil:
    url: str
    _process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, *options: str) -> Anvil:
        """Mines only on request; knows ten accounts that can send transactions."""
        port = free_port()
        process = subprocess.Popen(
            [installed(), "--no-mining", "--order", "fifo", "--port", str(port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        node = cls(f"http://127.0.0.1:{port}", process)
        deadline = time.monotonic() + 60
        while True:
            try:
                node.call("eth_blockNumber")
                return node
            except URLError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    node.stop()
                    raise AnvilUnavailable(f"anvil did not start: {error}") from error
                time.sleep(0.05)

    def call(self, method: str, *params: object) -> Any:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        request = Request(self.url, body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as response:
            answer = msgspec.json.decode(response.read())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
