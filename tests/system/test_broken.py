"""A run whose environments fail for some rows goes on: their samples are dropped with the reason, others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stress.run import LiveRun
from tests.system.turns import write

BOX = '''
import os


class Box:
    def reset(self, prompt, **row):
        self.number = int(prompt.split()[-1])
        if self.number == 3:
            raise RuntimeError("no board for three")

    def look(self, key: str) -> str:
        """Looks.

        Args:
            key: Any.
        """
        if self.number == 5:
            os._exit(7)
        return key[::-1]

    def get_reward(self):
        return float(self.number)
'''


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_samples_of_broken_environments_are_dropped_with_the_reason_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "box.py").write_text(BOX)
    file = write(
        tmp_path,
        "broken",
        2,
        rollout={"engine": "trace"},
        trace={"tools": ["look"], "mean_length": 15, "step_s": 0.002, "token_s": 0.0001},
        trainer={"engine": "trace"},
        environment={"factory": f"{tmp_path / 'box.py'}:Box", "processes": 1},
        reward={"scorer": "environment"},
    )
    with LiveRun(file) as run:
        assert run.wait(250) == 0, run.tail(20)
    lines = [json.loads(line) for line in run.where.metrics.read_text().splitlines()]
    drops, kept = dict[int, set[str]](), dict[int, list[float | None]]()
    with run.browse() as browse:
        for prompt in browse.ids():
            number = int(json.loads(browse.row(prompt) or "{}")["prompt"].split()[-1])
            drops[number] = set(browse.drops(prompt).values())
            kept[number] = [one.info.earned for one in browse.responses(prompt)]
    for number in (0, 1, 2, 4, 6, 7):
        assert kept[number] == [float(number)] * 4
        assert drops[number] == set()
    assert all("given up after 3 tries" in why and "ended with exit status 7" in why for why in drops.get(5, ()))
    assert 3 not in kept, "nothing was generated for it"
    assert sum(line["rollout/dropped"] for line in lines) == 8 - len(kept.get(5, ())) > 4
    log = run.where.log("broker").read_text()
    assert "given up after 3 tries: environment-0: " in log
    assert "raised RuntimeError: no board for three" in log
    assert "ended with exit status 7" in log
