"""What another user puts into a folder that everybody may write to, before the command line is used there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.user_folder import Folder
from traceplane.cli.profile import close_home, the_only_one, write_private
from traceplane.errors import InvalidInput
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.settings import load

OTHER_UID = 60_711

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of another user")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "shared", dag="", operators="")
    folder.path.chmod(0o1777)
    return folder


def planted(path: Path, *, mode: int = 0o777) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, OTHER_UID, OTHER_UID)
    return path


def planted_link(path: Path, target: Path) -> None:
    path.symlink_to(target)
    os.lchown(path, OTHER_UID, OTHER_UID)


def plant_home(folder: Path) -> None:
    planted(planted(folder / ".traceplane") / "tokens")


def plant_closed_home(folder: Path) -> None:
    planted(folder / ".traceplane", mode=0o700)


def plant_tokens_in_an_open_home(folder: Path) -> None:
    (folder / ".traceplane").mkdir()
    planted(folder / ".traceplane/tokens")


def plant_postgres_in_an_open_home(folder: Path) -> None:
    (folder / ".traceplane").mkdir()
    planted(folder / ".traceplane/postgres")


def plant_a_link_in_an_open_home(folder: Path) -> None:
    (folder / ".traceplane").mkdir()
    (folder / "precious").write_text("kept")
    planted_link(folder / ".traceplane/running", folder / "precious")


def plant_a_link_to_a_home(folder: Path) -> None:
    (folder / "ours").mkdir()
    planted_link(folder / ".traceplane", folder / "ours")


def plant_a_link_to_nothing(folder: Path) -> None:
    planted_link(folder / ".traceplane", folder / "elsewhere")


@needs_root
@pytest.mark.parametrize(
    "plant",
    [
        plant_home,
        plant_closed_home,
        plant_tokens_in_an_open_home,
        plant_postgres_in_an_open_home,
        plant_a_link_in_an_open_home,
        plant_a_link_to_a_home,
        plant_a_link_to_nothing,
    ],
)
def test_up_refuses_a_home_with_files_of_another_user(folder: Folder, plant: Callable[[Path], None]) -> None:
    plant(folder.path)
    line = folder.refused("up", "--no-spark")
    assert line.startswith("home.untrusted: ")
    assert str(folder.path / ".traceplane") in line
    assert not list(folder.path.rglob("tokens/*"))
    assert not list(folder.path.rglob("master.key"))
    assert not list(folder.path.rglob("passwords.json"))
    if (precious := folder.path / "precious").exists():
        assert precious.read_text() == "kept"


@needs_root
@pytest.mark.parametrize("command", [("up", "--no-spark"), ("status",)])
def test_settings_of_another_user_are_refused(folder: Folder, command: tuple[str, ...]) -> None:
    file = folder.path / "traceplane.toml"
    file.write_text('gateway_url = "http://127.0.0.1:1"\n')
    os.chown(file, OTHER_UID, OTHER_UID)
    assert folder.refused(*command).startswith("settings.untrusted_file: ")


@needs_root
def test_a_link_of_another_user_to_our_settings_is_refused(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text("")
    planted_link(folder.path / "traceplane.toml", tmp_path / "ours.toml")
    assert folder.refused("status").startswith("settings.untrusted_file: ")


@needs_root
def test_settings_of_another_user_can_be_chosen_by_name(folder: Folder) -> None:
    file = folder.path / "traceplane.toml"
    file.write_text("")
    os.chown(file, OTHER_UID, OTHER_UID)
    assert folder.refused("--config", "traceplane.toml", "status").startswith("cli.no_token: ")


def test_an_open_home_of_ours_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for path in (home, home / "tokens", home / "objects"):
        path.mkdir()
        path.chmod(0o777)
    close_home(load(environment={}, home=home))
    for path in (home, home / "tokens", home / "objects"):
        assert path.stat().st_mode & 0o022 == 0, path


def test_a_home_may_be_a_link_of_ours(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "home").symlink_to("large disk")
    close_home(load(environment={}, home=tmp_path / "home"))


def test_files_of_the_home_are_not_written_through_links(tmp_path: Path) -> None:
    settings = load(environment={}, home=tmp_path / "home")
    close_home(settings)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (settings.home / "running").symlink_to(precious)
    with pytest.raises(InvalidInput, match="cannot be created or written"), the_only_one(settings):
        pass
    (settings.home / "tokens").mkdir()
    for name in ("user", f".user.{os.getpid()}"):
        (settings.home / "tokens" / name).symlink_to(precious)
    write_private(settings.home / "tokens/user", "secret")
    assert (settings.home / "tokens/user").read_text() == "secret\n"
    assert precious.read_text() == "kept"


def test_postgres_does_not_log_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    folder = tmp_path / "postgres"
    folder.mkdir(mode=0o711)
    (folder / "postgres.log").symlink_to(precious)
    (folder / "passwords.json.new").symlink_to(precious)
    with pytest.raises(InvalidInput, match="cannot be written"):
        EmbeddedPostgres.ensure(folder, die_with_parent=True)
    assert precious.read_text() == "kept"
    assert precious.stat().st_uid == os.geteuid()
