"""What a job needs of Spark: read from the DAG file, checked at deploy, and turned into Spark's properties."""

from __future__ import annotations

import pytest

from tests.dag_texts import job, parse, problems_of
from traceplane.errors import Conflict
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.model.spark_resources import SparkResources
from traceplane.registry import deploy_checks
from traceplane.spark.remote import RemoteAddress
from traceplane.spark.servers import OneRemoteSpark

GB = 1 << 30


def text(needs: str, runtime: str = "spark") -> str:
    return f"""
version: 1
dag: d
jobs:
- {{name: in, activation: source, source: {{kind: manual}}, outputs: [{{dataset: in}}]}}
- name: out
  runtime: {runtime}
  operator: {"sql" if runtime == "spark" else "python"}
  inputs: [{{name: numbers, from: {{dataset: in}}}}]
  outputs: [{{dataset: out}}]
  config: {{{"query: select 1 as n" if runtime == "spark" else "entrypoint: 'a:b'"}}}
  spark: {needs}
"""


def test_all_of_it_is_read() -> None:
    needs = (
        "{executors: 2, max_executors: 8, executor_cores: 4, executor_memory: 8g,"
        " executor_memory_overhead: 2g, driver_memory: 3g, shuffle_partitions: 200}"
    )
    found = job(parse(text(needs)), "out").execution.spark
    assert found == SparkResources(2, 8, 4, 8 * GB, 2 * GB, 3 * GB, 200)
    assert not job(parse(text("{}")), "out").execution.spark


@pytest.mark.parametrize(
    ("needs", "code", "says"),
    [
        ("{executors: 9, max_executors: 8}", "spec.bad_spark", "more than max_executors"),
        ("{executors: 100000}", "spec.bad_spark", "from 1 to 10000"),
        ("{executors: 0}", "spec.out_of_range", "must be from 1"),
        ("{executor_memory: 400m}", "spec.bad_spark", "at least 512m"),
        ("{executor_memory: lots}", "spec.bad_memory", "not an amount of memory"),
        ("{shuffle_partitions: 1000000}", "spec.bad_spark", "from 1 to 100000"),
        ("{executor: 2}", "spec.unknown_field", "no field 'executor'"),
    ],
)
def test_what_cannot_be_is_refused_in_the_file(needs: str, code: str, says: str) -> None:
    (problem,) = problems_of(text(needs))
    assert problem.code == code
    assert says in problem.message


def test_a_runtime_without_spark_is_refused_at_deploy() -> None:
    refused = deploy_checks.job_refusal("default", parse(text("{executors: 2}", "python")), DEFAULT_RUNTIMES)
    assert refused is not None
    assert refused.code == "deploy.no_spark"
    assert refused.next_step == "remove spark, or use one of spark"
    assert deploy_checks.job_refusal("default", parse(text("{executors: 2}")), DEFAULT_RUNTIMES) is None


def test_a_fixed_number_of_executors_is_one_on_every_kind_of_cluster() -> None:
    found = SparkResources(executors=4, executor_cores=2, executor_memory=8 * GB).properties()
    assert found == {
        "spark.executor.instances": "4",
        "spark.executor.cores": "2",
        "spark.executor.memory": "8192m",
        "spark.cores.max": "8",
    }


def test_a_range_of_executors_is_dynamic_allocation() -> None:
    found = SparkResources(executors=2, max_executors=10).properties()
    assert found["spark.dynamicAllocation.initialExecutors"] == "2"
    assert found["spark.dynamicAllocation.maxExecutors"] == "10"
    assert found["spark.dynamicAllocation.shuffleTracking.enabled"] == "true"
    assert found["spark.cores.max"] == "10"
    assert "spark.executor.instances" not in found


def test_partitions_of_shuffles_need_no_server_of_their_own() -> None:
    assert not SparkResources(shuffle_partitions=9).of_server
    assert SparkResources(driver_memory=GB).of_server
    assert SparkResources(driver_memory=GB).on_cluster == []


async def test_a_server_that_runs_already_takes_no_resources() -> None:
    servers = OneRemoteSpark(RemoteAddress("sc://127.0.0.1:15002"))
    with pytest.raises(Conflict, match=r"spark\.resources_of_remote.*executors") as refused:
        async with servers.for_job("org", "job", SparkResources(executors=2, shuffle_partitions=9)):
            pass
    assert refused.value.next_step is not None
    async with servers.for_job("org", "job", SparkResources(shuffle_partitions=9)) as spark:
        assert spark.remote == "sc://127.0.0.1:15002"
