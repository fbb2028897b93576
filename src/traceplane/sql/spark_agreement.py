"""Whether the parser here reads the words of a text for Spark as Spark does. Pure."""

from __future__ import annotations

from functools import lru_cache

from sqlglot import TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from traceplane.errors import InvalidInput
from traceplane.sql.spark_text import pieces, plain

_QUOTES = "'\"`"


@lru_cache(maxsize=512)
def agreed(text: str) -> str:
    """The text as Spark gets it, to be parsed; raises what either of the two refuses or reads in its own way."""
    text = plain(text)
    try:
        tokens = Spark().tokenize(text)
    except TokenError as error:
        raise _unclear(str(error).partition("\n")[0][:200], text) from None
    if tokens and tokens[0].token_type in Spark.tokenizer_class.COMMANDS:
        return text  # the parser keeps the rest of a command as it is, and nothing is analyzed
    spans: list[tuple[int, int]] = []
    for token in tokens:
        start, end = token.start, token.end + 1
        if spans and _touch(text, spans[-1][1], start):
            spans[-1] = spans[-1][0], end
        elif token.token_type is not TokenType.HINT and [(start, end)] != spans[-1:]:
            spans.append((start, end))
    if _pieces_of([text[start:end] for start, end in spans]) != pieces(text):
        raise _unclear("the query has words or quotes that can be read in two ways", text)
    return text


def _touch(text: str, end: int, start: int) -> bool:
    """Whether two quoted parts follow each other as two quotes do within a string."""
    return end == start and text[start] in _QUOTES and text[start] == text[end - 1]


def _pieces_of(tokens: list[str]) -> list[tuple[str, str]] | None:
    """Of the parser's tokens; None if one of them is several things to Spark. It joins words (`group by`), signs, and
    the x of x'1f' with what follows."""
    found: list[tuple[str, str]] = []
    for token in tokens:
        inner = pieces(token)
        kinds = [kind for kind, _ in inner]
        is_binary = kinds == ["word", "quoted"] and inner[0][1].lower() == "x"
        if len(set(kinds)) > 1 and not is_binary:
            return None
        found += inner
    return found


def _unclear(message: str, text: str) -> InvalidInput:
    step = "write names in backquotes, and strings in single quotes with spaces around them"
    return InvalidInput("sql.unclear", message, value=text[:40], next_step=step)
