"""AWS for the adapters' contract suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiobotocore.session import AioSession, get_session

from tests.aws import CREDENTIALS, aws_server


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    with aws_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def aws_session() -> AioSession:
    session = get_session()
    session.set_credentials(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    return session
