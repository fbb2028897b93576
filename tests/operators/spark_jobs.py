"""PySpark functions that tests deploy; `doubled` and `pairs` are called by plain unit tests too."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from traceplane.model.scope import Scope
from traceplane.sdk import OperatorTask


def numbers(task: OperatorTask) -> list[dict]:
    first = task.scope.position * 100
    return [{"block": task.scope.position, "n": n, "name": f"n{n}"} for n in range(first, first + 100)]


def bulky(task: OperatorTask) -> list[dict]:
    """So many bytes that what is made of them is written by Spark itself."""
    first = task.scope.position * 100
    return [
        {"block": task.scope.position, "n": n, "payload": os.urandom(360_000)}
        for n in range(first, first + 100)
    ]


def row_by_row(numbers: DataFrame, config) -> DataFrame:
    """Rows that arrive one after the other, for as long as `config.seconds`."""
    pause = config["seconds"] / 100

    def slow(batches):
        for batch in batches:
            for row in range(batch.num_rows):
                time.sleep(pause)
                yield batch.slice(row, 1)

    kept = numbers.select("block", "n")
    return kept.coalesce(1).mapInArrow(slow, kept.schema)


def by_halves(numbers: DataFrame, config) -> DataFrame:
    """In two partitions, which take a while each; made by a module-level function, as users write them."""
    return numbers.repartition(2, "n").mapInArrow(
        functools.partial(slowly, seconds=config["seconds"]), numbers.schema
    )


def slowly(batches, seconds: float):
    time.sleep(seconds)
    yield from batches


def as_they_are(numbers: DataFrame) -> DataFrame:
    return numbers


def beside_its_input(numbers: DataFrame, spark) -> DataFrame:
    """Rows that come from no file."""
    return spark.range(100).withColumnRenamed("id", "n")


def for_a_long_time(numbers: DataFrame, config) -> DataFrame:
    """Reads, and reads and writes again when a while has passed."""
    assert numbers.count() == 100
    time.sleep(config["seconds"])
    return numbers.filter("n >= 0")


def kills_itself_once(numbers: DataFrame, config, task: OperatorTask) -> DataFrame:
    """The process of the first attempt dies while Spark works for it."""
    if task.attempt == 1:
        threading.Timer(config["seconds"] / 2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return row_by_row(numbers, config)


def doubled(numbers: DataFrame, scope: Scope) -> DataFrame:
    return numbers.filter("n >= 0").withColumn("twice", F.col("n") * 2)


def pairs(numbers: DataFrame) -> dict[str, DataFrame]:
    return {"even": numbers.filter("n % 2 = 0"), "odd": numbers.filter("n % 2 = 1")}


def through_python_functions(numbers: DataFrame) -> DataFrame:
    """A function per row, one per row that is given its rows as Arrow, and one per batch."""
    plain = F.udf(lambda n: n + 1, "long")
    arrow = F.udf(lambda n: n + 2, "long", useArrow=True)
    pandas = F.pandas_udf(lambda n: n + 3, "long")
    return numbers.select(
        "n", plain("n").alias("plain"), arrow("n").alias("arrow"), pandas("n").alias("pandas")
    )


def much_of_little(numbers: DataFrame) -> DataFrame:
    """30 MB out of a few kB: they return through Arrow in many pieces."""
    copies = numbers.sparkSession.range(300)
    return numbers.crossJoin(copies).select("n", "id", F.repeat(F.lit("x"), 1000).alias("text"))


def raises(numbers: DataFrame) -> DataFrame:
    raise ValueError("this operator always fails")


def no_such_column(numbers: DataFrame) -> DataFrame:
    return numbers.select("nothing")


def hangs(numbers: DataFrame) -> DataFrame:
    def slow(batches):
        for batch in batches:
            time.sleep(300)
            yield batch

    return numbers.mapInArrow(slow, numbers.schema)


def not_a_frame(numbers: DataFrame) -> int:
    return 7


def steals(numbers: DataFrame, spark, config) -> DataFrame:
    """Whatever Spark can be made to read of what it must not."""
    return spark.read.text(config["path"]).selectExpr("length(value) as n")


def settings_of_spark(numbers: DataFrame, spark, task: OperatorTask) -> DataFrame:
    """Which server the task has, and into how many parts it shuffles."""
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions"))
    rows = [(task.scope.position, spark.conf.get("spark.app.id"), partitions)]
    return spark.createDataFrame(rows, "block bigint, server string, partitions bigint")


def takes_seconds(numbers: DataFrame, config) -> DataFrame:
    seconds = config["seconds"]

    def slow(batches):
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return numbers.mapInArrow(slow, numbers.schema)


def count_rows(task: OperatorTask) -> list[dict]:
    [name] = task.inputs
    table = task.read(name)
    return [{"block": task.scope.position, "rows": table.num_rows, "columns": ",".join(table.column_names)}]


def entries(task: OperatorTask) -> list[dict]:
    """Rows of one block, in no order, with a word that changes whenever they are written again."""
    block, written = task.scope.position, time.time_ns()
    numbers = [n * 37 % 100 for n in range(100)]
    return [{"block": block, "n": n, "name": f"n{n % 7}", "written": written} for n in numbers]


def outlives_its_credentials(numbers: DataFrame, spark, config, task: OperatorTask) -> DataFrame:
    """Reads its input again and again with one DataFrame, and then writes what executors have been given meanwhile."""
    renewal = task.inputs["numbers"].access.renewal
    rows: list[tuple] = []
    sessions: set[str] = set()
    while len(sessions) < config["sessions"]:
        given = _given(spark, renewal)
        sessions.add(given[-1])
        rows.append((len(rows), numbers.count(), renewal.url, renewal.token, *given))
        time.sleep(1)
    names = (
        "turn bigint, numbers bigint, url string, token string, access string, secret string, session string"
    )
    return spark.createDataFrame(rows, names).repartition(1)


def _given(spark, renewal) -> tuple[str, ...]:
    """The credentials that executors get now."""
    url, token = renewal.url, renewal.token

    def ask(batches):
        import urllib.request

        import pyarrow

        for _ in batches:
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                lines = answer.read().decode().split("\n")
            yield pyarrow.RecordBatch.from_pydict({"line": lines[:3]})

    return tuple(row.line for row in spark.range(1, numPartitions=1).mapInArrow(ask, "line string").collect())


# Bad ones ----------------------------------------------------------------------------------------------


def raises_in_spark(numbers: DataFrame) -> DataFrame:
    def bad(batches):
        for batch in batches:
            raise KeyError("no such thing in the executor")
            yield batch

    return numbers.mapInArrow(bad, numbers.schema)


def hangs_on_every_core(numbers: DataFrame) -> DataFrame:
    return hangs(numbers.repartition(4, "n"))


def eats_memory(numbers: DataFrame) -> DataFrame:
    eaten = [bytearray(1 << 28) for _ in range(64)]
    return numbers.filter(F.col("n") > len(eaten))


def eats_memory_in_spark(numbers: DataFrame) -> DataFrame:
    def hungry(batches):
        for batch in batches:
            eaten = [bytearray(1 << 28) for _ in range(64)]
            yield batch.slice(0, len(eaten))

    return numbers.mapInArrow(hungry, numbers.schema)


def collects_too_much(numbers: DataFrame) -> DataFrame:
    return numbers.filter(F.col("n") > len(exploding(numbers).collect()))


def exploding(numbers: DataFrame) -> DataFrame:
    """2 kB, for each row, 1000 times: many more bytes than came in."""
    copies = numbers.sparkSession.range(1000)
    return numbers.crossJoin(copies).select("n", "id", F.repeat(F.lit("x"), 2000).alias("text"))


def fills_the_heap(numbers: DataFrame) -> DataFrame:
    return numbers.select(F.size(F.sequence(F.lit(1), F.lit(1_000_000_000))).alias("n"))


def returns_nothing(numbers: DataFrame) -> None:
    numbers.count()


def writes_by_declaration(numbers: DataFrame, scope: Scope) -> DataFrame:
    """What is declared at position 1, and something else at each of the others."""
    match scope.position:
        case 1:
            return numbers.select("n", "name")
        case 2:
            return numbers.select(F.col("n").cast("string").alias("n"), "name")
        case 3:
            return numbers.select("n", F.col("name").alias("nmae"))
        case _:
            return numbers.select("n", F.when(F.col("n") % 2 == 0, F.col("name")).alias("name"))


def described(numbers: DataFrame) -> list[dict]:
    return [{"columns": ",".join(f"{name}:{kind}" for name, kind in numbers.dtypes)}]


def reads_columns(task: OperatorTask) -> list[dict]:
    schema = task.read("numbers").schema
    return [{"columns": ",".join(f"{column.name}:{column.type}" for column in schema)}]


def nothing_for_even_cursors(task: OperatorTask) -> list[dict]:
    position = task.scope.start
    return [{"n": position}] if position % 2 else []


def analyzed(numbers: DataFrame, spark, config) -> DataFrame:
    """What Spark says to each of `config.texts`; the functions that it knows; and the values of `config.literals`."""
    datasets = {name: spark.sql(sql) for name, sql in config["datasets"].items()}
    datasets["shop.orders"].createOrReplaceTempView("tp_d0")
    rows = [("function", row[0]) for row in spark.sql("show functions").collect()]
    rows += [("literal", value) for value in spark.sql(config["literals"]).collect()[0]]
    for text, relations in config["texts"]:
        for name, dataset in relations.items():
            datasets[dataset].createOrReplaceTempView(name)
        try:
            _ = spark.sql(text).schema
        except Exception as error:
            rows.append(("refused", f"{text} => {str(error)[:300]}"))
    return spark.createDataFrame(rows, "kind string, value string")


def computed(numbers: DataFrame, spark, config) -> DataFrame:
    """The columns and values of the first row of each of `config.texts`, as JSON; null if Spark refuses it."""
    spark.sql(config["rows"]).createOrReplaceTempView("rows")
    rows = []
    for text in dict.fromkeys(config["texts"]):
        try:
            frame = spark.sql(text)
            answer = [
                (name, str(value))
                for row in frame.head(1)
                for name, value in zip(frame.columns, row, strict=True)
            ]
        except Exception:
            answer = None
        rows.append((text, json.dumps(answer)))
    return spark.createDataFrame(rows, "text string, answer string")


def made(spark, scope):
    """Rows of a source: nothing is read."""
    return spark.range(4).selectExpr(f"{scope.start} as block", "id as n")


def leaks_its_secret(numbers: DataFrame, config, task: OperatorTask) -> DataFrame:
    """Makes Spark print and log a secret wherever it can: in a function that it runs, in a query, in its failure."""
    key = task.secrets["KEY"]

    def tell(batches):
        print("a function has", key, flush=True)
        os.write(2, f"and {key} in the middle of a line".encode())
        yield from batches
        raise ValueError(f"a function failed with {key}")

    session = numbers.sparkSession
    session.conf.set("spark.note", key)
    for query in (f"select '{key}' from missing", f"selec '{key}'", f"select raise_error('{key}')"):
        try:
            session.sql(query).collect()
        except Exception as error:
            print("failed:", str(error)[:1000])
    return numbers.coalesce(1).mapInArrow(tell, numbers.schema)


def meets_others(numbers: DataFrame, config, task: OperatorTask) -> DataFrame:
    """Leaves traces in session and server, and tells which server it has and whose traces it finds there."""
    spark = numbers.sparkSession
    found = [name for name in config["others"] if _has_trace(spark, name)]
    spark.conf.set(f"spark.traces.{config['own']}", "left")
    numbers.createOrReplaceTempView(f"trace_of_{config['own']}")
    numbers.createOrReplaceGlobalTempView(f"trace_of_{config['own']}")
    server = spark.conf.get("spark.app.id")
    rows = [(task.scope.position, server, ",".join(found))]
    return spark.createDataFrame(rows, "block bigint, server string, found string")


def _has_trace(spark, name: str) -> bool:
    return (
        spark.conf.get(f"spark.traces.{name}", None) is not None
        or spark.catalog.tableExists(f"trace_of_{name}")
        or spark.catalog.tableExists(f"global_temp.trace_of_{name}")
    )
