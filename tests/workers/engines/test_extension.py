"""An engine of several ranks: one drafts, and the others are asked without harm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.histospec.drafts.stats import Account
from rhymed.histospec.proposer import drafting_rank
from rhymed_workers.engines.extension import Extension
from rhymed_workers.engines.vllm import VllmEngine

ROWS: list[tuple[int, float | None, bytes]] = [(3, 1.0, bytes(8))]


class Drafter:
    def __init__(self, *, drafts: bool) -> None:
        self.drafts, self.remembered = drafts, list[str]()

    def remember(self, prompt: str, context: list[int], past: list[Any]) -> None:
        self.remembered.append(prompt)

    def accounts(self, names: list[str]) -> list[Account | None]:
        return [None for _ in names]

    def take_yields(self, names: list[str]) -> list[bytes | None]:
        return [b"\1" for _ in names]


def rank(runner: Any) -> Extension:
    extension = Extension()
    extension.model_runner = runner
    return extension


@pytest.mark.parametrize("runner", [SimpleNamespace(), SimpleNamespace(drafter=Drafter(drafts=False))])
def test_a_rank_that_does_not_draft_has_nothing_to_say(runner: Any) -> None:
    """Of an earlier pipeline stage, or behind the first of the tensor-parallel ranks."""
    rank(runner).remember("p", [1], ROWS)
    assert rank(runner).accounts(["s"]) is None
    assert not getattr(getattr(runner, "drafter", None), "remembered", [])


@pytest.mark.parametrize(
    ("tensor_parallel", "drafting"), [(1, [True]), (2, [True, False]), (4, [True, False, False, False])]
)
def test_the_first_tensor_parallel_rank_of_a_stage_drafts(tensor_parallel: int, drafting: list[bool]) -> None:
    parallel = [
        SimpleNamespace(rank=rank, tensor_parallel_size=tensor_parallel) for rank in range(2 * tensor_parallel)
    ]
    assert [drafting_rank(one) for one in parallel] == 2 * drafting


async def test_the_engine_takes_the_answer_of_the_rank_that_drafts(tmp_path) -> None:
    drafter = Drafter(drafts=True)
    ranks = [rank(SimpleNamespace()), rank(SimpleNamespace()), rank(SimpleNamespace(drafter=drafter))]

    async def call(method: str, *arguments: Any) -> list[Any]:
        return [getattr(one, method)(*arguments) for one in ranks]

    engine = VllmEngine(Config(), tmp_path)
    engine._client = SimpleNamespace(call=call)
    assert await engine._call("remember", "p", [1], ROWS) is None
    assert await engine._call("accounts", ["s"]) == [(None, b"\1")]
    assert drafter.remembered == ["p"]
