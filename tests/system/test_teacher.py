"""Self-distillation and a warm start in whole runs: a trainer that is killed trains the same as in peace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rhymed.run import checkpoint
from tests.system.test_critic import kill_trainer
from tests.system.test_loop import CONFIG, REWARD, finish, metrics, started, tails

STEPS = 80
SELF = ("trainer.algorithm=opsd", "trainer.teacher.demonstration=answer", "trainer.teacher.over=vocabulary")
ANSWERS = ("trainer.algorithm=sft", "rollout.engine=dataset", "rollout.group_size=1")


def run(folder: Path, model: Path, name: str, options: tuple[str, ...], kills: tuple[int, ...] = ()) -> Path:
    """A run whose trainer is killed as soon as it has trained so many steps."""
    (folder / "reward.py").write_text(REWARD)
    rows = [f'{{"prompt": "count to {number}", "answer": {number}}}\n' for number in range(12)]
    (folder / "rows.jsonl").write_text("".join(rows))
    file = folder / f"{name}.toml"
    file.write_text(CONFIG.format(folder=folder, model=model, engine="trace"))
    every = (f"run.name={name}", "trainer.epochs=40", f"trainer.steps={STEPS}", *options)
    with started(file, *(part for option in every for part in ("-o", option))) as process:
        for steps in kills:
            kill_trainer(folder / name, steps)
        out = finish(process, folder / name)
    assert out.count("trainer ended (signal SIGKILL); starting it again") == len(kills), out
    return folder / name


def weights(folder: Path) -> dict[str, Any]:
    saved = checkpoint.at_step(folder / "checkpoints", STEPS)
    assert saved, tails(folder)
    files = ("model.safetensors", "optimizer.state")
    return {f"{name}/{key}": value for name in files for key, value in load_file(saved.folder / name).items()}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [SELF, ANSWERS], ids=["opsd", "sft"])
def test_a_killed_trainer_trains_the_same(tmp_path: Path, tiny_model: Path, options: tuple[str, ...]) -> None:
    calm = run(tmp_path, tiny_model, "calm", options)
    siege = run(tmp_path, tiny_model, "siege", options, kills=(1,))
    one, other = weights(calm), weights(siege)
    assert one.keys() == other.keys()
    assert [name for name in one if not one[name].equal(other[name])] == []
    assert ("distill/divergence" in metrics(calm)[-1]) == (options == SELF)
