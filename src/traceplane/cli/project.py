"""`traceplane init`: a folder to begin with."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import unicodedata
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import click

from traceplane import __version__
from traceplane.cli.output import as_json, say, say_json
from traceplane.errors import Conflict, InvalidInput

_FILES = Path(__file__).parents[1] / "project"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ONLY_HERE = (
    "requirements.txt has `{requirement}`, a folder that only this machine has. For CI and other machines, replace it"
    " with an address that they reach, such as `traceplane @ git+https://GIT-HOST/traceplane@COMMIT`,"
    " or a wheel of `pip wheel --no-deps` that the project or an index of yours holds."
)
_RENAMED = {"gitignore": ".gitignore"}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option("--name", help="Name of the DAG (default: the folder's).")
@as_json
def init(folder: Path, name: str | None, as_json: bool) -> None:
    """Begin a project in FOLDER (default: this one): a DAG, its functions and their tests."""
    chosen = name if name is not None else _from(folder)
    if _NAME.fullmatch(chosen) is None:
        raise InvalidInput(
            "init.bad_name",
            "a DAG is named by a-z, then a-z, 0-9 and _, up to 63 in all",
            value=chosen,
            next_step="for example `traceplane init --name market`",
        )
    files = list(_files(folder))
    if there := [path for _, path in files if path.exists()]:
        raise Conflict(
            "init.files_exist",
            "the folder has files of these names already; nothing was written",
            value=_named(there),
            next_step="choose another folder: `traceplane init FOLDER`",
        )
    requirement = _requirement()
    texts = {"PROJECT": chosen, "REQUIREMENT": requirement, "ELSEWHERE\n": _elsewhere(requirement)}
    try:
        for source, path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            for mark, its in texts.items():
                text = text.replace(mark, its)
            path.write_text(text)
            shutil.copymode(source, path)
    except OSError as error:
        raise InvalidInput(
            "init.unwritable",
            f"the project cannot be written there: {error.strerror}",
            value=error.filename,
            next_step="choose another folder: `traceplane init FOLDER`",
        ) from error
    if as_json:
        say_json({"dag": chosen, "files": [str(path) for _, path in files]})
        return
    for _, path in files:
        say(f"  {path}")
    if _is_local(requirement):
        say(f"Before others run it: {_ONLY_HERE.format(requirement=requirement)}")
    path_of_folder = f"./{folder}" if str(folder).startswith("-") else str(folder)
    where = "" if folder == Path() else f"cd {shlex.quote(path_of_folder)} && "
    say(f"Next: {where}traceplane dev")


def _requirement() -> str:
    """This Traceplane, from where it was installed."""
    told = distribution("traceplane").read_text("direct_url.json")
    if told is None:
        return f"traceplane=={__version__}"
    origin = json.loads(told)
    url, repository = origin["url"], origin.get("vcs_info")
    return f"traceplane @ {url if repository is None else '{vcs}+{}@{commit_id}'.format(url, **repository)}"


def _is_local(requirement: str) -> bool:
    """Whether no other machine can install it."""
    return re.search(r"@ (\w+\+)?file:", requirement) is not None


def _elsewhere(requirement: str) -> str:
    """What the project's README says of a requirement that others cannot install."""
    return f"\n{_ONLY_HERE.format(requirement=requirement)}\n" if _is_local(requirement) else ""


def _named(paths: list[Path]) -> str:
    """How many, and the first of them: all would be a long line."""
    first = ", ".join(str(path) for path in paths[:3])
    return first if len(paths) <= 3 else f"{len(paths)} files: {first}, …"


def _from(folder: Path) -> str:
    """A name that a DAG may have, whatever the folder is called."""
    plain = unicodedata.normalize("NFKD", folder.absolute().name).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")
    return (words if words[:1].isalpha() else f"dag_{words}".rstrip("_"))[:63]


def _files(folder: Path) -> Iterator[tuple[Path, Path]]:
    for source in sorted(_FILES.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            place = source.relative_to(_FILES)
            yield source, folder / place.with_name(_RENAMED.get(place.name, place.name))
