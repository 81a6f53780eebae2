"""Whole runs of samples that are programs: a killed environment worker changes no token."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.system.test_loop import (
    NO_MODEL,
    finish,
    metrics,
    pid_of,
    processes_of,
    started,
    tokens_of,
    wait_for,
    write_in,
)

pytest.importorskip("openai")

AGENT = """
import json, os, time
from openai import OpenAI
client = OpenAI()
messages = [{"role": "user", "content": json.loads(os.environ["RHYMED_ROW"])["prompt"]}]
for number in range(3):
    answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message
    messages += [answer, {"role": "user", "content": f"and {len(answer.content)}?"}]
    time.sleep(0.2)
client.chat.completions.create(model="policy", messages=[messages[0], {"role": "user", "content": "again"}])
"""

PROGRAMS = """
[environment]
command = "python {folder}/agent.py"
sessions = 4
timeout_s = 120
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_killed_environment_worker_changes_no_token(tmp_path: Path, tiny_model: Path) -> None:
    small = ("-o", "trainer.steps=2", "-o", "rollout.prompts_per_step=2", "-o", "rollout.group_size=2")
    long = ("-o", "rollout.max_response_length=200", *NO_MODEL, *small)
    made = []
    for name, kill in (("plain", False), ("killed", True)):
        home = tmp_path / name
        home.mkdir()
        (home / "agent.py").write_text(AGENT)
        file = write_in(home, tiny_model)("trace", PROGRAMS)
        with started(file, *long) as run:
            if kill:
                wait_for(lambda home=home: any("agent.py" in line for line in processes_of(home).values()), "program")
                wait_for(lambda home=home: '"event":"answered"' in log_of(home), "answered call")
                os.kill(pid_of(home / "loop", "environment-0"), signal.SIGKILL)
            out = finish(run, home / "loop", 600)
        assert ("environment-0 ended (signal SIGKILL)" in out) == kill
        assert sum(row["rollout/dropped"] for row in metrics(home / "loop")) == 0
        assert not any("agent.py" in line for line in processes_of(home).values()), "no program outlives the run"
        made.append(tokens_of(home / "loop"))
    assert made[0] == made[1]
    assert len(made[0]) == 8


def log_of(home: Path) -> str:
    return "".join(file.read_text() for file in (home / "loop" / "logs").glob("environment-0*.log"))
