"""What jobs need is locked where they are deployed from, or refused before anything is sent."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.wheels import add_wheel, served_index, tiny_index, uv_settings
from traceplane.client.deploy_files import deploy_request
from traceplane.errors import InvalidInput, PlatformError, SpecInvalid, TraceplaneError
from traceplane.model import requirements
from traceplane.model.dag import Dag
from traceplane.model.requirements import Lock
from traceplane.registry import code_project, fingerprint, job_requirements
from traceplane.registry.spec import dag_file
from traceplane.settings import Settings
from traceplane.wire.deploys import DeployRequest

SETTINGS = Settings()
RUN = "def run(task): ...\n"


def dag_text(said: str = "", of_job: str = "", operator: str = "python") -> str:
    config = "query: select 1" if operator == "sql" else 'entrypoint: "words:run"'
    return f"""
version: 1
dag: one
{said}
jobs:
- {{name: days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: one.in}}]}}
- name: say
  runtime: {"spark" if operator == "sql" else "python"}
  operator: {operator}
  {of_job}
  inputs: [{{name: days, from: {{dataset: one.in}}}}]
  outputs: [{{dataset: one.said}}]
  config: {{{config}}}
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def request(self, text: str, module: str = RUN, **files: str) -> DeployRequest:
        (self.folder / "dag.yaml").write_text(text)
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "words.py").write_text(module)
        for name, content in files.items():
            (self.folder / f"{name}.txt").write_text(content)
        return deploy_request(SETTINGS, self.folder / "dag.yaml", [code])

    def lock(self, text: str, module: str = RUN, **files: str) -> Lock | None:
        """The lock of the job, as the gateway finds it in the request."""
        request = self.request(text, module, **files)
        found = job_requirements.locks_of_jobs(received(request), request.locks)
        assert found.keys() <= {"say"}
        return requirements.decode_lock(found["say"]) if found else None

    def pins(self, text: str, module: str = RUN, **files: str) -> list[str]:
        lock = self.lock(text, module, **files)
        return [] if lock is None else [package.pin for package in lock.packages]


def received(request: DeployRequest) -> Dag:
    dag = dag_file.parse(request.text, request.file, known_runtimes=frozenset(SETTINGS.runtimes))
    project = code_project.project_sent(request.code or {})
    return job_requirements.with_requirements(dag, SETTINGS.runtimes, request.requirement_files, project)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name, value in tiny_index(tmp_path).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder)


def inline(*dependencies: str) -> str:
    listed = "".join(f'#   "{one}",\n' for one in dependencies)
    return f"# /// script\n# dependencies = [\n{listed}# ]\n# ///\n{RUN}"


def test_a_lock_names_all_packages_and_the_hashes_of_their_wheels(project: Project) -> None:
    lock = project.lock(dag_text("requirements: [tinylib]"))
    assert lock is not None
    assert [package.pin for package in lock.packages] == ["tinydep==1.5", "tinylib==2.0"]
    assert all(package.hashes for package in lock.packages)
    assert lock.python == sys.version_info[:2]
    assert project.lock(dag_text()) is None


def test_what_a_job_names_counts_before_its_module_and_that_before_the_dag(project: Project) -> None:
    of_dag, of_job = "requirements: [tinydep]", "requirements: [tinylib<2]"
    assert project.pins(dag_text(of_dag)) == ["tinydep==1.5"]
    assert project.pins(dag_text(of_dag), inline("tinylib >= 2")) == ["tinydep==1.5", "tinylib==2.0"]
    assert project.pins(dag_text(of_dag, of_job), inline("tinylib>=2")) == ["tinylib==1.0"]
    assert project.pins(dag_text(of_dag), inline().replace("\n", "\r\n")) == []


def test_requirements_may_be_in_a_file_and_a_file_may_be_a_lock(project: Project) -> None:
    named = dag_text("requirements: needs.txt")
    assert project.pins(named, needs="# of the shop\ntinylib >= 1, \\\n  < 2  # old\n\n") == ["tinylib==1.0"]
    made = project.lock(dag_text("requirements: [tinylib==2.0]"))
    assert made is not None
    lines = [package.line.replace(" --hash", " \\\n    --hash") for package in made.packages]
    assert project.lock(named, needs="\n".join(lines)) == made
    with pytest.raises(InvalidInput, match=r"does not have tinydep==1\.5"):
        project.lock(named, needs=lines[1])
    other = lines[0][:-64] + "0" * 64
    with pytest.raises(InvalidInput, match=r"no wheel of tinydep==1\.5 in the index has one of its hashes"):
        project.lock(named, needs=f"{other}\n{lines[1]}")
    with pytest.raises(InvalidInput, match="either all requirements have hashes or none"):
        project.lock(named, needs=f"{lines[0]}\ntinylib\n")
    with pytest.raises(InvalidInput) as refused:
        project.lock(dag_text("requirements: lacking.txt"))
    assert refused.value.code == "requirements.no_file"


@pytest.mark.parametrize("path", ["/etc/passwd", "../token", "a/../../token", "a/.."])
def test_a_file_with_requirements_is_below_the_folder_of_the_dag_file(project: Project, path: str) -> None:
    """Whoever plans a DAG file of somebody else would have it read from anywhere."""
    with pytest.raises(SpecInvalid, match=r"spec\.bad_name"):
        project.request(dag_text(f"requirements: {path}"))


def test_a_file_with_requirements_is_no_link(project: Project, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token")
    for link, target in (("needs.txt", tmp_path / "token"), ("folder", tmp_path)):
        (project.folder / link).symlink_to(target)
    for path in ("needs.txt", "folder/token"):
        with pytest.raises(InvalidInput) as refused:
            project.request(dag_text(f"requirements: {path}"))
        assert refused.value.code == "requirements.no_file"


@pytest.mark.parametrize("written", ["tinylib>=1", "{tinylib: 1}"])
def test_requirements_that_are_no_list_are_shown_as_one(project: Project, written: str) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.bad_requirement.*write \["):
        project.request(dag_text(f"requirements: {written}"))


@pytest.mark.parametrize(
    "one",
    [
        *("-r other.txt", "--index-url=http://example.com", "-e .", "tinylib @ https://example.com/a.whl"),
        *("git+https://example.com/a", "./a.whl", "/a.whl", "tinylib --no-binary :all:", "tinylib; x --pre"),
        *("tinylib==", "", "tinylib$(id)", "tinylib>=1;"),
    ],
)
def test_nothing_but_packages_of_an_index_can_be_named(project: Project, one: str) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.bad_requirement"):
        project.request(dag_text(f"requirements: [{one!r}]"))
    if one:
        with pytest.raises(InvalidInput, match=r"line 1 is not a requirement"):
            project.request(dag_text("requirements: needs.txt"), needs=one)
        with pytest.raises(InvalidInput) as refused:
            project.request(dag_text(), inline(one))
        assert refused.value.code == "requirements.invalid"


def test_what_cannot_be_satisfied_is_refused_before_anything_is_sent(project: Project) -> None:
    with pytest.raises(InvalidInput, match=r"there is no version of tinylib==3") as refused:
        project.request(dag_text("requirements: [tinylib==3]"))
    assert refused.value.code == "requirements.unsatisfiable"


def test_code_of_a_package_never_runs_while_it_is_resolved(project: Project, tmp_path: Path) -> None:
    mark, built = tmp_path / "ran", tmp_path / "srcdist-1.0"
    built.mkdir()
    (built / "setup.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (built / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: srcdist\nVersion: 1.0\n")
    with tarfile.open(tmp_path / "wheels" / "srcdist-1.0.tar.gz", "w:gz") as archive:
        archive.add(built, "srcdist-1.0")
    with pytest.raises(InvalidInput, match="srcdist") as refused:
        project.request(dag_text("requirements: [srcdist]"))
    assert refused.value.code == "requirements.unsatisfiable"
    assert "wheel" in str(refused.value)
    assert not mark.exists()


def test_packages_that_the_platform_has_loaded_keep_their_version(project: Project, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    ours = importlib.metadata.version("msgspec")
    for version in ("0.1", ours):
        add_wheel(wheels, "msgspec", version, {"msgspec.py": ""})
    add_wheel(wheels, "fits", "1.0", {"fits.py": ""}, requires=["msgspec", "traceplane"])
    add_wheel(wheels, "old", "1.0", {"old.py": ""}, requires=["msgspec<0.2"])
    assert project.pins(dag_text("requirements: [fits]")) == ["fits==1.0"]
    with pytest.raises(InvalidInput, match=f"msgspec=={ours}") as refused:
        project.request(dag_text("requirements: [old]"))
    assert refused.value.code == "requirements.shared_package"
    # A version that nobody has is told in the same words.
    for named in ("msgspec==0.1", "msgspec==0.0.9"):
        with pytest.raises(InvalidInput, match=f"msgspec {ours} loaded") as refused:
            project.request(dag_text(f"requirements: ['{named}']"))
        assert (refused.value.code, refused.value.value) == ("requirements.shared_package", named)
    lock = f"msgspec==0.1 --hash=sha256:{'0' * 64}"
    with pytest.raises(InvalidInput) as refused:
        project.request(dag_text("requirements: needs.txt"), needs=lock)
    assert refused.value.code == "requirements.shared_package"


def test_the_packages_that_are_said_to_be_loaded_are() -> None:
    """In processes that run operators, before these begin, and in those that run functions for Spark."""
    preloaded = subprocess.run(
        [sys.executable, "-c", "from traceplane.worker import main\n"
         "print(*main._PRELOAD, *main._built_in_code(), *main._PRELOAD_SPARK, sep='\\n')"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    script = f"""
import importlib, sys
for name in ["traceplane.sandbox.server_process", "pyspark.worker", *{preloaded!r}]:
    importlib.import_module(name)
found = importlib.import_module("importlib.metadata").packages_distributions()
print(*{{one for name in set(sys.modules) for one in found.get(name, ())}}, sep="\\n")
"""
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    loaded = {requirements.normalized(name) for name in printed.split()}
    # setuptools puts a hook into every process of an environment that has it, and loads nothing else.
    assert loaded - {"setuptools", "traceplane"} == set(requirements.SHARED) - {"tzdata"}


def test_an_unreachable_index_is_no_problem_if_everything_was_downloaded_before(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_CONFIG_FILE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    text = dag_text("requirements: [tinylib]")
    with served_index(tmp_path / "wheels") as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address.replace("//", "//user:geheim@"))
        request = project.request(text)
    assert project.request(text) == request
    assert "geheim" not in str(request)
    with pytest.raises(PlatformError) as refused:
        project.request(dag_text("requirements: [unknown]"))
    assert refused.value.code == "requirements.index_unavailable"
    assert address.removeprefix("http://") in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_job_without_code_of_ours_needs_no_packages(project: Project) -> None:
    with pytest.raises(SpecInvalid, match=r"dag\.yaml:10:\d+: .*requirements\.no_code|requirements\.no_code"):
        project.request(dag_text(of_job="requirements: [tinylib]", operator="sql"))
    assert project.pins(dag_text("requirements: [tinylib]", operator="sql")) == []


def test_an_entrypoint_may_be_in_a_package_that_the_job_needs(project: Project) -> None:
    text = dag_text("requirements: [tinylib]").replace("words:run", "tinylib:greet")
    assert project.request(text).code is None
    with pytest.raises(TraceplaneError, match=r"code\.module_missing"):
        project.request(dag_text().replace("words:run", "tinylib:greet"))


def test_a_gateway_refuses_what_is_not_locked(project: Project) -> None:
    request = project.request(dag_text("requirements: [tinylib]"))
    dag = received(request)
    for locks in ({}, dict.fromkeys(request.locks, "tinylib==2.0\n")):
        with pytest.raises(InvalidInput) as refused:
            job_requirements.locks_of_jobs(dag, locks)
        assert refused.value.code == "requirements.not_locked"


def test_other_requirements_change_a_jobs_fingerprint_and_their_order_does_not(project: Project) -> None:
    def own(text: str) -> str:
        dag = received(project.request(text))
        return fingerprint.definition_fingerprints(dag, code_hash=lambda job: "")["say"]

    first = own(dag_text("requirements: [tinylib, tinydep]"))
    assert own(dag_text("requirements: [tinydep, tinylib]")) == first
    assert own(dag_text(of_job="requirements: [tinydep, tinylib]")) == first
    assert own(dag_text("requirements: [tinylib]")) != first
    assert own(dag_text()) != first


def test_a_module_full_of_blocks_without_an_end_is_read_at_once(project: Project) -> None:
    """The regular expression that defines them would take half an hour, and stop every other thread meanwhile."""
    opened = "# /// script\n" * 70_000
    assert project.pins(dag_text("requirements: [tinydep]"), opened + RUN) == ["tinydep==1.5"]
    assert project.pins(dag_text(), f"{opened}\n{inline('tinylib<2')}") == ["tinylib==1.0"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "python>=3.11",
        "tinylib==1.0 --hash=sha256:" + "0" * 64 + "\n",
        "python>=3.11\ntinylib==1.0\n",
        "python>=3.11\ntinylib==1.0 --hash=md5:00\n",
        "python>=3.11\n-r /etc/passwd\n",
        "python>=3.11\n--index-url=http://example.com\n",
        "python>=3.11\ntinylib==1.0 ; x --index-url=y --hash=sha256:" + "0" * 64 + "\n",
        "python>=3.11\ntinylib @ file:///a.whl --hash=sha256:" + "0" * 64 + "\n",
    ],
)
def test_a_lock_is_nothing_but_packages_and_hashes(content: str) -> None:
    with pytest.raises(ValueError, match="a lock has"):
        requirements.decode_lock(content)


def test_settings_of_uv_are_its_own(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's `uv.toml` beside the DAG file applies."""
    for name in uv_settings(tmp_path / "wheels", tmp_path):
        monkeypatch.delenv(name)
    (project.folder / "uv.toml").write_text(
        f'no-index = true\nfind-links = ["{tmp_path / "wheels"}"]\ncache-dir = "{tmp_path / "uv_cache"}"\n'
    )
    assert project.pins(dag_text("requirements: [tinylib]")) == ["tinydep==1.5", "tinylib==2.0"]
