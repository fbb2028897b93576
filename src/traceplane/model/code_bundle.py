"""The Python modules that the jobs of one deploy run: their sources by path, stored under a hash of all of them.

A bundle is JSON text with sorted keys, `{"shop/prices.py": "def …"}`, so the same modules always produce the same
bytes, and a bundle can be read without unpacking it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

MAX_BUNDLE_BYTES = 10 << 20
MAX_MODULE_BYTES = 1 << 20
MODULE_PATH = r"^([A-Za-z_][A-Za-z0-9_]*/){0,20}[A-Za-z_][A-Za-z0-9_]*\.py$"
"""A module below a code path. It cannot point outside the folder that a bundle is unpacked to."""

_MODULE_PATH = re.compile(MODULE_PATH)


def is_module_path(path: str) -> bool:
    return _MODULE_PATH.fullmatch(path) is not None


def module_name(path: str) -> str:
    """`shop/prices.py` is `shop.prices`, and `shop/__init__.py` is `shop`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def encode(files: Mapping[str, str]) -> str:
    return json.dumps(files, sort_keys=True, separators=(",", ":"))


def hash_of(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def decode(content: str) -> dict[str, str]:
    """The modules of a bundle. Raises ValueError if it is not something that `encode` produces."""
    files = json.loads(content)
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise ValueError("a bundle is a map from path to source")
    for path in files:
        if not is_module_path(path):
            raise ValueError(f"{path!r} is not the path of a module")
    return files
