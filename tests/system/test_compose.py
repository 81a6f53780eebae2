"""A run in containers, as docs/compose.md says: `make test-compose`. Needs a Docker engine; takes about ten minutes.

One project for all tests, in order: what an earlier test has started, a later one stops.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SLIM_BYTES = 250_000_000
PATIENCE_S = 900.0
CONFIG = """
[run]
name = "short"
[model]
path = "SmolLM2-135M-Instruct"
dtype = "float32"
[data]
source = "reasoning_gym"
task = "chain_sum"
args = {{ min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1 }}
size = 32
system = "Reply with the final answer only."
[rollout]
prompts_per_step = 2
group_size = 4
max_prompt_length = 128
max_response_length = 16
kv_cache_gib = 0.25
[reward]
scorer = "reasoning_gym"
answer = "last_number"
[trainer]
epochs = 1000
steps = {steps}
checkpoint_every = 2
"""


def engine() -> tuple[list[str], str]:
    """The compose command, or why there is none."""
    if not os.environ.get("RHYMED_COMPOSE"):
        return [], "containers are tested by `make test-compose`"
    if shutil.which("docker") is None:
        return [], "docker is not installed"
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if asked.returncode:
        return [], f"no Docker engine answers: {asked.stderr.strip().splitlines()[-1]}"
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and not subprocess.run([*command, "version"], capture_output=True).returncode:
            return command, ""
    return [], "there is a Docker engine, but neither `docker compose` nor `docker-compose`"


COMMAND, MISSING = engine()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.skipif(not COMMAND, reason=MISSING)]


@dataclass
class Stack:
    """One compose project."""

    project: str
    configs: Path

    def compose(self, *arguments: str) -> str:
        return call([*COMMAND, "--project-name", self.project, *arguments], self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DOCKER_BUILDKIT": "1",
            "COMPOSE_DOCKER_CLI_BUILD": "1",
            "COMPOSE_PROFILES": "cpu",
            "RHYMED_IMAGES": "rhymed-test",
            "RHYMED_CONFIGS": str(self.configs),
            "RHYMED_CONFIG": "configs/short.toml",
            "RHYMED_PUBLISH": "127.0.0.2",
        }

    def configure(self, steps: int) -> None:
        (self.configs / "short.toml").write_text(CONFIG.format(steps=steps))

    def containers(self, service: str) -> list[str]:
        """Ids, those that have ended too."""
        mine = [f"label=com.docker.compose.{key}" for key in (f"project={self.project}", f"service={service}")]
        filters = [part for one in mine for part in ("--filter", one)]
        return call(
            [
                "docker",
                "ps",
                "--all",
                "--quiet",
                "--no-trunc",
                *filters,
                "--filter",
                "label=com.docker.compose.oneoff=False",
            ]
        ).split()

    def inspect(self, service: str) -> list[dict[str, Any]]:
        found = self.containers(service)
        return json.loads(call(["docker", "inspect", *found])) if found else []

    def execute(self, service: str, *command: str) -> str:
        return call(["docker", "exec", self.containers(service)[0], *command])

    def queues(self) -> dict[str, Any] | None:
        """None: the run does not answer, not yet or not now."""
        try:
            reported: dict[str, Any] = json.loads(
                self.execute("dashboard", "rhymed", "queues", "--json", "/runs/short")
            )
        except (subprocess.CalledProcessError, IndexError):
            return None
        return reported

    def step(self) -> int:
        return int((self.queues() or {}).get("step", -1))

    def workers(self, role: str) -> set[str]:
        return {row["worker"] for row in (self.queues() or {}).get("workers", []) if row["role"] == role}


def call(command: list[str], environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode:
        print(f"{' '.join(command)}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    ended.check_returncode()
    return ended.stdout


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for: {what}"
        time.sleep(1.0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o755)  # who reads it in a container is another user
    made = Stack(f"rhymed-test-{secrets.token_hex(4)}", folder)
    made.configure(steps=1000)
    made.compose("build")
    try:
        made.compose("up", "--detach")
        yield made
    finally:
        for service in ("prepare", "broker", "trainer", "rollout", "reward", "dashboard"):
            print(made.compose("logs", "--tail", "30", service))
        made.compose("down", "--volumes", "--timeout", "30")


def test_slim_images_are_slim(stack: Stack) -> None:
    size = int(call(["docker", "image", "inspect", "--format", "{{.Size}}", "rhymed-test-slim"]))
    assert size < SLIM_BYTES, f"{size / 1e6:.0f} MB"
    probe = (
        "import importlib.util as u; print([one for one in ('torch', 'vllm', 'transformers') if u.find_spec(one)])"
    )
    assert stack.execute("store", "python3", "-c", probe).strip() == "[]"


def test_steps_are_trained(stack: Stack) -> None:
    until(lambda: stack.step() >= 2, "two steps")
    for service in ("store", "broker", "trainer", "rollout", "reward", "dashboard"):
        until(lambda service=service: stack.inspect(service)[0]["State"]["Health"]["Status"] == "healthy", service)


def test_nobody_is_root_and_everybody_has_only_his_own_key(stack: Stack) -> None:
    for role in ("store", "broker", "trainer", "rollout", "reward"):
        assert stack.execute(role, "id", "-u").strip() == "10001"
        assert set(stack.execute(role, "ls", "/run/secrets/rhymed").split()) == {"public", f"{role}.secret"}
    assert set(stack.execute("dashboard", "ls", "/run/secrets/rhymed").split()) == {"public", "viewer.secret"}


def test_the_dashboard_is_where_its_log_says(stack: Stack) -> None:
    address = "http://127.0.0.2:8420/"
    assert f"open it once as {address}?token=" in stack.compose("logs", "dashboard")
    token = stack.execute("dashboard", "cat", "/runs/latest/dashboard.token").strip()
    with urllib.request.urlopen(f"{address}api/run?token={token}", timeout=30) as answer:
        assert json.load(answer)["name"] == "short"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{address}api/run", timeout=30)


def test_a_killed_rollout_container_is_replaced(stack: Stack) -> None:
    before, [found] = stack.step(), stack.inspect("rollout")
    kill = "import psutil; [child.kill() for child in psutil.Process(1).children()]"
    subprocess.run(["docker", "exec", found["Id"], "python3", "-c", kill], capture_output=True)
    until(lambda: stack.inspect("rollout")[0]["RestartCount"] == 1, "the engine to start the container again")
    until(lambda: stack.step() >= before + 3, "three steps more")


def test_three_rollouts_share_the_work(stack: Stack) -> None:
    stack.compose("up", "--detach", "--no-recreate", "--scale", "rollout=3")
    until(lambda: len(stack.workers("rollout")) == 3, "three rollout workers")
    names = stack.workers("rollout")
    assert all(name.startswith("rollout@") for name in names)
    before = stack.step()
    until(lambda: stack.step() >= before + 2, "two steps of three workers")


def test_what_is_stopped_ends_cleanly_and_goes_on_where_it_was(stack: Stack) -> None:
    reached = stack.step()
    stack.compose("stop", "--timeout", "30")
    services = ("report", "dashboard", "rollout", "reward", "trainer", "broker", "store")
    ended = {name: [one["State"]["ExitCode"] for one in stack.inspect(name)] for name in services}
    assert ended == {name: [0] * (3 if name == "rollout" else 1) for name in services}
    stack.compose("down", "--timeout", "30")
    assert not stack.containers("store")
    stack.configure(steps=reached + 4)
    stack.compose("up", "--detach")
    until(lambda: stack.step() >= reached - 2, "the run to be where it was, but for steps without a checkpoint")
    until(lambda: (stack.queues() or {}).get("finished"), "the end of the run")
    assert stack.step() == reached + 4


def test_a_finished_run_stays_finished(stack: Stack) -> None:
    def over() -> bool:
        found = [one for name in ("trainer", "rollout", "reward", "report") for one in stack.inspect(name)]
        return all(one["State"]["Status"] == "exited" for one in found)

    until(over, "trainer, workers and report to leave")
    for name in ("trainer", "rollout", "reward", "report"):
        [one] = stack.inspect(name)
        assert (one["State"]["ExitCode"], one["RestartCount"]) == (0, 0)
    audit = stack.execute("dashboard", "rhymed", "history", "audit", "/runs/short")
    assert "trained" in audit
    made = stack.execute("dashboard", "ls", "/runs/short")
    assert {"summary.json", "report.html"} <= set(made.split())
    stack.compose("up", "--detach")  # latecomers are told that it is over
    until(over, "those to leave that were started again")
    assert [one["State"]["ExitCode"] for one in stack.inspect("rollout")] == [0]


def test_every_command_is_at_hand_and_sees_everybodys_logs(stack: Stack) -> None:
    def cli(*command: str) -> str:
        return stack.compose("run", "--rm", "--no-deps", "-T", "cli", *command)

    reported = [json.loads(line) for line in cli("logs", "--process", "reward@*", "--json").splitlines()]
    sample = next(entry["samples"][0] for entry in reported if entry.get("samples"))
    story = cli("logs", "--sample", sample)
    assert "reward@" in story
    assert "rollout@" in story
    assert "samples" in cli("history", "stats")
    cli("history", "export", "/tmp/responses.parquet")
    assert "/tmp/report.html" in cli("report", "/runs/latest", "--out", "/tmp")
