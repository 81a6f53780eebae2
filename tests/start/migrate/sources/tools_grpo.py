"""A script of TRL with tools and an environment."""

import operator
from pathlib import Path

import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.search import search as look_up

OPERATIONS = {"plus": operator.add, "times": operator.mul}


def compute(operation: str, left: int, right: int) -> str:
    """Computes one operation.

    Args:
        operation: plus or times.
        left: The first number.
        right: The second number.

    Returns:
        The result.
    """
    return str(OPERATIONS[operation](left, right))


async def later(text: str) -> str:
    """Repeats a text.

    Args:
        text: The text.
    """
    return text


class Maze:
    """Public methods are tools."""

    def reset(self, size, **kwargs):
        self.size = size
        self.at = 0

    def step(self, by: int) -> str:
        """Walks.

        Args:
            by: How far.
        """
        self.at += by
        return str(self.at)

    def get_reward(self):
        return float(self.at >= self.size)


def right(completions, answer, **kwargs):
    return [float(completion[-1]["content"] == each) for completion, each in zip(completions, answer, strict=True)]


trainer = GRPOTrainer(
    model="Qwen/Qwen3-0.6B",
    tools=[compute, later, look_up],
    environment_factory=Maze,
    reward_funcs=right,
    args=GRPOConfig("out", max_tool_calling_iterations=3, max_completion_length=64),
    train_dataset=load_dataset("json", data_files="rows.jsonl", split="train"),
)
trainer.train(torch.device("cpu"), Path("out"))
