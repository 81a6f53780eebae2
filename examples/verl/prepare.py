"""Write train.parquet in the format of verl's scripts: data_source, prompt, ability, reward_model, extra_info."""

import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

here = Path(__file__).parent
rows = []
for index, line in enumerate((here / "problems.jsonl").read_text().splitlines()):
    raw = json.loads(line)
    rows.append(
        {
            "data_source": "word_problems",
            "prompt": [{"role": "user", "content": raw["question"] + " End with the number."}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": raw["answer"].rpartition("####")[2].strip()},
            "extra_info": {"split": "train", "index": index, "question": raw["question"]},
        }
    )
parquet.write_table(pyarrow.Table.from_pylist(rows), here / "train.parquet")
print(f"{len(rows)} rows in {here / 'train.parquet'}")
