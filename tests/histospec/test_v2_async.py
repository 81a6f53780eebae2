"""Drafts in vLLM's model runner V2 with asynchronous scheduling: made where the next step begins, of all tokens that
there are, so that as many are accepted as with synchronous scheduling."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams

from rhymed.histospec.proposer import HistoSpec
from tests.histospec.sampling.fake_runner import V
from tests.histospec.test_proposer import proposer_config
from tests.histospec.test_v2 import equal, run
from tests.packages import needs
from tests.tiny import write_mtp_model

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]
pytestmark += [needs("triton"), pytest.mark.filterwarnings("ignore")]  # vLLM's and torch's own


def test_places_without_drafts_are_cut_off_a_copy_of_the_step() -> None:
    from rhymed.histospec.runner_v2 import cut

    step = SimpleNamespace(
        num_scheduled_tokens={"a": 4, "b": 4, "c": 4, "new": 9},
        total_num_scheduled_tokens=21,
        scheduled_spec_decode_tokens={"a": [-1, -1, -1], "b": [-1, -1, -1], "c": [-1, -1, -1]},
    )
    made = cut(step, {"a": [5, 6], "c": [7, 8, 9, 10], "gone": [3]})
    assert made.num_scheduled_tokens == {"a": 3, "b": 1, "c": 4, "new": 9}
    assert made.total_num_scheduled_tokens == 17
    assert made.scheduled_spec_decode_tokens == {"a": [5, 6], "c": [7, 8, 9]}
    assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values()) == 21


def test_masks_of_places_that_were_cut_off_are_left_out() -> None:
    """Of "b" two of three places are left; "a" has no grammar, and the step had none for "new"."""
    from vllm.v1.core.sched.output import GrammarOutput

    from rhymed.histospec.runner_v2 import without_cut

    masks = np.arange(9, dtype=np.int32)[:, None]
    batch = SimpleNamespace(req_ids=["a", "b", "c", "new"], num_draft_tokens_per_req=np.array([1, 2, 0, 0]))
    grammar = GrammarOutput(["c", "new", "b"], masks, [0, 0, 3])
    made = without_cut(grammar, {"a": 3, "b": 3, "c": 3}, batch)
    assert made.grammar_bitmask[:, 0].tolist() == [0, 4, 5, 6, 7]
    assert made.num_acceptable_drafts == [0, 0, 3]
    batch.num_draft_tokens_per_req = None
    assert without_cut(grammar, {"b": 3, "c": 3}, batch).grammar_bitmask[:, 0].tolist() == [0, 4, 5]


class Runner:
    """The order in which V2's runner does things. Each request makes one token a step, at random."""

    def __init__(self, speculator: Any) -> None:
        self.vllm_config, self.device, self.speculator = None, torch.device("cpu"), speculator
        self.sampler, self.req_states = SimpleNamespace(sampling_states=None), SimpleNamespace(req_id_to_index={})
        self.random, self.made = torch.Generator().manual_seed(0), dict[str, list[int]]()

    def add_requests(self, step: Any) -> None:
        for new in step.scheduled_new_reqs:
            self.req_states.req_id_to_index[new.req_id] = len(self.req_states.req_id_to_index)
            self.made[new.req_id] = []

    def finish_requests(self, step: Any) -> None:
        for id in step.finished_req_ids:
            del self.req_states.req_id_to_index[id]

    def sample(self, ids: list[str], batch: Any, grammar: Any) -> Any:
        tokens = torch.randint(2, V, (len(ids), 1), generator=self.random)
        for id, (token,) in zip(ids, tokens.tolist(), strict=True):
            self.made[id].append(token)
        return SimpleNamespace(sampled_token_ids=tokens), torch.ones(len(ids), dtype=torch.int32), None

    def execute_model(self, step: Any) -> None:
        self.finish_requests(step)
        self.add_requests(step)
        ids = [*step.num_scheduled_tokens]
        slots = np.array([self.req_states.req_id_to_index[id] for id in ids])
        prefill = bool(step.scheduled_new_reqs)
        batch = SimpleNamespace(req_ids=ids, idx_mapping=torch.from_numpy(slots), idx_mapping_np=slots)
        batch.num_draft_tokens_per_req, batch.has_prefill = None, prefill
        _, sampled, rejected = self.sample(ids, batch, None)
        self.speculator.propose(batch, None, None, None, None, sampled, rejected, torch.zeros(8, dtype=torch.int64))

    def shutdown(self) -> None:
        pass


def step_of(ids: list[str], new: bool = False, finished: Sequence[str] = ()) -> Any:
    requests = [
        SimpleNamespace(
            req_id=id,
            prompt_token_ids=[1, 2, number],
            prefill_token_ids=[1, 2, number],
            sampling_params=SamplingParams(max_tokens=400, extra_args={"rhymed": {"name": id}}),
        )
        for number, id in enumerate(ids)
    ]
    return SimpleNamespace(
        scheduled_new_reqs=requests if new else [],
        finished_req_ids=set(finished),
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        total_num_scheduled_tokens=len(ids),
        scheduled_spec_decode_tokens={},
    )


def test_where_the_drafter_skips_no_step_waits_and_no_token_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of noise nothing is worth drafting. `waits`: the steps in which a copy was waited for, and of which step."""
    from rhymed.histospec import runner_v2

    waits, at = list[tuple[int, int]](), 0

    def begin(values: torch.Tensor) -> Callable[[], torch.Tensor]:
        number, copied = at, values.clone()

        def wait() -> torch.Tensor:
            waits.append((at, number))
            return copied

        return wait

    monkeypatch.setattr(runner_v2, "begin", begin)
    monkeypatch.setattr(runner_v2, "get_tp_group", lambda: SimpleNamespace(world_size=1))
    config = proposer_config()
    config.scheduler_config.async_scheduling = True
    histo = HistoSpec(config)
    speculator = runner_v2.Speculator(histo, config, torch.device("cpu"), SimpleNamespace(req_id_to_index={}))
    runner = Runner(speculator)
    speculator.bind(runner)
    ids = ["a", "b", "c"]
    for at in range(300):
        runner.execute_model(step_of(ids, new=at == 0))
        if at == 150:
            assert [one.forwards for one in histo.accounts(ids)] == [150] * 3, "of what was skipped, too"
    for at in (300, 301):
        runner.execute_model(step_of(ids[:2], finished=ids[2:] if at == 300 else ()))
    assert not histo._broken
    looked = {step for step, number in waits if number == step - 1}
    assert {step for step, _ in waits} == looked | {150}, "who does not look does not wait"
    assert 300 in looked, "one has left"
    assert len(looked) < 120
    histo.close()
    assert [len(runner.made[id]) for id in ids] == [302, 302, 300]
    for id in ids[:2]:
        assert speculator._requests.requests[id].output_token_ids == runner.made[id][:301]


def test_a_head_of_the_model_drafts_in_addition_to_history_and_changes_no_token(tmp_path: Path) -> None:
    """MTP. `head`: there is no history. `both`: there is, and all running requests are preempted at once, four times.
    Of EAGLE-3, see test_v2_ranks.py."""
    write_mtp_model(tmp_path / "model")
    reported = run(tmp_path / "model", "headed", "1", asynchronous=True)
    assert "vllm.v1.worker.gpu.spec_decode.mtp.speculator" in reported["kind"], "it is vLLM's own"
    assert (reported["asynchronous"], reported["broken"]) == (True, False)
    for how in ("head", "both"):
        equal(reported["plain"], reported[how], 1e-5)
    assert reported["both"]["preempted"] > 0
    verified, accepted = reported["head"]["head"]
    assert 0 < accepted < verified


@pytest.fixture(scope="module")
def spelling(sharp_model: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sharp model with the tokenizer of the tiny one."""
    folder = tmp_path_factory.mktemp("spelling")
    for file in [*tiny_model.iterdir(), *sharp_model.iterdir()]:
        shutil.copy(file, folder)
    return folder


def test_drafts_change_no_token_where_requests_have_a_grammar(spelling: Path) -> None:
    reported = run(spelling, "structured", "1", asynchronous=True)
    assert (reported["asynchronous"], reported["broken"]) == (True, False)
    equal(reported["plain"], reported["drafted"], 1e-5)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(spelling)
    for spelled, free in zip(reported["plain"]["tokens"][::2], reported["plain"]["tokens"][1::2], strict=True):
        assert re.fullmatch("[a-z]+", tokenizer.decode(spelled))
        assert not re.fullmatch("[a-z]+", tokenizer.decode(free))
    drafted, accepted = reported["accounts"]
    assert 0 < accepted < drafted
    assert reported["drafted"]["steps"] < reported["plain"]["steps"]
