"""`python -m benchmarks model`: trains the small reasoning model that other benchmarks use, and writes it with its
prompts.

`runs/models/arithmetic` becomes a Hugging Face folder with `train.jsonl` and `held_out.jsonl` next to the weights.
Entropy, accuracy and lengths are measured and printed, to compare with larger models.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.policy import training
from benchmarks.policy.problems import Problem, problem
from rhymed.core import atomic
from rhymed.start.bench.spec import OUT, RESPONSE

PROMPTS = {"train": 128, "held_out": 64}
THREADS = 2
"""Fixed, because another order of sums gives other weights."""

QUICK = training.Recipe(hidden=64, layers=2, heads=2, feedforward=128, tokens=50_000)
"""To try the command; the model's responses are useless."""


def run(quick: bool, out: Path | None = None) -> dict[str, Any]:
    """Trains, measures and writes the model. An older one is replaced when the new one is complete."""
    import torch

    torch.set_num_threads(THREADS)
    folder = out or (OUT.with_name("arithmetic-quick") if quick else OUT)
    recipe = QUICK if quick else training.Recipe()
    tokenizer = training.build_tokenizer(recipe.seed)
    network = training.build_network(recipe, tokenizer)
    progress = _Progress(recipe.tokens)
    loss = training.train(network, tokenizer, recipe, progress)
    result: dict[str, Any] = {
        "folder": str(folder),
        "parameters": sum(weights.numel() for weights in network.parameters()),
        "tokens": recipe.tokens,
        "train_s": progress.seconds,
        "loss": loss,
    }
    write(folder, network, tokenizer, recipe.seed)
    problems = draw("held_out", recipe.seed)
    result |= measure(network, tokenizer, problems[:8] if quick else problems, 64 if quick else RESPONSE)
    _print(result)
    return result


def draw(name: str, seed: int = 0) -> list[Problem]:
    """The problems of `train` or `held_out`; no problem occurs twice."""
    problems: dict[Problem, str] = {}
    for part, count in PROMPTS.items():
        rng = random.Random(f"{part} {seed}")
        wanted = len(problems) + count
        while len(problems) < wanted:
            problems.setdefault(problem(rng), part)
    return [drawn for drawn, part in problems.items() if part == name]


def write(folder: Path, network: Any, tokenizer: Any, seed: int) -> None:
    """A Hugging Face folder with the problems next to the weights."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic.new_folder(folder) as made:
        training.save(network, tokenizer, made)
        for part in PROMPTS:
            rows = [
                {"prompt": problem.prompt, "answer": problem.answer, "times": problem.times}
                for problem in draw(part, seed)
            ]
            (made / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        made.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def measure(network: Any, tokenizer: Any, problems: list[Problem], longest: int) -> dict[str, Any]:
    """One response per problem at temperature 1: entropy in nats per token, accuracy, lengths in tokens."""
    import numpy as np

    responses = sample(network, tokenizer, [problem.prompt for problem in problems], longest)
    ended = [tokens[-1] == tokenizer.eos_token_id for tokens in responses]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    right = [end and text.endswith(problem.answer) for end, text, problem in zip(ended, texts, problems, strict=True)]
    entropies = [
        entropy(network, tokenizer(problem.prompt).input_ids, tokens)
        for problem, tokens in zip(problems, responses, strict=True)
    ]
    lengths = [len(tokens) for tokens in responses]
    return {
        "entropy": float(np.concatenate(entropies).mean()),
        "right": float(np.mean(right)),
        "ended": float(np.mean(ended)),
        "length": dict(
            zip(("median", "p90", "p99", "most"), np.quantile(lengths, (0.5, 0.9, 0.99, 1)).tolist(), strict=True)
        ),
    }


def sample(network: Any, tokenizer: Any, prompts: list[str], longest: int) -> list[list[int]]:
    """Response tokens at temperature 1, to EOS (included) or `longest` tokens."""
    import torch

    torch.manual_seed(0)
    read = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        written = network.generate(
            input_ids=read.input_ids,
            attention_mask=read.attention_mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=longest,
        )
    responses = [row.tolist() for row in written[:, read.input_ids.shape[1] :]]
    end = tokenizer.eos_token_id
    return [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in responses]


def entropy(network: Any, prompt: list[int], response: list[int]) -> Any:
    """Of the distribution each response token was drawn from, in nats: float32 array, (response tokens,)."""
    import torch

    with torch.no_grad():
        logits_NV = network(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logprobs_NV = logits_NV.log_softmax(-1)
    return -(logprobs_NV.exp() * logprobs_NV).sum(-1).numpy()


class _Progress:
    def __init__(self, tokens: int) -> None:
        self.seconds = 0.0
        self._tokens = tokens
        self._losses: list[float] = []
        self._printed_s = 0.0

    def __call__(self, seen: int, loss: float, seconds: float) -> None:
        self.seconds = seconds
        self._losses.append(loss)
        if seconds - self._printed_s < 30 and seen < self._tokens:
            return
        self._printed_s = seconds
        mean = sum(self._losses) / len(self._losses)
        left = seconds / seen * max(0, self._tokens - seen) / 60
        print(
            f"{seen / self._tokens:4.0%}  loss {mean:.3f}  {seen / seconds:.0f} tokens/s  {left:.0f} min left",
            flush=True,
        )
        self._losses.clear()


def _print(result: dict[str, Any]) -> None:
    length = result["length"]
    print(
        f"{result['parameters'] / 1e6:.1f} M parameters, {result['tokens'] / 1e6:.1f} M tokens"
        f" in {result['train_s'] / 60:.1f} min, loss {result['loss']:.3f}"
    )
    print(f"entropy {result['entropy']:.3f} nats per token, {result['right']:.0%} right, {result['ended']:.0%} ended")
    print("tokens per response: " + ", ".join(f"{name} {tokens:.0f}" for name, tokens in length.items()))
    print(result["folder"])
