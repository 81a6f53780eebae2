from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.config import Config
from rhymed.errors import DataError
from rhymed.messages import SampleId
from rhymed_workers.engine import Task, sampling_for
from rhymed_workers.trace import TraceBook, TraceEngine


def config(limit: int = 512, slots: int = 64, **trace: object) -> Config:
    return Config.model_validate(
        {"rollout": {"engine": "trace", "max_response_length": limit, "max_concurrency": slots}, "trace": trace}
    )


def task(settings: Config, id: SampleId) -> Task:
    return Task(id, [1, 2, 3], sampling_for(settings, id))


def test_a_response_is_a_function_of_the_sample_alone() -> None:
    id = SampleId(step=3, prompt="00ff00ff00ff00ff", index=2)
    tokens, logprobs, reason = TraceBook(config()).response(id)
    code = (
        "from rhymed.config import Config; from rhymed.messages import SampleId;"
        " from rhymed_workers.trace import TraceBook;"
        " t, p, r = TraceBook(Config()).response(SampleId(step=3, prompt='00ff00ff00ff00ff', index=2));"
        " print(t.tolist(), p.tolist(), r)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == f"{tokens.tolist()} {logprobs.tolist()} {reason}"
    assert len(tokens) == len(logprobs)
    assert (logprobs <= 0).all()


def test_samples_differ_and_lengths_follow_the_configuration() -> None:
    book = TraceBook(config(limit=100_000, mean_length=100, prompt_sigma=0.5, sample_sigma=0.1))
    lengths = [
        [len(book.response(SampleId(step=step, prompt=f"{prompt:016x}", index=0))[0]) for step in range(4)]
        for prompt in range(200)
    ]
    middles = sorted(sum(row) / len(row) for row in lengths)
    assert 80 < middles[100] < 125  # the median prompt
    assert middles[-10] > 1.5 * middles[100]  # prompts differ
    assert all(max(row) < 2 * min(row) for row in lengths)  # a prompt is of one kind in all its steps


def test_length_limit_cuts_and_says_so() -> None:
    book = TraceBook(config(limit=5, mean_length=200))
    tokens, logprobs, reason = book.response(SampleId(step=0, prompt="0" * 16, index=0))
    assert (len(tokens), len(logprobs), reason) == (5, 5, "length")


def test_no_torch_is_imported() -> None:
    heavy = "{'torch', 'vllm', 'transformers'}"
    code = f"import sys, rhymed_workers.trace, rhymed_workers.rollout; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


async def test_engine_runs_batches_and_records_versions() -> None:
    settings = config(limit=40, slots=3, mean_length=30, sample_sigma=0, prompt_sigma=0, step_s=0.001, token_s=0)
    engine = TraceEngine(settings)
    await engine.open()
    try:
        await engine.load(0, Path("unused"))
        ids = [SampleId(step=0, prompt="a" * 16, index=index) for index in range(5)]
        waits = [asyncio.ensure_future(engine.generate(task(settings, id))) for id in ids]
        while not any(count > 2 for count in engine.progress().values()):
            await asyncio.sleep(0.001)
        assert sorted(count > 0 for count in engine.progress().values()) == [False, False, True, True, True]
        await engine.load(1, Path("unused"))
        outputs = await asyncio.gather(*waits)
    finally:
        await engine.close()
    assert engine.progress() == {}
    assert engine.version == 1
    for output in outputs:
        assert sum(count for _, count in output.versions) == len(output.tokens) == 30
        assert output.finish_reason == "stop"
    assert [version for version, _ in outputs[0].versions] == [0, 1]
    assert outputs[4].versions == [(1, 30)]


async def test_cancel_ends_with_what_there_is() -> None:
    settings = config(limit=10_000, slots=1, mean_length=5000, prompt_sigma=0, step_s=0.001, token_s=0)
    engine = TraceEngine(settings)
    await engine.open()
    try:
        running, waiting = (SampleId(step=0, prompt="b" * 16, index=index) for index in range(2))
        tasks = [asyncio.ensure_future(engine.generate(task(settings, id))) for id in (running, waiting)]
        while not engine.progress().get(running):
            await asyncio.sleep(0.001)
        engine.cancel(waiting)
        engine.cancel(running)
        engine.cancel(SampleId(step=9, prompt="c" * 16, index=0))
        first, second = await asyncio.gather(*tasks)
    finally:
        await engine.close()
    assert (first.finish_reason, second.finish_reason) == ("abort", "abort")
    assert 0 < len(first.tokens) < 5000
    assert len(second.tokens) == 0


def test_recorded_responses_are_replayed(tmp_path: Path) -> None:
    rows = [("p" * 16, 0, [1, 2]), ("p" * 16, 0, [3]), ("p" * 16, 4, [4, 5, 6])]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p, "step": s, "tokens": t}) for p, s, t in rows))
    book = TraceBook(config(path=str(file)))

    def tokens(step: int, index: int, prompt: str = "p" * 16) -> list[int]:
        return book.response(SampleId(step=step, prompt=prompt, index=index))[0].tolist()

    assert [tokens(0, 0), tokens(0, 1), tokens(0, 2)] == [[1, 2], [3], [1, 2]]
    assert [tokens(3, 1), tokens(7, 1)] == [[3], [4, 5, 6]]
    with pytest.raises(DataError, match=r"prompt q+ is not in"):
        tokens(0, 0, "q" * 16)


def test_a_damaged_trace_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"prompt": "a", "step": 0, "tokens": [1]}\n{"prompt": "a", "step": 0}\n')
    with pytest.raises(DataError, match=r"trace\.jsonl:2: "):
        TraceBook(config(path=str(file)))
