"""How a text refers to a secret, and how the value of one is written into a string of a query.

`${secret:mainnet_rpc}` stands for a secret of users, `${secret:platform/mainnet_rpc}` for one of the platform.
"""

from __future__ import annotations

import re

NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,99}"
REFERENCE = re.compile(rf"\$\{{secret:(?P<name>(?:platform/)?{NAME})\}}")
_SPECIAL = re.compile(r"""[\x00-\x1f\x7f'"\\`${}]""")


def in_string(value: str) -> str:
    r"""As it is written between the quotes of a string for Spark, which reads it back as the same value.

    Every character that could end the string, or begin an escape or a `${setting}`, is written as \uXXXX: the result
    has no quote and no lone backslash, whatever is before and behind it, and however Spark is set to read strings.
    """
    return _SPECIAL.sub(lambda special: f"\\u{ord(special[0]):04X}", value)
