"""`python -m benchmarks grades`: does a run learn in each of the trainer's three grades, whatever the architecture?

For each architecture a tiny model is made and trained on the quickstart's sums until it gives the right answer with
a probability of `RIGHT`. Then `configs/quickstart.toml` trains it, with another model, learning rate and number of
epochs only. A model or run that is finished in the folder is not made again.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.architectures import ARCHITECTURES, SIZES
from benchmarks.child import train
from benchmarks.policy.training import EOS, PAD, PIECES, tensors
from rhymed.core import atomic
from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.run.folder import layout_of_folder, read_metrics
from rhymed.core.run.metrics import totals

CONFIG = Path("configs/quickstart.toml")
OUT = Path("runs/grades")
GRADES = {"llama": "packed", "gemma2": "rows", "gpt_oss": "rows", "lfm2": "alone", "falcon_h1": "alone"}
DEFAULT = "llama", "gemma2", "lfm2"
"""One of each grade."""
SIZE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
OTHER: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},  # published: 3 allows no certainty
    "lfm2": {"conv_dim": 128, "block_dim": 128},
    "falcon_h1": {"mamba_d_ssm": 256, "mamba_n_heads": 8},
}
RIGHT = 0.2  # about as often as the quickstart's model at first
MEAN_OF = 5  # updates
MOST_UPDATES = 2000
ROWS = 512
BATCH = 64  # sums
PRETRAIN_LR = 2e-3
WARMUP = 20  # updates
LR = 2e-4
EPOCHS = 21  # of the quickstart's 32 sums


def run(quick: bool, names: Sequence[str] | None = None, out: Path = OUT) -> dict[str, Any]:
    """`names`: some of `GRADES`. `out`: a folder for models and runs."""
    rows = []
    for name in names or (DEFAULT[1:2] if quick else DEFAULT):
        done = out / f"{name}{'-quick' if quick else ''}.json"
        if not done.is_file():
            done.write_text(json.dumps(_learned(name, out, quick=quick)) + "\n")
        rows.append(json.loads(done.read_text()))
        print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows}


def _learned(name: str, out: Path, *, quick: bool) -> dict[str, Any]:
    model, folder = out / f"{name}-model", out / f"{name}{'-quick' if quick else ''}"
    row: dict[str, Any] = {"model": name, "grade": GRADES[name]}
    if not model.is_dir():
        row["updates"] = make(name, model)
    started = time.monotonic()
    settings = [f"model.path={model}", f"trainer.lr={LR}", f"trainer.epochs={EPOCHS}"]
    settings += ["run.report=false", "net.http="]
    train(folder, CONFIG, [*settings, *(["trainer.steps=2"] if quick else [])])
    metrics = read_metrics(layout_of_folder(folder))
    sums = totals(metrics, time.monotonic() - started)
    row |= {key: sums[key] for key in ("reward_first", "reward_last", "mismatch_kl", "steps", "elapsed_s")}
    return row | {"rewards": [step.get("reward/mean") for step in metrics]}


def make(name: str, folder: Path) -> int:
    """The pretrained model as a Hugging Face folder. Returns the number of updates."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoConfig, AutoModelForCausalLM

    config = load_config(CONFIG)
    tokenizer, rows = _rows(config)
    torch.set_num_threads(1)  # it is small, and other numbers of threads make another model
    torch.manual_seed(0)
    changes = {
        **SIZES,
        **ARCHITECTURES[name],
        **SIZE,
        **OTHER.get(name, {}),
        "vocab_size": -(-len(tokenizer) // 64) * 64,
    }
    changes |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **changes)).float().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=PRETRAIN_LR, betas=(0.9, 0.98), weight_decay=0.01)
    draw, right = random.Random(0), list[float]()
    for update in range(MOST_UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = PRETRAIN_LR * min(1.0, (update + 1) / WARMUP)
        batch = [(prompt + answer, len(prompt)) for prompt, answer in draw.sample(rows, BATCH)]
        inputs_BT, labels_BT = tensors(batch, tokenizer.pad_token_id)
        logits = network(input_ids=inputs_BT, use_cache=False).logits[:, :-1].transpose(1, 2)
        loss_BT = cross_entropy(logits, labels_BT[:, 1:], reduction="none")
        (loss_BT.sum() / (labels_BT != -100).sum()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        right.append(float((-loss_BT.detach().sum(1)).exp().mean()))
        enough = sum(right[-MEAN_OF:]) / MEAN_OF > RIGHT
        if enough or (update + 1) % 50 == 0:
            print(f"{name}: {update + 1} updates, right with {right[-1]:.2f}", file=sys.stderr, flush=True)
        if enough:
            break
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic.new_folder(folder) as made:
        network.save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.chmod(0o755)
    return len(right)


def _rows(config: Config) -> tuple[Any, list[tuple[list[int], list[int]]]]:
    """A tokenizer, and (prompt, answer and its end) of sums as tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from rhymed.inputs.gym import read_gym
    from rhymed.inputs.render import Renderer

    data = config.data.model_copy(update={"size": ROWS})
    found = list(read_gym(data, None))
    plain = Renderer(data, config.rollout.max_prompt_length)
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=[PAD, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((plain.text(where, row) for where, row in found), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )
    render = Renderer(data, config.rollout.max_prompt_length, fast)
    answers = fast([str(row["answer"]) for _, row in found]).input_ids
    prompts = [render(where, row) for where, row in found]
    return fast, [(prompt, [*said, fast.eos_token_id]) for prompt, said in zip(prompts, answers, strict=True)]
