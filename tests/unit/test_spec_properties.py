"""Any text is read or refused, and what is read survives storage."""

from __future__ import annotations

import json
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.dag_texts import FULL, parse
from traceplane.errors import SpecInvalid
from traceplane.model.dag import (
    Dag,
    ExecutionStrategy,
    Priority,
)
from traceplane.registry.spec import normalized


def parses_or_is_invalid(text: str) -> None:
    try:
        assert_round_trip(parse(text))
        return
    except SpecInvalid as error:
        invalid = error
    assert invalid.problems
    assert all(problem.line >= 1 and problem.column >= 1 for problem in invalid.problems)
    json.dumps(invalid.as_dict())


def assert_round_trip(dag: Dag) -> None:
    stored = normalized.dump(dag)
    assert normalized.load(json.loads(json.dumps(stored, allow_nan=False))) == dag
    assert normalized.dump(normalized.load(stored)) == stored


@settings(max_examples=300)
@given(st.text(max_size=200))
@example("dag: \ud800")
@example("? [a]\n: b")
@example("!!set {a}")
@example("{<<: [1, {a: b}], <<: {c: d}}")
@example("version: !!float 1\ndag: !!str 5\njobs: !!omap []")
def test_any_text_is_read_or_refused(text: str) -> None:
    parses_or_is_invalid(text)


WORDS = re.findall(r"[\w.'*/-]+|[\[\]{}:,\n-]| +", FULL)


@settings(max_examples=400)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(WORDS) - 1),
            st.one_of(
                st.sampled_from(WORDS),
                st.sampled_from(
                    ["", "~", "&a ", "*a", "<<", "!!int ", "!x ", "0", "-1", "1e999", '"', "? ", "|\n"]
                ),
                st.text(max_size=5),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_file_is_read_or_refused(edits: list[tuple[int, str]]) -> None:
    words = list(WORDS)
    for index, word in edits:
        words[index] = word
    parses_or_is_invalid("".join(words))


labels = st.text("abcxyz019._/-", min_size=1, max_size=12)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
# Up to U+FFFF: JSON escapes what is above as two surrogates, which YAML refuses.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0", max_codepoint=0xFFFF)
texts = st.text(characters, max_size=20)
scalars = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    st.none() | scalars,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3),
    max_leaves=6,
)
executions = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([str(p) for p in Priority]),
        "scaling": st.fixed_dictionaries(
            {},
            optional={"mode": st.sampled_from(["steady", "backfill"]), "max_concurrency": st.integers(1, 99)},
        ),
        "max_queue_depth": st.integers(1, 9999),
        "max_queue_age": st.sampled_from(["5m", 30, "500ms", 0.5]),
        "timeout": st.integers(1, 1000).map(lambda n: f"{n}m"),
        "max_attempts": st.integers(1, 20),
        "retry": st.fixed_dictionaries({}, optional={"base": st.just("1s"), "max": st.just("1h")}),
    },
)


@st.composite
def files(draw: st.DrawFn) -> dict[str, object]:
    """Good DAG files, jobs in any order; JSON is YAML, so they are written with json.dumps."""
    jobs: list[dict[str, object]] = []
    outputs: list[tuple[str, str]] = []
    for index in range(draw(st.integers(1, 6))):
        job: dict[str, object] = {"name": f"j{index}", "operator": draw(labels), **draw(executions)}
        if draw(st.booleans()) and outputs:
            reads = draw(st.lists(st.sampled_from(outputs), min_size=1, max_size=3, unique=True))
            job["inputs"] = [
                {
                    "name": f"i{n}",
                    "from": draw(st.sampled_from([{"job": j, "output": d}, {"dataset": d}])),
                    "where": draw(st.dictionaries(texts, scalars, max_size=2)),
                }
                for n, (j, d) in enumerate(reads)
            ]
            if draw(st.booleans()):
                job |= {"execution_strategy": "Bulk", "batch": {"size": draw(st.integers(1, 500))}}
        else:
            job |= {
                "activation": "source",
                "source": {"kind": draw(st.sampled_from(["pipeline", "always_on"]))},
            }
        datasets = [f"{index}/{label}" for label in draw(st.sets(labels, min_size=1, max_size=2))]
        job["outputs"] = [{"dataset": dataset} for dataset in datasets]
        outputs += [(f"j{index}", dataset) for dataset in datasets]
        job["config"] = draw(st.dictionaries(texts, values, max_size=3))
        jobs.append(job)
    jobs = draw(st.permutations(jobs))
    return {"version": 1, "dag": draw(names), "defaults": draw(executions), "jobs": jobs}


@settings(max_examples=60)
@given(files())
def test_a_valid_file_is_read_in_order_and_survives_storage(file: dict[str, object]) -> None:
    dag = parse(json.dumps(file))
    assert_round_trip(dag)
    seen: set[str] = set(dag.external_datasets)
    for job in dag.jobs:
        assert {used.dataset_id for used in job.inputs} <= seen
        assert job.execution_strategy != ExecutionStrategy.BULK
        seen |= {output.dataset_id for output in job.outputs}
    assert seen == {dataset.dataset_id for dataset in dag.datasets}
    configs = {job["name"]: job["config"] for job in file["jobs"]}  # type: ignore[attr-defined]
    assert {job.name: job.config for job in dag.jobs if job.generated_for is None} == configs


def test_a_stored_dag_without_a_newer_field_takes_its_default() -> None:
    stored = normalized.dump(parse(FULL))
    for job in stored["jobs"]:
        del job["generated_for"], job["execution"]["retry_max_seconds"]
    dag = normalized.load(stored)
    assert {job.execution.retry_max_seconds for job in dag.jobs} == {300.0}


def test_dump_is_the_same_for_equal_files() -> None:
    assert json.dumps(normalized.dump(parse(FULL))) == json.dumps(normalized.dump(parse(FULL + "# end\n")))
