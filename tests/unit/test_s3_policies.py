"""What credentials of one attempt may do, and that a policy fits into what S3 takes."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from traceplane.adapters import s3_policies

ORG = f"data/o/{UUID(int=1)}"


def generation(number: int) -> str:
    return f"{ORG}/{UUID(int=2)}/{UUID(int=number)}"


def file(task: int, name: str = "part-0.parquet", *, of: int = 3) -> str:
    return f"{generation(of)}/staging/{UUID(int=task)}/1/{name}"


def statements(policy: str | None) -> dict[str, dict[str, Any]]:
    assert policy is not None
    assert len(policy) <= s3_policies.LONGEST
    return {statement["Action"]: statement for statement in json.loads(policy)["Statement"]}


def readable(files: list[str]) -> list[str]:
    policy = s3_policies.working("b", files, [], write_once=False)
    return [arn.removeprefix("arn:aws:s3:::b/") for arn in statements(policy)["s3:GetObject"]["Resource"]]


def test_few_files_are_named_one_by_one() -> None:
    files = [file(1), file(2)]
    assert readable(files) == files


def test_more_files_are_named_by_the_folders_that_have_them_from_the_narrowest_on() -> None:
    of_attempt = [file(1, f"part-{n}.parquet") for n in range(100)]
    assert readable(of_attempt) == [f"{generation(3)}/staging/{UUID(int=1)}/1/*"]
    of_many_tasks = [file(n) for n in range(100)]
    assert readable(of_many_tasks) == [f"{generation(3)}/*"]


def test_files_of_too_many_generations_fit_into_no_policy() -> None:
    files = [file(1, of=number) for number in range(10, 60)]
    assert s3_policies.working("b", files, [], write_once=False) is None
    assert s3_policies.reading("b", [generation(number) for number in range(10, 60)]) is None


def test_an_attempt_writes_below_its_prefix_and_lists_its_generations_only() -> None:
    prefix = f"{generation(4)}/staging/{UUID(int=9)}/2/"
    made = statements(s3_policies.working("b", [file(1)], [prefix], write_once=False))
    assert made["s3:PutObject"]["Resource"] == [f"arn:aws:s3:::b/{prefix}*"]
    assert "Condition" not in made["s3:PutObject"]
    listed = made["s3:ListBucket"]["Condition"]["StringLike"]["s3:prefix"]
    assert listed == [f"{generation(3)}/*", f"{generation(4)}/*"]


def test_on_aws_an_attempt_overwrites_nothing() -> None:
    made = statements(s3_policies.working("b", [], [f"{generation(4)}/staging/t/1/"], write_once=True))
    assert made["s3:PutObject"]["Condition"] == {"Null": {"s3:if-none-match": "false"}}


def test_reading_alone_lets_nothing_be_written() -> None:
    assert "s3:PutObject" not in statements(s3_policies.working("b", [file(1)], [], write_once=True))
