"""Writes the folder of `rhymed init`. Nothing is written if a file is in the way, unless that is asked for."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rhymed import atomic
from rhymed.errors import ConfigError
from rhymed.starters.shipped import configurations, shipped
from rhymed.starters.tasks import TASKS, Task

FORBIDDEN = set("\"'\\\n\r\t:")
"""Characters that a path in TOML, in a scorer (`FILE:FUNCTION`) or in a shell would need quotes for."""


@dataclass(frozen=True)
class Starter:
    """Files to write into `folder`, and the commands that come next."""

    folder: Path
    files: dict[str, str]  # name -> content
    commands: tuple[str, ...]

    def write(self, *, force: bool = False) -> list[Path]:
        """The files, written. Raises `ConfigError` if one exists already and `force` is not given."""
        targets = [self.folder / name for name in self.files]
        taken = [str(target) for target in targets if target.exists()]
        if taken and not force:
            raise ConfigError(f"not overwritten: {', '.join(taken)}; name another folder, or add --force")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, content in self.files.items():
                atomic.write(self.folder / name, content)
        except OSError as error:
            raise ConfigError(f"{error.filename or self.folder}: {error.strerror or error}") from None
        return targets


def task_starter(folder: Path, name: str) -> Starter:
    """The folder of a task. Raises `ConfigError` for a folder that cannot be named in a configuration."""
    task, place = TASKS[name], _place(folder)
    files = {target: (shipped("examples") / source).read_text() for target, source in task.files.items()}
    files = {target: _moved(text, task, name, place) for target, text in files.items()}
    commands = (*(line.format(folder=shlex.quote(place)) for line in task.before), *_commands(f"{place}/config.toml"))
    files["config.toml"] = re.sub(
        r'^name = ".*"$', f'name = "{_run_name(folder)}"', files["config.toml"], count=1, flags=re.M
    )
    files["README.md"] = _readme(task, _run_name(folder), commands)
    return Starter(folder, files, commands)


def config_starter(folder: Path, name: str) -> Starter:
    """The folder with one configuration in it, as it is shipped."""
    file = configurations()[name]
    text = file.read_text().replace(f"configs/{name}.toml", f"{_place(folder)}/{file.name}")
    return Starter(folder, {file.name: text}, _commands(f"{_place(folder)}/{file.name}"))


def _place(folder: Path) -> str:
    place = folder.as_posix()
    if bad := FORBIDDEN & set(place):
        raise ConfigError(f"{place}: a folder's name may not contain {' '.join(sorted(map(repr, bad)))} here")
    return place


def _run_name(folder: Path) -> str:
    return folder.resolve().name.replace(" ", "-") or "run"


def _moved(text: str, task: Task, name: str, place: str) -> str:
    """The text with the paths of the example changed to those in the folder."""
    for old, new in {f"examples/{name}/": f"{place}/", **task.moved}.items():
        text = text.replace(old, new)
    return text


def _commands(config: str) -> tuple[str, ...]:
    return f"rhymed check {shlex.quote(config)}", f"rhymed run {shlex.quote(config)}"


def _readme(task: Task, run: str, commands: tuple[str, ...]) -> str:
    listed = "\n".join(f"* `{name}`: {text}" for name, text in task.explained.items())
    after = f"rhymed history show --run runs/{run}"
    return README.format(
        run=run,
        about=task.about[0].upper() + task.about[1:],
        listed=listed,
        commands="\n".join((*commands, after)),
        change=task.change,
    )


README = """# {run}

{about}.

{listed}

```sh
{commands}
```

Call these in the folder from which you called `rhymed init`: relative paths in the configuration are resolved against
the current folder. `check` shows the prompts as the model receives them and tries the reward; `run` trains and prints
the address of its dashboard; `history show` lists the prompts with their responses.

## Your own task

{change}

Another model: `-o model.path=...` with a folder, a GGUF file or a hub id. Another algorithm:
`-o trainer.algorithm=dapo`. `rhymed check` names whatever does not fit.
"""
