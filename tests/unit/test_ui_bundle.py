"""What a browser has to load of the web UI stays small."""

from __future__ import annotations

import gzip

import pytest

from traceplane.gateway.pages import BUILT, are_built

_MOST_BYTES = 500_000
_EDITOR = "editor-"


def test_all_but_the_editor_is_less_than_500_kb_compressed() -> None:
    if not are_built():
        pytest.skip("the web UI is not built: `make setup` says why")
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in (BUILT / "assets").iterdir()}
    assert any(name.startswith(_EDITOR) for name in sizes), "the editor is no file of its own any more"
    without = {name: size for name, size in sizes.items() if not name.startswith(_EDITOR)}
    assert sum(without.values()) <= _MOST_BYTES, without
