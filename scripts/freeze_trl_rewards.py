"""Freeze what TRL's own loop of calls gives to reward functions, for `tests/workers/environment/test_trl.py`.

    pip install --no-deps --target /tmp/trl trl==1.16.0
    PYTHONPATH=/tmp/trl:. python scripts/freeze_trl_rewards.py tests/data/rewards_trl.json

Each sample is a list of turns that a policy would write. TRL's trainer gets their tokens in place of a model's, reads
and makes the calls, and calls the reward functions: all of this is its own code. The template of the chat is its
Qwen 3.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, __version__
from trl.chat_template_utils import qwen3_chat_template

from tests.workers.environment import agent

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={text: id for id, text in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    whole = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    whole.chat_template = qwen3_chat_template
    return whole


def play(samples: list[dict[str, Any]]) -> tuple[list[Any], dict[str, list[float]]]:
    """The conversation of each sample, and its rewards by function, as TRL has them."""
    seen: list[Any] = []
    found: dict[str, list[float]] = {}

    def recorded(function: Callable[..., list[float]]) -> Callable[..., list[float]]:
        def call(completions: Any, **columns: Any) -> list[float]:
            seen[:] = completions
            found[function.__name__] = function(completions=completions, **columns)
            return found[function.__name__]

        call.__name__ = function.__name__
        return call

    reader = tokenizer()
    vocabulary = len(reader) + -len(reader) % 8
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096)
    )  # fmt: skip
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}?"}], "answer": each["answer"]} for n, each in enumerate(samples)
    ]
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=len(samples), num_generations=len(samples),
            max_completion_length=3000, report_to=[], bf16=False, use_cpu=True, max_tool_calling_iterations=2,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=reader,
            tools=[agent.look_up], reward_funcs=[recorded(each) for each in agent.REWARDS],
        )  # fmt: skip
        written = [list(each["turns"]) for each in samples]
        places = {f"{n}?": n for n in range(len(samples))}

        def turn(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
            asked = [places[reader.decode(ids).split("user\n")[1].split("<|im_end|>")[0]] for ids in prompt_ids]
            return [reader(written[n].pop(0) + SPECIAL[2]).input_ids for n in asked], None

        trainer._generate_single_turn = turn
        trainer._generate_and_score_completions(rows)
    return seen, found


def main(path: Path) -> None:
    samples = agent.SAMPLES
    conversations, rewards = play(samples)
    frozen = [
        each | {"messages": messages, "rewards": {name: values[n] for name, values in rewards.items()}}
        for n, (each, messages) in enumerate(zip(samples, conversations, strict=True))
    ]
    path.write_text(json.dumps({"trl": __version__, "samples": frozen}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
