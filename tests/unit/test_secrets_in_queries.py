"""The value of a secret is a value in a query: whoever may set it changes nothing else of what the query says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from traceplane.errors import InvalidInput
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.json_object import JsonObject
from traceplane.model.secret_texts import in_string
from traceplane.sql.spark_text import pieces, plain
from traceplane.wire.tasks import ClaimedTask, JobPayload
from traceplane.worker.hot_inputs import LocalInputs
from traceplane.worker.payload import task_payload
from traceplane.worker.store_on_disk import StoreOnDisk

HOSTILE = "x' or 1=1 --\\"
_ESCAPE = re.compile(
    r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([01][0-7]{2})|\\(.)|(''|\"\")|(.)", re.DOTALL
)


def config_of(config: JsonObject, secrets: dict[str, str], query_field: str | None = "query") -> JsonObject:
    task = ClaimedTask(uuid4(), 1, uuid4(), 30.0, uuid4(), "compute", [])
    job = JobPayload(
        task.job_id, "default", "dag", "job", "spark", "sql", "event", config, "replace", [], 60.0, 30.0, 3, [], [],
        secrets=secrets,
    )  # fmt: skip
    store = StoreOnDisk(Path("/in"), Path("/out"))
    payload = task_payload(task, job, store, LocalInputs(), None, query_field=query_field)
    return dict(payload.config)


def read_by_spark(string: str) -> str:
    """What Spark's parser makes of the inside of a string, as tests/spark/test_secrets_in_queries.py confirms."""

    def one(match: re.Match[str]) -> str:
        four, eight, octal, escaped, doubled, other = match.groups()
        if four or eight:
            return chr(int(four or eight, 16))
        return chr(int(octal, 8)) if octal else escaped or (doubled or other)[0]

    return _ESCAPE.sub(one, string)


@given(st.text(min_size=1), st.sampled_from("'\""), st.sampled_from(["", "a", "$", "\\\\", "\\n", "''"]))
@example(HOSTILE, "'", "\\\\")
@example("{env:HOME}", "'", "$")
@example("\x00\n\\\\\\'\"`${x}", '"', "")
def test_a_value_stays_within_its_string(value: str, quote: str, before: str) -> None:
    text = f"select {quote}{before}${{secret:key}}{{x}}{quote} as v, n -- ${{secret:key}}\nfrom t"
    if quote == '"':
        text = text.replace("''", '""')
    if before == "$":
        text = text.replace("{x}", "")
    query = config_of({"query": text}, {"key": value})["query"]
    found = pieces(query)
    assert [kind for kind, _ in found] == [kind for kind, _ in pieces(text)]
    (string,) = (piece for kind, piece in found if kind == "quoted")
    assert read_by_spark(in_string(value)) == value
    assert in_string(value) in string
    assert "${" not in plain(query)
    assert value.strip().isalnum() or "-- ${secret:key}\n" in query


def test_each_output_has_its_query_and_other_fields_have_the_value_itself() -> None:
    config = {"query": {"a": "select '${secret:key}'", "b": "select 1"}, "other": "${secret:key}"}
    assert config_of(config, {"key": "it's"}) == {
        "query": {"a": "select 'it\\u0027s'", "b": "select 1"},
        "other": "it's",
    }
    assert config_of({"query": "${secret:key}"}, {"key": "it's"}, None) == {"query": "it's"}


MISPLACED = [
    "select ${secret:key}", "select 1${secret:key}", "select * from t limit ${secret:key}", "select a${secret:key}",
    "select `${secret:key}`", "select `a``${secret:platform/key}`", "select r'${secret:key}'",
    'select R"${secret:key}"', "select '\\${secret:key}'", "select '\\\\\\${secret:key}'", "select '\\0${secret:key}'",
    "select '\\12${secret:key}'",
    "select '\\u${secret:key}'", "select '\\u004${secret:key}'", "select '\\U0000004${secret:key}'",
    "select identifier('${secret:key}') from t", "select * from IDENTIFIER /* */ ( 'a' || lower('${secret:key}'))",
    "select reflect('java.lang.System', 'getProperty', '${secret:key}')", "select java_method(('${secret:key}'), 'a')",
]  # fmt: skip


@pytest.mark.parametrize("text", MISPLACED)
def test_a_secret_anywhere_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        plain(text)
    assert (refused.value.code, bool(refused.value.next_step)) == ("sql.misplaced_secret", True)
    assert str(refused.value.value).startswith("${secret:")
    with pytest.raises(InvalidInput) as failed:  # of what was deployed before it was refused
        config_of({"query": text}, {"key": "1", "platform/key": "1"})
    assert failed.value.code == "operator.misconfigured"
    assert str(refused.value.next_step) in failed.value.message


@pytest.mark.parametrize(
    "text",
    [
        "select '${secret:platform/key}'",
        "select \"it's ${secret:key}\", '\\\\${secret:key}', '\\n${secret:key}', '\\u0041${secret:key}', ''",
        "select identifier('a'), '${secret:key}', '\\101${secret:key}' from t where (a) = ('${secret:key}')",
        "select ')${secret:key}(', date'${secret:key}', x'${secret:key}' from identifier('t')",
    ],
)
def test_a_secret_in_a_string_is_left_to_the_task(text: str) -> None:
    assert plain(text) == text


def test_a_text_that_only_looks_like_a_reference_is_a_setting_of_spark() -> None:
    for text in ("select '${secret:9}'", "select '${secret:user/a}'", "select '$${secret:key}{env:HOME}'"):
        with pytest.raises(InvalidInput, match=r"sql\.unclear"):
            plain(text)


@pytest.mark.parametrize("value", [HOSTILE, "two\nlines of 'text'", "${spark.master}-\\-'", "plain-enough"])
def test_the_written_value_is_hidden_in_what_spark_says(value: str) -> None:
    by_spark = value.replace("\\", "\\\\").replace("'", "\\'")
    in_json = [json.dumps(written)[1:-1] for written in (value, in_string(value), by_spark)]
    for written in (value, in_string(value), by_spark, *in_json):
        assert HiddenValues(secrets=[value]).without(f"at '{written}' here") == "at '***' here"
