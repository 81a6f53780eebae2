"""Runs TRL's GRPOTrainer on a job of `benchmarks.peers.tasks`, in TRL's environment: `python trl_run.py JOB OUT`.

The reward is that of rhymed's scorers, called as TRL calls a function. A step is timed from before its responses are
generated to the end of the optimizer's update.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(job: Path, out: Path) -> None:
    import torch
    import transformers
    import trl

    asked = json.loads(job.read_text())
    steps: list[dict[str, float]] = []
    trainer_of(asked, out.parent / "trl", clock(steps)).train()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    out.write_text(json.dumps({"steps": steps, "versions": versions, "threads": torch.get_num_threads()}))


def clock(steps: list[dict[str, float]]) -> Any:
    """A callback that appends seconds, reward and mean length of every step."""
    from transformers import TrainerCallback

    began = 0.0

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal began
            began = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.append({"seconds": time.monotonic() - began})

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "reward" in logs and steps:
                steps[-1] |= {"reward": float(logs["reward"]), "length": float(logs["completions/mean_length"])}

    return Clock()


def trainer_of(asked: dict[str, Any], folder: Path, callback: Any) -> Any:
    """`folder`: for what TRL writes."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = asked["rows"]
    options = trl.GRPOConfig(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **asked["arguments"],
    )
    return trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(asked["model"], padding_side="left"),
        reward_funcs=[reward_of(asked["config"], rows)],
        args=options,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"], "row": at} for at, row in enumerate(rows)]),
        callbacks=[callback],
    )


def reward_of(tree: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    """A function with TRL's parameters."""
    from rhymed.core.config import Config
    from rhymed_workers.reward.scorers.load import load_scorers

    config = Config.model_validate(tree)
    scorers, weights = load_scorers(config), {scorer.label: scorer.weight for scorer in config.reward.all}

    def reward(completions: Any, row: Any, completion_ids: Any, **_: Any) -> list[float]:
        return [
            total(one, rows[number], ids) for one, number, ids in zip(completions, row, completion_ids, strict=True)
        ]

    def total(completion: Any, row: dict[str, Any], ids: list[int]) -> float:
        text = completion if isinstance(completion, str) else completion[0]["content"]
        results = {label: score(text, row, ids) for label, score in scorers.items()}
        return sum(weights[label] * (found.reward or 0.0) for label, found in results.items() if found)

    return reward


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
