"""Tools and environments that a program passes as functions and classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import rhymed
from rhymed.core.errors import ConfigError, EnvironmentFailed
from rhymed.start.api.inputs import write_functions
from tests.start.api.test_training import WITHOUT_MODEL

STEPS = {"up": 1, "down": -1}
Way = Literal["up", "down"]


def walk(way: Way, by: int = 1) -> str:
    """Walks.

    Args:
        way: Where to.
        by: How far.
    """
    return str(STEPS[way] * by)


async def look(at: list[str]) -> str:
    """Looks.

    Args:
        at: What.
    """
    return ", ".join(at)


class Turns:
    """Ends after as many turns as the row says, and gives their number."""

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        self.left = int(extras["answer"]) % 3 + 1
        self.seen = 0

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        self.seen += 1
        done = self.seen == self.left
        observations = [] if done else [{"role": "user", "content": "more"}]
        return {"observations": observations, "reward": float(done) * self.seen, "done": done}


def copied(tmp_path: Path, *tools: Any) -> tuple[Path, str]:
    """As if they were of a notebook."""
    for tool in tools:
        tool.__module__ = "__main__"
        for name in {*STEPS, "STEPS", "Way", "Any", "Literal"}:
            if name in globals():
                setattr(sys.modules["__main__"], name, globals()[name])
    try:
        file, _, names = write_functions(tools, tmp_path, "tools", EnvironmentFailed).rpartition(":")
    finally:
        for tool in tools:
            tool.__module__ = __name__
    return Path(file), names


def test_copies_of_tools_have_what_their_annotations_name(tmp_path: Path) -> None:
    file, names = copied(tmp_path, walk, look)
    assert (file.parent, names) == (tmp_path, "walk,look")
    code = (
        "import tools, transformers.utils.chat_template_utils as t; print(tools.walk('down', 3),"
        " t.get_json_schema(tools.walk)['function']['parameters']['properties']['way'],"
        " t.get_json_schema(tools.look)['function']['name'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("-3 {")
    assert "'enum': ['up', 'down']" in done.stdout
    assert done.stdout.endswith("look\n")


def test_what_can_be_imported_stays_where_it_is(tmp_path: Path) -> None:
    assert write_functions([walk, look], tmp_path, "tools", EnvironmentFailed) == f"{__name__}:walk,look"
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_copied_is_reported_in_words(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"tools: .* is no function with a name"):
        write_functions([lambda text: text], tmp_path, "tools", EnvironmentFailed)
    with pytest.raises(ConfigError, match=r"tools: \[3\]: pass functions"):
        rhymed.train(dataset=[{"prompt": "a"}], tools=[3], progress=False, **WITHOUT_MODEL)  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_class_of_environments_trains(tmp_path: Path, tiny_model: Path) -> None:
    rows = [{"prompt": f"count to {number}", "answer": str(number)} for number in range(8)]
    settings = {
        **WITHOUT_MODEL,
        "rollout": {**WITHOUT_MODEL["rollout"], "max_response_length": 64},  # type: ignore[dict-item]
        "trace": {"vocabulary": 258, "mean_length": 4, "prompt_sigma": 0.1, "sample_sigma": 0.1, "step_s": 0.005},
        "run": {"folder": str(tmp_path / "runs"), "name": "turns"},
        "trainer": {"engine": "trace", "steps": 2},
    }
    run = rhymed.train(
        model=str(tiny_model),
        dataset=rows,
        environment_factory=Turns,
        reward="environment",
        progress=False,
        **settings,
    )
    samples = run.samples()
    assert (run.state, len(samples)) == ("finished", 16)
    assert {row["reward"] for row in samples} <= {1.0, 2.0, 3.0}
    wanted = {row["prompt"]: int(row["answer"]) % 3 + 1 for row in rows}
    assert all(row["reward"] == wanted[row["prompt"]] for row in samples)
