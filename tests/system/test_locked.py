"""A whole run whose every link is TCP with keys: all kinds of process get in, each with its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.wire.keys import ROLES, make_keys
from tests.ports import free_ports

REWARD = "def reward(completions, **columns):\n    return [float(len(text) % 7) for text in completions]\n"

CONFIG = """
[run]
name = "locked"
folder = "{folder}"
[model]
path = "{model}"
dtype = "float32"
[data]
path = "{folder}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 4
group_size = 4
max_prompt_length = 32
max_response_length = 24
[trace]
mean_length = 12
step_s = 0.005
vocabulary = 258
[reward]
scorer = "{folder}/reward.py:reward"
processes = 1
[trainer]
engine = "trace"
steps = 2
[store]
map_gib = 0.25
[net]
broker = "tcp://127.0.0.1:{ports[0]}"
store = "tcp://127.0.0.1:{ports[1]}"
weights = "tcp://127.0.0.1:{ports[2]}"
keys = "{folder}/keys"
"""


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"count to {number}"} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "locked.toml"
    file.write_text(CONFIG.format(folder=tmp_path, model=tiny_model, ports=free_ports(3)))
    return file


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", "run", "--plain", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_over_locked_links_ends_as_any_other(config: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ROLES)
    ended = run(config)
    assert ended.returncode == 0, ended.stdout
    steps = [json.loads(line) for line in (tmp_path / "locked" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps] == [0, 1]
    logs = "".join(file.read_text() for file in (tmp_path / "locked" / "logs").iterdir())
    assert "unknown key" not in logs
    assert "NotAllowed" not in logs
    for role in ROLES:
        assert (tmp_path / "keys" / f"{role}.secret").read_text().strip() not in logs + ended.stdout


def test_missing_keys_are_reported_before_anything_starts(config: Path, tmp_path: Path) -> None:
    ended = run(config)
    assert ended.returncode == 2
    assert "net.keys: " in ended.stdout
    assert "`rhymed keygen" in ended.stdout
    assert not (tmp_path / "locked").exists()


def test_an_open_address_without_keys_is_reported_before_anything_starts(config: Path, tmp_path: Path) -> None:
    ended = run(config, "-o", "net.keys=", "-o", "net.broker=tcp://0.0.0.0:5599")
    assert ended.returncode == 2
    assert "rhymed: net.broker = tcp://0.0.0.0:5599: it is open to the network and there are no keys" in ended.stdout
    assert "--insecure" in ended.stdout
    assert not (tmp_path / "locked").exists()
