"""SQL that people write for Spark, without what Spark and the parser here may read differently. Pure; needs no parser.

Spark and the parser disagree on some comments, spaces and numbers. Where they do, a text can show a column to Spark
that the parser takes for a comment, and personal data leaves by it unmarked. So the text is read here by the rules of
Spark's lexer: comments become spaces, and what is not certain is refused. The result is what is analyzed and also what
Spark runs; every character keeps its line and its column.

A reference to a secret may be in a string and nowhere else: the value is put in after the analysis, and whoever may set
it must not decide what the query reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from traceplane.errors import InvalidInput
from traceplane.model.secret_texts import REFERENCE

_SPACE = "[ \t\n\r\f\v\u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]"
_TOKEN = re.compile(
    rf"""
      (?P<space>{_SPACE}+)
    | (?P<comment>--(?:\\\n|[^\r\n])*)
    | (?P<brackets>/\*(?P<hint>\+)?)
    | (?P<quoted>[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`)
    | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?:[lLsSyYdDfF]|[bB][dD])?(?![A-Za-z0-9_]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*+(?!://))
    | (?P<sign>[\]\[!%&()*+,./:;<=>?^|~-])
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE = re.compile(r"/\*(?!\+)|\*/")
_HINT = re.compile(r"/\*\+[A-Za-z0-9_,()\s]*\*/", re.ASCII)
_PRINTED = re.compile(r"[^\r\n]")
_OTHER_SPACE = re.compile(rf"(?![ \n\r]){_SPACE}")
_VARIABLE = "${"
_ESCAPE = re.compile(
    r"(?P<unfinished>\\(?:u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[01][0-7]?)?(?=\$\{secret:))|\\.", re.DOTALL
)
_NAMES_BY_STRINGS = ("identifier", "reflect", "try_reflect", "java_method")
"""Functions whose strings are names of what is read or called."""


def plain(text: str) -> str:
    """The same SQL with spaces in place of comments; raises what is not certain to mean one thing."""
    return "".join(
        _PRINTED.sub(" ", token)
        if kind == "comment"
        else _OTHER_SPACE.sub(" ", token)
        if kind in ("space", "hint")
        else token
        for kind, token in _tokens(text)
    )


def with_secrets(text: str, put: Callable[[str], str]) -> str:
    """The SQL with `put` applied to what may refer to secrets: its strings. Raises what `plain` does."""
    return "".join(put(token) if kind == "quoted" else token for kind, token in _tokens(text))


def pieces(text: str) -> list[tuple[str, str]]:
    """The words, numbers, quoted parts and signs of a text, with their kinds. Quoted parts that touch are one: for
    Spark, two quotes within a string are one character."""
    found: list[tuple[str, str]] = []
    is_next = False
    for kind, token in _tokens(text):
        if kind == "quoted" and is_next and found[-1][1][-1] == token[0]:
            found[-1] = kind, found[-1][1] + token
        elif kind in ("word", "number", "quoted", "sign"):
            found.append((kind, token))
        is_next = kind == "quoted"
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, before = 0, ""
    named_by: list[str | None] = [None]
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refused(text, at)
        kind, end = str(match.lastgroup), match.end()
        if match["brackets"]:
            kind, end = (
                ("hint", _end_of_hint(text, at, before)) if match["hint"] else ("comment", _end(text, at))
            )
        token = text[at:end]
        if kind == "quoted" and REFERENCE.search(token):
            _check_secret(token, named_by[-1])
        if kind == "quoted" and _VARIABLE in REFERENCE.sub("", token):
            raise _unclear(
                "Spark replaces ${...} by a setting, even within quotes", token, r"write $ as \044"
            )
        if text.startswith("*/", at):
            raise _unclear("the text has */ without /*", text[at:], "remove it, or write a space after *")
        if text[at] == "(":
            named_by.append(before if before in _NAMES_BY_STRINGS else named_by[-1])
        elif text[at] == ")" and len(named_by) > 1:
            named_by.pop()
        yield kind, token
        if kind not in ("space", "comment"):
            before = "/*+" if kind == "hint" else token.lower()
        at = end


def _check_secret(token: str, named_by: str | None) -> None:
    """`named_by`: the function around it whose strings are names."""
    if token[0] not in "'\"":
        raise _misplaced(token, _AS_STRING)
    if any(escape["unfinished"] for escape in _ESCAPE.finditer(token)):
        raise _misplaced(token, r"write \ before it as \\")
    if named_by is not None:
        raise _misplaced(token, f"write what {named_by} names in the query itself")


def _end(text: str, start: int) -> int:
    """Of a comment in brackets, which may contain others; what looks like a hint within one is none."""
    depth, at = 1, start + 2
    while depth:
        edge = _EDGE.search(text, at)
        if edge is None:
            raise _unclear("a comment has no end", text[start:], "write */ at its end")
        depth, at = depth + (1 if edge[0] == "/*" else -1), edge.end()
    return at


def _end_of_hint(text: str, start: int, before: str) -> int:
    match = _HINT.match(text, start)
    if match is None or before not in ("select", "/*+"):
        step = "write names, numbers, commas and parentheses, right after SELECT: /*+ broadcast(t) */"
        raise _unclear("this hint cannot be read with certainty", text[start:], step)
    return match.end()


def _refused(text: str, at: int) -> InvalidInput:
    character = text[at]
    if REFERENCE.match(text, at):
        return _misplaced(text[at:], _AS_STRING)
    if character in "'\"`":
        return _unclear("a quote has no end", text[at:], f"write {character} at its end")
    if character.isdigit():
        return _unclear("this is neither a number nor a name", text[at:], "write a name in backquotes")
    if character.isalpha() or character == "_":
        return _unclear(
            "a name here has characters other than a-z, 0-9 and _", text[at:], "write it in backquotes"
        )
    return _unclear(
        f"Spark SQL has no character {character!r} here", text[at:], "remove it, or write it within quotes"
    )


def _unclear(message: str, value: str, next_step: str) -> InvalidInput:
    return InvalidInput("sql.unclear", message, value=value[:40], next_step=next_step)


_AS_STRING = "write it in quotes: '${secret:NAME}', or cast('${secret:NAME}' as bigint)"


def _misplaced(text: str, next_step: str) -> InvalidInput:
    reference = REFERENCE.search(text)
    assert reference is not None
    return InvalidInput(
        "sql.misplaced_secret",
        f"a query can use a secret only as a value, within quotes, and here {reference[0]} is none",
        value=reference[0],
        next_step=next_step,
    )
