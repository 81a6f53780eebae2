"""Makes train.jsonl and held_out.jsonl of examples/gsm8k: SkyRL-Gym's environments want `reward_spec` in a row.

python examples/skyrl/rows.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def row(question, answer):
    return {
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "env_class": "gsm8k_multi_turn",
        "reward_spec": {"method": "rule", "ground_truth": answer.partition("####")[2].strip()},
    }


def main():
    for source, name in (("train", "train"), ("test", "held_out")):
        lines = (HERE.parent / "gsm8k" / f"{source}.jsonl").read_text().splitlines()
        rows = [json.dumps(row(**json.loads(line))) + "\n" for line in lines]
        (HERE / f"{name}.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    main()
