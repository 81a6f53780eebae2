"""HistoSpec in vLLM's model runner V2 (0.32 and later): keyed samplers, and the same drafter as in V1.

V2 knows no drafters of users. So `install` gives it the class that stands as the model of its method "ngram", which
needs neither a draft model nor room in the cache:

    {"method": "ngram", "model": "rhymed.histospec.proposer.HistoSpec", "num_speculative_tokens": 15}

With synchronous scheduling the drafts of a step go to the scheduler, of each request as many as there are, and come
back with the next step on every rank. With asynchronous scheduling the next step is scheduled before the tokens of
this one are known, with places for drafts. These tokens are waited for where the next step begins to execute;
drafts are made of them then, and places that stay empty are cut off the step. The scheduler takes these for
rejected. Where requests have a grammar, it asks for the drafts before it computes their masks. While the drafter
skips steps, or drafts no more, no step waits for the tokens of another.

A model's own head (EAGLE, EAGLE-3, MTP) drafts, too, if `additional_config` says how many tokens: `with_history`
adds history to vLLM's speculator for it. Its drafts arrive with the tokens of the step, and are one more source for
the drafter.

`Requests` shows the drafter what it reads of V1's runner. This module names V2's internals, as do
`sampling.runner_v2`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed import get_tp_group
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu import model_runner, structured_outputs
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from rhymed.core.config.generation import HEADS
from rhymed.histospec.sampling import runner_v2 as samplers
from rhymed.histospec.sampling.transfer import begin, upload
from rhymed.histospec.settings import KEY, read_settings
from rhymed.histospec.versions import HISTOSPEC

WARM_UP = ("_warmup_", "_v2_mixed_warmup")  # begin the ids of requests that vLLM makes before any comes


class Request:
    """As V1's `CachedRequestState`. It stays while its request is preempted, and so do its lists."""

    def __init__(self, new: Any) -> None:
        self.sampling_params = new.sampling_params
        self.prompt_token_ids: list[int] = list(new.prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.begin(new)

    def begin(self, new: Any) -> None:
        """V2 takes it in, for the first time or again: the tokens that the scheduler knows of."""
        self.output_token_ids[:] = new.prefill_token_ids[self.num_prompt_tokens :]


@dataclasses.dataclass(frozen=True)
class Noise:
    """As V1's batch of keyed requests."""

    key_B: NDArray[np.uint64]
    scale_B: NDArray[np.float32]  # 1 / temperature; 0: greedy

    def __len__(self) -> int:
        return len(self.key_B)


class Made(NamedTuple):
    """What a step made, by row."""

    ids: list[str]
    verified: list[int]  # drafts
    order: list[int]  # rows by the slots of their requests
    decodes: bool  # one token of each request: no drafts, and no part of a prompt
    wait: Callable[[], torch.Tensor]  # the head's drafts [B, depth], tokens [B, width], counts [B, 1], on the host
    depth: int = 0  # of the head's drafts

    def ordered(self) -> list[str]:
        return [self.ids[row] for row in self.order]

    def tokens(self) -> list[list[int]]:
        """Of the requests, ordered."""
        made_BT = self.wait().numpy()
        return [made_BT[row, self.depth : self.depth + made_BT[row, -1]].tolist() for row in self.order]

    def drafted(self) -> NDArray[np.int32]:
        """By the head, for the requests, ordered."""
        drafts_BT: NDArray[np.int32] = self.wait().numpy()[self.order, : self.depth].astype(np.int32)
        return drafts_BT


class Requests:
    """The part of V1's runner that the drafter reads: the requests of the last step, in the order of their slots,
    which changes only with the requests."""

    def __init__(self, runner: Any) -> None:
        self.vllm_config, self.device = runner.vllm_config, runner.device
        self.requests: dict[str, Request] = {}
        self.input_batch = SimpleNamespace(req_ids=[], spec_token_ids=[])
        self.sampler = SimpleNamespace(keyed=self) if isinstance(runner.sampler, samplers.KeyedSampler) else None
        self._states, self._slot_of = runner.sampler.sampling_states, runner.req_states.req_id_to_index
        self.skipped: list[Made] = []  # steps whose tokens are not taken in yet

    def settle(self) -> None:
        """Takes in the tokens of the steps that were skipped."""
        skipped, self.skipped = self.skipped, []
        for made in skipped:
            self.take_in(made)

    def take_in(self, made: Made) -> list[list[int]]:
        """The tokens that a step made."""
        fresh = made.tokens()
        for id, tokens in zip(made.ordered(), fresh, strict=True):
            if (request := self.requests.get(id)) is not None:
                request.output_token_ids.extend(tokens)
        return fresh

    def batch(self) -> Noise | None:
        """None if a request has left its slot."""
        slots = [self._slot_of.get(id) for id in self.input_batch.req_ids]
        if None in slots:
            return None
        key_B = self._states.seeds.np[slots].view(np.uint64)
        heat_B = self._states.temperature.np[slots].astype(np.float64)
        return Noise(key_B, np.divide(1.0, heat_B, where=heat_B > 0, out=np.zeros_like(heat_B)).astype(np.float32))


class Speculator(BaseSpeculator):  # type: ignore[misc, unused-ignore]  # vLLM is not followed
    """Drafts by `histo`, a `proposer.HistoSpec`, once it is bound to a loaded runner."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, histo: Any, vllm_config: Any, device: torch.device, states: Any) -> None:
        self.histo = histo
        self.histo.load_model()
        self._states, self._device = states, device
        self._width = int(vllm_config.speculative_config.num_speculative_tokens)
        self._requests: Requests | None = None
        self._late = bool(vllm_config.scheduler_config.async_scheduling)
        self._made: torch.Tensor | None = None  # of the last step: tokens [B, width], then counts [B, 1]
        self._last: Made | None = None  # the step whose tokens are not taken in yet
        self._drafts: tuple[list[str], list[list[int]]] = [], []
        self._places: dict[str, int] | None = None  # for drafts, in the step as it was scheduled; None: none was cut

    def bind(self, runner: Any) -> None:
        self._requests = Requests(runner)
        self.histo.bind(self._requests)
        for name, wrapped in {
            "add_requests": self._taking_in,
            "finish_requests": self._letting_go,
            "execute_model": self._placing_drafts,
            "sample": self._keeping_tokens,
            "shutdown": self._closing,
        }.items():
            setattr(runner, name, wrapped(getattr(runner, name)))
        runner.take_draft_token_ids = self.take

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """There is no model."""

    def capture(self) -> None:
        """There is no model."""

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        *others: Any,
        dummy_run: bool = False,
        drafted: torch.Tensor | None = None,
        **named: Any,
    ) -> torch.Tensor:
        """Of each request any valid tokens, [B, draft length]: what is drafted is placed where a step begins.
        `drafted`: by the head, [B, depth]."""
        filler = last_sampled.view(-1)[input_batch.idx_mapping][:, None].repeat(1, self._width)
        made, self._made = self._made, None
        ids = list(input_batch.req_ids)
        if dummy_run or self._requests is None or made is None or ids[0].startswith(WARM_UP):
            return filler
        verified_B = input_batch.num_draft_tokens_per_req
        verified = [0] * len(ids) if verified_B is None else verified_B.tolist()
        order = np.argsort(input_batch.idx_mapping_np[: len(ids)]).tolist()
        decodes = not (input_batch.has_prefill or any(verified))
        if drafted is None:
            self._last = Made(ids, verified, order, decodes, begin(made))
        else:
            both = torch.cat((drafted.to(made.dtype), made), 1)
            self._last = Made(ids, verified, order, decodes, begin(both), drafted.shape[1])
        if not self._late:
            self._drafts = self._draft()
        return filler

    def take(self) -> Any:
        """The drafts of the last step, for the scheduler. With asynchronous scheduling those in the step that
        executes."""
        (ids, drafts), self._drafts = self._drafts, ([], [])
        return DraftTokenIds(ids, drafts)

    def _draft(self, next_step: Any = None) -> tuple[list[str], list[list[int]]]:
        """Takes in the tokens of the last step. Returns its requests and their drafts; none on a rank whose drafts
        are not used. `next_step`: vLLM's `SchedulerOutput`, if it is scheduled already."""
        shown, last, self._last = self._requests, self._last, None
        if shown is None or last is None or self.histo.idle:
            return [], []
        if next_step is not None and self._skips(shown, last, next_step):
            return [], []
        shown.settle()
        ids, fresh = last.ordered(), shown.take_in(last)
        verified = [last.verified[row] for row in last.order]
        shown.input_batch.req_ids = ids
        shown.input_batch.spec_token_ids = [[0] * count for count in verified]
        states = [shown.requests[id] for id in ids]
        lengths = np.array([state.num_prompt_tokens + len(state.output_token_ids) for state in states], np.int32)
        headed = {"drafted": last.drafted()} if last.depth else {}  # any drafter serves where there is no head
        drafts = self.histo.propose(fresh, lengths, np.zeros((0, 0), np.int32), **headed)
        return ids, [draft[: self._width] for draft in drafts]

    def _skips(self, shown: Requests, last: Made, next_step: Any) -> bool:
        """Whether nothing is drafted for the next step whatever the last one made; then that stays where it is. Only
        between steps of the same requests: with another one vLLM says again which tokens each has."""
        if next_step.scheduled_new_reqs or next_step.num_scheduled_tokens.keys() != set(last.ids):
            return False
        if not last.decodes or not self.histo.skips(last.ordered(), lambda: [one[0] for one in last.tokens()]):
            return False
        shown.skipped.append(last)
        return True

    def _taking_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def add_requests(step: Any) -> None:
            assert self._requests is not None
            known = self._requests.requests
            for new in step.scheduled_new_reqs:
                if new.req_id in known:
                    known[new.req_id].begin(new)
                else:
                    known[new.req_id] = Request(new)
            original(step)

        return add_requests

    def _letting_go(self, original: Any) -> Any:
        @functools.wraps(original)
        def finish_requests(step: Any) -> None:
            assert self._requests is not None
            for id in step.finished_req_ids:
                self._requests.requests.pop(id, None)
            original(step)

        return finish_requests

    def _placing_drafts(self, original: Any) -> Any:
        @functools.wraps(original)
        def execute_model(step: Any, *others: Any, **named: Any) -> Any:
            if not named.get("dummy_run"):
                places, self._places = step.scheduled_spec_decode_tokens, None
                if self._late and not any(id.startswith(WARM_UP) for id in step.num_scheduled_tokens):
                    step = cut(
                        step, self._agreed(step)
                    )  # also of a step without tokens: no other may follow for hours
                    self._places = {id: len(given) for id, given in places.items()}
                    placed = step.scheduled_spec_decode_tokens
                    self._drafts = [*placed], [[*draft] for draft in placed.values()]
                self._place(step.scheduled_spec_decode_tokens)
            return original(step, *others, **named)

        return execute_model

    def _agreed(self, step: Any) -> dict[str, list[int]]:
        """The drafts of the first rank on every rank, for this step."""
        drafts = dict(zip(*self._draft(step), strict=True))
        ranks = get_tp_group()
        if ranks.world_size > 1:
            drafts = ranks.broadcast_object(drafts if ranks.rank_in_group == 0 else None, src=0)
        return drafts

    def _place(self, drafts: dict[str, Sequence[int]]) -> None:
        """Writes the scheduled drafts where the step's inputs are read from. A request that comes with drafts and has
        no slot yet is none of ours."""
        slots = {id: slot for id in drafts if (slot := self._states.req_id_to_index.get(id)) is not None}
        places = [
            (slots[id], at, max(0, token)) for id in slots for at, token in enumerate(drafts[id])
        ]  # -1: a placeholder, which may not be looked up
        if places:
            slot, at, token = upload(np.array(places, np.int64).T.copy(), self._device)
            self._states.draft_tokens[slot, at] = token

    def _keeping_tokens(self, original: Any) -> Any:
        @functools.wraps(original)
        def sample(hidden_states: Any, batch: Any, grammar: Any, *given: Any, **named: Any) -> Any:
            if grammar is not None and self._places is not None and MASKS_AS_SCHEDULED:
                grammar = without_cut(grammar, self._places, batch)
            output, sampled, rejected = original(hidden_states, batch, grammar, *given, **named)
            tokens = output.sampled_token_ids
            self._made = torch.cat((tokens, sampled.to(tokens.dtype)[:, None]), 1)
            return output, sampled, rejected

        return sample

    def _closing(self, original: Any) -> Any:
        @functools.wraps(original)
        def shutdown(*given: Any) -> Any:
            self.histo.close()
            return original(*given)

        return shutdown


def cut(step: Any, drafts: Mapping[str, Sequence[int]]) -> Any:
    """A copy of vLLM's `SchedulerOutput` with these drafts in the places for drafts, without the places that stay
    empty."""
    step = copy.copy(step)
    step.num_scheduled_tokens = dict(step.num_scheduled_tokens)
    places, step.scheduled_spec_decode_tokens = step.scheduled_spec_decode_tokens, {}
    for id, given in places.items():
        draft = list(drafts.get(id, ()))[: len(given)]
        step.num_scheduled_tokens[id] -= len(given) - len(draft)
        step.total_num_scheduled_tokens -= len(given) - len(draft)
        if draft:
            step.scheduled_spec_decode_tokens[id] = draft
    return step


MASKS_AS_SCHEDULED = hasattr(structured_outputs, "_build_grammar_mapping")
"""Whether a request has as many masks as places for drafts, and one more. In 0.33 all have those of the longest
draft, and what has no place is skipped."""


def without_cut(grammar: Any, places: Mapping[str, int], batch: Any) -> Any:
    """vLLM's `GrammarOutput` without the masks of places that were cut off the step. `places`: of each request, in
    the step as it was scheduled; `batch`: the step's `InputBatch`."""
    kept_B = batch.num_draft_tokens_per_req
    kept = dict(zip(batch.req_ids, [0] * len(batch.req_ids) if kept_B is None else kept_B.tolist(), strict=False))
    rows, at = list[int](), 0
    for id in grammar.structured_output_request_ids:
        rows += range(at, at + 1 + kept[id])
        at += 1 + places.get(id, 0)
    return dataclasses.replace(grammar, grammar_bitmask=grammar.grammar_bitmask[rows])


def with_history(head: Any, speculator: Speculator) -> Any:
    """vLLM's speculator for its head, `head`, with our speculator asked after it in each step."""
    propose = head.propose

    @functools.wraps(propose)
    def both(*given: Any, **named: Any) -> torch.Tensor:
        drafted = propose(*given, **named | {"num_speculative_tokens": head.num_speculative_steps})
        return speculator.propose(*given, **named, drafted=drafted)

    head.propose, head.bind, head.histo = both, speculator.bind, speculator.histo
    return head


def _as_deep(vllm_config: Any, depth: int) -> Any:
    """A copy of vLLM's configuration with drafts of so many tokens: the engine's may be longer than those of its
    head."""
    config = copy.copy(vllm_config)
    config.speculative_config = copy.copy(config.speculative_config)
    config.speculative_config.num_speculative_tokens = depth
    return config


def install(attach: Callable[[Any], Any]) -> None:
    """Once per process, before its model runner is made. `attach` gets each loaded runner."""
    runner_class = model_runner.GPUModelRunner
    load, init = runner_class.load_model, model_runner.init_speculator
    if hasattr(load, "rhymed"):
        return

    @functools.wraps(load)
    def load_model(runner: Any, *given: Any, **named: Any) -> None:
        load(runner, *given, **named)
        attach(runner)

    @functools.wraps(init)
    def init_speculator(vllm_config: Any, device: torch.device, states: Any) -> Any:
        chosen = vllm_config.speculative_config
        depth = read_settings(vllm_config.additional_config).engine
        if not depth and (chosen.method != "ngram" or "." not in chosen.model):
            return init(vllm_config, device, states)
        if depth and chosen.method not in HEADS:
            raise ValueError(
                f"{KEY}.engine = {depth} needs a head of vLLM's ({', '.join(HEADS)}), not {chosen.method}"
            )
        if vllm_config.scheduler_config.async_scheduling and vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError("drafts from history need async_scheduling=False with pipeline parallelism")
        histo = pkgutil.resolve_name(HISTOSPEC if depth else chosen.model)(vllm_config)
        speculator = Speculator(histo, vllm_config, device, states)
        if not depth:
            return speculator
        return with_history(init(_as_deep(vllm_config, depth), device, states), speculator)

    load_model.rhymed = True  # type: ignore[attr-defined]
    runner_class.load_model, model_runner.init_speculator = load_model, init_speculator


def attach_samplers(runner: Any) -> str:
    """Keyed samplers for a loaded runner. Returns why not; empty: it has them."""
    if why := samplers.attach(runner):
        return why
    sampler = runner.sampler
    if sampler is not None and not hasattr(runner, "rhymed_forgets"):
        finish = runner.finish_requests

        @functools.wraps(finish)
        def finish_requests(step: Any) -> None:
            sampler.forget(step.finished_req_ids)
            finish(step)

        runner.finish_requests, runner.rhymed_forgets = finish_requests, True
    return ""
