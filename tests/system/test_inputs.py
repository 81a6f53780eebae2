"""Files that a configuration names, edited while the run works, or before it is resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.test_loop import interrupt, metrics, pid_of, started, tails, wait_for
from tests.system.test_mistakes import here, rhymed

CONFIG = """
[run]
name = "run"
folder = "{folder}"
report = false
[model]
chat_template = "{folder}/chat.jinja"
[data]
path = "{folder}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 2
group_size = 4
max_prompt_length = 512
max_response_length = 32
[trainer]
engine = "trace"
epochs = {epochs}
checkpoint_every = 1
[trace]
train_s = {train_s}
mean_length = 8.0
step_s = 0.002
[reward]
scorer = "{folder}/reward.py:reward"
processes = 1
[store]
map_gib = 0.1
[schedule]
heartbeat_s = 0.3
"""
REWARD = "import neighbour\n\n\ndef reward(completions, **columns):\n    return [{value} for _ in completions]\n"
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"


def written(folder: Path, *, epochs: int, train_s: float) -> Path:
    (folder / "reward.py").write_text(REWARD.format(value=1.0))
    (folder / "neighbour.py").write_text("")
    (folder / "chat.jinja").write_text(TEMPLATE)
    write_rows(folder)
    file = folder / "run.toml"
    file.write_text(CONFIG.format(folder=folder, epochs=epochs, train_s=train_s))
    return file


def write_rows(folder: Path, last: str = "q3") -> None:
    rows = [{"prompt": prompt, "answer": "0"} for prompt in ("q0", "q1", "q2", last)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_process_of_a_run_takes_an_edited_reward_and_a_resume_names_it(tmp_path: Path) -> None:
    folder, reward = tmp_path / "run", tmp_path / "reward.py"
    file = written(tmp_path, epochs=1000, train_s=0.1)
    with started(file) as process:
        wait_for(lambda: len(metrics(folder)) >= 1, "first step")
        reward.write_text(REWARD.format(value=2.0))
        os.kill(pid_of(folder, "reward-0"), signal.SIGKILL)
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 2, out + tails(folder)
    assert f"{reward} (reward) was edited while the run was working" in out
    (copy,) = (folder / "inputs").glob("*-reward.py")
    assert f"put the old content back (cp {copy} {reward})" in out
    assert copy.read_text() == REWARD.format(value=1.0)
    assert {row["reward/mean"] for row in metrics(folder)} == {1.0}, "no step has another reward"

    trained = len(metrics(folder))
    with started("--resume", folder) as process:
        wait_for(lambda: len(metrics(folder)) > trained + 2, "more steps")
        out = interrupt(process)
    assert f"warning  {reward} (reward) was edited after the run was started: its new content counts" in out
    assert metrics(folder)[-1]["reward/mean"] == 2.0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_resume_refuses_other_rows_and_another_template_and_says_nothing_of_the_same(tmp_path: Path) -> None:
    folder, chat = tmp_path / "run", tmp_path / "chat.jinja"
    file = written(tmp_path, epochs=1, train_s=0.0)
    assert rhymed("run", "--plain", file).returncode == 0
    more = ("run", "--plain", "--resume", folder, "-o", "trainer.epochs=2")
    settings = (folder / "config.json").read_bytes()

    write_rows(tmp_path, "Q3 changed")
    said = here(*more, status=2)
    assert f"data.path = '{tmp_path}/rows.jsonl' has other rows than it began with" in said
    write_rows(tmp_path)
    chat.write_text(TEMPLATE + "assistant: ")
    said = here(*more, status=2)
    assert f"the content of {chat} (model.chat_template) is not what it was" in said
    assert (folder / "config.json").read_bytes() == settings
    chat.write_text(TEMPLATE)
    os.utime(chat, (time.time(), time.time()))

    again = rhymed(*more)
    assert again.returncode == 0, again.stdout
    assert "edited" not in again.stdout
    assert "chat.jinja" not in again.stdout
    assert len(metrics(folder)) == 4
