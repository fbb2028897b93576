"""How much SQL a file may have. Parsing takes far longer than reading it, and the gateway parses for whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from traceplane.registry.spec.yaml_reader import BadValue

LONGEST = {"when": 10_000, "expression": 10_000, "sql": 100_000, "query": 100_000}
"""Characters, by the name of the field."""
MOST_TEXTS = 2_000
MOST_CHARACTERS = 250_000


def check(root: yaml.Node) -> None:
    """Raises before anything is parsed. A text that aliases repeat counts each time, as it is parsed each time."""
    count = characters = 0
    for field, node in _texts(root):
        if len(node.value) > LONGEST[field]:
            message = f"the field {field!r} has more than {LONGEST[field]} characters"
            raise BadValue(
                "spec.too_large", node, message, "shorten it, or put values into a dataset and join it"
            )
        count, characters = count + 1, characters + len(node.value)
        if count > MOST_TEXTS or characters > MOST_CHARACTERS:
            message = f"a file has up to {MOST_TEXTS} texts of SQL, with {MOST_CHARACTERS} characters in all"
            raise BadValue("spec.too_large", node, message, "split the DAG into several files")


def _texts(node: yaml.Node) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every text in a field that is for SQL, wherever it is; of a query for each output, all of them."""
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _texts(child)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            field = key.value if isinstance(key, yaml.ScalarNode) and key.value in LONGEST else None
            inner = [v for _, v in value.value] if isinstance(value, yaml.MappingNode) else [value]
            if field is not None:
                yield from ((field, text) for text in inner if isinstance(text, yaml.ScalarNode))
            yield from _texts(value)
