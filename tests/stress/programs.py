"""Programs that write down each answer before they ask again, and whether a run's samples agree with what they wrote.

A program whose worker ended is started again for its sample, and asks the same again: what it is answered must be
what it was answered before. Reads the store of a run that has ended.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from rhymed_store.browse import Browse, Response

PROGRAM = '''"""Asks one to four times, and writes down each answer."""

import hashlib
import json
import os
import time
import urllib.request
import zlib

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
FOLDER = os.path.dirname(os.path.abspath(__file__))


def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(f"{BASE}/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def note(number, messages, text):
    """In one write, so that a kill leaves a whole line or none."""
    file = os.open(os.path.join(FOLDER, "program.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sample = BASE.split("/sessions/")[1].split("/")[0]
    asked = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
    try:
        os.write(file, (json.dumps([sample, number, asked, text]) + "\\n").encode())
    finally:
        os.close(file)


messages = [{"role": "user", "content": json.loads(os.environ["RHYMED_ROW"])["prompt"]}]
for number in range(4):
    text = ask(messages)
    note(number, messages, text)
    hashed = zlib.crc32(text.encode())
    if hashed % 3 == 0:
        break
    time.sleep(hashed % 100 / 100)  # most of its life: a kill finds programs that were answered
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{hashed % 97}?"}]
'''

Asked = Mapping[str, Mapping[int, list[tuple[str, str]]]]
"""Sample -> number of the call -> (digest of what was asked, answer) of each time."""


def with_programs(folder: Path, workers: int = 3) -> dict[str, dict[str, Any]]:
    """Settings of a run whose samples are such programs."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "program.py"
    file.write_text(PROGRAM)
    return {
        "environment": {"command": f"python '{file}'", "workers": workers, "max_turns": 5, "sessions": 8},
        "trace": {"mean_length": 20, "step_s": 0.002, "token_s": 0.0001},
    }


@dataclass
class Told:
    """What the programs wrote down, and what samples say. `wrong`: one sentence per disagreement."""

    samples: int = 0  # in the store, complete
    turns: int = 0
    again: int = 0  # calls that a second program of a sample made again
    wrong: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {**vars(self)}

    def lines(self) -> list[str]:
        return [
            f"{self.samples:,} complete samples of {self.turns:,} turns; {self.again} calls were made again by the"
            " next program of their sample, and answered as before"
        ]


def judge(folder: Path, browse: Browse) -> Told:
    """`folder`: of the program."""
    asked = read(folder / "program.log")
    found = Told(again=again(asked))
    for sample, calls in asked.items():
        for number, times in calls.items():
            if len(set(times)) > 1:
                found.wrong.append(f"call {number} of {sample} was answered in {len(set(times))} ways")
    for prompt in browse.ids():
        for response in browse.responses(prompt):
            _check(response, asked, found)
    found.wrong += [] if found.turns else ["no program was answered"]
    return found


def read(file: Path) -> Asked:
    asked: dict[str, dict[int, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    text = file.read_text() if file.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():  # a line may be being written
        sample, number, digest, answer = json.loads(line)
        asked[sample][number].append((digest, answer))
    return asked


def again(asked: Asked) -> int:
    """Calls that a second program of a sample made again."""
    return sum(len(times) - 1 for calls in asked.values() for times in calls.values())


def _check(response: Response, asked: Asked, found: Told) -> None:
    turns, id = _turns(response), response.info.id
    found.samples += 1
    found.turns += len(turns)
    reported = asked.get(f"{id.step}-{id.prompt}-{id.index}", {})
    texts = [reported[number][0][1] for number in sorted(reported)]
    if turns != texts:
        place = next((place for place, pair in enumerate(zip(turns, texts, strict=False)) if pair[0] != pair[1]), -1)
        what = f"and turn {place} differs" if place >= 0 else "the others are equal"
        found.wrong.append(f"sample {id} has {len(turns)} turns, its program was answered {len(texts)} times, {what}")


def _turns(response: Response) -> list[str]:
    """What the policy wrote, as its program read it: the trace engine's text is the ids of its tokens."""
    runs = response.info.turns or [response.info.length]
    ends = list(accumulate(runs))
    parts = [response.tokens[end - size : end] for end, size in zip(ends, runs, strict=True)]
    return [" ".join(map(str, part.tolist())) for part in parts[::2]]
