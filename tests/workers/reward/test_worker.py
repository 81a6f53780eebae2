"""The reward worker with a real store and a broker that only records messages."""

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import PeerGone, RewardError, UnknownSample
from rhymed.core.messages import (
    Done,
    Finish,
    GiveBack,
    Heartbeat,
    Join,
    Leave,
    Message,
    SampleId,
    SampleInfo,
    Score,
    Scored,
    ScoreSamples,
    ToBroker,
    Welcome,
)
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.service.stopwatch import seconds_of
from rhymed.core.wire.sockets import Server
from rhymed.inputs.rows import Row, prompt_id
from rhymed_store.browse import Browse
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.database.tables import Reader
from rhymed_store.service import StoreService
from rhymed_workers.reward.worker import RewardWorker, load_decoder
from tests.workers.reward.judges.servers import says, serving

SCORER = """
import time

def score(solution_str, ground_truth):
    if solution_str.startswith("13"):
        raise ValueError("unlucky")
    if solution_str.startswith("99"):
        time.sleep(60)
    if solution_str.startswith("8"):
        return {"token_rewards": [0.5 ** (place + 1) for place in range(len(solution_str.split()))]}
    return float(solution_str == ground_truth)
"""

SHORT = {"max_prompt_length": 64, "max_response_length": 64}

ROW = {"prompt": "count to three", "answer": "1 2 3"}
PROMPT = prompt_id(ROW)


def sample_id(index: int) -> SampleId:
    return SampleId(step=0, prompt=PROMPT, index=index)


class FakeBroker:
    """Accepts a worker that has joined, and keeps its messages."""

    def __init__(self, address: str) -> None:
        self.joins: list[Join] = []
        self.leaves: list[Leave] = []
        self.last = Heartbeat(worker="none-yet")
        self.worker = b""  # its peer
        self.scores: dict[SampleId, Score] = {}
        self.back: dict[SampleId, bool] = {}  # whether it is blamed
        self.server = Server(address, ToBroker, self._answer)

    async def _answer(self, peer: bytes, message: Any, frames: Any) -> Message:
        match message:
            case Join():
                self.worker = peer
                self.joins.append(message)
                return Welcome(run="run", heartbeat_s=0.05, lost_after_s=5, step=0)
            case Leave():
                self.leaves.append(message)
                return Done()
        if not self.joins:
            raise PeerGone("join first")
        if isinstance(message, Scored):
            self.scores |= {score.id: score for score in message.scores}
        if isinstance(message, GiveBack):
            self.back |= dict.fromkeys(message.samples, message.blamed)
        if isinstance(message, Heartbeat):
            self.last = message
        return Done()

    @property
    def stats(self) -> dict[str, float]:
        return defaultdict(float, self.last.stats)

    async def rate(self, *ids: SampleId) -> None:
        await self.server.request(self.worker, ScoreSamples(samples=list(ids)), deadline_s=60)


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.02)


async def put(where: RunLayout, *responses: str, name: str = "rollout-0", row: Row = ROW) -> list[SampleId]:
    client = StoreClient(where.store, name)
    await client.put_prompts([row])
    new = [
        NewSample(
            info=SampleInfo(
                id=SampleId(step=0, prompt=prompt_id(row), index=index),
                prompt_length=2,
                length=len(response.split()),
                finish_reason="stop",
                versions=[(0, len(response.split()))],
            ),
            prompt_tokens=[5, 6],
            tokens=[int(token) for token in response.split()],
            logprobs=np.zeros(len(response.split())),
        )
        for index, response in enumerate(responses)
    ]
    await client.put_samples(new)
    client.close()
    return [sample.info.id for sample in new]


async def rewards(where: RunLayout, *ids: SampleId) -> list[float | None]:
    client = StoreClient(where.store, "reader")
    found = await client.get_samples(ids)
    client.close()
    return [sample.info.reward for sample in found]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Config]:
    (tmp_path / "scorer.py").write_text(SCORER)

    def config(**reward: Any) -> Config:
        alone = {} if "scorers" in reward else {"scorer": f"{tmp_path}/scorer.py:score"}
        given = alone | {"processes": 1} | reward
        return Config.model_validate(
            {
                "run": {"folder": str(tmp_path)},
                "rollout": {"engine": "trace"},
                "reward": given,
                "store": {"map_gib": 0.1},
            }
        )

    return config


@pytest.fixture
async def where(make: Callable[..., Config]) -> AsyncIterator[RunLayout]:
    """The layout of a run whose store is up."""
    config = make()
    async with StoreService(config.store, layout_of(config)).running():
        yield layout_of(config)


@pytest.fixture
async def broker(where: RunLayout) -> AsyncIterator[FakeBroker]:
    made = FakeBroker(where.broker)
    yield made
    made.server.close()


async def test_samples_are_scored_stored_and_reported(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker
) -> None:
    ids, began = await put(where, "1 2 3", "3 2 1"), time.monotonic()
    async with RewardWorker(make(), where, "reward-0").running():
        await until(lambda: broker.joins)
        assert (broker.joins[0].role, broker.joins[0].worker, broker.joins[0].slots) == ("reward", "reward-0", 8)
        await broker.rate(*ids)
        await until(lambda: len(broker.scores) == 2)
        await until(lambda: not broker.last.holding and broker.stats["reward/scored"] == 2)
        await broker.rate(ids[0])  # told again after a restart, it answers again
        await until(lambda: broker.stats["reward/scored"] == 3)
    assert [broker.scores[id].reward for id in ids] == [1.0, 0.0]
    assert min(broker.stats["seconds/score"], broker.stats["seconds/idle"]) > 0
    assert sum(seconds_of("reward", broker.stats).values()) <= time.monotonic() - began
    assert await rewards(where, *ids) == [1.0, 0.0]
    assert [leave.worker for leave in broker.leaves] == ["reward-0"]


async def test_judged_samples_are_stored_and_reported(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker
) -> None:
    async with serving(says("7")) as server:
        judge = {"url": server.url, "model": "m", "concurrency": 20}
        ids = await put(where, "1 2 3", "3 2 1", "1 2 3")
        async with RewardWorker(make(scorer="judge", judge=judge), where, "reward-0").running():
            await until(lambda: broker.joins)
            assert broker.joins[-1].slots == 20
            await broker.rate(*ids)
            scored = {"reward/scored": 3.0, "reward/judge_cached": 1.0}
            await until(lambda: scored.items() <= broker.stats.items())
        assert len(server.bodies) == 2
    assert [broker.scores[id].reward for id in ids] == [0.7] * 3
    assert await rewards(where, *ids) == [0.7] * 3


async def test_rewards_of_tokens_are_stored_and_not_reported(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker
) -> None:
    ids = await put(where, "8 8 9", "1 2 3", "8 " * 100_000)  # longer than an answer without them
    async with RewardWorker(make(), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids)
        await until(lambda: len(broker.scores) == 3)
    client = StoreClient(where.store, "reader")
    earned, plain, long = await client.get_samples(ids, logprobs=True)
    client.close()
    assert list(earned.token_rewards) == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert (list(plain.token_rewards), plain.parts, earned.parts) == ([], {}, {})
    assert len(long.token_rewards) > 1000, "in the end they are 0"
    assert [broker.scores[id].reward for id in ids] == [0.875, 1.0, 1.0]
    assert not any(score.token_rewards for score in broker.scores.values())


@pytest.mark.parametrize(("on_error", "reward"), [("drop", None), ("zero", 0.0)])
async def test_errors_and_time_outs_are_reported_and_never_silently_zero(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, on_error: str, reward: float | None
) -> None:
    ids = await put(where, "13", "99", "1 2 3")
    async with RewardWorker(make(on_error=on_error, timeout_s=3.0), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids)
        await until(lambda: len(broker.scores) == 3)
        await until(lambda: broker.stats["reward/errors"] + broker.stats["reward/scored"] == 3)
    raised, late, fine = (broker.scores[id] for id in ids)
    assert (raised.reward, raised.failed, raised.timeout) == (reward, "score", False)
    assert "score raised ValueError: unlucky (" in str(raised.error)
    assert "scorer.py, line 6)" in str(raised.error)
    assert (late.reward, late.failed, late.timeout) == (reward, "score", True)
    assert "reward.timeout_s" in str(late.error)
    assert fine == Score(id=ids[2], reward=1.0, parts={"score": 1.0})
    assert await rewards(where, *ids) == [reward, reward, 1.0]
    counts = [broker.stats[f"reward/{name}"] for name in ("scored", "errors", "timeouts")]
    assert counts == [1, 2, 1]


async def test_several_scorers_are_one_weighted_sum_and_each_is_reported(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, tmp_path: Path
) -> None:
    ids = await put(where, "1 2 3", "3 2 1 4 5", "13 14")
    scorers = [
        {"scorer": "length_penalty", "args": {"buffer": 2, "max_length": 6}, "weight": 0.5},
        {"scorer": make().reward.scorer, "name": "mine", "weight": 2.0},
        {"scorer": "exact"},
    ]
    async with RewardWorker(make(scorers=scorers), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids)
        await until(lambda: len(broker.scores) == 3)
    right, long, raised = (broker.scores[id] for id in ids)
    assert (right.reward, right.parts) == (3.0, {"length_penalty": 0.0, "mine": 1.0, "exact": 1.0})
    assert (long.reward, long.parts) == (-0.25, {"length_penalty": -0.5, "mine": 0.0, "exact": 0.0})
    assert (raised.reward, raised.failed, raised.parts) == (None, "mine", {"length_penalty": 0.0})
    assert await rewards(where, *ids) == [3.0, -0.25, None]
    with Reader(shutil.copytree(where.database, tmp_path / "copy")) as reader:  # the store is open in this process
        shown = {each.info.id: each.parts for each in Browse(reader).responses(PROMPT)}
    assert shown == {ids[0]: right.parts, ids[1]: long.parts, ids[2]: None}


async def test_the_trainer_gets_every_part_of_several_scorers(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, tmp_path: Path
) -> None:
    (tmp_path / "maybe.py").write_text(
        "def maybe(completions, **columns): return [None if c == '1 2 3' else 0.5 for c in completions]"
    )
    scorers = [{"scorer": f"{tmp_path}/maybe.py:maybe"}, {"scorer": make().reward.scorer, "name": "mine"}]
    ids = await put(where, "1 2 3", "13", "3 2 1")
    async with RewardWorker(make(scorers=scorers, on_error="zero"), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids)
        await until(lambda: len(broker.scores) == 3)
    client = StoreClient(where.store, "reader")
    found = await client.get_samples(ids, logprobs=True)
    client.close()
    assert [(one.info.reward, one.parts) for one in found] == [
        (1.0, {"mine": 1.0}),
        (0.0, {"maybe": 0.0, "mine": 0.0}),
        (0.5, {"maybe": 0.5, "mine": 0.0}),
    ]


@pytest.mark.parametrize("on_error", ["drop", "zero"])
async def test_a_scorer_that_never_works_ends_the_worker_with_its_first_error(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, on_error: str
) -> None:
    rows = [{"prompt": f"count to {number}", "answer": "1"} for number in range(4)]
    ids = [id for row in rows for id in await put(where, *["13"] * 4, name=row["prompt"], row=row)]
    running = asyncio.create_task(RewardWorker(make(on_error=on_error), where, "reward-0").run())
    await until(lambda: broker.joins)
    await broker.rate(*ids)
    async with asyncio.timeout(60):
        with pytest.raises(
            RewardError, match=r"scoring failed for each of the first 16 samples .*score: .*unlucky \(.*line 6"
        ):
            await running


async def test_a_sample_that_the_store_does_not_know_hurts_no_other(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker
) -> None:
    ids = await put(where, "1 2 3")
    async with RewardWorker(make(on_error="zero"), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(sample_id(7), *ids)
        await until(lambda: len(broker.scores) == 2)
    assert broker.scores[ids[0]].reward == 1.0
    assert broker.scores[sample_id(7)].reward is None
    assert "not in the store" in str(broker.scores[sample_id(7)].error)


async def test_a_new_broker_is_joined_with_what_is_in_hand(make: Callable[..., Config], where: RunLayout) -> None:
    ids = await put(where, "99")
    first = FakeBroker(where.broker)
    async with RewardWorker(make(timeout_s=60), where, "reward-0").running():
        await until(lambda: first.joins)
        await first.rate(*ids)
        await until(lambda: first.last.holding)
        first.server.close()
        second = FakeBroker(where.broker)
        await until(lambda: second.joins)
        assert second.joins[0].holding == ids
        await until(lambda: [held.id for held in second.last.holding] == ids)
    second.server.close()


async def test_the_store_may_restart(make: Callable[..., Config], tmp_path: Path) -> None:
    config = make()
    where = layout_of(config)
    async with StoreService(config.store, where).running():
        ids = await put(where, "1 2 3")
    broker = FakeBroker(where.broker)
    async with RewardWorker(config, where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids)
        async with StoreService(config.store, where).running():
            await until(lambda: broker.scores)
            assert await rewards(where, *ids) == [1.0]
    broker.server.close()


async def test_finish_ends_it(make: Callable[..., Config], where: RunLayout, broker: FakeBroker) -> None:
    worker = RewardWorker(make(), where, "reward-0")
    running = asyncio.create_task(worker.run())
    await until(lambda: broker.joins)
    await broker.server.request(broker.worker, Finish(reason="all steps are trained"), deadline_s=60)
    async with asyncio.timeout(60):
        await running
    assert not broker.leaves


async def test_a_scorer_that_cannot_be_loaded_ends_it_before_it_joins(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker
) -> None:
    with pytest.raises(RewardError, match=r"known: .*exact"):
        await RewardWorker(make(scorer="exactly"), where, "reward-0").run()
    assert not broker.joins


def test_the_models_tokenizer_decodes_without_special_tokens(tiny_model: Path) -> None:
    from tokenizers import Tokenizer

    from rhymed_store.client import StoredSample

    decode = load_decoder(Config.model_validate({"model": {"path": str(tiny_model)}, "rollout": SHORT}))
    ids = Tokenizer.from_file(str(tiny_model / "tokenizer.json")).encode("two words").ids
    info = SampleInfo(
        id=sample_id(0), prompt_length=0, length=len(ids) + 1, finish_reason="stop", versions=[(0, len(ids) + 1)]
    )
    assert decode([StoredSample(info, np.array([*ids, 1], np.uint32))]) == ["two words"]


GROUPED = """
import os

def rank(completions, log_extra, log_metric, **columns):
    if "13" in completions:
        raise ValueError("unlucky")
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as file:
        file.write(f"{len(completions)} ")
    log_extra("words", [c + "!" for c in completions])
    log_metric("longest", max(map(len, completions)))
    return [float(sorted(completions).index(c)) for c in completions]
"""


async def test_a_group_is_scored_stored_and_reported_in_one_call(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, tmp_path: Path
) -> None:
    (tmp_path / "grouped.py").write_text(GROUPED)
    config = make(scorer=f"{tmp_path}/grouped.py:rank")
    other = {"prompt": "another", "answer": "4"}
    ids, bad = await put(where, "3", "1", "2"), await put(where, "4", "13", row=other)
    async with RewardWorker(config, where, "reward-0").running():
        await until(lambda: broker.joins)
        assert broker.joins[0].whole_groups
        await broker.rate(*bad, *reversed(ids))
        await until(lambda: len(broker.scores) == 5)
    assert sorted((tmp_path / "calls").read_text().split()) == ["1", "3"]
    assert [broker.scores[id].reward for id in (*ids, *bad)] == [2.0, 0.0, 1.0, 0.0, None]
    assert "unlucky" in str(broker.scores[bad[1]].error)
    assert [broker.scores[id].metrics for id in ids] == [{"longest": 1.0}, {}, {}]
    assert await rewards(where, *ids, *bad) == [2.0, 0.0, 1.0, 0.0, None]
    with Reader(shutil.copytree(where.database, tmp_path / "copy")) as reader:
        shown = [each.parts for each in Browse(reader).responses(PROMPT)]
    assert shown == [{"rank/words": f"{n}!"} for n in (3, 1, 2)]


async def test_a_group_of_which_the_store_lacks_a_sample_goes_back(
    make: Callable[..., Config], where: RunLayout, broker: FakeBroker, tmp_path: Path
) -> None:
    (tmp_path / "grouped.py").write_text(GROUPED)
    ids = await put(where, "3", "1")
    async with RewardWorker(make(scorer=f"{tmp_path}/grouped.py:rank"), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(*ids, sample_id(7))
        await until(lambda: broker.scores and broker.back)
        await until(lambda: not broker.last.holding)
    assert broker.back == dict.fromkeys(ids, False)
    assert [(id, score.unstored) for id, score in broker.scores.items()] == [(sample_id(7), True)]


async def test_of_a_group_whose_sample_is_gone_when_its_rewards_are_stored_the_others_go_back_unblamed(
    make: Callable[..., Config],
    where: RunLayout,
    broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "grouped.py").write_text(GROUPED)
    gone, *ids = await put(where, "3", "1", "2")
    read, put_scores = StoreClient.get_samples, StoreClient.put_scores
    refused = list[bool]()

    async def get_samples(self: StoreClient, asked: Sequence[SampleId], **how: Any) -> Any:
        if refused and gone in asked:
            raise UnknownSample(f"{gone}")
        return await read(self, asked, **how)

    async def refuse(self: StoreClient, scores: Sequence[Score]) -> None:
        if any(score.id == gone for score in scores):
            refused.append(True)
            raise UnknownSample(f"{gone}")
        await put_scores(self, scores)

    monkeypatch.setattr(StoreClient, "get_samples", get_samples)
    monkeypatch.setattr(StoreClient, "put_scores", refuse)
    async with RewardWorker(make(scorer=f"{tmp_path}/grouped.py:rank"), where, "reward-0").running():
        await until(lambda: broker.joins)
        await broker.rate(gone, *ids)
        await until(lambda: broker.scores and broker.back)
        await until(lambda: not broker.last.holding)
    assert broker.back == dict.fromkeys(ids, False)
    assert [(id, score.unstored) for id, score in broker.scores.items()] == [(gone, True)]
