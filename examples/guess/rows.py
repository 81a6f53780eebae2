"""Makes train.jsonl: a row for each secret number, after a game that is shown.

python examples/guess/rows.py
"""

import json
from pathlib import Path

RULES = "Guess a number from 1 to 20. Answer with the number alone."
SHOWN = [(10, "higher"), (15, "lower"), (12, "higher"), (13, "right")]


def chat():
    messages = [{"role": "user", "content": RULES}]
    for guess, said in SHOWN:
        messages += [{"role": "assistant", "content": str(guess)}, {"role": "user", "content": said}]
    return [*messages[:-1], {"role": "user", "content": "right. Now guess another number."}]


def main():
    rows = [json.dumps({"prompt": chat(), "secret": secret}) + "\n" for secret in range(1, 21)]
    (Path(__file__).parent / "train.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    main()
