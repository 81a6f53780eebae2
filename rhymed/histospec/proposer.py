"""What vLLM loads as a drafter: `"method": "custom_class", "model": "rhymed.histospec.proposer.HistoSpec"`.

A proposer lives in the engine's worker process, which asks it for drafts after every step. It reads the running
requests from the model runner that `plugin` binds it to. An error in here is logged and ends the drafting, never the
engine.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec import plugin
from rhymed.histospec.drafter import Drafter, warm_up
from rhymed.histospec.drafts.engine import EngineDrafts
from rhymed.histospec.drafts.requests import Continued, RequestInfo
from rhymed.histospec.drafts.types import Batch, Noise
from rhymed.histospec.drafts.yields import Account
from rhymed.histospec.graphs import captured, verifying_tokens
from rhymed.histospec.index.builder import Builder, PastResponse
from rhymed.histospec.index.recent import Recent
from rhymed.histospec.local import open_local
from rhymed.histospec.settings import KEY, read_settings

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 30  # tokens
LOG_EVERY_S = 60.0
CLOSE_S = 3.0  # to write the last responses; vLLM kills its processes soon after


class HistoSpec:
    """Configured by `additional_config = {"rhymed": {...}}`, see `settings.Settings`."""

    def __init__(self, vllm_config: Any) -> None:
        _log_with_vllm()
        self._settings = settings = read_settings(vllm_config.additional_config)
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        self.drafts = drafting_rank(parallel)
        stored = settings.store and self.drafts
        self._local = open_local(settings.store, model, settings.responses) if stored else None
        self._longest = int(model.max_model_len)
        scheduler = vllm_config.scheduler_config
        requests, row_bytes = int(scheduler.max_num_seqs), int(model.get_vocab_size()) * model.dtype.itemsize
        largest = int(scheduler.max_num_batched_tokens)
        self.rows: int | None = None  # of logits in a step, at most; None: every draft may have its full length
        if settings.budget == "rate":
            largest = min(largest, verifying_tokens(requests, row_bytes))
            self.rows = largest + requests
        self._builder = Builder(int(model.get_vocab_size()), settings.orders)
        self._drafter = Drafter(
            settings,
            self._builder,
            self._describe,
            width=int(vllm_config.speculative_config.num_speculative_tokens),
            largest=largest,
            on_prompt=self._on_prompt if self._local else None,
            on_end=self._on_end if self._local else None,
        )
        self._logged, self._logged_s = Account(), time.monotonic()
        Finalize(None, self.close, exitpriority=100)  # atexit does not run in forked child processes
        self._runner: Any = None
        self._settle: Callable[[], None] = lambda: None  # shows all tokens of steps that were skipped unseen
        self._ids: list[str] = []  # of the batch's requests; what follows is in this order
        self._stops: list[set[int]] = []  # tokens that end a request
        self._turn_ends: NDArray[np.int32] | None = None
        self._ends = np.zeros(0, np.int64)  # most tokens of prompt and response
        self._starts = np.zeros(0, np.int64)  # tokens of the prompt
        self._keys, self._scale = np.zeros(0, np.uint64), np.zeros(0, np.float32)  # of the noise; 0: not keyed
        self._broken = self._closed = False
        plugin.install()

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is no model to load: compiles the drafting code instead."""
        if not self.drafts:
            return
        try:
            warm_up(self._settings)
        except Exception:
            log.exception("drafting cannot start; generation continues without it")
            self._broken = True

    def bind(self, runner: Any) -> None:
        """The model runner that has the requests and, if any, CUDA graphs. Closes when the runner is shut down."""
        self._runner = runner
        self._settle = getattr(runner, "settle", self._settle)
        self.read_graphs()
        if (shutdown := getattr(runner, "shutdown", None)) is not None:

            def close_first() -> None:
                self.close()
                shutdown()

            runner.shutdown = close_first

    def read_graphs(self) -> None:
        """The runner has a KV cache, which may be another one than before: reads the sizes of its graphs."""
        self._drafter.captured(captured(getattr(self._runner.vllm_config, "compilation_config", None)))

    @property
    def idle(self) -> bool:
        """Nothing is drafted on this rank, or any more."""
        return self._broken or self._closed or self._runner is None or not self.drafts

    def skips(self, ids: list[str], tokens: Callable[[], list[int]]) -> bool:
        """Whether a step that made one token of each of these requests needs no call of `propose`: whatever it made,
        nothing is drafted. `tokens`: these, see `Drafter.skips_unseen`."""
        return self._local is None and self._drafter.skips_unseen(ids, tokens)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
        drafted: NDArray[np.int32] | None = None,
    ) -> list[list[int]]:
        """One draft per request, in batch order; `sampled_token_ids[i]` is empty while a prompt is prefilled.
        `drafted`: [requests, depth], by the engine's own head."""
        if self.idle:
            return [[] for _ in sampled_token_ids]
        try:
            ids = self._runner.input_batch.req_ids
            # A step that ends a response is looked at if it has to be written: no other step may follow for hours.
            ends = self._local is not None and self._end_any(ids, sampled_token_ids, num_tokens_no_spec)
            if not ends and self._drafter.skips(ids, sampled_token_ids):
                return [[]] * len(sampled_token_ids)
            batch = self._batch(sampled_token_ids, num_tokens_no_spec)
            drafts = self._drafter.step(batch._replace(drafted=drafted))
            if time.monotonic() > self._logged_s + LOG_EVERY_S:
                self._log_total()
            return drafts
        except Exception:
            log.exception("drafting failed and stops; generation continues without it")
            self._broken = True
            return [[] for _ in sampled_token_ids]

    def remember(self, prompt: str, context: Sequence[int], past: Sequence[PastResponse]) -> None:
        """Gives a prompt's earlier responses, which are used as drafts once they are indexed."""
        self._builder.submit(prompt_key(prompt), context, lambda: past)

    @property
    def recent(self) -> Recent:
        """What requests of all prompts have written."""
        return self._drafter.recent

    @property
    def engine(self) -> EngineDrafts | None:
        """What the engine's own head has drafted; None: it has none."""
        return self._drafter.engine

    def accounts(self, requests: Sequence[str]) -> list[Account | None]:
        """What drafting did for these requests, by their `name` in `extra_args`."""
        self._settle()
        return [self._drafter.account(request) for request in requests]

    def take_yields(self, requests: Sequence[str]) -> list[bytes | None]:
        self._settle()
        return [self._drafter.take_yields(request) for request in requests]

    def close(self) -> None:
        """Stops drafting and writes the last responses to the local store."""
        if self._closed:
            return
        self._closed = True
        self._settle()
        self._drafter.close()
        self._log_total()
        in_time = self._builder.close(CLOSE_S)
        if self._local and in_time:
            self._local.close()

    def _log_total(self) -> None:
        total = self._drafter.total
        if total.forwards > self._logged.forwards:
            log.info("drafts: %s", total - self._logged)
            if (head := self.engine) is not None:
                log.info("the engine's head: %d of its %d verified drafts accepted", head.accepted, head.verified)
        self._logged, self._logged_s = total, time.monotonic()

    def _on_prompt(self, info: RequestInfo) -> None:
        local = self._local
        if local:
            self._builder.submit(info.prompt, info.context, lambda: local.read(info.prompt))

    def _on_end(self, info: RequestInfo) -> None:
        local, tokens = self._local, list(info.response)
        if local:
            self._builder.run(lambda: local.write(info.prompt, info.context, tokens))

    def _batch(self, new_tokens: list[list[int]], counts: NDArray[np.int32]) -> Batch:
        runner, size = self._runner, len(new_tokens)
        ids = runner.input_batch.req_ids
        changed = ids != self._ids
        if changed:
            self._ids = list(ids)
            self._stops = [_stops(runner.requests[id].sampling_params) for id in ids]
            self._turn_ends = self._ends_of_turns()
            bounds = [self._bounds(id) for id in ids]
            self._starts = np.array([start for start, _ in bounds], np.int64)
            self._ends = np.array([end for _, end in bounds], np.int64)
            self._keys, self._scale = self._noise(size)
        lengths = counts[:size] - self._starts
        left = self._ends - counts[:size]
        limits = np.where([bool(tokens) for tokens in new_tokens], left - 1, 0).clip(0).astype(np.int32)
        ended = [
            row
            for row, (tokens, stops) in enumerate(zip(new_tokens, self._stops, strict=True))
            if tokens and (left[row] <= 0 or not stops.isdisjoint(tokens))
        ]
        limits[ended] = 0
        verified = [len(draft) for draft in runner.input_batch.spec_token_ids[:size]]
        decoded_only = not changed and all(new_tokens)
        noise = Noise(self._keys, counts[:size].astype(np.int64), self._scale > 0)
        ends = self._turn_ends
        return Batch(self._ids, new_tokens, lengths.tolist(), verified, limits, ended, decoded_only, noise, ends)

    def _end_any(self, ids: list[str], new_tokens: list[list[int]], counts: NDArray[np.int32]) -> bool:
        """Whether one of the requests makes no more tokens, or the batch has changed."""
        if ids != self._ids or bool((counts[: len(ids)] >= self._ends).any()):
            return True
        return any(not stops.isdisjoint(made) for stops, made in zip(self._stops, new_tokens, strict=True))

    def _ends_of_turns(self) -> NDArray[np.int32] | None:
        """None: no request is a turn of a sample."""
        if not any("prefix" in _extra(self._runner.requests[id]) for id in self._ids):
            return None
        return np.array(sorted(set().union(*self._stops)), np.int32)

    def _noise(self, requests: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """Keys and 1 / temperature; 0 where a request is sampled by vLLM's own sampler, or greedily."""
        keyed = getattr(self._runner.sampler, "keyed", None)
        batch = keyed.batch() if keyed else None
        if batch is None or len(batch) != requests:
            return np.zeros(requests, np.uint64), np.zeros(requests, np.float32)
        return batch.key_B, batch.scale_B

    def _bounds(self, id: str) -> tuple[int, int]:
        """(tokens of the sample's prompt, most tokens of prompt and response)."""
        state = self._runner.requests[id]
        end = state.num_prompt_tokens + (state.sampling_params.max_tokens or NO_LIMIT)
        return state.num_prompt_tokens - _prefix(state), min(self._longest, end)

    def _describe(self, id: str) -> RequestInfo | None:
        if (state := self._runner.requests.get(id)) is None:
            return None
        extra, prefix = _extra(state), _prefix(state)
        context, response = state.prompt_token_ids, state.output_token_ids
        if prefix:
            context, response = context[:-prefix], Continued(context[-prefix:], response)
        return RequestInfo(
            extra.get("name", id),
            prompt_key(extra.get("prompt")) or prompt_of(context),
            int(extra.get("step", 0)),
            context,
            response,
            extra.get("carried", ()),
            prefix,
            "prefix" in extra,
        )


def _extra(state: Any) -> dict[str, Any]:
    """Our arguments of a request."""
    extra: dict[str, Any] = (state.sampling_params.extra_args or {}).get(KEY, {})
    return extra


def _prefix(state: Any) -> int:
    """Tokens at the end of the request's prompt that are earlier turns of its sample."""
    return int(_extra(state).get("prefix", 0))


def drafting_rank(parallel: Any) -> bool:
    """Of the tensor-parallel ranks, which sample the same tokens, vLLM takes the drafts of the first. `parallel`: its
    `ParallelConfig`."""
    return bool(parallel.rank % parallel.tensor_parallel_size == 0)


def _log_with_vllm() -> None:
    """Unless logging is configured for rhymed, its lines go where vLLM's go."""
    rhymed, vllm = logging.getLogger("rhymed"), logging.getLogger("vllm")
    if not rhymed.hasHandlers():
        rhymed.handlers, rhymed.propagate = vllm.handlers, False
        rhymed.setLevel(vllm.level)


def _stops(params: Any) -> set[int]:
    return set() if params.ignore_eos else {*params.all_stop_token_ids, *(params.stop_token_ids or ())}


def prompt_key(value: Any) -> str:
    """The store's key for a name from `extra_args`; empty without one."""
    name = str(value or "")
    if not name or re.fullmatch(r"[0-9a-f]{16}", name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def prompt_of(tokens: Sequence[int]) -> str:
    """The key of a prompt without a name: a hash of its tokens, 16 hex digits."""
    return hashlib.blake2b(np.asarray(tokens, np.uint32).tobytes(), digest_size=8).hexdigest()
