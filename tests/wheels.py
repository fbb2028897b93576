"""Wheels of packages that exist nowhere else, in a folder that uv is told to take packages from."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import shutil
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path


def add_wheel(
    folder: Path,
    name: str,
    version: str,
    modules: Mapping[str, str],
    *,
    requires: Sequence[str] = (),
) -> Path:
    """A wheel of a package whose files are `modules`, by path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {one}\n" for one in requires]
    files = {
        **modules,
        f"{about}/METADATA": "".join(metadata),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def tiny_index(folder: Path) -> dict[str, str]:
    """`tinylib` in the versions 1.0 and 2.0, the latter with a dependency; and the settings for uv to find nothing
    else."""
    wheels = folder / "wheels"
    add_wheel(wheels, "tinylib", "1.0", {"tinylib/__init__.py": _tinylib("1.0")})
    add_wheel(wheels, "tinylib", "2.0", {"tinylib/__init__.py": _tinylib("2.0")}, requires=["tinydep>=1"])
    add_wheel(wheels, "tinydep", "1.5", {"tinydep.py": "WORD = 'dep'\n"})
    return uv_settings(wheels, folder)


def uv_settings(wheels: Path, folder: Path) -> dict[str, str]:
    """Without an index: nothing depends on what is published under these names."""
    config = folder / "uv_of_this_machine.toml"
    config.write_text(f'no-index = true\nfind-links = ["{wheels}"]\n')
    return {"UV_CONFIG_FILE": str(config), "UV_CACHE_DIR": str(folder / "uv_cache")}


def _tinylib(version: str) -> str:
    return f"VERSION = {version!r}\n\n\ndef greet(name):\n    return f'{{name}} {{VERSION}}'\n"


@contextlib.contextmanager
def served_index(wheels: Path) -> Iterator[str]:
    """The address of an index of these wheels, while the context lasts."""
    root = wheels.with_name("served")
    for wheel in wheels.glob("*.whl"):
        folder = root / "simple" / wheel.name.partition("-")[0]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, folder)
        links = "".join(
            f'<a href="{found.name}#sha256={hashlib.sha256(found.read_bytes()).hexdigest()}">{found.name}</a>'
            for found in sorted(folder.glob("*.whl"))
        )
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    handler = partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
