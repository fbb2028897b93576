"""docs/concepts/chain.md names every table, column, setting, fault, method and error code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from traceplane.chain.rpc import RpcSettings
from traceplane.chain.rules import CHAINS, Quirk
from traceplane.chain.simulated.faults import KINDS
from traceplane.chain.simulated.server import METHODS
from traceplane.chain.tables import SCHEMAS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "chain.md").read_text()
SOURCE = "".join(path.read_text() for path in (ROOT / "src" / "traceplane" / "chain").rglob("*.py"))


def test_every_column_is_documented_with_its_table() -> None:
    for name, schema in SCHEMAS.items():
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"- **{name}**")]
        assert re.findall(r"`(\w+)`", line) == schema.names


def test_every_setting_fault_and_method_is_documented() -> None:
    for name in [field.name for field in fields(RpcSettings)] + list(KINDS):
        assert f"`{name}`" in PAGE
    for method in METHODS:
        assert f"`{method}" in PAGE


def test_the_rules_of_every_chain_are_documented() -> None:
    for quirk in Quirk:
        assert f"\n| `{quirk}` | " in PAGE
    for name, rules in CHAINS.items():
        quirks = ", ".join(f"`{quirk}`" for quirk in sorted(rules.allowed)) or "none"
        assert f"\n| `{name}` | {rules.chain_id} | {quirks} | {rules.reason}".rstrip() in PAGE


def test_error_codes_in_the_page_and_in_the_source_are_the_same() -> None:
    code = re.compile(r"chain\.[a-z]+_[a-z_]+")
    assert set(code.findall(PAGE)) == set(re.findall(r'"(chain\.[a-z]+_[a-z_]+)"', SOURCE))
