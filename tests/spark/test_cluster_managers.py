"""The manifests for Kubernetes are valid, and Spark, started as they say, asks Kubernetes for valid executors, and YARN
as the guide says.

There is no cluster here: a listener notes what Spark asks of it, and answers as an API server without pods would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml

from tests.platform import die_with_parent, until
from traceplane.dataplane.java import find_java
from traceplane.spark.command import spark_home

MANIFESTS = Path(__file__).parents[2] / "ops" / "kubernetes" / "spark-connect.yaml"
VERSIONS = ("1.30", "1.34")
NAMESPACE = "traceplane-spark"
YARN = """<configuration>
<property><name>yarn.resourcemanager.address</name><value>{address}</value></property>
</configuration>
"""
TOKEN = "a-token-that-only-the-server-has"


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


class Api:
    """What was asked to be created, by kind."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    async def executors(self) -> list[dict[str, Any]]:
        return [one for one in self.created if one["kind"] == "Pod"]


@contextlib.contextmanager
def api_server() -> Iterator[tuple[Api, str]]:
    api, over = Api(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if "watch" in parse_qs(url.query):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                over.wait()
                self.close_connection = True
            elif url.path.endswith("/pods"):
                self.answer(
                    {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
                )
            elif url.path.endswith("/pods/the-driver"):
                metadata = {"name": "the-driver", "namespace": NAMESPACE, "uid": "1-2-3"}
                self.answer(
                    {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": []}}
                )
            else:
                self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.created.append(body)
            named = body | {
                "metadata": body["metadata"] | {"uid": f"u{len(api.created)}", "resourceVersion": "2"}
            }
            self.answer(named, 201)

        def do_PATCH(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def answer(self, body: dict[str, Any], status: int = 200) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield api, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    """Of a misspelled field, too, since Kubernetes would leave it out."""
    for named, document in manifests().items():
        kubernetes_validate.validate(document, version, strict=True)
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == NAMESPACE, named


def test_what_the_manifests_name_is_there() -> None:
    every = manifests()
    pod = every["Deployment", "spark-connect"]["spec"]["template"]
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    ports = {port["name"]: port["containerPort"] for one in spec["containers"] for port in one["ports"]}
    for kind, name in (("Service", "spark-driver"), ("Service", "spark-connect")):
        service = every[kind, name]["spec"]
        assert service["selector"].items() <= labels.items()
        assert all(one.get("targetPort", one["name"]) in ports for one in service["ports"])
    assert ("ServiceAccount", spec["serviceAccountName"]) in every
    maps = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
    assert all(("ConfigMap", name) in every for name in maps)
    conf = properties()
    assert ("ServiceAccount", conf["spark.kubernetes.authenticate.executor.serviceAccountName"]) in every
    assert conf["spark.driver.host"] == f"spark-driver.{NAMESPACE}.svc"
    assert (int(conf["spark.driver.port"]), int(conf["spark.blockManager.port"])) == (
        ports["driver"],
        ports["blocks"],
    )
    mounted = {mount["mountPath"] for one in spec["containers"] for mount in one["volumeMounts"]}
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    assert str(template.parent) in mounted
    assert template.name in every["ConfigMap", "spark-connect"]["data"]


def properties() -> dict[str, str]:
    text = manifests()["ConfigMap", "spark-connect"]["data"]["spark-defaults.conf"]
    return dict(line.split(None, 1) for line in text.splitlines())


@contextlib.contextmanager
def submitted(folder: Path, arguments: list[str], **environment: str) -> Iterator[None]:
    """A Spark Connect server, started by Spark's own command. What it says is shown if the body fails."""
    java = find_java()
    # Of this machine rather than of a cluster; all else is as in the manifests.
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.port": "0",
        "spark.blockManager.port": "0",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.memory": "512m",
    }
    given = [word for name, value in here.items() for word in ("--conf", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [str(spark_home() / "bin" / "spark-submit"), *given, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "JAVA_HOME": str(java.home),
                "SPARK_HOME": str(spark_home()),
                "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
                "HOME": str(folder),
                **environment,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield
    except BaseException:
        print((folder / "log").read_text()[-5000:])
        raise
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.timeout(600)
async def test_spark_asks_kubernetes_for_executors_that_are_valid_and_have_no_secrets(tmp_path: Path) -> None:
    for name, text in manifests()["ConfigMap", "spark-connect"]["data"].items():
        (tmp_path / name).write_text(text)
    (container, _) = manifests()["Deployment", "spark-connect"]["spec"]["template"]["spec"]["containers"]
    arguments = [
        argument.replace("$(POD_NAME)", "the-driver").replace("/opt/traceplane/conf", str(tmp_path))
        for argument in container["args"]
    ]
    with api_server() as (api, address):
        own = {
            "spark.master": f"k8s://{address}",
            "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml"),
        }
        given = [word for name, value in own.items() for word in ("--conf", f"{name}={value}")]
        with submitted(tmp_path, [*given, *arguments]):
            pods = await until(api.executors, seconds=400, what="an executor")
    for created in api.created:
        kubernetes_validate.validate(created, VERSIONS[-1], strict=True)
        assert TOKEN not in json.dumps(created)
    pod = pods[0]
    spec, [executor] = pod["spec"], pod["spec"]["containers"]
    assert executor["image"] == container["image"]
    assert spec["serviceAccountName"] == "spark-executor"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert executor["securityContext"]["allowPrivilegeEscalation"] is False
    assert executor["resources"]["limits"]["memory"] == "6144Mi"
    assert pod["metadata"]["labels"]["spark-role"] == "executor", "as the network policy names them"
    assert pod["metadata"]["ownerReferences"][0]["name"] == "the-driver", "they end with the driver"
    assert {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"} in executor["env"]


@pytest.mark.timeout(600)
async def test_spark_asks_yarn_for_executors(tmp_path: Path) -> None:
    """As far as a call of its resource manager, in Hadoop's protocol."""
    called: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(4)
        if not called.done():
            called.set_result(first)
        writer.close()

    manager = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{manager.sockets[0].getsockname()[1]}"
    (tmp_path / "yarn-site.xml").write_text(YARN.format(address=address))
    left_out = ("spark.kubernetes.", "spark.master")
    lines = [f"{name} {value}" for name, value in properties().items() if not name.startswith(left_out)]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    given = ["--master", "yarn", "--deploy-mode", "client"]
    given += ["--properties-file", str(tmp_path / "spark-defaults.conf")]
    given += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    async with manager:
        with submitted(tmp_path, given, HADOOP_CONF_DIR=str(tmp_path)):
            async with asyncio.timeout(400):
                assert await called == b"hrpc"
