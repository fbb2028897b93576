"""A real Chromium for tests, driven by Playwright.

    async with chromium.running(trusts=certificate) as browser:   # ChromiumUnavailable says why there is none
        page = await browser.new_page()

It is the one on the PATH, or else Debian's, which apt fetches once into `.venv/chromium`, with the libraries that it
needs and this machine lacks; nothing is installed. Where there is no apt or no network, callers say so and do without.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.async_api import Browser, async_playwright

FOLDER = Path(__file__).parents[1] / ".venv" / "chromium"
_ON_PATH = ("chromium", "google-chrome")
_PROGRAM = "usr/lib/chromium/chromium"
_INSTALLS = re.compile(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", re.MULTILINE)
"""A package that apt would install, and its version."""


class ChromiumUnavailable(Exception):
    """There is no Chromium here; the message says why."""


def installed() -> Path:
    """The program, which is fetched if it is not there."""
    for name in _ON_PATH:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    if not FOLDER.exists():
        _fetch()
    return FOLDER / _PROGRAM


def _fetch() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ChromiumUnavailable("chromium is not on the PATH, and there is no apt to fetch it with")
    draft = FOLDER.with_name(f"{FOLDER.name}.{os.getpid()}")
    packages, root = draft / "packages", draft / "root"
    # Lists of its own: those of the machine may be old or absent, and only root may renew them.
    own_lists = [
        *("-q", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=0"),
        *("-o", f"Dir::State::Lists={draft / 'lists'}", "-o", f"Dir::Cache={draft / 'cache'}"),
    ]
    try:
        for folder in (packages, root, draft / "lists/partial", draft / "cache/archives/partial"):
            folder.mkdir(parents=True)
        _run(["apt-get", *own_lists, "update"], packages)
        plan = _run(
            ["apt-get", *own_lists, "--simulate", "--no-install-recommends", "install", "chromium"], packages
        )
        wanted = [f"{name}={version}" for name, version in _INSTALLS.findall(plan)]
        _run(["apt-get", *own_lists, "download", *wanted], packages)
        for package in sorted(packages.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)], packages)
        if not (root / _PROGRAM).exists():
            raise ChromiumUnavailable("the package chromium of this system does not hold the browser")
        if not FOLDER.exists():  # or another process was faster
            root.rename(FOLDER)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChromiumUnavailable(f"apt could not fetch chromium: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise ChromiumUnavailable(f"{command[0]} could not fetch chromium: {done.stderr.strip()[:300]}")
    return done.stdout


@contextlib.asynccontextmanager
async def running(*, trusts: Path | None = None, hosts: Sequence[str] = ()) -> AsyncIterator[Browser]:
    """It accepts the certificate `trusts` and those of known authorities; `hosts` are names of this machine."""
    program = await asyncio.to_thread(installed)
    arguments = [] if trusts is None else [f"--ignore-certificate-errors-spki-list={_hash_of_key(trusts)}"]
    if hosts:
        arguments.append(f"--host-resolver-rules={','.join(f'MAP {host} 127.0.0.1' for host in hosts)}")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program,
            args=arguments,
            # People's browsers keep the pages that one can go back to.
            ignore_default_args=["--disable-back-forward-cache"],
            env=_environment(program),
        )
        try:
            yield browser
        finally:
            await browser.close()


def _hash_of_key(certificate: Path) -> str:
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(encoded).digest()).decode()


def _environment(program: Path) -> dict[str, str | float | bool]:
    """With the libraries that were fetched with the program."""
    if not program.is_relative_to(FOLDER):
        return {**os.environ}
    folders = sorted({str(library.parent) for library in FOLDER.glob("usr/lib/**/*.so*")})
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
