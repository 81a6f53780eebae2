"""Makes train.jsonl and held_out.jsonl: sums after two that are shown, in the answers' format of GSM8K.

python examples/skyrl/rows.py

The questions of GSM8K themselves are too hard for a model of 135 million parameters: hardly any answer has a reward.
For a larger one make rows of these: `ground_truth` is what follows "####" in an answer.
"""

import json
import random
from pathlib import Path

HERE = Path(__file__).parent


def asked(left, right):
    return {"role": "user", "content": f"What is {left} + {right}?"}


def shown(left, right):
    return [
        asked(left, right),
        {"role": "assistant", "content": f"{left} + {right} = {left + right}\n#### {left + right}"},
    ]


def row(left, right):
    return {
        "prompt": [*shown(23, 14), *shown(8, 31), asked(left, right)],
        "env_class": "gsm8k_multi_turn",
        "reward_spec": {"method": "rule", "ground_truth": str(left + right)},
    }


def main():
    draw = random.Random(0)
    for name, count in (("train", 64), ("held_out", 32)):
        rows = [row(draw.randint(5, 60), draw.randint(5, 39)) for _ in range(count)]
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
