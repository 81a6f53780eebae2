"""Real engines in float32: speculative decoding gives the very tokens of plain decoding, whatever was drafted.

Both engines are given what is hard: a key-value cache that is far too small for the batch, prompts in chunks, prefix
caching, requests of all shapes in one batch. Where two tokens are as good as equal under the same noise, rounding may
choose; such places are looked at with transformers, counted, and told.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.histospec.index.builder import WARNINGS
from rhymed.histospec.sampling import noise
from rhymed.start.bench.engine import EngineProcess, Request, Run
from tests.bench_v2.bench import HERE as BENCH
from tests.bench_v2.bench import environment
from tests.packages import needs
from tests.tiny import write_sharp_model

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.timeout(400)]

CONTEXT = 256
VOCABULARY = 264
ENDS = [1, 7, 30, 99]  # tokens that end a response
SLACK = 1e-3  # of keyed logits: closer ones may be chosen either way
SHAPES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.05},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
]
LIMITS = (1, 2, 9, 17, 30, 48, 300)  # the last is more than the context holds
FEW, ALL = 160, 320  # requests of a step: `make test` runs the first ones, `make test-thorough` all


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharp")
    write_sharp_model(tiny_model, folder, ENDS)
    return folder


def engine(model: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 96,  # prompts are prefilled in chunks
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": 40 * 32 * 1024,  # 40 blocks of 32 tokens
        "block_size": 32,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "disable_log_stats": True,
        **more,
    }


def speculative(model: Path, method: str = "custom_class", **more: Any) -> dict[str, Any]:
    """`method`: of drafts, "ngram" for vLLM's model runner V2."""
    return engine(
        model,
        **more,
        speculative_config={"method": method, "model": "adversary.Adversary", "num_speculative_tokens": 12},
        additional_config={"rhymed": {"keyed": True, "budget": "fixed"}},
        worker_extension_cls="adversary.Extension",
    )


@pytest.fixture(scope="module")
def rigs(model: Path) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    patch = pytest.MonkeyPatch()
    patch.setenv("OMP_NUM_THREADS", "1")
    plain = EngineProcess(engine(model, worker_extension_cls="rhymed.histospec.extension.Extension"))
    patch.syspath_prepend(str(HERE))
    drafting = EngineProcess(speculative(model))
    patch.undo()
    plain.ready()
    drafting.ready()
    yield plain, drafting
    plain.close()
    drafting.close()


@pytest.fixture(scope="module")
def second(model: Path) -> Iterator[EngineProcess]:
    """Drafts in vLLM's model runner V2, with asynchronous scheduling."""
    patch = pytest.MonkeyPatch()
    for name, value in environment(asynchronous=True).items():
        patch.setenv(name, value)
    few = {"kv_cache_memory_bytes": 24 * 32 * 1024}  # so that few requests are enough for preemptions
    for folder in (HERE, BENCH):
        patch.syspath_prepend(str(folder))
    process = EngineProcess(speculative(model, "ngram", **few))
    patch.undo()
    process.ready()
    about = process.about()
    assert about["runner"].startswith("vllm.v1.worker.cpu."), "V1 is cpu_model_runner"
    assert (about["async"], about["keyed"]) == (True, True)
    yield process
    process.close()


def asked(step: int) -> list[Request]:
    """40 prompts of all lengths with 8 requests each, 5 of which are at temperature 1 and no more."""
    rng = random.Random(0)
    requests = []
    for number in range(40):
        prompt = [rng.randrange(2, 258) for _ in range(rng.randrange(3, 180))]
        for index in range(8):
            shape = {"temperature": 1.0} | (SHAPES[(number + index) % len(SHAPES)] if index >= 5 else {})
            key = (step * 1000 + number) * 10 + index + 1
            limit = LIMITS[rng.randrange(len(LIMITS))]
            name = f"{step}/{number}/{index}"
            requests.append(Request(prompt, limit, **shape, seed=key, name=name, history=str(number), step=step))
    rng.shuffle(requests)
    return requests


Plain = Callable[[int, int], Run]


@pytest.fixture(scope="module")
def plain(rigs: tuple[EngineProcess, EngineProcess]) -> Plain:
    """Plain decoding of the first `count` requests of a step, by step and `FEW` or `ALL`."""
    return functools.cache(lambda step, count: rigs[0].run(asked(step)[:count], 64, whole=True))


def compare(model: Path, requests: Sequence[Request], expected: Sequence[list[int]], found: Run) -> int:
    """How many samples differ, each at a near tie; fails at any other difference."""
    from transformers import LlamaForCausalLM

    differing = [
        place for place, (one, other) in enumerate(zip(expected, found.responses, strict=True)) if one != other
    ]
    if not differing:
        return 0
    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    for place in differing:
        request, one, other = requests[place], expected[place], found.responses[place]
        at = next(i for i in range(min(len(one), len(other)) + 1) if one[i : i + 1] != other[i : i + 1])
        assert at < min(len(one), len(other)), f"{request.name}: one sample ends where the other goes on"
        prefix = request.prompt + one[:at]
        with torch.no_grad():
            logits = network(torch.tensor([prefix])).logits[0, -1].double().numpy()
        scores = logits
        if request.temperature:
            scores = logits / request.temperature + noise.gumbel(request.seed, len(prefix), len(logits))
        gap = abs(scores[one[at]] - scores[other[at]])
        assert gap < SLACK, f"{request.name} differs at {at}, where the two keyed logits are {gap:.4f} apart"
    return len(differing)


def check(what: str, model: Path, requests: Sequence[Request], expected: Run, found: Run) -> None:
    """Tokens and log-probs of `found` are those of the first samples of `expected`, the plain engine's."""
    made = expected.responses[: len(requests)]
    differing = compare(model, requests, made, found)
    for one, other, logprobs, reference in zip(
        found.responses, made, found.logprobs, expected.logprobs, strict=False
    ):
        if one == other:
            np.testing.assert_allclose(logprobs, reference, atol=1e-4)
    print(f"{what}: {len(made)} samples, {found.tokens} tokens, {differing} near ties, {found.preempted} preemptions")
    assert differing <= 1 + found.tokens // 20_000


def test_plain_decoding_meets_what_is_hard(plain: Plain) -> None:
    for step in (0, 1):
        requests, run = asked(step)[:FEW], plain(step, FEW)
        ended = [made[-1] in ENDS for made in run.responses]
        full = [len(one.prompt) + len(made) == CONTEXT for one, made in zip(requests, run.responses, strict=True)]
        limited = [len(made) == one.max_tokens for one, made in zip(requests, run.responses, strict=True)]
        assert min(sum(ended), sum(full), sum(limited), run.preempted) > 5


def test_plain_tokens_are_what_the_noise_draws(model: Path, plain: Plain) -> None:
    """By the definition of the noise, from transformers' logits, where they are not filtered."""
    from transformers import LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    drawn = 0
    for request, made in list(zip(asked(0)[:60], plain(0, FEW).responses, strict=False)):
        if (request.top_p, request.top_k, request.min_p) != (1.0, 0, 0.0):
            continue
        with torch.no_grad():
            logits = network(torch.tensor([request.prompt + made])).logits[0].double().numpy()
        for place, token in enumerate(made, len(request.prompt)):
            scores = logits[place - 1]
            if request.temperature:
                scores = scores / request.temperature + noise.gumbel(request.seed, place, len(scores))
            assert scores.max() - scores[token] < SLACK, f"{request.name} at {place}"
            drawn += 1
    assert drawn > 300


def thorough(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


BATCHES = [(64, FEW), thorough(16, ALL), (3, 64), thorough(1, 64)]


@pytest.mark.parametrize(("batch", "count"), BATCHES)
def test_whatever_is_drafted_the_tokens_are_those_of_plain_decoding(
    model: Path, rigs: tuple[EngineProcess, EngineProcess], plain: Plain, batch: int, count: int
) -> None:
    scripted(model, rigs[1], asked(0)[:count], plain(0, FEW if count <= FEW else ALL), batch)


def scripted(model: Path, rig: EngineProcess, requests: list[Request], expected: Run, batch: int) -> None:
    known = {request.seed: made for request, made in zip(requests, expected.responses, strict=False)}
    rig.call("restart_drafter", {"budget": "fixed"})
    rig.call("script", known)
    run = rig.run(requests, batch, whole=True)
    drafted = rig.call("script", known)
    check(f"scripted drafts, batch {batch}", model, requests, expected, run)
    assert all(count for kind, count in drafted.items() if kind != "empty")
    forwards, verified, accepted, *_ = map(sum, zip(*(one for one in run.accounts if one), strict=True))
    assert 0 < accepted < verified
    assert forwards < run.tokens
    assert batch < 16 or run.preempted


@pytest.mark.thorough
@needs("triton")
@pytest.mark.timeout(900)
def test_whatever_is_drafted_model_runner_v2_makes_the_tokens_of_plain_decoding_by_v1(
    model: Path, second: EngineProcess, plain: Plain
) -> None:
    requests, expected = asked(0)[:40], plain(0, FEW)
    scripted(model, second, requests, expected, 32)
    second.call("restart_drafter", FIXED)
    second.call("warnings")
    known = zip(requests, expected.responses, strict=False)
    second.call("carry", {one.seed: carried(made, at) for at, (one, made) in enumerate(known)})
    check("carried", model, requests, expected, second.run(requests, 32, whole=True))
    (warning,) = second.call("warnings")
    assert "its carried tokens are ignored" in warning
    second.call("restart_drafter", {})  # the default budget, which finds nothing to verify, and skips steps
    check("skipping", model, requests, expected, second.run(requests, 32, whole=True))
    assert second.call("skipped") > 0
    assert second.call("warnings") == []


FIXED = {"budget": "fixed"}
SETTINGS = pytest.mark.parametrize(
    ("settings", "count"),
    [
        (FIXED, FEW),
        thorough({}, ALL),
        thorough({"budget": "aimd", "matching": "paper"}, ALL),
    ],
)


@SETTINGS
def test_a_second_epoch_drafted_from_the_first_is_that_of_plain_decoding(
    model: Path, rigs: tuple[EngineProcess, EngineProcess], plain: Plain, settings: dict[str, Any], count: int
) -> None:
    past: dict[str, list[list[int]]] = {}
    contexts: dict[str, list[int]] = {}
    for request, made in zip(asked(0)[:count], plain(0, count).responses, strict=True):
        past.setdefault(request.history, []).append(made)
        contexts[request.history] = request.prompt
    rigs[1].call("restart_drafter", settings)
    for prompt, responses in past.items():
        rigs[1].remember(prompt, contexts[prompt], responses)
    requests = asked(1)[:count]
    expected = plain(1, count)
    run = rigs[1].run(requests, 64, whole=True)
    check(f"history, {settings or 'as it comes'}", model, requests, expected, run)
    assert run.preempted
    assert any(account and account[1] > 0 for account in run.accounts), "something was drafted"


def carried(made: list[int], number: int) -> list[Any]:
    """What a request is said to have made before: one of many kinds, most of them wrong somewhere."""
    middle = len(made) // 2
    return [
        made,
        [*made[:middle], (made[middle] + 1) % 256, *made[middle + 1 :]],
        made[:middle],
        [*made, 5, 6, 7] * 2,
        [],
        [*made[:middle], VOCABULARY, *made[middle:]],
        [made],
        [(token + 1) % 256 for token in made],
    ][number % 8]


@SETTINGS
def test_whatever_is_carried_the_tokens_are_those_of_plain_decoding(
    model: Path, rigs: tuple[EngineProcess, EngineProcess], plain: Plain, settings: dict[str, Any], count: int
) -> None:
    requests = asked(1)[:count]
    expected = plain(1, count)
    rigs[1].call("restart_drafter", settings)
    rigs[1].call("warnings")
    by_seed = {
        one.seed: carried(made, at) for at, (one, made) in enumerate(zip(requests, expected.responses, strict=True))
    }
    rigs[1].call("carry", by_seed)
    run = rigs[1].run(requests, 64, whole=True)
    check(f"carried, {settings or 'as it comes'}", model, requests, expected, run)
    assert run.preempted
    (warning,) = rigs[1].call("warnings")
    assert "its carried tokens are ignored" in warning
    for at, (made, found, account) in enumerate(zip(expected.responses, run.responses, run.accounts, strict=True)):
        assert account, "every request has one"
        whole, half = len(made), len(made) // 2
        if made == found and at % 8 != 3:  # what stands behind an end token may come out again, and be cut off
            assert account[-1] == (whole, half, half, whole, 0, half, 0, 0)[at % 8]
    if settings.get("budget") == "fixed":
        steps = [
            (account[0], len(made)) for account, made in zip(run.accounts, run.responses, strict=True) if account
        ]
        rights = [steps[at] for at in range(0, len(steps), 8)]
        assert sum(count for count, _ in rights) < sum(2 + size // 12 for _, size in rights) + run.preempted


FOREIGN = {
    "a larger vocabulary": [VOCABULARY + 40_000, 3, 4],
    "one more token": [5, 6, VOCABULARY],
    "bits that fell over": [5, -7, 2**31 - 1],
}


def test_history_of_another_tokenizer_is_warned_of_and_harms_nothing(
    model: Path, rigs: tuple[EngineProcess, EngineProcess], plain: Plain
) -> None:
    """Told as the rollout worker tells it; siblings go on drafting for each other."""
    requests = asked(1)[:FEW]
    rigs[1].call("restart_drafter", {"budget": "fixed"})
    rigs[1].call("warnings")
    contexts = {request.history: request.prompt for request in requests}
    kinds = [*FOREIGN.values(), []]
    for place, (prompt, context) in enumerate(contexts.items()):
        response = np.array(kinds[place % len(kinds)], "<i4").tobytes()
        rigs[1].call("remember", prompt, context, [(0, response), (0, response)])
    run = rigs[1].run(requests, 16, whole=True)
    check("foreign history", model, requests, plain(1, FEW), run)
    warnings = rigs[1].call("warnings")
    assert sum("has no history: token id" in line for line in warnings) == WARNINGS
    assert not any("drafting failed" in line for line in warnings)
    assert any(account and account[1] > 0 for account in run.accounts), "something was drafted"
