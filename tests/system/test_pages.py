"""Commands and files of the pages for users: each is run as written, or checked with the parsers and settings.

A block with a title is a file. Sizes and engines come from the environment; addresses of this machine replace the
page's.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import rhymed
from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.start.api.start import Asked
from rhymed.start.cli import parser
from scripts.docs import cli
from tests.ports import free_ports
from tests.system import commands as helper
from tests.system.commands import DEADLINE_S, NO_MODEL, ROOT, SMALL, background, do, environment, until

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Execute = Callable[..., str]


def blocks(page: str, kind: str) -> list[tuple[str, str]]:
    """Title and text of the fenced blocks of that language."""
    text = (ROOT / page).read_text()
    matches = re.findall(rf'^```(?:{kind})(?: title="([^"]*)")?\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    return [(title, block) for title, block in matches]


def lines(block: str) -> list[str]:
    """Commands without comments; continued lines are joined."""
    joined = block.replace("\\\n", " ").splitlines()
    return [line for raw in joined if (line := re.split(r"(?:^|\s)#\s", raw)[0].strip())]


def commands(page: str) -> list[str]:
    """The commands of the page's bash blocks, in order."""
    return [line for _, block in blocks(page, "bash") for line in lines(block)]


def rhymed_arguments(line: str) -> list[str] | None:
    """The arguments if the command line calls rhymed."""
    words = shlex.split(re.split(r"\s(?:[|>]|&&|\|\|)\s", line)[0])
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words[1:] if words and words[0] == "rhymed" else None


# Every page: its commands and settings are valid


def test_every_rhymed_command_of_every_page_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    top = parser()
    parsed = 0
    for page in PAGES:
        for _, block in blocks(str(page.relative_to(ROOT)), "bash|sh"):
            for line in lines(block):
                if (words := rhymed_arguments(line)) is None:
                    continue
                try:
                    chosen = top.parse_args(words)
                except SystemExit:
                    pytest.fail(f"{page.name}: {line}")
                changes = [change for change in getattr(chosen, "override", None) or [] if "keys" not in change]
                load_config(ROOT / "configs/quickstart.toml", changes, {})
                parsed += 1
    assert parsed > 60


def test_the_examples_of_every_help_text_parse() -> None:
    top = parser()
    for command, _ in cli.commands():
        for line in cli.examples(command):
            words = rhymed_arguments(lines(line)[0])
            assert words is not None, line
            top.parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_toml_block_is_a_part_of_a_configuration(page: Path) -> None:
    for _, block in blocks(str(page.relative_to(ROOT)), "toml"):
        Config.model_validate(tomllib.loads(block))


def test_the_loops_over_a_setting_start_each_run_once_and_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "configs/quickstart.toml", tmp_path / "my.toml")
    loop = next(block for _, block in blocks("docs/runs.md", "bash") if block.startswith("for "))
    command = 'rhymed() { echo "$*" >> called; for word; do case $word in run.name=*) folder=runs/rates/${word#*=};'
    command += " mkdir -p $folder; touch $folder/config.json;; esac; done; }"
    for _ in range(2):
        subprocess.run(["sh", "-euc", f"{command}\n{loop}"], cwd=tmp_path, check=True, timeout=60)
    called = [line.split() for line in (tmp_path / "called").read_text().splitlines()]
    top, new = parser(), [line for line in called if "-o" in line]
    assert [top.parse_args(line).command for line in called] == ["run", "run", "runs"] * 2
    configs = [load_config(tmp_path / "my.toml", top.parse_args(line).override, {}) for line in new]
    assert [(str(one.run.folder), one.run.name, one.trainer.lr) for one in configs] == [
        ("runs/rates", "lr-1e-6", 1e-6), ("runs/rates", "lr-1e-5", 1e-5),
    ]  # fmt: skip
    assert called[3:5] == [["run", f"runs/rates/{one.run.name}", "--resume"] for one in configs]

    monkeypatch.chdir(tmp_path)
    trained: list[Config] = []

    def train(config: str, **settings: object) -> SimpleNamespace:
        trained.append(Asked(config, None, None, None, None, settings).read(None))
        return SimpleNamespace(evaluations=list)

    monkeypatch.setattr(rhymed, "train", train)
    exec(blocks("docs/runs.md", "python")[0][1], {})
    assert [(one.run.name, one.trainer.lr, one.run.seed) for one in trained] == [
        (f"lr-{lr}-seed-{seed}", lr, seed) for lr in (1e-6, 1e-5) for seed in (0, 1)
    ]


# Pages whose commands are run from top to bottom


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return helper.clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture
def execute(clone: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs a command line in the clone."""
    environment(monkeypatch, SMALL | NO_MODEL | {"RHYMED_MODEL__PATH": str(tiny_model)})
    return lambda line: do(line, clone)


def write_files(page: str, clone: Path) -> None:
    for kind in ("python", "toml"):
        for title, block in blocks(page, kind):
            if title:
                (clone / title).parent.mkdir(exist_ok=True)
                (clone / title).write_text(block)


def only_command(page: str, start: str) -> str:
    """The only command of the page with this start."""
    (line,) = (line for line in commands(page) if line.startswith(start))
    return line


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_own_data_and_reward(clone: Path, execute: Execute) -> None:
    folder, rows, check, run, *later = commands("docs/own.md")
    execute(folder)
    write_files("docs/own.md", clone)
    assert [line.split()[1] for line in later] == ["eval", "eval", "history", "checkpoint", "run", "run"]
    execute(rows)
    assert len((clone / "mine/train.jsonl").read_text().splitlines()) == 48
    assert len((clone / "mine/held_out.jsonl").read_text().splitlines()) == 16
    report = execute(check)
    assert "ready to run" in report
    assert "reward     1 (by reward)" in report, "the right answer"
    assert "reward     0 (by reward)" in report, "banana"
    out = execute(run)
    assert "2 steps" in out
    assert "val/held-out/acc/mean@1" in out
    assert "plus" in execute(later[2])


def output_of(line: str, folder: Path) -> str:
    """Its standard output, whether it succeeds or fails."""
    return subprocess.run(shlex.split(line), cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_machine_joins_with_keys(clone: Path, execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {
        f"10.0.0.1:{port}": f"127.0.0.1:{free}" for port, free in zip((5550, 5551, 5552), free_ports(3), strict=True)
    }

    def here(text: str) -> str:
        for old, new in moved.items():
            text = text.replace(old, new)
        return text

    ((_, net),) = [block for block in blocks("docs/machines.md", "toml") if block[0]]
    (clone / "cluster.toml").write_text((clone / "configs/quickstart.toml").read_text() + here(net))
    run, look, join = (
        here(only_command("docs/machines.md", start))
        for start in ("rhymed run cluster", "rhymed queues", "rhymed worker --role rollout")
    )
    monkeypatch.setenv("RHYMED_RUN__NAME", "cluster")
    assert "rollout.secret" in execute(only_command("docs/machines.md", "rhymed keygen"))
    far = clone / "far"  # the other machine: its part of the keys, its own runs
    (far / "keys").mkdir(parents=True)
    shutil.copy(clone / "cluster.toml", far)
    (copy,) = (line for _, block in blocks("docs/machines.md", "sh") for line in lines(block) if "scp" in line)
    for file in re.findall(r"keys/[a-z.]+", copy):
        shutil.copy(clone / file, far / file)
    assert {file.name for file in (far / "keys").iterdir()} == {"public", "rollout.secret"}
    with background(run, clone) as running:
        until("starting", running)
        while "reward-0" not in (seen := output_of(look, clone)):
            assert running.poll() is None, f"the run ended without rollout workers\n{seen}"
            time.sleep(0.5)
        with background(join, far):
            pass
    rows = (clone / "runs/cluster/metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2


@pytest.mark.slow
def test_what_the_quickstart_looks_at_is_there(clone: Path, execute: Execute) -> None:
    """Uses the run of the test before, which has the quickstart's prompts."""
    if not (clone / "runs/cluster/summary.json").is_file():
        pytest.skip("needs the run of the test before")
    page = (ROOT / "docs/quickstart.md").read_text()
    (clone / "runs/quickstart").symlink_to(clone / "runs/cluster")
    assert "8 + 9" in execute(only_command("docs/quickstart.md", "rhymed history show '"))
    assert "exactly once" in execute(only_command("docs/quickstart.md", "rhymed history audit"))
    assert "report.html" in execute(only_command("docs/quickstart.md", "rhymed report"))
    execute(only_command("docs/quickstart.md", "rhymed checkpoint export"))
    assert (clone / "my-model").is_dir()
    table = page[page.index("| file | what |") : page.index("```bash\nrhymed history show '")]
    named = re.findall(r"`([\w.]+)/?`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    assert len(named) >= 8
    for name in named:
        assert (clone / "runs/quickstart" / name).exists(), name
