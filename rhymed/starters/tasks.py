"""The tasks of `rhymed init`: which files of the examples make a folder that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """A folder to start from. Its files are those of `examples/`, with the paths in them changed to the folder's."""

    about: str
    files: Mapping[str, str]  # name in the folder -> path below examples/
    explained: Mapping[str, str]  # name in the folder -> what it is
    moved: Mapping[str, str] = field(default_factory=dict)  # text in the files -> what it is in the folder
    before: tuple[str, ...] = ()  # commands before the check; {folder} is the folder
    change: str = ""  # what to change for data of one's own


TASKS: dict[str, Task] = {
    "arithmetic": Task(
        about="rows and a graded reward of your own: sums, answered with the number alone",
        files={name: f"arithmetic/{name}" for name in ("config.toml", "reward.py", "train.jsonl", "held_out.jsonl")},
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
        files={name: f"gsm8k/{name}" for name in ("config.toml", "train.jsonl", "test.jsonl")},
        explained={
            "config.toml": "the run, with its two scorers",
            "train.jsonl": "32 rows with `question` and `answer`; the reference stands after `####`",
            "test.jsonl": "8 rows that are only evaluated",
        },
        change='For the real rows set `data.path = "openai/gsm8k"` and `data.subset = "main"` in `config.toml`.',
    ),
    "verl": Task(
        about="verl's parquet and verl's compute_score, unchanged",
        files={
            "config.toml": "verl/config.toml",
            "score.py": "verl/score.py",
            "prepare.py": "verl/prepare.py",
            "problems.jsonl": "gsm8k/train.jsonl",
        },
        explained={
            "config.toml": "the run",
            "score.py": "the reward, with verl's four arguments",
            "prepare.py": "writes `train.parquet` from `problems.jsonl`, in the format of verl's scripts",
            "problems.jsonl": "32 word problems",
        },
        moved={'here.parent / "gsm8k" / "train.jsonl"': 'here / "problems.jsonl"'},
        before=("python {folder}/prepare.py",),
        change="Put your own parquet in place of `train.parquet`, and your `compute_score` into `score.py`.",
    ),
    "calculator": Task(
        about="an agent with a tool: multiplications, and a calculator that the model may call",
        files={
            name: f"calculator/{name}"
            for name in ("config.toml", "tools.py", "reward.py", "train.jsonl", "held_out.jsonl")
        },
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
        files={
            name: f"agent/{name}"
            for name in ("config.toml", "agent.py", "reward.py", "train.jsonl", "held_out.jsonl")
        },
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
        files={name: f"guess/{name}" for name in ("config.toml", "game.py", "train.jsonl")},
        explained={
            "config.toml": "the run: model, rows, environment, turns, lengths",
            "game.py": "the environment: a class with `init` and `step`, as SkyRL-Gym's `BaseTextEnv`",
            "train.jsonl": "20 rows: a prompt, and a secret number for the game",
        },
        change="Write another class into `game.py`, and name it in `environment.factory`; it gives the rewards.",
    ),
}
DEFAULT = "arithmetic"
