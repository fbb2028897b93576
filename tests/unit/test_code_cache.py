"""A worker runs a bundle as it was deployed or not at all, whoever else unpacks it at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from traceplane.errors import PlatformError
from traceplane.model import code_bundle
from traceplane.worker.code_cache import CodeCache, JobCode

FILES = {"shop/__init__.py": "", "shop/prices.py": "PRICE = 'ä'\r\n", "operators.py": "import shop\n"}
CONTENT = code_bundle.encode(FILES)
BUNDLE = code_bundle.hash_of(CONTENT)


class Dispatcher:
    def __init__(self, content: str = CONTENT) -> None:
        self.content = content
        self.calls = 0

    async def fetch(self, bundle: str) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        return self.content


def unpacked(code: JobCode) -> dict[str, str]:
    place = code.paths[0]
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes().decode() for path in found}


async def test_workers_that_share_a_folder_each_find_the_whole_bundle(tmp_path: Path) -> None:
    own, dispatcher = tmp_path / "own", Dispatcher()
    caches = [CodeCache(tmp_path / "bundles", (own,), dispatcher.fetch) for _ in range(8)]
    for code in await asyncio.gather(*(cache.code_of(BUNDLE) for cache in caches * 2)):
        assert unpacked(code) == FILES
        assert code.bundled == ("operators", "shop", "shop.prices")
        assert code.paths == (tmp_path / "bundles" / BUNDLE,)  # its own folder is not there
    assert dispatcher.calls <= len(caches)
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == [BUNDLE]
    own.mkdir()
    fresh = Dispatcher()
    cache = CodeCache(tmp_path / "bundles", (own,), fresh.fetch)
    assert (await cache.code_of(BUNDLE)).paths == (tmp_path / "bundles" / BUNDLE, own)
    assert fresh.calls == 0
    assert await cache.code_of(None) == JobCode((own,))


@pytest.mark.parametrize("damage", ["changed", "added", "link", "file"])
async def test_an_existing_bundle_is_verified_before_use(tmp_path: Path, damage: str) -> None:
    place = tmp_path / BUNDLE
    if damage == "file":
        place.write_text("in the way")
    else:
        await CodeCache(tmp_path, (), Dispatcher().fetch).code_of(BUNDLE)
        (place / "operators.py").unlink()
        if damage == "link":
            (place / "operators.py").symlink_to(tmp_path / "nowhere")
        else:
            (place / "operators.py").write_text(
                "import evil\n" if damage == "changed" else FILES["operators.py"]
            )
        if damage == "added":
            (place / "json.py").write_text("evil = True\n")
    assert unpacked(await CodeCache(tmp_path, (), Dispatcher().fetch).code_of(BUNDLE)) == FILES


@pytest.mark.parametrize(
    "content", [CONTENT.replace("PRICE", "PRINT"), '{"../../escaped.py":""}', '["a.py"]', '{"a.py":1}', "{"]
)
async def test_a_damaged_or_hostile_bundle_is_refused_and_leaves_nothing(
    tmp_path: Path, content: str
) -> None:
    name = BUNDLE if "PRINT" in content else code_bundle.hash_of(content)
    cache = CodeCache(tmp_path / "bundles", (), Dispatcher(content).fetch)
    with pytest.raises(PlatformError) as refused:
        await cache.code_of(name)
    assert refused.value.code == "code.damaged"
    assert not list(tmp_path.rglob("*.py"))


async def test_a_failed_or_abandoned_fetch_does_not_stop_the_next(tmp_path: Path) -> None:
    dispatcher = Dispatcher("{")
    cache = CodeCache(tmp_path, (), dispatcher.fetch)
    with pytest.raises(PlatformError):
        await cache.code_of(BUNDLE)
    dispatcher.content = CONTENT
    abandoned = asyncio.ensure_future(cache.code_of(BUNDLE))
    waiting = asyncio.ensure_future(cache.code_of(BUNDLE))
    await asyncio.sleep(0)
    abandoned.cancel()
    assert unpacked(await waiting) == FILES
