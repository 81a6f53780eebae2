"""What `rhymed init` writes: an example or a configuration that comes with rhymed, in a folder of one's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import rhymed
from rhymed.core.atomic import write_all
from rhymed.core.errors import ConfigError
from rhymed.core.text import quoted

# Where the files are that come with rhymed: configurations, examples and lists of tested versions.
#
# In a clone they are folders of the repository; setuptools installs the same folders under `rhymed/shipped/`.

PACKAGE = Path(rhymed.__file__).parent
PLACES = (PACKAGE / "shipped", PACKAGE.parent)
"""Installed, and in a clone."""


def shipped(name: str) -> Path:
    """The folder `configs`, `examples` or `requirements`. Raises `FileNotFoundError` if the installation lacks it."""
    for place in PLACES:
        if (place / name).is_dir():
            return place / name
    raise FileNotFoundError(f"this installation of rhymed has no folder {name}; install it again")


def configurations() -> dict[str, Path]:
    """Name, such as `quickstart` or `gpu/1x24gb`, and file of every configuration."""
    folder = shipped("configs")
    files = sorted(folder.rglob("*.toml"), key=lambda file: (file.parent != folder, file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def tasks() -> dict[str, Path]:
    """Name and README of every example that has one: it says what the files are, and how to go on with them."""
    return {file.parent.name: file for file in sorted(shipped("examples").glob(f"*/{README}"))}


def about(file: Path) -> str:
    """The first sentence of a configuration, which begins with a comment, or the heading of a README."""
    lines: list[str] = []
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".")


# Writes the folder of `rhymed init`. Nothing is written if a file is in the way, unless that is asked for.

README, DEFAULT = "README.md", "arithmetic"
KINDS = (".md", ".toml", ".py", ".jsonl")
"""Files of an example; others may have been made by it."""
FORBIDDEN = set("\"'\\\n\r\t:")
"""Characters that a path in TOML, in a scorer (`FILE:FUNCTION`) or in a shell would need quotes for."""


@dataclass(frozen=True)
class Starter:
    """Files to write into `folder`, and the commands that come next."""

    folder: Path
    files: dict[str, str]  # name -> content
    commands: list[str]

    def write(self, *, force: bool = False) -> list[Path]:
        """The files, written. Raises `ConfigError` if one exists already and `force` is not given."""
        files = {self.folder / name: content for name, content in self.files.items()}
        return write_all(files, filter(Path.exists, files), "another folder", force=force)


def task_starter(folder: Path, name: str) -> Starter:
    """The example of this name, with its paths changed to the folder's. Raises `ConfigError` for a folder that cannot
    be named in a configuration."""
    place, run = _place(folder), folder.resolve().name.replace(" ", "-") or "run"
    found = [file for file in tasks()[name].parent.iterdir() if file.suffix in KINDS]
    files = {file.name: file.read_text() for file in sorted(found)}
    readme = re.sub(rf"examples/{name}/(\S+)", lambda match: quoted(f"{place}/{match[1]}"), files[README])
    files = {one: text.replace(f"examples/{name}/", f"{place}/") for one, text in files.items()}
    files[README] = readme = readme.replace(f"runs/{name}", f"runs/{run}")
    files["config.toml"] = re.sub(r'^name = ".*"$', f'name = "{run}"', files["config.toml"], count=1, flags=re.M)
    return Starter(folder, files, readme.partition("```sh\n")[2].partition("\n```")[0].splitlines())


def config_starter(folder: Path, name: str) -> Starter:
    """The folder with one configuration in it, as it is shipped."""
    file, place = configurations()[name], _place(folder)
    text = file.read_text().replace(f"configs/{name}.toml", f"{place}/{file.name}")
    path = quoted(f"{place}/{file.name}")
    return Starter(folder, {file.name: text}, [f"rhymed check {path}", f"rhymed run {path}"])


def _place(folder: Path) -> str:
    place = folder.as_posix()
    if bad := FORBIDDEN & set(place):
        raise ConfigError(f"{place}: a folder's name may not contain {' '.join(sorted(map(repr, bad)))} here")
    return place
