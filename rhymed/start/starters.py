"""The tasks of `rhymed init`: which files of the examples make a folder that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


def about(configuration: Path) -> str:
    """Its first sentence: the comment that it begins with."""
    lines: list[str] = []
    for line in configuration.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".")


def constraints() -> Iterator[tuple[str, Path]]:
    """Name and file of each list of tested versions, for `pip install -c`."""
    for name in ("cpu", "cuda"):
        yield name, shipped("requirements") / f"{name}.in"


# The tasks of `rhymed init`: which files of the examples make a folder that runs.


@dataclass(frozen=True)
class Task:
    """A folder to start from. Its files are those of `examples/`, with the paths in them changed to the folder's."""

    about: str
    explained: Mapping[str, str]  # name in the folder -> what it is
    change: str  # what to change for data of one's own
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # name -> path below examples/, if of another example
    moved: Mapping[str, str] = field(default_factory=dict)  # text in the files -> what it is in the folder
    before: tuple[str, ...] = ()  # commands before the check; {folder} is the folder


TASKS: dict[str, Task] = {
    "arithmetic": Task(
        about="rows and a graded reward of your own: sums, answered with the number alone",
        explained={
            "config.toml": "the run: model, rows, lengths, reward, learning rate",
            "reward.py": "the reward: lists of completions and columns in, one number per completion out",
            "train.jsonl": "32 rows to train on: `prompt`, and columns for the reward",
            "held_out.jsonl": "16 rows that are only evaluated",
        },
        change="Write rows into `train.jsonl` and a reward into `reward.py`; set the lengths in `config.toml`.",
    ),
    "gsm8k": Task(
        about="word problems in GSM8K's format, scored by math-verify, with a penalty on length",
        explained={
            "config.toml": "the run, with its two scorers",
            "train.jsonl": "32 rows with `question` and `answer`; the reference stands after `####`",
            "test.jsonl": "8 rows that are only evaluated",
        },
        change='For the real rows set `data.path = "openai/gsm8k"` and `data.subset = "main"` in `config.toml`.',
    ),
    "verl": Task(
        about="verl's parquet and verl's compute_score, unchanged",
        explained={
            "config.toml": "the run",
            "score.py": "the reward, with verl's four arguments",
            "prepare.py": "writes `train.parquet` from `problems.jsonl`, in the format of verl's scripts",
            "problems.jsonl": "32 word problems",
        },
        change="Put your own parquet in place of `train.parquet`, and your `compute_score` into `score.py`.",
        elsewhere={"problems.jsonl": "gsm8k/train.jsonl"},
        moved={'here.parent / "gsm8k" / "train.jsonl"': 'here / "problems.jsonl"'},
        before=("python {folder}/prepare.py",),
    ),
    "calculator": Task(
        about="an agent with a tool: multiplications, and a calculator that the model may call",
        explained={
            "config.toml": "the run: model, rows, tools, turns, lengths",
            "tools.py": "the tool: a function with type hints and a docstring, as TRL's `tools`",
            "reward.py": "the reward: it sees the last turn, and the number of turns as a column",
            "train.jsonl": "64 rows: `prompt` is a chat that shows two calls, and asks",
            "held_out.jsonl": "32 rows that are only evaluated",
        },
        change="Write functions into `tools.py`, name them in `environment.tools`, and change rows and reward.",
    ),
    "agent": Task(
        about="an agent that is a program with OpenAI's client: multiplications, and a calculator of its own",
        explained={
            "config.toml": "the run: model, rows, the program's command, turns, lengths",
            "agent.py": "the program: it asks the policy at `OPENAI_BASE_URL`, and has the row in `RHYMED_ROW`",
            "reward.py": "the reward: it sees the last turn, and the number of turns as a column",
            "train.jsonl": "64 rows: `prompt` is a chat that shows two calls, and asks",
            "held_out.jsonl": "32 rows that are only evaluated",
        },
        change="Write another program, name it in `environment.command`, and change rows and reward.",
    ),
    "guess": Task(
        about="a game in turns: guess a number, with a hint after each guess",
        explained={
            "config.toml": "the run: model, rows, environment, turns, lengths",
            "game.py": "the environment: a class with `init` and `step`, as SkyRL-Gym's `BaseTextEnv`",
            "train.jsonl": "20 rows: a prompt, and a secret number for the game",
        },
        change="Write another class into `game.py`, and name it in `environment.factory`; it gives the rewards.",
    ),
}
DEFAULT = "arithmetic"


# Writes the folder of `rhymed init`. Nothing is written if a file is in the way, unless that is asked for.

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
        files = {self.folder / name: content for name, content in self.files.items()}
        return write_all(files, filter(Path.exists, files), "another folder", force=force)


def examples(name: str) -> dict[str, str]:
    """The files of a task as they are in `examples/`: name in the folder -> text."""
    task, folder = TASKS[name], shipped("examples")
    return {one: (folder / task.elsewhere.get(one, f"{name}/{one}")).read_text() for one in task.explained}


def task_starter(folder: Path, name: str) -> Starter:
    """The folder of a task. Raises `ConfigError` for a folder that cannot be named in a configuration."""
    task, place = TASKS[name], _place(folder)
    files = {one: _moved(text, task, name, place) for one, text in examples(name).items()}
    commands = (*(line.format(folder=quoted(place)) for line in task.before), *_commands(f"{place}/config.toml"))
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
    return f"rhymed check {quoted(config)}", f"rhymed run {quoted(config)}"


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
