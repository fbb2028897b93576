"""A worker runs a job with exactly the packages of its lock or not at all, whoever else builds them at that time."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.platform import until
from tests.wheels import add_wheel, served_index, tiny_index
from traceplane.errors import PlatformError
from traceplane.model import requirements
from traceplane.model.dag import Activation, Dag, ExecutionStrategy, Job, UpdateStrategy
from traceplane.registry import package_locks
from traceplane.runtime.locked_folder import remove_tree
from traceplane.worker import environment_cache
from traceplane.worker.environment_cache import Environment, EnvironmentCache

PLENTY = 1 << 30


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.environments = folder / "environments"
        self.environments.mkdir()
        self.locks: dict[str, str] = {}
        self.fetched = 0

    def lock(self, *wanted: str) -> str:
        job = Job(
            *("say", Activation.REACTIVE, "python", "python", {}, (), ()),
            *(ExecutionStrategy.PER_UPDATE, UpdateStrategy.REPLACE),
            requirements=wanted,
        )
        (lock,) = package_locks.make(Dag("one", (job,), ()), {}, self.folder).values()
        return self.keep(lock)

    def keep(self, lock: str) -> str:
        self.locks[requirements.hash_of(lock)] = lock
        return requirements.hash_of(lock)

    async def fetch(self, lock: str) -> str:
        self.fetched += 1
        return self.locks[lock]

    @asynccontextmanager
    async def cache(self, limit_bytes: int = PLENTY) -> AsyncIterator[EnvironmentCache]:
        cache = EnvironmentCache(self.environments, self.fetch, limit_bytes=limit_bytes)
        try:
            yield cache
        finally:
            await cache.close()

    def there(self) -> list[str]:
        return sorted(path.name for path in self.environments.iterdir() if path.name != ".locks")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name, value in tiny_index(tmp_path).items():
        monkeypatch.setenv(name, value)
    return Machine(tmp_path)


def says(environment: Environment | None, code: str = "import tinylib; print(tinylib.greet('x'))") -> str:
    assert environment is not None
    done = subprocess.run([environment.python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_an_environment_is_built_once_and_shared(machine: Machine) -> None:
    old, new = machine.lock("tinylib==1.0"), machine.lock("tinylib")
    async with machine.cache() as one, machine.cache() as other:

        async def use(cache: EnvironmentCache, lock: str) -> str:
            async with cache.using(lock) as environment:
                return await asyncio.to_thread(says, environment)

        said = await asyncio.gather(*(use(cache, lock) for lock in (old, new) for cache in (one, other) * 3))
        assert said == ["x 1.0"] * 6 + ["x 2.0"] * 6
        assert machine.fetched == 2
        assert len(machine.there()) == 2
        async with one.using(None) as nothing:
            assert nothing is None
    async with machine.cache() as later, later.using(new) as environment:
        assert says(environment) == "x 2.0"
        assert machine.fetched == 2


async def test_what_operators_see_cannot_be_written_and_needs_no_compilation(machine: Machine) -> None:
    async with machine.cache() as cache, cache.using(machine.lock("tinylib")) as environment:
        assert environment is not None
        files = [path for path in environment.packages.rglob("*") if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o444}
        folders = [environment.folder, *(path for path in environment.packages.rglob("*") if path.is_dir())]
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o755}
        assert list(environment.packages.rglob("tinylib/__pycache__/*.pyc"))
        # Of the platform's own packages, the processes have those of the platform.
        code = "import sys, pyarrow, tinylib; print(pyarrow.__file__, sys.version_info[:2] >= (3, 11))"
        assert says(environment, code).endswith("True")
        assert "environments" not in says(environment, code)


@pytest.mark.parametrize("damage", ["removed", "changed", "added", "half"])
async def test_what_was_damaged_is_built_again(machine: Machine, damage: str) -> None:
    lock = machine.lock("tinylib==1.0")
    async with machine.cache() as cache, cache.using(lock) as environment:
        assert environment is not None
        module = environment.packages / "tinylib" / "__init__.py"
    match damage:
        case "removed":
            module.unlink()
        case "changed":
            module.chmod(0o644)
            module.write_text("VERSION = ''")
        case "added":
            (environment.packages / "sitecustomize.py").write_text("print('x')")
        case "half":  # as a worker leaves it that is killed while it builds
            (environment.folder / "contents.json").unlink()
            os.rename(environment.folder, environment.folder.with_name(f".draft-{environment.folder.name}"))
    async with machine.cache() as cache, cache.using(lock) as again:
        assert says(again) == "x 1.0"
        assert again is not None
        assert not (again.packages / "sitecustomize.py").exists()
    assert machine.there() == [environment.folder.name]


async def test_a_wheel_with_another_content_is_not_installed(machine: Machine) -> None:
    lock = machine.lock("tinylib==1.0")
    add_wheel(machine.wheels, "tinylib", "1.0", {"tinylib/__init__.py": "print('other')"})
    uv_cache = machine.folder / "uv_cache"
    uv_cache.rename(machine.folder / "elsewhere")
    async with machine.cache() as cache:
        with pytest.raises(PlatformError, match="Hash mismatch") as refused:
            async with cache.using(lock):
                pass
        assert refused.value.code == "environment.not_built"
        assert machine.there() == []
        # A later task tries again.
        uv_cache.rename(machine.folder / "unused")
        (machine.folder / "elsewhere").rename(uv_cache)
        async with cache.using(lock) as environment:
            assert says(environment) == "x 1.0"


async def test_no_index_is_asked_for_what_was_downloaded_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_CONFIG_FILE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with served_index(machine.wheels) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        lock, other = machine.lock("tinylib==1.0"), machine.lock("tinylib==2.0")
        async with machine.cache() as cache, cache.using(lock) as environment:
            assert environment is not None
    remove_tree(environment.folder)
    async with machine.cache() as cache:
        async with cache.using(lock) as again:
            assert says(again) == "x 1.0"
        with pytest.raises(PlatformError) as refused:
            async with cache.using(other):
                pass
    assert refused.value.code == "environment.not_built"
    assert address.removeprefix("http://") in refused.value.message


async def test_a_lock_that_differs_or_is_for_a_newer_python_is_refused(machine: Machine) -> None:
    lock = machine.lock("tinylib==1.0")
    newer = machine.keep(machine.locks[lock].replace("python>=3.", "python>=3.9"))
    odd = machine.keep("python>=3.11\n-r /etc/passwd\n")
    machine.locks[lock] += "tinydep==1.5 --hash=sha256:" + "0" * 64 + "\n"
    codes = []
    async with machine.cache() as cache:
        for one in (lock, newer, odd):
            with pytest.raises(PlatformError) as refused:
                async with cache.using(one):
                    pass
            codes.append(refused.value.code)
    assert codes == ["code.damaged", "environment.python_too_old", "code.damaged"]
    assert machine.there() == []


async def test_what_nobody_uses_is_removed_to_make_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        add_wheel(machine.wheels, f"big{number}", "1.0", {f"big{number}.py": f"WORD = {'x' * 1_000_000!r}\n"})
    locks = [machine.lock(f"big{number}") for number in range(4)]

    async def use(cache: EnvironmentCache, number: int) -> None:
        async with cache.using(locks[number]):
            os.utime(
                machine.environments / ".locks" / environment_cache._name(locks[number]), (number, number)
            )

    def there() -> list[int]:
        return sorted(locks.index(name[:64]) for name in machine.there())

    async with machine.cache(5_000_000) as one, machine.cache(5_000_000) as other:
        for number in (0, 1, 2):
            await use(one, number)
        assert there() == [0, 1, 2]  # one of them too many, and all of them held
        monkeypatch.setattr(environment_cache, "_KEPT_SECONDS", 0.0)
        async with other.using(locks[0]):
            await use(one, 3)
            assert there() == [0, 3]
        async with one.using(locks[1]) as again:
            assert says(again, "import big1; print(len(big1.WORD))") == "1000000"
    async with machine.cache(1_000_000) as small:
        with pytest.raises(PlatformError) as refused:
            async with small.using(locks[2]):
                pass
        assert refused.value.code == "environment.too_large"


async def test_a_worker_that_stops_ends_what_it_is_building(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow_uv"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    lock = machine.lock("tinylib")
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(slow))
    async with machine.cache() as cache:

        async def use() -> None:
            async with cache.using(lock):
                pass

        async def begun() -> bool:
            return (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text())

        using = asyncio.ensure_future(use())
        await until(begun, what="uv runs")
        using.cancel()
        await asyncio.wait((using,))
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)  # other tasks may wait for it
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert machine.there() == []


def test_the_tag_tells_pythons_apart() -> None:
    assert f"{sys.version_info[0]}{sys.version_info[1]}" in environment_cache._TAG
