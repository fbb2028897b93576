"""An operator from a separate package: installed with pip, used in a DAG, run in the sandbox of a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.platform import Platform, until
from traceplane.errors import SpecInvalid

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples/operator_package"
READINGS = """
def readings(task):
    cold, hot = task.scope.start, 99.0
    return [{"sensor": "a", "celsius": float(cold)}, {"sensor": None, "celsius": 1.0}, {"sensor": "b", "celsius": hot}]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment that has the package; what else there is comes from this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    made = folder / "venv/bin/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = [path for path in sys.path if path.endswith("site-packages")] + [str(ROOT / "src")]
    (folder / f"venv/lib/{version}/site-packages/shared.pth").write_text("\n".join(shared))
    install = [
        "uv",
        "pip",
        "install",
        "--offline",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--python",
        made,
    ]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "UV_CACHE_DIR": str(folder / "cache"),
    }
    subprocess.run([*map(str, install), str(PACKAGE)], check=True, env=environment)
    return made


def test_the_tests_of_the_package_pass(python: Path, tmp_path: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull]
    command = [python, "-m", "pytest", *options, PACKAGE / "tests"]
    subprocess.run([*map(str, command)], check=True, cwd=tmp_path)


async def test_an_operator_of_an_installed_package_runs_where_it_is_installed(
    python: Path, database_url: str, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "readings.py").write_text(READINGS)
    dag = (PACKAGE / "dag.yaml").read_text()
    environment = {"TRACEPLANE_WORKER_CODE_PATHS": str(code)}
    async with Platform.start(
        database_url, tmp_path / "home", gateway=False, environment=environment
    ) as platform:
        gateway = platform.add("gateway", "gateway")
        gateway.python = str(python)
        await gateway.start()
        await platform.ready("gateway")
        with pytest.raises(SpecInvalid) as refused:
            await platform.deploy(dag.replace("[sensor]", "sensor"))
        (problem,) = refused.value.problems
        assert (problem.code, problem.value) == ("deploy.config_invalid", "sensor")
        assert dag.splitlines()[problem.line - 1][problem.column - 1 :] == "[sensor]"
        await platform.deploy(
            dag.replace("operator: quality_split", "operator: quality_split\n  max_attempts: 100")
        )

        # The worker that is there does not have the package.
        await platform.emit("quality.days", [7])

        async def code_of_the_error() -> str | None:
            rows = await platform.sql(
                "select a.error->>'code' from tasks a join jobs using (job_id) where name = 'check'"
                " and a.error is not null"
            )
            return rows[0][0] if rows else None

        assert await until(code_of_the_error) == "operator.package_missing"
        await platform["worker-1"].stop()
        worker = platform.add_worker(2)
        worker.python = str(python)
        await worker.start()
        assert await platform.settled() == {"completed": 2}

        rows = await platform.sql(
            "select dataset_id, f->>'path' as path from datasets join dataset_commits"
            " on generation_id = current_generation_id, jsonb_array_elements(files) f where superseded_by is null"
        )
        store = tmp_path / "home" / "objects"
        found = {row["dataset_id"]: parquet.read_table(store / row["path"]).to_pylist() for row in rows}
        assert found["quality.accepted"] == [{"sensor": "a", "celsius": 7.0}]
        assert [row["reason"] for row in found["quality.rejected"]] == [
            "sensor is missing",
            "celsius is too large",
        ]
