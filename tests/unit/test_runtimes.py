"""Which function a runtime calls for a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceplane.errors import InvalidInput
from traceplane.model.runtimes import Driver, InvokerKind, Runtime
from traceplane.settings import load

LAMBDA = Runtime(
    "lambda", Driver.INVOKE, invoker=InvokerKind.AWS_LAMBDA, target="default:live", functions=("my-*", "one")
)


@pytest.mark.parametrize(
    ("named", "called"),
    [
        (None, "default:live"),
        ("my-transfers", "my-transfers"),
        ("my-transfers:live", "my-transfers:live"),
        ("one", "one"),
        ("one:live", None),
        ("default:live", None),
        ("their-my-transfers", None),
        ("arn:aws:lambda:eu-central-1:123456789012:function:my-transfers", None),
        ("MY-transfers", None),
    ],
)
def test_a_job_calls_the_target_or_a_function_that_a_pattern_allows(
    named: str | None, called: str | None
) -> None:
    assert LAMBDA.function_of(named) == called


@pytest.mark.parametrize("invoker", ["http", "process"])
def test_a_job_cannot_name_a_url_or_a_command(tmp_path: Path, invoker: str) -> None:
    file = tmp_path / "traceplane.toml"
    file.write_text(
        f'[runtimes.x]\ndriver = "invoke"\ninvoker = "{invoker}"\ntarget = "y"\nfunctions = ["*"]\n'
    )
    with pytest.raises(InvalidInput, match="only the invoker aws_lambda"):
        load(file, {})


def test_only_what_is_invoked_names_its_organizations(tmp_path: Path) -> None:
    file = tmp_path / "traceplane.toml"
    file.write_text('[runtimes.x]\ndriver = "queue"\nqueue = "x"\norgs = ["acme"]\n')
    with pytest.raises(InvalidInput, match="only runtimes with driver invoke"):
        load(file, {})
    file.write_text(
        '[runtimes.x]\ndriver = "invoke"\ninvoker = "http"\ntarget = "http://x"\norgs = ["acme"]\n'
    )
    assert load(file, {}).runtimes["x"].orgs == ("acme",)
