"""What is refused before anything starts, in a sentence and with status 2: values that nothing can hold, names that
are no folders, data that are no files, terminals and folders that are gone."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.config.load import load_config, load_run
from rhymed.core.errors import ConfigError, DataError
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import layout_of
from rhymed.core.secret import redacted
from rhymed.core.service.logfile import JsonLine
from rhymed.inputs import hub
from rhymed.inputs.datasets import load_rows
from rhymed.start.cli import main
from rhymed.start.cli.eval import evaluating
from rhymed.start.launch.resumable import refuse_fewer

CONFIG = """
[data]
path = "rows.jsonl"
[reward]
scorer = "exact"
[rollout]
engine = "trace"
prompts_per_step = 2
group_size = 2
[trainer]
engine = "trace"
steps = 4
[net]
http = ""
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{one}", "answer": "1"}}\n' for one in range(8)))
    (tmp_path / "mine.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("trainer.lr=inf", "inf is not a finite number"),
        ("store.map_gib=nan", "nan is not a finite number"),
        ("trainer.stall_s=-inf", "-inf is not a finite number"),
        ("trainer.betas=[0.9, inf]", "trainer.betas.1 = inf: it must be a finite number"),
        ("trainer.betas=[nan, 0.9]", "trainer.betas.0 = nan: it must be a finite number"),
        ("reward.args={ deep = [{ x = inf }] }", "reward.args: inf is not a finite number"),
        ("rollout.group_size=65537", "less than or equal to 65536"),
        ("rollout.workers=100000", "less than or equal to 1024"),
        ("reward.processes=1000000", "less than or equal to 1024"),
        ("reward.memory_gib=0.001", "less than 0.0625, which a subprocess needs"),
        ("store.map_gib=1e9", "more than 131,072, the largest possible value"),
        ("schedule.heartbeat_s=1e300", "more than 1,000,000,000, the largest possible value"),
        ("run.seed=9223372036854775808", "more than 64 bits"),
        (f"run.seed={'9' * 5000}", "run.seed = "),
        ("run.name=latest", "'latest' is the link to the newest run"),
        (f"run.name={'a' * 101}", "at most 100 characters"),
        ("run.name=.hidden", "first a letter or digit"),
        ("run.name=a/b", "only letters"),
        ('run.name="a\\u0007"', "only letters"),
        ('data.system="\\u0000"', "a character that cannot be written to a file"),
        ("run.folder=~nobody-has-this-name/x", "run.folder = '~nobody-has-this-name/x'"),
        ('metrics.sinks=["nope"]', "it must be 'wandb', 'trackio' or 'mlflow'"),
    ],
)
def test_values_that_nothing_can_hold(place: Path, change: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        layout_of(load_config(place / "mine.toml", [change], {}))
    assert why in str(refused.value)
    assert all(len(line) < 400 for line in str(refused.value).splitlines())


def test_deep_nesting_is_text(place: Path) -> None:
    brackets = "[" * 100_000
    assert load_config(place / "mine.toml", [f"data.system={brackets}"], {}).data.system == brackets


@pytest.mark.parametrize("folder", ["/proc/x", "/sys/y", "mine.toml"])
def test_folders_that_cannot_be_made(place: Path, folder: str) -> None:
    config = Config.model_validate({"run": {"folder": folder}})
    with pytest.raises(ConfigError, match="cannot be written to"):
        runs.save(config)


def test_a_file_in_the_place_of_a_folder(place: Path) -> None:
    (place / "runs" / "run").mkdir(parents=True)
    (place / "runs" / "run" / "store").write_text("")
    with pytest.raises(ConfigError, match="run/store is a file, and the run needs a folder there"):
        runs.save(load_config(place / "mine.toml", [], {}))


def test_what_is_called_latest_is_not_removed(place: Path) -> None:
    (place / "runs" / "latest").mkdir(parents=True)
    runs.save(load_config(place / "mine.toml", [], {}))
    assert (place / "runs" / "latest").is_dir()
    assert not (place / "runs" / "latest").is_symlink()


def test_what_the_system_refuses_is_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, where = runs.create(load_config(place / "mine.toml", [], {}))
    (where.folder / runs.LOCK).mkdir()
    assert main(["run", "--plain", "--resume", str(where.folder)]) == 2
    assert f"{where.folder / runs.LOCK}: Is a directory" in capsys.readouterr().err
    assert made.run.name == "run"


def test_data_that_is_no_file(place: Path) -> None:
    os.mkfifo(place / "pipe.jsonl")
    for path in ("pipe.jsonl", "/dev/zero"):
        config = Config.model_validate({"data": {"path": path, "source": "jsonl"}})
        with pytest.raises(DataError, match="is a pipe, a device or a socket"):
            load_rows(config)


def test_a_folder_of_everything_is_no_dataset(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed.inputs.hub.MOST_FILES", 1)
    with pytest.raises(DataError, match="name the folder of the dataset itself"):
        hub._check_few(place)


def test_a_number_of_thousands_of_digits_in_a_row(place: Path) -> None:
    (place / "rows.jsonl").write_text(f'{{"prompt": "a", "number": {"9" * 5000}}}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: it has a number of thousands of digits"):
        load_rows(load_config(place / "mine.toml", [], {}))


def test_only_the_owner_reads_a_configuration_with_secrets(place: Path) -> None:
    for number, (change, private) in enumerate(
        [
            ("metrics.mlflow=http://me:sesame@there", True),
            ("metrics.mlflow=https://there/?api_key=sesame", True),
            ("rollout.engine_args={ hf_token = 'sesame' }", True),
            ("metrics.mlflow=http://there", False),
        ]
    ):
        more = [change, f"run.name=run{number}", *(["rollout.engine=vllm"] if "engine_args" in change else [])]
        more += ["trainer.engine=torch"] if "engine_args" in change else []
        where = runs.save(load_config(place / "mine.toml", more, {}))
        mode = stat.S_IMODE(where.config.stat().st_mode)
        assert (mode == 0o600) == private
        again = runs.save(load_config(where.config, [], {}))  # as a resume does
        assert stat.S_IMODE(again.config.stat().st_mode) == mode


@pytest.mark.parametrize("change", ["trainer.steps=3", "trainer.steps=0", "trainer.epochs=1"])
def test_a_resume_with_fewer_steps_than_are_trained(
    place: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = runs.save(load_config(place / "mine.toml", ["trainer.steps=20"], {}))
    where.metrics.write_text("".join(json.dumps({"step": step, "time": 1.0}) + "\n" for step in range(5)))
    assert main(["run", "--plain", "--resume", str(where.folder), "-o", change]) == 2
    said = capsys.readouterr().err
    assert change.replace("=", " = ") in said
    assert f"{where.folder} has trained 5 already" in said
    before, more = load_config(where.config, [], {}), load_config(where.config, ["trainer.steps=5"], {})
    refuse_fewer(before, more, where)  # as many are enough


def test_the_folder_that_is_named_is_the_run_also_if_it_was_copied_or_renamed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, where = runs.create(load_config(place / "mine.toml", ["run.name=47"], {}))
    folder = where.folder
    copy, link = folder.with_name("47-copy"), folder.with_name("linked")
    shutil.copytree(folder, copy)
    (copy / "checkpoints").mkdir()
    link.symlink_to(folder.name)
    assert runs.layout_of_folder(link) == where, "a link has the address that the run's processes know"
    assert runs.layout_of_folder(copy).folder == copy
    assert runs.layout_of_folder(copy).broker != where.broker
    with pytest.raises(ConfigError, match=f"not in {copy / 'checkpoints'}"):
        evaluating(load_config(copy / "config.json"), "latest")
    assert main(["run", "--plain", "--resume", str(copy), "-o", "run.name=47"]) == 2
    said = capsys.readouterr().err
    assert f"{copy} is named" in said
    assert f"name {folder}" in said
    moved = folder.rename(folder.with_name("46-renamed"))
    assert load_run(moved).run.name == "46-renamed"
    shutil.copytree(moved, odd := folder.with_name("46 (copy)"))
    with pytest.raises(ConfigError, match=r"46 \(copy\).*run.name"):
        load_run(odd)


def test_a_configuration_for_many_runs_keeps_its_words_wherever_it_lies(place: Path) -> None:
    (place / "config.json").write_text(json.dumps({"run": {"name": "mine", "folder": "/elsewhere"}}))
    assert load_config(place / "config.json", (), {}).run.folder == "/elsewhere"


def test_secrets_in_addresses_are_hidden_from_pages_and_logs() -> None:
    shown = redacted({"a": "http://me:sesame@there/?api_key=sesame&run=1", "b": ["https://x/?token=sesame"]})
    assert "sesame" not in str(shown)
    assert "run=1" in shown["a"]
    assert redacted("http://x/?password=sesame") == "http://x/?password=***"
    assert JsonLine("", {}).hide("-o metrics.mlflow=postgresql://me:sesame@there/db") == (
        "-o metrics.mlflow=postgresql://***@there/db"
    )


# Streams and folders of the command itself


def rhymed(shell: str, place: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = f"exec {sys.executable} -m rhymed {shell}"
    return subprocess.run(
        ["sh", "-c", command], cwd=place, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.thorough
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(place: Path, closed: str) -> None:
    said = rhymed(f"checkpoint list nowhere {closed}", place)
    assert said.returncode == 2
    assert "Traceback" not in said.stdout + said.stderr
    assert rhymed(f"--version {closed}", place).returncode == 0


@pytest.mark.thorough
def test_children_of_a_command_with_closed_streams_work(place: Path) -> None:
    said = rhymed("check mine.toml 2>&-", place)
    assert said.returncode == 0, said.stdout
    assert "ready to run" in said.stdout


@pytest.mark.thorough
def test_a_terminal_without_utf8_gets_what_it_can_show(place: Path) -> None:
    (place / "rows.jsonl").write_text('{"prompt": "1 → 2 ü", "answer": "é"}\n{"prompt": "2", "answer": ""}\n')
    said = rhymed("check mine.toml", place, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C", PYTHONIOENCODING="")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "1 ? 2 ?" in said.stdout


@pytest.mark.thorough
def test_a_folder_that_is_gone(place: Path) -> None:
    gone = place / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m rhymed run mine.toml"
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert said.returncode == 2
    assert "the current folder does not exist any more" in said.stderr


def test_a_folder_of_runs_is_not_served(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "runs" / "one").mkdir(parents=True)
    (place / "runs" / "one" / "config.json").write_text('{"run": {}, "rollout": {}}')
    assert main(["view", str(place / "runs")]) == 2
    assert "holds 1 run: name one, e.g. " in capsys.readouterr().err
