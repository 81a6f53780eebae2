"""A head in a real engine (float32): tokens stay those of plain decoding, and its file may come and change while the
engine runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.start.bench.engine import EngineProcess, Request
from tests.packages import needs

torch = pytest.importorskip("torch")

pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.timeout(400)]

HERE = Path(__file__).parent


def engine(model: Path, head: Path) -> dict[str, object]:
    return {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 96,  # prompts are prefilled in chunks
        "enable_chunked_prefill": True,
        "kv_cache_memory_bytes": 40 * 32 * 1024,
        "block_size": 32,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "speculative_config": {"method": "custom_class", "model": "eager.Eager", "num_speculative_tokens": 8},
        "additional_config": {"rhymed": {"head": str(head), "keyed": True}},
        "worker_extension_cls": "eager.Extension",
    }


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not there yet."""
    return tmp_path_factory.mktemp("head") / "head.safetensors"


@pytest.fixture(scope="module")
def process(tiny_model: Path, head: Path) -> Iterator[EngineProcess]:
    made = EngineProcess(engine(tiny_model, head), path=[str(HERE)])
    made.ready()
    yield made
    made.close()


def asked(again: int = 0) -> list[Request]:
    """The same requests each time, without history of the time before."""
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 258) for _ in range(rng.randrange(3, 60))] for _ in range(48)]
    return [
        Request(prompt, 40, 0.0 if number % 4 == 3 else 0.8, number, f"{number}", f"{again}/{number}")
        for number, prompt in enumerate(prompts)
    ]


def write(model: Path, path: Path) -> None:
    """A head that is not trained. The tiny policy's distribution is nearly uniform, and so is the head's: drafts are
    often right by the noise alone."""
    from transformers import LlamaForCausalLM

    from rhymed.histospec.heads.model import begin

    embeddings = LlamaForCausalLM.from_pretrained(model).get_output_embeddings().weight.detach()
    begin(torch.arange(200), embeddings, embeddings, 64).save(path)


def test_tokens_are_the_same_with_a_head_that_comes_while_the_engine_runs(process, tiny_model, head):
    plain = process.run(asked(), 32, whole=True)
    assert process.call("head_counts") is None
    write(tiny_model, head)
    process.call("refresh_head")
    process.forget()  # the same responses, which would draft better than the head
    drafted = process.run(asked(1), 32, whole=True)
    passes, tokens, verified, accepted, _ = process.call("head_counts")
    assert drafted.responses == plain.responses
    assert min(passes, accepted) > 10
    assert tokens >= verified > 500
    head.write_bytes(b"damaged")
    process.call("refresh_head")
    assert process.run(asked(2)[:8], 8, whole=True).responses == plain.responses[:8]
