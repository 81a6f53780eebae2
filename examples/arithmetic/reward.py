"""Full marks for the right number and nothing else; a third for the right number among other words."""

import re


def reward(completions, answer, **columns):
    """TRL's signature: lists in, a list out; `answer` is a column of the data."""
    return [grade(text, right) for text, right in zip(completions, answer)]


def grade(text, right):
    if text.strip().rstrip(".") == right:
        return 1.0
    return 0.3 if right in re.findall(r"\d+", text) else 0.0
