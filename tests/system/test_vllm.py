"""The program of docs/vllm.md as it is written, in vLLM's own processes; only model and sizes are small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed_store.browse import Browse
from rhymed_store.columns import ROUNDS
from rhymed_store.database.tables import Reader
from tests.packages import needs

pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"
SMALL = {
    r'model="HuggingFaceTB.*?",': 'model=MODEL, dtype="float32", max_model_len=256, kv_cache_memory_bytes=1 << 23, '
    "enforce_eager=True,",
    r"SamplingParams\(": "SamplingParams(seed=1, ignore_eos=True, ",  # with a seed each epoch says the same
    r'"store": "history/"': '"store": "history/", "budget": "fixed"',  # the default one knows fast and slow machines
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_WAIT_POLICY": "passive",
}
TOLD = re.compile(r"drafts: ([\d.]+) tokens per step and request, (\d+)% of [\d,]+ drafted tokens accepted")


@pytest.fixture
def program(tmp_path: Path, tiny_model: Path) -> Path:
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    text = block[1]
    for pattern, instead in SMALL.items():
        text, count = re.subn(pattern, instead, text)
        assert count == 1, f"the page has no {pattern}"
    file = tmp_path / "program.py"
    file.write_text(f"MODEL = {str(tiny_model)!r}\n{text}")
    return file


def run(program: Path) -> tuple[str, str]:
    """What it printed, and what vLLM logged."""
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, cwd=program.parent, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=280
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert "rhymed" not in "".join(re.findall(r".*(?:WARNING|ERROR).*", log)), log
    return "".join(re.findall(r"^[01] \[.*\n", done.stdout, re.MULTILINE)), log


@pytest.mark.thorough
def test_the_second_program_is_drafted_from_the_first(program: Path) -> None:
    first, log = run(program)
    half = TOLD.search(log)
    assert half is not None, log
    second, log = run(program)
    whole = TOLD.search(log)
    assert whole is not None, log
    assert first.count("\n") == 4
    assert first == second, "drafts and processes change no token"
    assert float(whole[1]) > 1.2 * float(half[1]) > 1.2 * 1.2, "the first epoch of the first program had no history"
    with Reader(program.parent / "history") as reader:
        browse = Browse(reader)
        for prompt in browse.ids():
            rounds = [found.sample.step - ROUNDS for found in browse.headers(prompt)]
            assert sorted(rounds) == sorted([0, 1, 2, 3] * 4)
    shown = subprocess.run(
        [sys.executable, "-m", "rhymed", "history", "stats", "history"],
        cwd=program.parent,
        capture_output=True,
        text=True,
    )
    assert "2 prompts, 32 samples" in shown.stdout
    assert "round 4" in shown.stdout
