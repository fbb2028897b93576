"""Where executors of a cluster would share a folder with a worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.worker.main import _check_shared_folder
from traceplane.worker.store_on_disk import StoreOnDisk

ELSEWHERE = ({"spark_master": "spark://10.0.0.5:7077"}, {"spark_remote": "sc://10.0.0.5:15002"})


@pytest.mark.parametrize("where", ELSEWHERE, ids=lambda where: next(iter(where)))
def test_a_worker_shares_a_folder_with_a_cluster_only_if_that_is_said(
    where: dict[str, str], tmp_path: Path
) -> None:
    store = StoreOnDisk(inputs=tmp_path, outputs=tmp_path)
    _check_shared_folder(Settings(), store)
    settings = replace(Settings(), **where)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as refused:
        _check_shared_folder(settings, store)
    assert refused.value.code == "spark.executors_not_trusted"
    assert "s3_task_role" in str(refused.value)
    _check_shared_folder(replace(settings, spark_executors_trusted=True), store)
