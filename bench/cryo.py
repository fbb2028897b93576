"""cryo, the fastest reader of chains that we know: `python -m bench.cryo` builds it, where cargo is there.

That takes two cores half an hour, so the suite `spark` only uses what it left.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as parquet

from bench import environments
from bench.contender import ContenderFailedError

NAME = "cryo"
VERSION = "0.3.2"
TIME_VERSION = "0.3.36"
"""The `time` of its lock file, 0.3.30, does not compile since Rust 1.80; this is the oldest that does."""
TABLES = ("blocks", "transactions", "logs")
CHUNK_BLOCKS = 250

_FOLDER = environments.ROOT / ".venvs" / NAME
_BINARY = _FOLDER / "target" / "release" / NAME

_EMPTY_CRATE = f"""[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[lib]
path = "lib.rs"

[dependencies]
cryo_cli = "={VERSION}"
"""


def build() -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("cargo is not installed: see https://rustup.rs")
    source = _FOLDER / "source"
    if not source.exists():
        shutil.copytree(_fetched(cargo), source)
    subprocess.run([cargo, "update", "--package", "time", "--precise", TIME_VERSION], cwd=source, check=True)
    build = [cargo, "build", "--release", "--locked", "--target-dir", str(_FOLDER / "target")]
    subprocess.run(build, cwd=source, check=True)


def _fetched(cargo: str) -> Path:
    """Its sources, where cargo keeps them: `cargo install` allows no change of the lock file."""
    with tempfile.TemporaryDirectory(prefix="bench-cryo-") as folder:
        Path(folder, "Cargo.toml").write_text(_EMPTY_CRATE)
        Path(folder, "lib.rs").touch()
        options = ["--format-version", "1"]
        told = subprocess.run(
            [cargo, "metadata", *options], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
        )
    packages = json.loads(told.stdout)["packages"]
    return next(Path(one["manifest_path"]).parent for one in packages if one["name"] == "cryo_cli")


def prepare() -> Path:
    if not _BINARY.exists():
        raise environments.PeerUnavailableError("it is not built: python -m bench.cryo")
    return _BINARY


def backfill(binary: Path, node: str, blocks: int, timeout: float) -> tuple[dict[str, int], float]:
    """Rows of each table in the Parquet files that it writes, and the seconds of its run."""
    with tempfile.TemporaryDirectory(prefix="bench-cryo-") as folder:
        command = [str(binary), *TABLES, "--rpc", node, "--blocks", f"0:{blocks}", "--output-dir", folder]
        # One call for the logs of a chunk is faster than one for each of its blocks.
        chunk = str(CHUNK_BLOCKS)
        options = ["--no-report", "--chunk-size", chunk, "--inner-request-size", chunk]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *options], capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ContenderFailedError(f"gave no result within {timeout:.0f} s") from error
        seconds = time.monotonic() - began
        if done.returncode != 0:
            raise ContenderFailedError((done.stderr.strip().splitlines() or ["no message"])[-1])
        rows = dict.fromkeys(TABLES, 0)
        for file in Path(folder).glob("*.parquet"):
            table = next(name for name in TABLES if f"__{name}__" in file.name)
            rows[table] += parquet.read_metadata(file).num_rows
        return rows, seconds


if __name__ == "__main__":
    build()
