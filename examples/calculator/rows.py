"""Makes train.jsonl and held_out.jsonl: a multiplication after two that are shown with their calls.

python examples/calculator/rows.py
"""

import json
import random
from pathlib import Path

HERE = Path(__file__).parent


def call(left, right):
    arguments = json.dumps({"name": "calculate", "arguments": {"expression": f"{left} * {right}"}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


def shown(left, right):
    return [
        {"role": "user", "content": f"What is {left} * {right}?"},
        {"role": "assistant", "content": call(left, right)},
        {"role": "tool", "content": f"{left * right}"},
        {"role": "assistant", "content": f"{left * right}"},
    ]


def row(left, right):
    asked = {"role": "user", "content": f"What is {left} * {right}?"}
    return {"prompt": [*shown(12, 34), *shown(205, 71), asked], "answer": left * right}


def main():
    draw = random.Random(0)
    for name, count in (("train", 64), ("held_out", 32)):
        rows = [row(draw.randint(120, 999), draw.randint(12, 99)) for _ in range(count)]
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
