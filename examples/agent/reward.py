"""The right number in the policy's last turn; the number of turns is a column."""

import re


def reward(completions, answer, environment_turns, **columns):
    """1 for the right number as the last one, and a little for a call: without it, nothing is learned at first."""
    rows = zip(completions, answer, environment_turns, strict=True)
    return [score(text, right, turns) for text, right, turns in rows]


def score(completion, right, turns):
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    numbers = re.findall(r"-?\d+", text.replace(",", ""))
    return float(bool(numbers) and int(numbers[-1]) == right) + 0.1 * (turns > 1)
