"""Compares two versions of the trainer bit by bit, on the stored samples of real steps.

    python -m scripts.train_bits record runs/quickstart samples.npz --steps 10
    python -m scripts.train_bits train samples.npz new.safetensors
    PYTHONPATH=... python scripts/train_bits.py train samples.npz old.safetensors    # in another version's tree
    python -m scripts.train_bits compare old.safetensors new.safetensors

`train --padded` computes hidden states in rows with padding and a mask of T x T, the layout that others use: what is
left of a difference then does not come from the layout. Engine log-probs are taken as equal to the trainer's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np


def record(run: Path, out: Path, steps: int) -> None:
    from rhymed.records.history.folder import open_folder

    columns: dict[str, list[Any]] = {name: [] for name in ("step", "prompt", "index", "reward", "given", "tokens")}
    with open_folder(run) as folder:
        for prompt in folder.browse.ids():
            for found in folder.browse.responses(prompt):
                if 0 <= found.info.id.step < steps and found.state == "trained":
                    values = (found.info.id.step, prompt, found.info.id.index, found.info.reward)
                    for name, value in zip(columns, (*values, found.prompt_tokens, found.tokens), strict=True):
                        columns[name].append(value)
    ragged = {name: columns.pop(name) for name in ("given", "tokens")}
    arrays = {name: np.concatenate(parts) for name, parts in ragged.items()}
    lengths = {f"{name}_lengths": [len(part) for part in parts] for name, parts in ragged.items()}
    np.savez(out, **{name: np.array(values) for name, values in columns.items()}, **arrays, **lengths)
    print(f"{len(columns['step'])} samples of {len(set(columns['step']))} steps")


def read(file: Path) -> dict[int, list[Any]]:
    """Samples of every step, in the order of their ids."""
    from rhymed.core.messages import SampleId, SampleInfo
    from rhymed_store.client import StoredSample

    data = np.load(file)
    given, tokens = (np.split(data[n], np.cumsum(data[f"{n}_lengths"])[:-1]) for n in ("given", "tokens"))
    steps: dict[int, list[Any]] = {}
    for number in np.lexsort((data["index"], data["prompt"], data["step"])):
        step, count = int(data["step"][number]), len(tokens[number])
        info = SampleInfo(
            id=SampleId(step, str(data["prompt"][number]), int(data["index"][number])),
            prompt_length=len(given[number]),
            length=count,
            finish_reason="stop",
            versions=[(step, count)],
            reward=float(data["reward"][number]),
        )
        logprobs = np.full(count, np.nan, np.float32)
        steps.setdefault(step, []).append(StoredSample(info, tokens[number], logprobs, given[number]))
    return steps


def train(samples: Path, out: Path, config: Path, *, padded: bool) -> None:
    import torch
    from safetensors.torch import save_file

    from rhymed.core.config.load import load_config
    from rhymed_workers.trainer.learner import TorchLearner

    if padded:
        from rhymed_workers.trainer.policy import policy

        policy.hidden_states = padded_states
    learner = TorchLearner.restore(load_config(config), None)
    for step, given in sorted(read(samples).items()):
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        metrics = learner.train(given)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wall, loss = time.perf_counter() - begun, metrics["actor/loss"]
        print(f"step {step}: loss {loss:.9f}, {wall:.2f} s, {cpu:.2f} s of processors, {os.getloadavg()[0]:.1f} load")
    model = learner.policy.model
    save_file({name: tensor.detach().clone() for name, tensor in model.named_parameters()}, out)
    print(f"{torch.get_num_threads()} threads")


def padded_states(model: Any, batch: Any, dtype: Any) -> Any:
    import torch

    model.set_attn_implementation("sdpa")
    width = max(bound[-1] - bound[0] for bound in batch.bounds)
    tokens_BT, positions_BT = torch.zeros(2, len(batch.bounds), width, dtype=torch.int64)
    segments_BT = torch.full_like(tokens_BT, -1)
    place = torch.empty(batch.tokens, dtype=torch.int64)
    for line, bound in enumerate(batch.bounds):
        start, end = bound[0], bound[-1]
        tokens_BT[line, : end - start] = torch.from_numpy(batch.tokens_T[start:end])
        positions_BT[line, : end - start] = torch.from_numpy(batch.positions_T[start:end])
        place[start:end] = line * width + torch.arange(end - start)
        for segment, (first, last) in enumerate(itertools.pairwise(bound)):
            segments_BT[line, first - start : last - start] = segment
    key, query = segments_BT[:, None, :], segments_BT[:, :, None]
    mask = ((key == 0) | (key == query)).tril().unsqueeze(1)
    states = model.base_model(
        input_ids=tokens_BT, position_ids=positions_BT, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return states.flatten(0, 1).index_select(0, place[torch.from_numpy(batch.predictor_N)])


def compare(one: Path, other: Path) -> None:
    from safetensors.torch import load_file

    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    equal = sum(bool((first[name] == second[name]).all()) for name in first)
    largest = max(float((first[name] - second[name]).abs().max()) for name in first)
    share = sum(int((first[n] != second[n]).sum()) for n in first) / sum(t.numel() for t in first.values())
    print(f"{equal} of {len(first)} tensors are equal; {share:.2%} of the weights differ, by at most {largest:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "train", "compare"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument("--padded", action="store_true")
    given = parser.parse_args()
    if given.verb == "record":
        record(given.source, given.target, given.steps)
    elif given.verb == "train":
        train(given.source, given.target, given.config, padded=given.padded)
    else:
        compare(given.source, given.target)


if __name__ == "__main__":
    main()
