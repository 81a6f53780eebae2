"""The adapter against each release, as its contract describes it: no vLLM runs here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import DataError, EngineError
from rhymed.core.messages import SampleId
from rhymed.histospec.versions import RELEASES
from rhymed_workers.engines import extension
from rhymed_workers.engines.client import Client, installed_release
from tests.workers.engines import standin

ID = SampleId(step=0, prompt="0123456789abcdef", index=0)


@pytest.fixture(params=standin.RELEASES)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    standin.install(request.param, monkeypatch)
    return request.param


def spans(versions: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for version in versions:
        if found and found[-1][0] == version:
            found[-1] = (version, found[-1][1] + 1)
        else:
            found.append((version, 1))
    return found


def test_the_release_is_known(release: str) -> None:
    assert installed_release() is RELEASES[release]


@pytest.mark.parametrize("version", ["0.31.1+cpu", "0.34.1+cpu"])
def test_another_release_is_refused_in_words(release: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", version)
    words = rf"vLLM {re.escape(version)} is unknown.*0\.26, 0\.32 and 0\.33.*pip install"
    with pytest.raises(EngineError, match=words):
        installed_release()


@pytest.mark.parametrize("seed", range(5))
async def test_every_token_has_the_version_that_sampled_it(release: str, seed: int) -> None:
    llm = standin.Llm(release, seed)
    client = Client(llm, RELEASES[release])
    phases: list[str] = []
    await client.update(0, {"path": "0", "base": ""}, phases.append)
    assert phases == ["pause", "load", "finish", "reset", "resume"]
    names = [f"sample#{number}" for number in range(12)]
    jobs = [asyncio.ensure_future(client.generate(ID, [1], 20 + 9 * n, name)) for n, name in enumerate(names)]
    for version in (1, 2, 5):
        for _ in range(8):  # steps of the engine
            await asyncio.sleep(0)
        await client.update(version, {"path": str(version), "base": ""}, phases.append)
    for name, output in zip(names, await asyncio.gather(*jobs), strict=True):
        assert output.versions == spans(llm.truth[name])
        assert sum(count for _, count in output.versions) == len(output.tokens)
    assert any(len(set(truth)) > 1 for truth in llm.truth.values()), "some crossed an update"
    assert client.states() == {}
    assert client._labels is None or client._labels._starts == {}, "what has ended is forgotten"
    llm.close()


async def test_weights_that_were_never_updated_have_no_version(release: str) -> None:
    llm = standin.Llm(release, 0)
    output = await Client(llm, RELEASES[release]).generate(ID, [1], 5, "sample#1")
    assert output.versions == [(-1, 5)]
    llm.close()


REFUSED = {
    "0.26": ["VLLMValidationError", "VLLMNotFoundError", "VLLMUnprocessableEntityError", "LoRAAdapterNotFoundError"],
    "0.32": ["VLLMValidationError", "VLLMNotFoundError", "VLLMUnprocessableEntityError"],
    "0.33": ["VLLMValidationError", "VLLMNotFoundError", "ChatTemplateResolutionError"],
}
FAILED = {"0.26": [], "0.32": ["GenerationError", "QueueOverflowError"], "0.33": ["RetryableRequestError"]}


async def test_whose_fault_an_error_is(release: str) -> None:
    import vllm.exceptions
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    llm = standin.Llm(release, 0)
    client = Client(llm, RELEASES[release])
    refusals = [getattr(vllm.exceptions, name)("no") for name in REFUSED[release]]
    for llm.raises in [ValueError("no"), *refusals]:
        with pytest.raises(DataError, match="prompt 0123456789abcdef: vLLM refuses it: no"):
            await client.generate(ID, [1], 5, "sample#1")
    failures = [getattr(vllm.exceptions, name)("no") for name in FAILED[release]]
    for llm.raises in [EngineGenerateError("no"), EngineDeadError("no"), *failures]:
        with pytest.raises(EngineError):
            await client.generate(ID, [1], 5, "sample#1")
    llm.close()


async def test_workers_are_asked_by_rank(release: str) -> None:
    llm = standin.Llm(release, 0)
    llm.answers = [{"keyed": True}, {"keyed": False}]
    assert await Client(llm, RELEASES[release]).call("attached") == llm.answers
    llm.close()


def test_our_backend_of_weights_can_be_made(release: str) -> None:
    extension._register()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    made = Factory._registry[extension.BACKEND]()
    assert made().shutdown() is None
    extension._register()  # once more changes nothing
    assert Factory._registry[extension.BACKEND]() is made


def test_our_backend_takes_the_trainer_s_memory_or_the_file(release: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.shared import Offers

    extension._register()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    class Model(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def load_weights(self, weights: Any) -> None:
            self.load_state_dict(dict(weights))

    backend, publisher = Factory._registry[extension.BACKEND]()(), Publisher(tmp_path, "float32", offers=Offers())
    worker = extension.Extension()
    worker.weight_transfer_engine, backend.model = backend, Model(3, 2)
    for version, source in enumerate(("shared memory", "file", "file: the trainer offers no memory of this version")):
        wanted = torch.nn.Linear(3, 2).state_dict()
        path = publisher.publish(version, wanted.items()).path
        if "offers" in source:
            publisher.withdraw()
        backend.receive_weights(extension.File(str(path), transport="file" if source == "file" else "ipc"))
        assert worker.weights_from() == source
        assert all(torch.equal(part, wanted[name]) for name, part in backend.model.state_dict().items())
        backend.shutdown()  # what is mapped is closed, as at the end of an update
    publisher.close()
