"""The operator as the platform knows it. The gateway imports this module, so it imports little."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from traceplane.operators.spec import Config, ErrorCode, OperatorSpec, Ports

TOO_MANY = "quality.too_many_rejected"


class Bounds(Struct, frozen=True, forbid_unknown_fields=True):
    least: float | None = None
    most: float | None = None


class QualityConfig(Config, frozen=True, kw_only=True):
    required: Annotated[tuple[str, ...], Meta(description="Columns that must have a value.")] = ()
    bounds: Annotated[
        dict[str, Bounds], Meta(description="Columns, and the `least` and `most` that their values may be.")
    ] = field(default_factory=dict)
    most_rejected: Annotated[
        float, Meta(ge=0, le=1, description="The share of rejected rows above which the task fails.")
    ] = 1.0
    chunk_rows: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Rows that are checked and written at once.")
    ] = 1_000_000

    def __post_init__(self) -> None:
        if not self.required and not self.bounds:
            raise ValueError("there is nothing to check: set required, bounds or both")


QUALITY_SPLIT = OperatorSpec(
    name="quality_split",
    summary="Keeps rows that break rules apart from the others, each with the reason.",
    runtimes=frozenset({"python"}),
    entrypoint="traceplane_quality.split:run",
    config=QualityConfig,
    execution_fields=frozenset({"chunk_rows"}),
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=2, most=2, names=("accepted", "rejected")),
    errors=(ErrorCode(TOO_MANY, "more rows than `most_rejected` allows break the rules", retried=False),),
)
