"""Supervised training of the small reasoning model on worked solutions: tokenizer, batches, schedule.

The `Recipe` determines everything: two runs on one machine, with the same number of threads, give the same weights.
Imports torch and transformers only when called.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.policy import problems as arithmetic

PAD, EOS = "<pad>", "<eos>"

PIECES = r" ?[A-Za-z]+(?: (?=\d))?|[0-9]| ?[^\sA-Za-z0-9]+(?: (?=\d))?|\s"
"""A word, a digit or a sign is one token; blanks belong to their neighbours, so that numbers are rows of digits."""

POOL = 512
"""Solutions that are sorted by length together: batches of similar lengths waste little padding."""


@dataclass(frozen=True)
class Recipe:
    """Model size and amount of training. The default takes about ten minutes on two cores."""

    hidden: int = 320
    layers: int = 4
    heads: int = 5
    feedforward: int = 896
    tokens: int = 1_900_000  # seen in training, of prompts and responses
    batch: int = 512  # tokens, padding included
    lr: float = 2e-3
    seed: int = 0


OnProgress = Callable[[int, float, float], None]
"""(tokens so far, loss in nats per response token, seconds)."""


def build_tokenizer(seed: int = 0) -> Any:
    """A byte-level tokenizer whose merges are the words of the solutions: any text is read and written exactly.
    Returns a `PreTrainedTokenizerFast` without a beginning-of-sequence token, as Qwen's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(f"tokenizer {seed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    problems = [arithmetic.problem(rng, 1 + index % arithmetic.LONGEST) for index in range(1000)]
    texts = (text for problem in problems for text in (problem.prompt, arithmetic.solution(problem, rng)))
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def build_network(recipe: Recipe, tokenizer: Any) -> Any:
    """An untrained `LlamaForCausalLM` in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.feedforward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=2048,
        initializer_range=0.04,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    network = LlamaForCausalLM(config)
    for layer in network.model.layers:  # each starts as the identity, or noise would drown the embeddings
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return network


def train(network: Any, tokenizer: Any, recipe: Recipe, on_progress: OnProgress = lambda *_: None) -> float:
    """Trains in place. Returns the mean loss of the last tenth in nats per response token, about the entropy."""
    import torch

    weights = list(network.parameters())
    optimizer = torch.optim.AdamW(weights, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    network.train()
    begun, seen = time.perf_counter(), 0
    losses: list[float] = []
    for batch in batches(recipe, tokenizer):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * pace(seen / recipe.tokens)
        inputs_BT, labels_BT = tensors(batch, tokenizer.pad_token_id)
        loss = network(input_ids=inputs_BT, labels=labels_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += sum(len(tokens) for tokens, _ in batch)
        losses.append(loss.item())
        on_progress(seen, losses[-1], time.perf_counter() - begun)
    network.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last)


def pace(done: float) -> float:
    """Factor of the learning rate at this share of the training: a short warm-up, then a cosine decay."""
    warmup = 0.03
    if done < warmup:
        return (done + 0.002) / (warmup + 0.002)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warmup) / (1 - warmup))))


def times_at_most(done: float) -> int:
    """A curriculum from short to long: additions are learned sooner in short solutions."""
    return 3 if done < 0.15 else 10 if done < 0.4 else arithmetic.LONGEST


Example = tuple[list[int], int]
"""(tokens of prompt, response and EOS; how many of them are the prompt's)."""


def batches(recipe: Recipe, tokenizer: Any) -> Iterator[list[Example]]:
    """Batches of similar lengths with at most `recipe.batch` tokens, padding included, up to `recipe.tokens`."""
    rng = random.Random(f"solutions {recipe.seed}")
    seen = 0
    while seen < recipe.tokens:
        pool = sorted(_examples(rng, tokenizer, times_at_most(seen / recipe.tokens)), key=lambda pair: len(pair[0]))
        cut: list[list[Example]] = [[]]
        for example in pool:
            if (len(cut[-1]) + 1) * len(example[0]) > recipe.batch and cut[-1]:
                cut.append([])
            cut[-1].append(example)
        rng.shuffle(cut)
        for batch in cut:
            yield batch
            seen += sum(len(tokens) for tokens, _ in batch)
            if seen >= recipe.tokens:
                return


def _examples(rng: random.Random, tokenizer: Any, longest: int) -> list[Example]:
    problems: list[arithmetic.Problem] = []
    while len(problems) < POOL:
        problem = arithmetic.problem(rng)
        if problem.times <= longest:
            problems.append(problem)
    prompts = tokenizer([problem.prompt for problem in problems]).input_ids
    responses = tokenizer([arithmetic.solution(problem, rng) for problem in problems]).input_ids
    return [(p + r + [tokenizer.eos_token_id], len(p)) for p, r in zip(prompts, responses, strict=True)]


def tensors(batch: list[Example], pad: int) -> tuple[Any, Any]:
    """(inputs_BT, labels_BT), padded on the right; labels are -100 for prompts and padding."""
    import torch

    longest = max(len(tokens) for tokens, _ in batch)
    inputs_BT = torch.full((len(batch), longest), pad)
    labels_BT = torch.full((len(batch), longest), -100)
    for row, (tokens, prompt) in enumerate(batch):
        inputs_BT[row, : len(tokens)] = torch.tensor(tokens)
        labels_BT[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return inputs_BT, labels_BT


def save(network: Any, tokenizer: Any, folder: Path) -> None:
    """Writes a Hugging Face folder, for transformers, vLLM and `model.path`."""
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
