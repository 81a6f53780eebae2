"""A real engine on a tiny model with random weights, against a forward pass by transformers in float32."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio

from rhymed.core.config import Config
from rhymed.core.errors import DataError, EngineError
from rhymed.core.messages import SampleId
from rhymed.histospec.drafts.yields import accepted
from rhymed_workers.engines.base import Output, Sampling, Task, sampling_for
from rhymed_workers.engines.client import Labels, watch
from tests.packages import needs

torch = pytest.importorskip("torch")

pytestmark = [
    needs("vllm"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own
]

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47]
EOS = 1


def config(model: Path, **rollout: Any) -> Config:
    rollout = {"max_prompt_length": 64, "max_response_length": 160, "max_concurrency": 16, **rollout}
    rollout.setdefault("kv_cache_gib", 0.25)
    return Config.model_validate({"model": {"path": str(model), "dtype": "float32"}, "rollout": rollout})


@pytest.fixture(scope="module")
def versions(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weight files of three versions: the model's own, and two that are far from it."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("versions")
    base = load_file(tiny_model / "model.safetensors")
    paths = []
    for version in range(3):
        generator = torch.Generator().manual_seed(version)
        noise = 0.0 if version == 0 else 0.1
        moved = {n: t + noise * torch.randn(t.shape, generator=generator) for n, t in base.items()}
        paths.append(folder / f"v{version}.safetensors")
        save_file(moved, paths[-1])
    return paths


@contextlib.asynccontextmanager
async def opened(model: Path, **rollout: Any) -> AsyncIterator[Any]:
    from rhymed_workers.engines.vllm import VllmEngine

    before = dict(os.environ)  # vLLM's processes inherit what the engine sets there; those of other tests must not
    engine = VllmEngine(config(model, **rollout), model)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()
        os.environ.clear()
        os.environ.update(before)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model: Path) -> AsyncIterator[Any]:
    async with opened(tiny_model, temperature=0.7, top_k=50, top_p=0.9) as engine:
        yield engine


def sampling_of(config: Config, id: SampleId) -> Sampling:
    return sampling_for(config.rollout, config.eval, config.run.seed, id)


def task(
    engine: Any, index: int, *, step: int = 0, prompt: list[int] | None = None, carried: Sequence[int] = ()
) -> Task:
    id = SampleId(step=step, prompt="0123456789abcdef", index=index)
    return Task(id, prompt or PROMPT, sampling_of(engine._config, id), carried)


def expected(model: Path, weights: Path, output: Output, rollout: Any, start: int = 0) -> np.ndarray:
    """Log-probs of the output's tokens from `start` on under the processed distribution of these weights."""
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.load_state_dict(load_file(weights), strict=False)
    tokens = torch.tensor([*PROMPT, *output.tokens.tolist()])
    with torch.no_grad():
        logits = network(tokens[None]).logits[0, len(PROMPT) - 1 : -1] / rollout.temperature
    top = logits.topk(rollout.top_k).values[:, -1:]
    logits = logits.masked_fill(logits < top, -torch.inf)
    ordered, order = logits.sort(dim=-1)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - rollout.top_p
    outside[:, -1] = False
    logits = logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)
    chosen = logits.log_softmax(-1).gather(1, tokens[len(PROMPT) :, None])[:, 0]
    return chosen.numpy()[start:]


def check_logprobs(model: Path, weights: Path, output: Output, rollout: Any, part: slice) -> None:
    """Rounding may decide whether the last token within `top_p` is in or out, so both are right."""
    shifts = (0.0, -1e-4, 1e-4)
    references = [
        expected(model, weights, output, rollout.model_copy(update={"top_p": rollout.top_p + shift}))[part]
        for shift in shifts
    ]
    found = np.asarray(output.logprobs)[part]
    good = np.any([np.isclose(found, reference, rtol=0, atol=2e-4) for reference in references], axis=0)
    assert good.all(), (np.flatnonzero(~good), found[~good], [reference[~good] for reference in references])


async def test_logprobs_are_those_of_the_sampled_distribution_after_each_load(
    engine: Any, tiny_model: Path, versions: list[Path]
) -> None:
    for version, path in enumerate(versions):
        splits = await engine.load(version, path)
        assert set(splits) == {"pause", "load", "finish", "reset", "resume"}
        outputs = await asyncio.gather(*(engine.generate(task(engine, index)) for index in range(4)))
        for output in outputs:
            assert output.versions == [(version, len(output.tokens))]
            check_logprobs(tiny_model, path, output, engine._config.rollout, slice(None))


async def test_what_runs_can_be_read_as_it_grows(engine: Any) -> None:
    asked = [task(engine, index, step=7) for index in range(3)]
    ids = [one.id for one in asked]
    seen: list[dict[SampleId, Any]] = []
    running = asyncio.gather(*(engine.generate(one) for one in asked))
    while not running.done():
        seen.append({id: part.tolist() for id, part in engine.written(dict.fromkeys(ids, 0)).items()})
        await asyncio.sleep(0.005)
    whole = dict(zip(ids, [output.tokens.tolist() for output in await running], strict=True))
    for look in seen:
        for id, part in look.items():
            assert part == whole[id][: len(part)]
    assert any(0 < len(part) < len(whole[id]) for look in seen for id, part in look.items())
    assert engine.written(dict.fromkeys(ids, 0)) == {}, "it is in the engine no longer"


async def test_a_sample_is_drawn_from_its_own_seed(engine: Any) -> None:
    first, again, sibling = [await engine.generate(task(engine, index)) for index in (5, 5, 6)]
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.tokens.tolist() != sibling.tokens.tolist()


async def test_ends_at_the_limit_or_at_the_end_token(engine: Any) -> None:
    jobs = [task(engine, index, step=1) for index in range(24)]
    outputs = await asyncio.gather(*(engine.generate(job) for job in jobs))
    assert {output.finish_reason for output in outputs} <= {"stop", "length"}
    for output, (reported, yields) in zip(outputs, await engine.drafting([job.id for job in jobs]), strict=True):
        assert accepted(yields, len(output.tokens)).sum() == reported.accepted
        assert not accepted(yields, len(output.tokens))[0], "the first token follows the prompt, which has no draft"
        ended = output.tokens[-1] == EOS
        assert output.finish_reason == ("stop" if ended else "length")
        assert ended or len(output.tokens) == engine._config.rollout.max_response_length
        assert EOS not in output.tokens[:-1]


async def test_a_stop_string_ends_a_sample_at_the_same_token_with_drafts_and_beside_others(engine: Any) -> None:
    wholes = [await engine.generate(task(engine, index, step=30)) for index in range(6)]
    asked, expected = [], []
    for index, whole in enumerate(wholes):
        tokens = whole.tokens.tolist()
        texts = [engine._tokenizer.decode(tokens[:end]) for end in range(1, len(tokens) + 1)]
        last = next(end for end in range(len(tokens) // 2, len(tokens)) if texts[end][-1].isascii())
        string = texts[last][-1]
        job = task(engine, index, step=30, carried=tokens if index % 2 else [])  # drafts go on after the string
        asked.append(
            dataclasses.replace(job, sampling=dataclasses.replace(job.sampling, stop=("no such text", string)))
        )
        expected.append(tokens[: 1 + next(end for end, text in enumerate(texts) if string in text)])
    for outputs in (
        await asyncio.gather(*map(engine.generate, asked)),
        [await engine.generate(job) for job in asked],
    ):
        assert [output.tokens.tolist() for output in outputs] == expected
        for output, whole in zip(outputs, wholes, strict=True):
            assert output.finish_reason == "stop"
            assert output.versions == [(whole.versions[0][0], len(output.tokens))]
            assert np.allclose(output.logprobs, whole.logprobs[: len(output.tokens)], atol=1e-3)
    assert not engine._client._cutters


async def test_weights_that_change_in_flight(engine: Any, tiny_model: Path, versions: list[Path]) -> None:
    await engine.load(1, versions[1])
    jobs = [task(engine, index, step=2) for index in range(16)]
    waits = [asyncio.ensure_future(engine.generate(job)) for job in jobs]
    while not any(count >= 8 for count in engine.progress().values()):
        await asyncio.sleep(0.002)
    await engine.load(2, versions[2])
    crossed = 0
    for output in await asyncio.gather(*waits):
        assert sum(count for _, count in output.versions) == len(output.tokens)
        if [version for version, _ in output.versions] != [1, 2]:
            continue
        crossed += 1
        before = output.versions[0][1]
        for version, part in ((1, slice(before)), (2, slice(before, None))):
            check_logprobs(tiny_model, versions[version], output, engine._config.rollout, part)
    assert crossed
    assert engine.progress() == {}


async def test_labels_that_we_keep_are_those_that_vllm_keeps(
    engine: Any, versions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For releases that label nothing: here both label the same tokens."""
    client, labels = engine._client, Labels()
    monkeypatch.setattr(client.llm.output_processor, "process_outputs", client.llm.output_processor.process_outputs)
    watch(client.llm.output_processor, labels)
    pairs: list[tuple[Any, Any]] = []
    theirs = client.versions

    def both(request: str, completion: Any) -> Any:
        pairs.append((theirs(request, completion), labels.spans(request, len(completion.token_ids))))
        return pairs[-1][0]

    def changed(version: int, phase: str) -> None:
        if phase == "finish":
            labels.changed(version, time.monotonic())

    monkeypatch.setattr(client, "versions", both)
    waits: list[asyncio.Future[Output]] = []
    for version in (1, 2, 0, 1):
        await client.update(version, {"path": str(versions[version]), "base": ""}, partial(changed, version))
        jobs = [task(engine, index, step=40 + len(waits)) for index in range(8)]
        waits += [asyncio.ensure_future(engine.generate(job)) for job in jobs]
        while max(engine.progress().values(), default=0) < 20:
            await asyncio.sleep(0.002)
    await asyncio.gather(*waits)
    assert all(mine == others for others, mine in pairs)
    assert len(pairs) == 32
    assert max(len(others) for others, _ in pairs) > 2, "some crossed two updates"


async def test_a_sleeping_engine_frees_its_cache_and_goes_on_as_if_nothing_had_been(
    engine: Any, versions: list[Path]
) -> None:
    await engine.load(1, versions[1])
    wait = asyncio.ensure_future(engine.generate(task(engine, 4, step=14)))
    id = task(engine, 4, step=14).id
    while engine.progress().get(id, 0) < 8:
        await asyncio.sleep(0.001)
    before = await resident(engine)
    await engine.sleep()
    assert await resident(engine) < before - 200 * 2**20, "a cache of 256 MiB"
    (begun,) = engine.progress().values()
    late = asyncio.ensure_future(engine.generate(task(engine, 5, step=14)))
    await engine.sleep()
    await asyncio.sleep(0.3)
    assert engine.progress()[id] == begun
    assert not wait.done()
    assert not late.done()
    await engine.load(1, versions[1])
    interrupted = await wait
    assert len((await late).tokens)
    whole = await engine.generate(task(engine, 4, step=14))  # afterwards, or its own answer would draft it too fast
    assert interrupted.tokens.tolist() == whole.tokens.tolist()
    assert begun < len(whole.tokens)


async def resident(engine: Any) -> int:
    """Bytes of its worker process that are in memory."""
    children = psutil.Process().children(recursive=True)
    return max(child.memory_info().rss for child in children)


async def test_cancel_gives_what_there_is(engine: Any) -> None:
    jobs = [task(engine, index, step=3) for index in range(8)]
    waits = [asyncio.ensure_future(engine.generate(job)) for job in jobs]
    while not any(engine.progress().values()):
        await asyncio.sleep(0.001)
    for job in jobs:
        engine.cancel(job.id)
    outputs = await asyncio.gather(*waits)
    aborted = [output for output in outputs if output.finish_reason == "abort"]
    assert aborted
    assert all(len(output.tokens) == len(output.logprobs) < 160 for output in aborted)
    assert any(len(output.tokens) for output in aborted)
    assert (await engine.generate(task(engine, 9))).finish_reason in ("stop", "length")


async def afresh(engine: Any, job: Task) -> tuple[Output, int]:
    """What becomes of it where its prompt has no history, and in how many steps."""
    other = SampleId(step=0, prompt="fedcba9876543210", index=0)
    await engine.generate(Task(other, PROMPT, sampling_of(engine._config, other)))  # all of its prompt have left
    await engine.remember(job.id.prompt, PROMPT, [])
    await asyncio.sleep(2)  # the empty index takes the place of the one that knows the answer
    output = await engine.generate(job)
    ((reported, yields),) = await engine.drafting([job.id])
    assert accepted(yields, len(output.tokens)).sum() == reported.accepted
    equal = [a == b for a, b in zip(job.carried, output.tokens, strict=False)]
    assert (reported.carried, reported.kept) == (len(job.carried), [*equal, False].index(False))
    return output, reported.forwards


async def test_what_a_sample_made_before_only_saves_steps(engine: Any) -> None:
    jobs = [task(engine, index, step=10) for index in range(40)]
    outputs = await asyncio.gather(*(engine.generate(job) for job in jobs))
    index = max(range(40), key=lambda index: len(outputs[index].tokens))
    plain, ((reported, _),) = outputs[index], await engine.drafting([jobs[index].id])
    plain_steps = reported.forwards  # as long as nothing has been written that helps
    tokens, half = plain.tokens.tolist(), len(plain.tokens) // 2
    assert len(tokens) > 60
    other = [*tokens[:half], 2 + (tokens[half] + 1) % 200, *tokens[half + 1 :]]
    steps = {}
    for kind, carried in {"right": tokens, "altered": other, "half": tokens[:half]}.items():
        output, steps[kind] = await afresh(engine, task(engine, index, step=10, carried=carried))
        assert output.tokens.tolist() == tokens
        np.testing.assert_allclose(output.logprobs, plain.logprobs, atol=1e-4)
    print(f"{len(tokens)} tokens, {plain_steps} steps, with what was carried {steps}")
    assert max(steps["right"], steps["altered"]) < plain_steps / 2
    foreign = task(engine, index, step=10, carried=[*tokens[:half], 264])
    assert (await engine.generate(foreign)).tokens.tolist() == tokens


async def test_a_cancelled_sample_goes_on_as_if_nothing_had_been(engine: Any) -> None:
    whole = await engine.generate(task(engine, 2, step=11))
    wait = asyncio.ensure_future(engine.generate(task(engine, 2, step=11)))
    job = task(engine, 2, step=11)
    while engine.progress().get(job.id, 0) < 8:
        await asyncio.sleep(0.001)
    engine.cancel(job.id)
    partial = await wait
    assert partial.finish_reason == "abort"
    assert 8 <= len(partial.tokens) < len(whole.tokens)
    output = await engine.generate(task(engine, 2, step=11, carried=partial.tokens))
    assert output.tokens.tolist() == whole.tokens.tolist()
    assert output.finish_reason == whole.finish_reason


async def test_tokens_of_other_weights_are_drafts_and_no_more(engine: Any, versions: list[Path]) -> None:
    await engine.load(1, versions[1])
    old = await engine.generate(task(engine, 3, step=12))
    await engine.load(2, versions[2])
    plain = await engine.generate(task(engine, 3, step=12))
    output = await engine.generate(task(engine, 3, step=12, carried=old.tokens))
    assert output.tokens.tolist() == plain.tokens.tolist()
    assert output.versions == [(2, len(output.tokens))]


async def test_a_sample_may_be_cancelled_at_once(engine: Any) -> None:
    """vLLM has not heard of it by then."""
    job = task(engine, 0, step=13)
    wait = asyncio.ensure_future(engine.generate(job))
    await asyncio.sleep(0)
    engine.cancel(job.id)
    output = await wait
    assert (output.finish_reason, len(output.tokens) < 160) == ("abort", True)


async def test_a_prompt_that_is_too_long_harms_only_itself(engine: Any) -> None:
    with pytest.raises(DataError, match="0123456789abcdef"):
        await engine.generate(task(engine, 0, prompt=[5] * 1000))
    assert len((await engine.generate(task(engine, 1))).tokens)


async def test_weights_that_lack_a_tensor_are_refused(tiny_model: Path, engine: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    base = load_file(tiny_model / "model.safetensors")
    base.pop(sorted(base)[3])
    save_file(base, tmp_path / "short.safetensors")
    with pytest.raises(EngineError, match=r"short\.safetensors lacks 1 of the 20 tensors"):
        await engine.load(7, tmp_path / "short.safetensors")
    assert len((await engine.generate(task(engine, 1))).tokens)  # and nothing was touched


def test_weights_in_another_layout_are_not_asked_of_a_file(tmp_path: Path) -> None:
    """Some models have all weights twice; the index names the files of one layout."""
    from safetensors.torch import save_file

    from rhymed_workers.engines.vllm import _model_tensors

    for name in ("model-1", "consolidated"):
        save_file({f"{name}.weight": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"model-1.weight": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    assert _model_tensors(tmp_path) == {"model-1.weight"}


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters on all linear layers, as a trainer publishes them, far from zero."""
    from safetensors.torch import save_file

    from rhymed.core.config import Lora
    from rhymed_workers.trainer.policy.lora import LoraPolicy

    folder, paths = tmp_path_factory.mktemp("adapters"), []
    policy = LoraPolicy(Lora(rank=4, alpha=8), tiny_model)
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        moved = {name: torch.randn(one.shape, generator=generator) * 0.2 for name, one in policy.tensors().items()}
        paths.append(folder / f"a{number}.safetensors")
        save_file(moved, paths[-1], metadata={"format": "pt", **policy.metadata()})
    return paths


def whole(adapter: Path, base: Path) -> Path:
    """A file of whole weights with the adapter merged in."""
    from safetensors.torch import save_file

    from rhymed_workers.lora.merge import Adapter

    path = adapter.with_suffix(".whole.safetensors")
    save_file(dict(Adapter(adapter).merged(base)), path)
    return path


async def test_an_adapter_samples_what_its_merged_weights_sample(
    engine: Any, tiny_model: Path, adapters: list[Path]
) -> None:
    """Fused layers included, and whatever was loaded before: the sum starts from the model's folder."""

    async def sampled(version: int, path: Path) -> list[Output]:
        await engine.load(version, path)
        return await asyncio.gather(*(engine.generate(task(engine, index, step=30)) for index in range(4)))

    orders = [adapters[0], adapters[1], adapters[0], whole(adapters[0], tiny_model)]
    first, other, again, plain = [await sampled(20 + number, path) for number, path in enumerate(orders)]
    reference = expected(tiny_model, orders[3], first[0], engine._config.rollout)
    np.testing.assert_allclose(first[0].logprobs, reference, atol=2e-4)
    assert [one.tokens.tolist() for one in other] != [one.tokens.tolist() for one in first]
    for outputs in (again, plain):
        for mine, same in zip(outputs, first, strict=True):
            assert mine.tokens.tolist() == same.tokens.tolist()
            np.testing.assert_allclose(mine.logprobs, same.logprobs, atol=1e-5)  # they depend on the batch
    assert [one[0].versions for one in (first, other, again, plain)] == [
        [(20 + number, len(one[0].tokens))] for number, one in enumerate((first, other, again, plain))
    ]


async def test_an_adapter_of_another_model_is_refused(engine: Any, adapters: list[Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from rhymed_workers.lora.folder import read_about

    about = read_about(adapters[0])
    assert about is not None
    foreign = dataclasses.replace(about, digest="0" * 32, base="another model")
    save_file(load_file(adapters[0]), tmp_path / "a.safetensors", metadata=foreign.metadata())
    before = engine.version
    with pytest.raises(EngineError, match=r"rank 4 over another model \(digest 0{32}\).*must have the same model"):
        await engine.load(99, tmp_path / "a.safetensors")
    short = load_file(adapters[0])
    lacking = sorted(short)[3]
    short.pop(lacking)
    save_file(short, tmp_path / "b.safetensors", metadata=about.metadata())
    with pytest.raises(EngineError, match=r"b\.safetensors lacks the adapter of model\.layers\.0"):
        await engine.load(99, tmp_path / "b.safetensors")
    assert engine.version == before
    assert len((await engine.generate(task(engine, 1))).tokens)  # and nothing was touched


OWNER = """
import asyncio, sys
from pathlib import Path
from rhymed.core.config import Config
from rhymed_workers.engines.vllm import VllmEngine

async def main():
    rollout = {"max_prompt_length": 64, "max_response_length": 64, "max_concurrency": 4, "kv_cache_gib": 0.25}
    engine = VllmEngine(Config.model_validate({"rollout": rollout}), Path(sys.argv[1]))
    await engine.open()
    print("open", flush=True)
    await asyncio.sleep(300)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.thorough  # an engine of its own
async def test_no_process_outlives_a_killed_worker(tiny_model: Path, tmp_path: Path) -> None:
    import psutil

    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(tiny_model), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"open\n"
    below = psutil.Process(owner.pid).children(recursive=True)
    assert below
    os.kill(owner.pid, signal.SIGKILL)
    await owner.wait()
    deadline = time.monotonic() + 60
    while any(process.is_running() and process.status() != "zombie" for process in below):
        assert time.monotonic() < deadline, "an engine process outlived its owner"
        await asyncio.sleep(0.1)


async def test_what_the_engines_steps_do_is_reported_second_by_second(engine: Any) -> None:
    async def settled() -> dict[str, float]:
        while True:
            before = engine.seconds()
            await asyncio.sleep(0.05)
            if engine.seconds() == before:
                return before

    before, began = await settled(), time.monotonic()
    outputs = await asyncio.gather(*(engine.generate(task(engine, index, step=20)) for index in range(8)))
    passed = time.monotonic() - began
    after, whole = await settled(), time.monotonic() - began
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    assert spent["prefill"] > 0
    assert spent["draft"] > 0
    assert spent["decode"] + spent["verify"] > 0
    assert 0.6 * passed < sum(spent.values()) <= whole, spent
    best = max(range(8), key=lambda index: len(outputs[index].tokens))
    await engine.generate(task(engine, best, step=20, carried=outputs[best].tokens.tolist()))
    assert engine.seconds()["verify"] > after["verify"], "what it made before was verified"


def mixture(tiny_model: Path, folder: Path, seed: int) -> Path:
    """A mixture whose experts decide what it says. vLLM pads them: its kernel does not know their width."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tiny = json.loads((tiny_model / "config.json").read_text())
    sizes = {key: tiny[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_key_value_heads": 2}
    network = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen3_moe", **sizes, head_dim=32, eos_token_id=EOS)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    network.float().save_pretrained(folder)
    return folder


@pytest.mark.thorough
async def test_a_mixture_samples_from_the_experts_that_were_loaded(tiny_model: Path, tmp_path: Path) -> None:
    """vLLM packs experts for the CPU's kernel when it starts; each load has to pack them again."""
    from transformers import AutoModelForCausalLM

    models = [mixture(tiny_model, tmp_path / str(seed), seed) for seed in range(2)]
    async with opened(models[0], max_response_length=24) as engine:
        for version, model in enumerate([None, models[0], models[1]]):
            if model is not None:
                await engine.load(version, model / "model.safetensors")
            network = AutoModelForCausalLM.from_pretrained(model or models[0], dtype=torch.float32)
            for output in await asyncio.gather(*(engine.generate(task(engine, index)) for index in range(3))):
                tokens = torch.tensor([*PROMPT, *output.tokens.tolist()])
                with torch.no_grad():
                    logp = network(tokens[None]).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
                found = logp.gather(1, tokens[len(PROMPT) :, None])[:, 0].numpy()
                np.testing.assert_allclose(output.logprobs, found, atol=2e-4, err_msg=f"version {version}")
