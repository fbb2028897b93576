"""An operator that writes to whoever looks at it: escape sequences, forged lines, text that runs backwards."""

from traceplane.sdk import OperatorError, OperatorTask

HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\x85\r\x08\x7f\u202eabc\u2066\u2028\u200b\nFORGED"


def write(task: OperatorTask) -> list[dict]:
    """Names a column, fills it, or fails, as its scope says."""
    print(HOSTILE)
    if task.scope.start == 1:
        return [{"position": 1, "text": HOSTILE, HOSTILE: HOSTILE}]
    if task.scope.start == 2:
        raise OperatorError(HOSTILE, HOSTILE)
    raise type(HOSTILE, (ValueError,), {})(HOSTILE)
