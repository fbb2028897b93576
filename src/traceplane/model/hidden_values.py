"""Removes values that an operator was passed from the text that it wrote: an error often repeats the URL that failed.

Text is recognized verbatim, as Python and JSON escape it in quotes, line by line, and the parts of a URL. A secret is
recognized in the forms that it takes on its way to a server, too: each of its characters escaped or not, as libraries
differ in which ones they escape for URLs, JSON, Python, HTML and queries; in base64, also as a part of what was
encoded, and in hexadecimal digits; and where the limit of a text cut it. Any other form, such as a part of a value, is
not recognized.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, encodebytes
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from traceplane.model.secret_texts import in_string

SHORTEST = 6
"""Shorter values occur in too much unrelated text."""
_SHORTEST_LINE = 16
"""The same for one line of a longer text, such as a query."""
_MAY_BE_CUT = 400
"""Texts and lines of this length may have lost their rest, or their beginning, to a limit."""
PLACEHOLDER = "***"
_IN_HTML = {'"': "quot", "&": "amp", "'": "apos", "<": "lt", ">": "gt"}
_IN_QUOTES = {"\n": "n", "\r": "r", "\t": "t"}
_NO_SECRET = ("entrypoint",)
"""Config fields that name code; tracebacks name it too, so hiding it would make them useless."""


class HiddenValues:
    """Nothing is hidden if there are no values."""

    def __init__(self, handed: Iterable[object] = (), secrets: Iterable[str] = ()) -> None:
        secrets = list(secrets)
        texts = {text for value in handed for text in _texts(value) if len(text) >= SHORTEST}
        texts |= {text for value in secrets for text in _forms(value) if len(text) >= SHORTEST}
        self._pattern = _pattern_of(texts, {t for s in secrets for t in _lines(s) if len(t) >= SHORTEST})
        self._secret_forms = {text for value in secrets for text in _forms(value) if len(text) > SHORTEST}

    def without(self, value: Any) -> Any:
        """The JSON value with every occurrence of a hidden value replaced by a placeholder."""
        if self._pattern is None:
            return value
        match value:
            case str():
                return self._pattern.sub(PLACEHOLDER, self._without_cut_ones(value))
            case dict():
                return {self.without(key): self.without(item) for key, item in value.items()}
            case list():
                return [self.without(item) for item in value]
            case _:
                return value

    def _without_cut_ones(self, text: str) -> str:
        """A limit may have cut a text, or a line of it, in the middle of a secret."""
        if len(text) < _MAY_BE_CUT or not self._secret_forms:
            return text
        lines = text.split("\n")
        last = len(lines) - 1
        for number, line in enumerate(lines):
            is_long = len(line) >= _MAY_BE_CUT
            if is_long or number == last:
                line = self._without_beginning_of_secret(line)
            if is_long or number == 0:
                line = self._without_end_of_secret(line)
            lines[number] = line
        return "\n".join(lines)

    def _without_beginning_of_secret(self, line: str) -> str:
        """Removes it from the end of the line."""
        text = line.rstrip("\ufffd")  # of a character that was cut
        for form in self._secret_forms:
            at = text.find(form[:SHORTEST], max(0, len(text) - len(form)))
            while at >= 0:
                if form.startswith(text[at:]):
                    return text[:at] + PLACEHOLDER
                at = text.find(form[:SHORTEST], at + 1)
        return line

    def _without_end_of_secret(self, line: str) -> str:
        """Removes it from the beginning of the line."""
        text = line.lstrip("\ufffd")
        for form in self._secret_forms:
            at = text.rfind(form[-SHORTEST:], 0, len(form))
            while at >= 0:
                if form.endswith(text[: at + SHORTEST]):
                    return PLACEHOLDER + text[at + SHORTEST :]
                at = text.rfind(form[-SHORTEST:], 0, at + SHORTEST - 1)
        return line


def _pattern_of(texts: Iterable[str], secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Of all texts, and of the secrets however their characters are escaped."""
    patterns = {text: re.escape(text) for text in texts}
    patterns |= {secret: _spelled(secret) for secret in secrets}
    if not patterns:
        return None
    longest_first = [patterns[text] for text in sorted(patterns, key=lambda text: (-len(text), text))]
    # Most places in a text are the beginning of nothing, and this is quick to see.
    beginnings = "".join(map(re.escape, sorted({text[0] for text in patterns})))
    return re.compile(f"(?=[{beginnings}%&+\\\\])(?:{'|'.join(longest_first)})")


def _spelled(text: str) -> str:
    """A pattern of the text with each character as it is or escaped, also if what escaped it was escaped again."""
    runs = re.findall(r"\\+|[^\\]", text, re.DOTALL)
    return "".join(_backslashes(len(run)) if run[0] == "\\" else _spellings(run) for run in runs)


def _backslashes(count: int) -> str:
    """How many there may be has an end, so that a search takes no longer than it must."""
    return rf"(?:\\{{{count},{16 * count}}}|(?i:(?:%(?:25){{0,2}}5c){{{count}}}))"


def _spellings(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    encoded, code = char.encode(errors="surrogatepass"), ord(char)
    units = char.encode("utf-16-be", errors="surrogatepass").hex()
    escaped = [
        "".join(f"%(?:25){{0,2}}{byte:02x}" for byte in encoded),
        "".join(rf"\\{{1,8}}x{byte:02x}" for byte in encoded),
        "".join(rf"\\{{1,8}}u{units[at : at + 4]}" for at in range(0, len(units), 4)),
        rf"\\{{1,8}}U{code:08x}",
        f"&(?:amp;)?(?:#0*{code}|#x0*{code:x}|{_IN_HTML.get(char, 'none')});",
    ]
    if code < 256:
        escaped.append(rf"\\{{1,8}}x{code:02x}")
    if char in _IN_QUOTES:
        escaped.append(rf"\\{{1,8}}{_IN_QUOTES[char]}")
    if char == " ":
        escaped.append(r"\+")
    return rf"(?:\\{{0,8}}{re.escape(char)}|(?i:{'|'.join(escaped)}))"


def _forms(secret: str) -> Iterator[str]:
    for text in _texts(secret):
        yield text
        yield quote(text, safe="")
        yield quote(text)
        yield quote_plus(text)
        yield from _in_base64(text.encode())
        yield from encodebytes(text.encode()).decode().splitlines()
        yield text.encode().hex()
        yield text.encode().hex().upper()
        yield from _in_query(text)


def _in_query(text: str) -> Iterator[str]:
    """As it was put into the query, and as Spark writes a string; also in JSON, as Spark logs errors."""
    for written in (in_string(text), text.replace("\\", "\\\\").replace("'", "\\'")):
        yield written
        yield json.dumps(written)[1:-1]


def _in_base64(raw: bytes) -> Iterator[str]:
    """As it appears wherever it begins within what was encoded, such as `user:password`: without the characters at
    the ends, which depend on what is before and behind it."""
    for before in range(3):
        encoded = b64encode(bytes(before) + raw).decode()
        first = (before * 8 + 5) // 6
        last = (before + len(raw)) * 8 // 6
        text = encoded[first:last]
        yield text
        yield text.replace("+", "-").replace("/", "_")


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            for text in _lines(value):
                yield text
                yield repr(text)[1:-1]
                yield json.dumps(text)[1:-1]
            yield value.replace("\n", "\\n")
            yield from _parts_of_address(value)
        case dict():
            for key, item in value.items():
                if key not in _NO_SECRET:
                    yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _lines(text: str) -> Iterator[str]:
    """The text, and each of its lines that is long enough, also without blanks around them."""
    for line in (text, *(line for line in text.splitlines() if len(line) >= _SHORTEST_LINE)):
        yield line
        yield line.strip()


def _parts_of_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        address = urlsplit(text)
    except ValueError:
        return
    location = address.path + (f"?{address.query}" if address.query else "")
    parts = [address.username, address.password, location, *address.path.split("/")]
    parts += [assignment.partition("=")[2] for assignment in address.query.split("&")]
    for part in parts:
        if part:
            yield part
            yield unquote(part)
