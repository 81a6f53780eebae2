"""1 for the right number alone, a little less for every other character, 0 for a wrong number."""

import re


def reward(completions, answer, **columns):
    """TRL's signature: lists in, a list out; `answer` is a column of the data."""
    return [grade(text.strip(), right) for text, right in zip(completions, answer)]


def grade(text, right):
    numbers = re.findall(r"\d+", text)
    if not numbers or numbers[-1] != right:
        return 0.0
    return max(0.1, 1.0 - 0.03 * (len(text) - len(right)))
