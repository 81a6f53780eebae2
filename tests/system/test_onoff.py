"""However rollouts are made fast, it is one and the same training: same samples, losses and weights.

Whole runs of `rhymed run` in float32: plain and synchronous on one worker; with drafts in every step, whether they
pay or not; on two workers that write every step ahead of its weights; and on vLLM's other model runner.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed_store.browse import Browse
from rhymed_store.database.tables import Reader
from tests.bench_v2.bench import environment
from tests.packages import needs
from tests.system.test_loop import finish, metrics, pid_of, started, wait_for
from tests.tiny import write_eagle_head

torch = pytest.importorskip("torch")
pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.timeout(600)]

EPOCHS, PROMPTS, GROUP = 5, 4, 4  # two steps per epoch: every prompt comes back four times
LR = 1e-3
LOSSES = re.compile(r"(actor(?!/overlap)|mismatch_kl|response_length|staleness)/.*|reward/(mean|std|flat_groups)")
"""Metrics of the samples and of the update; the rest are of the clock, or sums in the order of arrival."""

REWARD = "def reward(completions, **columns): return [min(1.0, len(set(text)) / 20) for text in completions]"

CONFIG = """
run.folder = "{folder}"
model.path = "{folder}/model"
model.dtype = "float32"
data.path = "{folder}/rows.jsonl"
data.source = "jsonl"
rollout.prompts_per_step = {prompts}
rollout.group_size = {group}
rollout.max_prompt_length = 32
rollout.max_response_length = 24
rollout.kv_cache_gib = 0.2
drafts.budget = "fixed" # all that is found is verified; the default drafts only where this machine gains by it
reward.scorer = "{folder}/reward.py:reward"
reward.processes = 1
trainer.epochs = {epochs}
trainer.lr = {lr}
trainer.threads = 1
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Weights are enlarged: as it is, the tiny model is too even to say anything twice, and no draft were right."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    tmp_path = tmp_path_factory.mktemp("runs")
    model = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(25)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"count to {number}"}) for number in range(2 * PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(folder=tmp_path, prompts=PROMPTS, group=GROUP, lr=LR, epochs=EPOCHS))
    return file


@pytest.fixture(scope="module")
def plain(config: Path) -> Path:
    return run(config, "plain", "drafts.method=none", "schedule.policy=fifo")


def run(config: Path, name: str, *options: str) -> Path:
    command = [sys.executable, "-m", "rhymed", "run", "--plain", str(config)]
    command += [part for option in (f"run.name={name}", *options) for part in ("-o", option)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return config.parent / name


def samples(folder: Path, steps: int = 2 * EPOCHS) -> dict[str, tuple[list[int], float | None]]:
    """Tokens and reward of every sample of the first `steps` in the run's store."""
    with Reader(folder / "store") as reader:
        browse = Browse(reader)
        found = [response for prompt in browse.ids() for response in browse.responses(prompt)]
    kept = (one for one in found if one.info.id.step < steps)
    return {str(one.info.id): (one.tokens.tolist(), one.info.reward) for one in kept}


def losses(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if LOSSES.fullmatch(name)} for row in rows]


def same_training(config: Path, one: Path, plain: Path) -> None:
    """To the last bit. The trainer adds up in the order of the samples' names, not of their arrival. The engine's
    log-probs, which weigh tokens in the loss, do not depend on the batch either: oneDNN's products of packed float32
    weights give a row the same bits among any number of others, verified drafts included. Engine and trainer agree on
    the log-probs of the sampled tokens in every step: with stale weights, or tokens of other noise, they would not.
    """
    from safetensors.numpy import load_file

    steps = 2 * EPOCHS
    assert [row["step"] for row in metrics(one)] == [row["step"] for row in metrics(plain)] == list(range(steps))
    assert len(samples(one)) == steps * PROMPTS * GROUP
    assert samples(one) == samples(plain)
    assert losses(metrics(one)) == losses(metrics(plain))
    mismatch = [row["mismatch_kl/mean"] for row in metrics(one)]
    assert all(0 <= value < 1e-4 for value in mismatch), mismatch
    assert all({"actor/loss", "actor/grad_norm", "mismatch_kl/mean"} <= row.keys() for row in losses(metrics(plain)))

    folders = [config.parent / "model", *(made / "checkpoints" / f"step-{steps:06d}" for made in (one, plain))]
    start, first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert start.keys() == first.keys() == second.keys()
    for name, trained in first.items():
        assert np.abs(trained - start[name]).max() > LR, f"{name} was trained"
        np.testing.assert_array_equal(trained, second[name], err_msg=name)


@pytest.mark.thorough
def test_neither_drafts_nor_the_schedule_change_a_sample_a_loss_or_a_weight(config: Path, plain: Path) -> None:
    assert not any(name.startswith(("rollout/spec_", "rollout/ahead_")) for row in metrics(plain) for name in row)

    drafted = run(config, "drafted")
    same_training(config, drafted, plain)
    accepted = sum(row["rollout/spec_accepted"] for row in metrics(drafted)[2:])
    assert accepted > 10, "drafts of earlier epochs were right"

    ahead = run(config, "ahead", "schedule.run_ahead=1", "rollout.workers=2", "rollout.max_concurrency=12")
    same_training(config, ahead, plain)
    rows = metrics(ahead)
    assert sum("rollout/ahead_tokens" in row for row in rows) >= EPOCHS, "most steps were written ahead"
    assert any(row.get("rollout/ahead_kept_ratio", 0) > 0 for row in rows), "some of it is the same under new weights"


@pytest.mark.thorough
def test_training_that_begins_before_the_step_is_whole_has_the_same_bits_in_every_schedule(config: Path) -> None:
    """Other drafts, workers and schedules complete groups in another order, so other groups are computed early."""
    early = run(config, "early", "trainer.overlap=true", "drafts.method=none", "schedule.policy=fifo")
    options = "trainer.overlap=true", "schedule.run_ahead=1", "rollout.workers=2", "rollout.max_concurrency=3"
    other = run(config, "early-other", *options)
    same_training(config, other, early)
    for folder in (early, other):
        shares = [row["actor/overlap_ratio"] for row in metrics(folder)]
        assert any(share > 0 for share in shares), "some groups were computed early"
        assert all(0 <= share < 1 for share in shares)


@pytest.mark.thorough
def test_which_prompts_share_a_step_follows_from_lengths_alone(config: Path) -> None:
    first = run(config, "length", "data.sampler=length", "drafts.method=none", "schedule.policy=fifo")
    options = "data.sampler=length", "rollout.workers=2", "rollout.max_concurrency=3"
    same_training(config, run(config, "length-other", *options), first)


@pytest.mark.thorough
@needs("triton")
@pytest.mark.timeout(900)
def test_model_runner_v2_writes_the_samples_of_v1_also_after_its_worker_is_killed(
    config: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and rewards are the same as without drafts on one worker. Log-probs are computed by other kernels, so
    losses are those of V1 to a few last bits only."""
    options = "trainer.epochs=3", "rollout.workers=2", "rollout.max_concurrency=4"
    for name, value in environment(runner="1").items():
        monkeypatch.setenv(name, value)
    second = config.parent / "second"
    chosen = "run.name=second", "rollout.runner=v2", *options
    with started(config, *(part for option in chosen for part in ("-o", option))) as process:
        wait_for(lambda: len(metrics(second)) >= 2, "second step", 400)
        os.kill(pid_of(second, "rollout-0"), signal.SIGKILL)
        out = finish(process, second, 400)
    assert "rollout-0 ended (signal SIGKILL); starting it again" in out
    assert [(folder / "model-runner").read_text() for folder in (plain, second)] == ["v1\n", "v2\n"]

    assert len(samples(second)) == 6 * PROMPTS * GROUP
    assert samples(second) == samples(plain, 6)
    assert sum(row["rollout/spec_accepted"] for row in metrics(second)[2:]) > 10, "drafts were right"
    for one, other in zip(losses(metrics(second)), losses(metrics(plain)[:6]), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)


@pytest.mark.thorough
@needs("triton")
@pytest.mark.timeout(900)
def test_the_engine_s_own_head_changes_no_sample_of_a_run(
    config: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has random weights, and stays as it is while the policy is trained."""
    write_eagle_head(config.parent / "model", config.parent / "head")
    head = {"method": "eagle3", "model": str(config.parent / "head"), "num_speculative_tokens": 2}
    for name, value in environment(runner="1").items():
        monkeypatch.setenv(name, value)
    options = "trainer.epochs=2", "rollout.runner=v2"
    arguments = ", ".join(f"{name} = {json.dumps(value)}" for name, value in head.items())
    chosen = "drafts.method=history+engine", "drafts.budget=rate"
    headed = run(config, "headed", *chosen, f"rollout.engine_args={{speculative_config = {{{arguments}}}}}", *options)
    assert len(samples(headed)) == 4 * PROMPTS * GROUP
    assert samples(headed) == samples(plain, 4)
    log = (headed / "logs/rollout-0.log").read_text()
    verified = re.findall(r"the engine's head: \d+ of its (\d+) verified drafts", log)
    assert int(verified[0]) > 0
