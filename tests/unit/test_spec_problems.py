"""Every problem in a DAG file is reported once, at its location."""

from __future__ import annotations

import json

import pytest

from tests.dag_texts import DAYS, HEAD, SOURCE, job, parse, problems_of

# » stands before the offending node.
INPUTS = "- {name: j, operator: f, inputs: ["
JOB = INPUTS + "{from: {dataset: i}}], "
DATASETS = "version: 1\ndag: d\ndatasets: "
TRADES = (
    DATASETS
    + "{x: {columns: [{name: ticker, type: string}, {name: qty, type: bigint}, {name: price, type: double}]}}\n"
    + "jobs:\n"
    + SOURCE
)
HOT = "{x: {storage: postgres, write_mode: direct, "
SCHEDULES = (
    *("", "@daily", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
    *("* * * * 8", "5-1 * * * *", "*/0 * * * *", "5/0 * * * *", "1,,2 * * * *", "-1 * * * *", "* * * janu *"),
)
FILES = "- {name: j, activation: source, outputs: [{dataset: x}], source: {kind: file, "
FILES_BY_DAY = "version: 1\ndag: d\ndatasets: {x: {partitions: {by: day}}}\njobs:\n" + FILES
BROKEN = {
    "retention in seconds": (
        "spec.bad_duration",
        DATASETS + "{x: {retention: »90}}\njobs:\n" + SOURCE,
    ),
    # files of datasets
    "files of a hot table": (
        "spec.needs_files",
        DATASETS
        + HOT
        + "position: a, columns: [{name: a, type: bigint}], cluster_by: »[a]}}\njobs:\n"
        + SOURCE,
    ),
    "sorted by an unknown column": (
        "spec.unknown_column",
        DATASETS + "{x: {columns: [{name: a, type: int}], cluster_by: [»b]}}\njobs:\n" + SOURCE,
    ),
    "sorted by a column without an order": (
        "spec.unsortable_column",
        DATASETS + "{x: {columns: [{name: a, type: 'array<int>'}], cluster_by: [»a]}}\njobs:\n" + SOURCE,
    ),
    "a tiny target": (
        "spec.bad_compaction",
        DATASETS + "{x: {compaction: {target: »8g}}}\njobs:\n" + SOURCE,
    ),
    "a merge of one": (
        "spec.bad_compaction",
        DATASETS + "{x: {compaction: {min_files: »1}}}\njobs:\n" + SOURCE,
    ),
    # file sources
    "no path": ("spec.missing_field", HEAD + FILES.replace("{kind", "»{kind") + "pattern: '{position}'}}\n"),
    "no pattern": ("spec.missing_field", HEAD + FILES.replace("{kind", "»{kind") + "path: /x}}\n"),
    "relative path": ("spec.bad_path", HEAD + FILES + "pattern: '{position}', path: »data/in}}\n"),
    "path upwards": ("spec.bad_path", HEAD + FILES + "pattern: '{position}', path: »/data/../etc}}\n"),
    "no bucket": ("spec.bad_path", HEAD + FILES + "pattern: '{position}', path: »'s3://'}}\n"),
    "no partition": ("spec.bad_pattern", HEAD + FILES + "path: /x, pattern: »'*.csv'}}\n"),
    "no such field": ("spec.bad_pattern", HEAD + FILES + "path: /x, pattern: »'{day}.csv'}}\n"),
    "half a date": ("spec.bad_pattern", FILES_BY_DAY + "path: /x, pattern: »'{YYYY}-{MM}.csv'}}\n"),
    "a position of days": ("spec.bad_pattern", FILES_BY_DAY + "path: /x, pattern: »'{position}.csv'}}\n"),
    "unclosed brace": ("spec.bad_pattern", HEAD + FILES + "path: /x, pattern: »'{position.csv'}}\n"),
    "pattern upwards": ("spec.bad_pattern", HEAD + FILES + "path: /x, pattern: »'../{position}'}}\n"),
    "unknown format": (
        "spec.unknown_value",
        HEAD + FILES + "path: /x, pattern: '{position}', format: »xls}}\n",
    ),
    "format and operator": (
        "spec.format_without_use",
        HEAD + FILES + "path: /x, pattern: '{position}', format: »csv}, operator: f}\n",
    ),
    "runtime of a list": (
        "spec.source_runs_no_code",
        HEAD + FILES + "path: /x, pattern: '{position}'}, runtime: »python}\n",
    ),
    "columns of a list": (
        "spec.list_of_files",
        DATASETS
        + "{x: {columns: »[{name: a, type: int}]}}\njobs:\n"
        + FILES
        + "path: /x, pattern: '{position}'}}\n",
    ),
    "pattern of a manual source": (
        "spec.field_needs_file",
        HEAD
        + "- {name: j, activation: source, outputs: [{dataset: x}], source: {kind: manual, pattern: »a}}\n",
    ),
    "verify of files": (
        "spec.field_needs_path",
        HEAD + FILES + "path: /x, pattern: '{position}', verify: »none}}\n",
    ),
    # the text itself
    "empty": ("spec.empty", "»"),
    "only a comment": ("spec.empty", "»# nothing\n"),
    "null": ("spec.empty", "»---\n...\n"),
    "a list": ("spec.wrong_type", "»- 1\n"),
    "a word": ("spec.wrong_type", "»hello"),
    "bad syntax": ("spec.syntax", "version: 1\ndag: »@x\n"),
    "unclosed": ("spec.syntax", "version: 1\njobs: [a, b\n»"),
    "control character": ("spec.syntax", "version: 1\ndag: é»\x07\n"),
    "two documents": ("spec.syntax", HEAD + SOURCE + "»---\na: 1\n"),
    "unknown alias": ("spec.syntax", "version: 1\ndag: »*x\n"),
    "lone surrogate": ("spec.syntax", "»dag: \ud800\n"),
    "surrogate in a tag": ("spec.syntax", "»dag: !<tag%ED%A0%80> x\n"),
    "recursive alias": ("spec.recursive_alias", "version: 1\ndag: d\njobs: &a [»*a]\n"),
    "too deep": ("spec.too_deep", "version: " + "[" * 62 + "»" + "[" * 40),
    "duplicate key": ("spec.duplicate_key", "version: 1\ndag: d\n»dag: e\njobs:\n" + SOURCE),
    "key that is not text": ("spec.wrong_type", "version: 1\ndag: d\n»1: x\njobs:\n" + SOURCE),
    "key that is a list": ("spec.wrong_type", "version: 1\ndag: d\n? »[a]\n: x\njobs:\n" + SOURCE),
    "merge of a scalar": (
        "spec.wrong_type",
        HEAD + "- {<<: »1, name: j, operator: f, inputs: [{from: {dataset: i}}]}\n",
    ),
    # the file
    "no version": ("spec.missing_field", "»dag: d\njobs:\n" + SOURCE),
    "version 2": ("spec.unsupported_version", "version: »2\ndag: d\njobs:\n" + SOURCE),
    "version text": ("spec.wrong_type", "version: »'1'\ndag: d\njobs:\n" + SOURCE),
    "version true": ("spec.wrong_type", "version: »true\ndag: d\njobs:\n" + SOURCE),
    "no dag": ("spec.missing_field", "»version: 1\njobs:\n" + SOURCE),
    "no jobs": ("spec.missing_field", "»version: 1\ndag: d\n"),
    "empty jobs": ("spec.no_jobs", "version: 1\ndag: d\njobs: »[]\n"),
    "blank jobs": ("spec.wrong_type", "version: 1\ndag: d\njobs:»\n"),
    "dag name with capitals": ("spec.bad_name", "version: 1\ndag: »Chain\njobs:\n" + SOURCE),
    "dag name of what is no DAG": ("spec.bad_name", "version: 1\ndag: »channel\njobs:\n" + SOURCE),
    "dag name too long": ("spec.bad_name", f"version: 1\ndag: »{'a' * 64}\njobs:\n" + SOURCE),
    "dag name a number": ("spec.wrong_type", "version: 1\ndag: »12\njobs:\n" + SOURCE),
    "unknown field of the file": ("spec.unknown_field", "version: 1\ndag: d\n»job: []\njobs:\n" + SOURCE),
    "description a list": ("spec.wrong_type", "version: 1\ndag: d\ndescription: »[a]\njobs:\n" + SOURCE),
    "NUL in text": ("spec.bad_text", 'version: 1\ndag: d\ndescription: »"a\\0b"\njobs:\n' + SOURCE),
    "defaults with a job field": (
        "spec.unknown_field",
        "version: 1\ndag: d\ndefaults: {»runtime: python}\njobs:\n" + SOURCE,
    ),
    # datasets
    "dataset nobody produces": (
        "spec.unproduced_dataset",
        "version: 1\ndag: d\ndatasets:\n  »xx: {}\njobs:\n" + SOURCE,
    ),
    "blank dataset": ("spec.wrong_type", DATASETS + "{x: »}\njobs:\n" + SOURCE),
    "dataset id with a space": ("spec.bad_name", HEAD + JOB + "outputs: [{dataset: »'a b'}]}\n"),
    "dataset id with #": ("spec.bad_name", HEAD + JOB + "outputs: [{dataset: »'a#b'}]}\n"),
    "storage unknown": (
        "spec.unknown_value",
        DATASETS + "{x: {storage: »postgre}}\njobs:\n" + SOURCE,
    ),
    "write_mode on parquet": (
        "spec.write_mode_needs_postgres",
        DATASETS + "{x: {storage: parquet, write_mode: »direct}}\njobs:\n" + SOURCE,
    ),
    "write_mode on the default": (
        "spec.write_mode_needs_postgres",
        DATASETS + "{x: {write_mode: »direct}}\njobs:\n" + SOURCE,
    ),
    "hot table without columns": (
        "spec.hot_needs_position",
        DATASETS + "{x: »{storage: postgres, write_mode: direct}}\njobs:\n" + SOURCE,
    ),
    "position that is text": (
        "spec.bad_position",
        DATASETS
        + HOT
        + "position: »b, columns: [{name: a, type: bigint}, {name: b, type: string}]}}\njobs:\n"
        + SOURCE,
    ),
    "position that is not there": (
        "spec.unknown_column",
        DATASETS + HOT + "position: »c, columns: [{name: a, type: bigint}]}}\njobs:\n" + SOURCE,
    ),
    "position of files that is text": (
        "spec.bad_position",
        DATASETS
        + "{x: {position: »b, columns: [{name: a, type: bigint}, {name: b, type: string}]}}\njobs:\n"
        + SOURCE,
    ),
    "position of files that is not there": (
        "spec.unknown_column",
        DATASETS + "{x: {position: »dayy, columns: [{name: day, type: int}]}}\njobs:\n" + SOURCE,
    ),
    "column of no type": (
        "spec.unknown_type",
        DATASETS + "{x: {columns: [{name: a, type: »bigintt}]}}\njobs:\n" + SOURCE,
    ),
    "hot column of another type": (
        "spec.hot_type_unsupported",
        DATASETS
        + HOT
        + "position: a, columns: [{name: a, type: bigint}, {name: b, type: »'map<int, int>'}]}}\njobs:\n"
        + SOURCE,
    ),
    "hot column that Postgres has": (
        "spec.bad_name",
        DATASETS
        + HOT
        + "position: a, columns: [{name: a, type: bigint}, {name: »ctid, type: int}]}}\njobs:\n"
        + SOURCE,
    ),
    "input reads what is not there": (
        "spec.unknown_column",
        DATASETS
        + "{x: {columns: [{name: a, type: bigint}]}}\njobs:\n"
        + SOURCE
        + "- {name: r, operator: o, inputs: [{from: {dataset: x}, columns: [a, »b]}]}\n",
    ),
    "where on a column that is not there": (
        "spec.unknown_column",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: 1, »tiker: AAPL}}]}\n",
    ),
    "where compares a number with text": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: »AAPL}}]}\n",
    ),
    "where compares text with a number": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {ticker: »7}}]}\n",
    ),
    "where compares a number with true": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {price: »true}}]}\n",
    ),
    "virtual dataset names a column that is not there": (
        "sql.unknown_column",
        TRADES.replace("{x:", "{v: {storage: virtual, sql: »select tiker from x}, x:"),
    ),
    "virtual dataset names a column of an alias that is not there": (
        "sql.unknown_column",
        TRADES.replace("{x:", "{v: {storage: virtual, sql: »select t.tiker from x t}, x:"),
    ),
    "column without a type": (
        "spec.missing_field",
        DATASETS + "{x: {columns: [»{name: a}]}}\njobs:\n" + SOURCE,
    ),
    "column twice": (
        "spec.duplicate_name",
        DATASETS + "{x: {columns: [{name: a, type: string}, {name: »a, type: string}]}}\njobs:\n" + SOURCE,
    ),
    "column nullable text": (
        "spec.wrong_type",
        DATASETS + "{x: {columns: [{name: a, type: string, nullable: »yes}]}}\njobs:\n" + SOURCE,
    ),
    "two producers": ("spec.two_producers", HEAD + SOURCE + JOB + "outputs: [{dataset: »x}]}\n"),
    "two outputs of one dataset": (
        "spec.two_producers",
        HEAD + JOB + "outputs: [{name: a, dataset: x}, {name: b, dataset: »x}]}\n",
    ),
    # jobs
    "job not a map": ("spec.wrong_type", HEAD + SOURCE + "- »x\n"),
    "job without a name": ("spec.missing_field", HEAD + "- »{operator: f, inputs: [{from: {dataset: x}}]}\n"),
    "job twice": ("spec.duplicate_name", HEAD + SOURCE + JOB.replace("name: j", "name: »a") + "}\n"),
    "job twice by alias": (
        "spec.duplicate_name",
        HEAD + "- &j {name: »j, operator: f, inputs: [{from: {dataset: i}}]}\n- *j\n",
    ),
    "unknown field of a job": ("spec.unknown_field", HEAD + JOB + "»time_out: 5m}\n"),
    "no operator": ("spec.missing_field", HEAD + "- »{name: j, inputs: [{from: {dataset: x}}]}\n"),
    "no operator for a runtime": (
        "spec.missing_field",
        HEAD + SOURCE.replace("- {name: a,", "- »{name: a, runtime: python,").replace("manual", "always_on"),
    ),
    "always_on without an operator": (
        "spec.missing_field",
        HEAD + SOURCE.replace("- {", "- »{").replace("manual", "always_on"),
    ),
    "unknown runtime": ("spec.unknown_runtime", HEAD + JOB + "runtime: »pyton}\n"),
    "unknown runtime of a source": (
        "spec.unknown_runtime",
        HEAD
        + SOURCE.replace("name: a,", "name: a, operator: f, runtime: »dispatchr,").replace(
            "manual", "always_on"
        ),
    ),
    "unknown activation": ("spec.unknown_value", HEAD + JOB + "activation: »sourc}\n"),
    "unknown strategy": ("spec.unknown_value", HEAD + JOB + "execution_strategy: »bulk, batch: {size: 1}}\n"),
    "config a list": ("spec.wrong_type", HEAD + JOB + "config: »[]}\n"),
    "config with a duplicate key": ("spec.duplicate_key", HEAD + JOB + "config: {a: {b: 1, »b: 2}}}\n"),
    "config with a number as key": ("spec.wrong_type", HEAD + JOB + "config: {a: {»1: 2}}}\n"),
    "config with a tag": ("spec.unsupported_tag", HEAD + JOB + "config: {a: »!!binary aGk=}}\n"),
    "config with python": (
        "spec.unsupported_tag",
        HEAD + JOB + "config: {a: »!!python/name:os.system ''}}\n",
    ),
    "config with an endless float": ("spec.out_of_range", HEAD + JOB + "config: {a: »1e999}}\n"),
    "config with an endless integer": ("spec.wrong_type", HEAD + JOB + f"config: {{a: »{'9' * 5000}}}}}\n"),
    "config with a false tag": ("spec.wrong_type", HEAD + JOB + "config: {a: »!!int abc}}\n"),
    "append without unique_key": ("spec.append_needs_unique_key", HEAD + JOB + "update_strategy: »append}\n"),
    "append with an empty unique_key": (
        "spec.append_needs_unique_key",
        HEAD + JOB + "update_strategy: »append, unique_key: []}\n",
    ),
    "unique_key text": ("spec.wrong_type", HEAD + JOB + "update_strategy: append, unique_key: »a}\n"),
    "unique_key with a list": ("spec.wrong_type", HEAD + JOB + "unique_key: [»[a], b]}\n"),
    "unique_key twice the same": ("spec.duplicate_name", HEAD + JOB + "unique_key: [a, »a]}\n"),
    # sources
    "source without kind": ("spec.missing_field", HEAD + SOURCE.replace("{kind: manual}", "»{}")),
    "source without source": (
        "spec.missing_field",
        HEAD + "- »{name: a, activation: source, outputs: [{dataset: x}]}\n",
    ),
    "source kind unknown": ("spec.unknown_value", HEAD + SOURCE.replace("manual", "»kron")),
    "source without outputs": (
        "spec.source_needs_outputs",
        HEAD + "- »{name: a, activation: source, source: {kind: manual}}\n",
    ),
    "source with empty outputs": (
        "spec.source_needs_outputs",
        HEAD + "- {name: a, activation: source, source: {kind: manual}, outputs: »[]}\n",
    ),
    "source with inputs": (
        "spec.source_has_inputs",
        HEAD + SOURCE.replace("name: a,", "name: a, inputs: »[{from: {dataset: y}}],"),
    ),
    "source on a reactive job": ("spec.source_needs_activation", HEAD + JOB + "source: »{kind: manual}}\n"),
    "manual source with a runtime": (
        "spec.source_runs_no_code",
        HEAD + SOURCE.replace("name: a,", "name: a, runtime: »python,"),
    ),
    "source with an operator whose source has a name that is taken": (
        "spec.bad_batch_name",
        HEAD
        + SOURCE.replace("name: a,", "name: »a, operator: f,")
        + SOURCE.replace("name: a,", "name: a__events,").replace("dataset: x", "dataset: y"),
    ),
    "source with an operator and a long name": (
        "spec.bad_batch_name",
        HEAD + SOURCE.replace("name: a,", f"name: »{'a' * 60}, operator: f,"),
    ),
    "cron without schedule": (
        "spec.cron_needs_schedule",
        HEAD + SOURCE.replace("{kind: manual", "»{kind: cron"),
    ),
    "schedule without cron": (
        "spec.schedule_needs_cron",
        HEAD + SOURCE.replace("{kind: manual", "»{kind: manual, schedule: '* * * * *'"),
    ),
    **{
        f"{field} without cron": (
            "spec.schedule_needs_cron",
            HEAD + SOURCE.replace("{kind: manual", f"»{{kind: manual, {field}"),
        )
        for field in ("time_zone: Europe/Berlin", "catch_up: all", "jitter: 5s", "period: this")
    },
    "cron in an unknown time zone": (
        "spec.unknown_time_zone",
        DAYS + SOURCE.replace("kind: manual", "kind: cron, schedule: '0 6 * * *', time_zone: »Europe/Berlyn"),
    ),
    "cron with an unknown policy": (
        "spec.unknown_value",
        DAYS + SOURCE.replace("kind: manual", "kind: cron, schedule: '0 6 * * *', catch_up: »some"),
    ),
    "cron that would catch up on too much": (
        "spec.out_of_range",
        DAYS
        + SOURCE.replace(
            "kind: manual", "kind: cron, schedule: '0 6 * * *', catch_up: {policy: all, most: »10001}"
        ),
    ),
    "cron without periods": (
        "spec.cron_needs_periods",
        HEAD
        + SOURCE.replace("kind: manual", "kind: cron, schedule: '0 6 * * *'").replace(
            "dataset: x", "dataset: »x"
        ),
    ),
    "cron with names": (
        "spec.cron_needs_periods",
        DATASETS
        + "{x: {partitions: {by: name}}}\njobs:\n"
        + SOURCE.replace("kind: manual", "kind: cron, schedule: '0 6 * * *'").replace(
            "dataset: x", "dataset: »x"
        ),
    ),
    **{
        f"schedule {bad!r}": (
            "spec.bad_schedule",
            HEAD + SOURCE.replace("kind: manual", f"kind: cron, schedule: »'{bad}'"),
        )
        for bad in SCHEDULES
    },
    # inputs
    "reactive without inputs": ("spec.reactive_needs_inputs", HEAD + "- »{name: j, operator: f}\n"),
    "reactive with empty inputs": (
        "spec.reactive_needs_inputs",
        HEAD + "- {name: j, operator: f, inputs: »[]}\n",
    ),
    "input without from": ("spec.missing_field", HEAD + INPUTS + "»{name: x}]}\n"),
    "from of both kinds": (
        "spec.bad_from",
        HEAD + SOURCE + INPUTS + "{from: »{job: a, dataset: x}}]}\n",
    ),
    "from of neither": ("spec.bad_from", HEAD + INPUTS + "{from: »{}}]}\n"),
    "from with only an output": (
        "spec.bad_from",
        HEAD + INPUTS + "{from: »{output: x}}]}\n",
    ),
    "from with a typo": (
        "spec.unknown_field",
        HEAD + SOURCE + INPUTS + "{from: {»jobb: a}}]}\n",
    ),
    "unknown job": ("spec.unknown_job", HEAD + SOURCE + INPUTS + "{from: {job: »b}}]}\n"),
    "unknown output": (
        "spec.unknown_output",
        HEAD + SOURCE + INPUTS + "{from: {job: a, output: »y}}]}\n",
    ),
    "job without outputs": (
        "spec.unknown_output",
        HEAD + JOB + "}\n- {name: k, operator: f, inputs: [{from: »{job: j}}]}\n",
    ),
    "several outputs": (
        "spec.ambiguous_output",
        HEAD + JOB + "outputs: [{dataset: x}, {dataset: y}]}\n"
        "- {name: k, operator: f, inputs: [{from: »{job: j}}]}\n",
    ),
    "input twice": (
        "spec.duplicate_name",
        HEAD + INPUTS + "{from: {dataset: x}}, {from: »{dataset: x}}]}\n",
    ),
    "input name twice": (
        "spec.duplicate_name",
        HEAD + INPUTS + "{name: n, from: {dataset: x}}, {name: »n, from: {dataset: y}}]}\n",
    ),
    "output name twice": (
        "spec.duplicate_name",
        HEAD + JOB + "outputs: [{name: n, dataset: x}, {name: »n, dataset: y}]}\n",
    ),
    "output without dataset": ("spec.missing_field", HEAD + JOB + "outputs: [»{name: n}]}\n"),
    "where an empty list": (
        "spec.bad_where",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: »[]}}]}\n",
    ),
    "where null in a list": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: [1, »null]}}]}\n",
    ),
    "where a list in a list": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: [»[1]]}}]}\n",
    ),
    "where an unknown word": (
        "spec.unknown_field",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: {»atleast: 1}}}]}\n",
    ),
    "where no bound": (
        "spec.bad_where",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: »{}}}]}\n",
    ),
    "where two lower bounds": (
        "spec.bad_where",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: {at_least: 1, above: »2}}}]}\n",
    ),
    "where a bound is null": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: {below: »null}}}]}\n",
    ),
    "where a list has a value of another type": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: [1, »AAPL]}}]}\n",
    ),
    "where a bound is of another type": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: {below: »1.5}}}]}\n",
    ),
    "where a range is empty": (
        "spec.bad_where",
        TRADES
        + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: »{at_least: 5, below: 5}}}]}\n",
    ),
    "where null": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: »null}}]}\n",
    ),
    "cycle of one": (
        "spec.cycle",
        HEAD + INPUTS + "{from: »{job: j}}], outputs: [{dataset: x}]}\n",
    ),
    "cycle through datasets": (
        "spec.cycle",
        HEAD + SOURCE + "- {name: b, operator: f, outputs: [{dataset: y}],\n"
        "   inputs: [{from: {job: a}}, {from: »{dataset: z}}]}\n"
        "- {name: c, operator: f, inputs: [{from: {job: b}}], outputs: [{dataset: z}]}\n",
    ),
    # metering
    "depth zero": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »0}\n"),
    "depth negative": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »-5}\n"),
    "depth too large": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »2147483648}\n"),
    "depth a fraction": ("spec.wrong_type", HEAD + JOB + "max_queue_depth: »1.5}\n"),
    "depth true": ("spec.wrong_type", HEAD + JOB + "max_queue_depth: »true}\n"),
    "concurrency zero": ("spec.out_of_range", HEAD + JOB + "scaling: {max_concurrency: »0}}\n"),
    "attempts zero": ("spec.out_of_range", HEAD + JOB + "max_attempts: »0}\n"),
    "age zero": ("spec.out_of_range", HEAD + JOB + "max_queue_age: »0s}\n"),
    "timeout too long": ("spec.out_of_range", HEAD + JOB + "timeout: »400d}\n"),
    "timeout negative": ("spec.out_of_range", HEAD + JOB + "timeout: »-1}\n"),
    "timeout true": ("spec.bad_duration", HEAD + JOB + "timeout: »true}\n"),
    "timeout a word": ("spec.bad_duration", HEAD + JOB + "timeout: »5min}\n"),
    "timeout a list": ("spec.bad_duration", HEAD + JOB + "timeout: »[5m]}\n"),
    "retry with a typo": ("spec.unknown_field", HEAD + JOB + "retry: {»bas: 1s}}\n"),
    "scaling a word": ("spec.wrong_type", HEAD + JOB + "scaling: »steady}\n"),
    "unknown priority": ("spec.unknown_value", HEAD + JOB + "priority: »high}\n"),
    # Bulk
    "Bulk without batch": ("spec.bulk_needs_batch", HEAD + JOB + "execution_strategy: »Bulk}\n"),
    "batch that is not cut": ("spec.bad_batch", HEAD + JOB + "execution_strategy: Bulk, batch: »{}}\n"),
    "batch of zero": ("spec.out_of_range", HEAD + JOB + "execution_strategy: Bulk, batch: {size: »0}}\n"),
    "batch without Bulk": ("spec.batch_needs_bulk", HEAD + JOB + "batch: »{size: 1}}\n"),
    "batch with PerUpdate": (
        "spec.batch_needs_bulk",
        HEAD + JOB + "execution_strategy: PerUpdate, batch: »{size: 1}}\n",
    ),
    "Bulk source": (
        "spec.bulk_needs_inputs",
        HEAD + SOURCE.replace("name: a,", "name: a, execution_strategy: »Bulk, batch: {size: 1},"),
    ),
    "Bulk name taken": (
        "spec.bad_batch_name",
        HEAD + JOB.replace("name: j", "name: »j") + "execution_strategy: Bulk, batch: {size: 1}}\n"
        "- {name: j__batch, operator: f, inputs: [{from: {dataset: i}}]}\n",
    ),
    "Bulk name too long": (
        "spec.bad_batch_name",
        HEAD + JOB.replace("name: j", f"name: »{'j' * 60}") + "execution_strategy: Bulk, batch: {size: 1}}\n",
    ),
    "Bulk names that meet": (
        "spec.bad_batch_name",
        HEAD + "- {name: »j, operator: f, execution_strategy: Bulk, batch: {size: 1},\n"
        "   inputs: [{from: {dataset: a.b}}, {from: {dataset: a_b}}]}\n",
    ),
}


@pytest.mark.parametrize(("code", "marked"), BROKEN.values(), ids=BROKEN.keys())
def test_each_problem_is_reported_once_at_its_location(code: str, marked: str) -> None:
    before, _, _ = marked.partition("»")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    found = [(p.code, p.file, p.line, p.column) for p in problems_of(marked.replace("»", ""))]
    assert found == [(code, "dag.yaml", line, column)]


@pytest.mark.parametrize(
    ("case", "suggestion"),
    [
        ("unknown field of a job", "did you mean 'timeout'?"),
        ("unknown field of the file", "did you mean 'jobs'?"),
        ("from with a typo", "did you mean 'job'?"),
        ("unknown job", "one of: a, j"),
        ("unknown runtime", "did you mean 'python'?"),
        ("unknown strategy", "did you mean 'Bulk'?"),
        ("source kind unknown", "did you mean 'cron'?"),
        ("unknown priority", "one of: backfill, normal"),
        ("several outputs", "add output: x | y"),
        ("dag name a number", 'put it in quotes: "12"'),
        ("append without unique_key", "add unique_key: [column, ...]"),
        ("position of files that is text", "name a bigint column"),
        ("position of files that is not there", "did you mean 'day'?"),
        ("virtual dataset names a column that is not there", "did you mean 'ticker'?"),
        ("where on a column that is not there", "did you mean 'ticker'?"),
        ("where compares a number with text", "write a number, without quotes"),
        ("where compares text with a number", "put it in quotes"),
    ],
)
def test_problems_suggest_what_to_write(case: str, suggestion: str) -> None:
    (problem,) = problems_of(BROKEN[case][1].replace("»", ""))
    assert problem.suggestion == suggestion


def test_where_takes_values_of_the_type_of_their_column() -> None:
    where = {"ticker": "AAPL", "qty": 7, "price": 3}
    dag = parse(
        TRADES
        + f"- {{name: r, operator: o, inputs: [{{from: {{dataset: x}}, where: {json.dumps(where)}}}]}}\n"
    )
    assert job(dag, "r").inputs[0].where == where


@pytest.mark.parametrize(
    "sql",
    [
        "select Ticker, sum(qty) n from x group by all having n > 1 order by n",
        'select x."ticker", x.qty from x where price > 1',
        "with c as (select ticker symbol from x) select c.symbol from c join x on x.ticker = symbol",
        "select a.ticker, b.other from x a join elsewhere b on a.ticker = b.ticker",
        "select * exclude (qty), row_number() over (partition by ticker order by price) as place from x",
        "select item from (select unnest([qty, 1]) as item from x)",
        "select list_transform([qty], q -> q + 1) as more, date_part('day', current_date) from x",
        "select [q + 1 for q in [qty]] as more from x",
        "select symbol from x t(symbol, amount, paid)",
    ],
)
def test_a_virtual_dataset_may_read_existing_columns(sql: str) -> None:
    dag = parse(TRADES.replace("{x:", f"{{v: {{storage: virtual, sql: {json.dumps(sql)}}}, x:"))
    assert [d.dataset_id for d in dag.datasets] == ["v", "x"]


def test_a_cycle_is_named_from_job_to_job() -> None:
    (problem,) = problems_of(BROKEN["cycle through datasets"][1].replace("»", ""))
    assert problem.message == "jobs feed each other: b → c → b"


def test_all_separate_cycles_are_reported() -> None:
    jobs = "".join(
        f"- {{name: {name}, operator: f, inputs: [{{from: {{job: {other}}}}}],\n"
        f"   outputs: [{{dataset: {name}}}]}}\n"
        for name, other in ("ab", "ba", "cd", "dc", "ea")
    )
    found = [problem.message.rpartition(": ")[2] for problem in problems_of(HEAD + jobs)]
    assert found == ["a → b → a", "c → d → c"]


def test_the_invalid_value_is_quoted() -> None:
    (problem,) = problems_of(BROKEN["depth negative"][1].replace("»", ""))
    assert problem.value == "-5"
    assert str(problem).startswith("dag.yaml:4:75: spec.out_of_range: ")


def test_all_problems_are_reported_together_in_file_order() -> None:
    text = (
        "version: 1\n"
        "dag: D\n"
        "defaults: {timeout: never}\n"
        "jobs:\n"
        "- {name: a, operator: f, inputs: [{from: {job: nobody}}], outputs: [{dataset: x}]}\n"
        "- {name: a, operator: f, inputs: [], outputs: [{dataset: x}], update_strategy: append}\n"
        "- {nam: c}\n"
    )
    assert [(p.line, p.code) for p in problems_of(text)] == [
        (2, "spec.bad_name"),
        (3, "spec.bad_duration"),
        (5, "spec.unknown_job"),
        (6, "spec.duplicate_name"),
        (6, "spec.reactive_needs_inputs"),
        (6, "spec.two_producers"),
        (6, "spec.append_needs_unique_key"),
        (7, "spec.missing_field"),
        (7, "spec.missing_field"),
        (7, "spec.reactive_needs_inputs"),
        (7, "spec.unknown_field"),
    ]


def test_a_problem_is_not_repeated_for_fields_that_depend_on_it() -> None:
    text = (
        "version: 1\n"
        "dag: d\n"
        "datasets: {x: {}}\n"
        "jobs:\n"
        "- {name: Ingest, activation: source, source: {kind: manual}, outputs: [{datset: x}]}\n"
        "- {name: b, operator: f, inputs: [{from: {job: Ingest}}]}\n"
    )
    codes = [problem.code for problem in problems_of(text)]
    assert codes == ["spec.bad_name", "spec.missing_field", "spec.unknown_field"]


def test_a_problem_in_an_aliased_node_is_reported_once() -> None:
    text = (
        HEAD
        + "- {name: a, operator: f, inputs: &i [{from: {datset: x}}]}\n- {name: b, operator: f, inputs: *i}\n"
    )
    assert [problem.code for problem in problems_of(text)] == ["spec.unknown_field"]


@pytest.mark.parametrize(
    ("partitions", "code"),
    [
        ("{by: day, start: 2026-02-30}", "spec.bad_partition"),
        ("{by: dya}", "spec.unknown_value"),
        ("{by: day, time_zone: Europe/Berlim}", "spec.unknown_time_zone"),
    ],
)
def test_nothing_follows_from_partitions_that_were_refused(partitions: str, code: str) -> None:
    files = FILES + "path: /x, pattern: 'o_{YYYY}-{MM}-{DD}.csv'}}\n"
    ticks = "- {name: t, activation: source, outputs: [{dataset: y}], source: {kind: cron, schedule: '0 6 * * *'}}\n"
    reads = (
        "- {name: m, operator: f, inputs: [{from: {dataset: x}, wait_for: end}], outputs: [{dataset: m}]}\n"
    )
    per = reads.replace("name: m", "name: p, execution_strategy: PerPartition").replace(
        "dataset: m", "dataset: p"
    )
    times = (
        "- {name: n, activation: source, source: {kind: manual}, outputs: [{dataset: n}]}\n"
        "- {name: h, operator: f, inputs: [{from: {dataset: n}, time_column: at}], outputs: [{dataset: h}]}\n"
    )
    month = "{partitions: {by: month}}"
    both = f"{{x: {{partitions: {partitions}}}, m: {month}, p: {month}}}\njobs:\n"
    assert [p.code for p in problems_of(DATASETS + both + files + reads + per)] == [code]
    for name, jobs in (("y", ticks), ("h", times)):
        text = DATASETS + f"{{{name}: {{partitions: {partitions}}}}}\njobs:\n" + jobs
        assert [p.code for p in problems_of(text)] == [code]


def test_a_schedule_of_a_day_that_no_month_has_never_occurs() -> None:
    for bad in ("0 6 31 2 *", "0 6 31 4,6 *", "0 6 30 FEB *"):
        text = HEAD + SOURCE.replace("kind: manual", f"kind: cron, schedule: '{bad}'")
        (problem,) = [p for p in problems_of(text) if p.code == "spec.bad_schedule"]
        assert "never occurs" in problem.message
