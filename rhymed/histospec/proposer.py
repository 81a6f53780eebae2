"""What vLLM loads as a drafter: `"method": "custom_class", "model": "rhymed.histospec.proposer.HistoSpec"`.

A proposer lives in the engine's worker process and is asked for drafts after every step. It reads the running
requests from the model runner that `plugin` binds it to. Whatever goes wrong here stops the drafting, with a
warning, and never the engine.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec import plugin
from rhymed.histospec.drafter import Batch, Drafter, rehearse
from rhymed.histospec.drafts.requests import Asked
from rhymed.histospec.drafts.stats import Account
from rhymed.histospec.drafts.types import Noise
from rhymed.histospec.index.builder import Library, Past
from rhymed.histospec.local import open_local
from rhymed.histospec.settings import KEY, read_settings

log = logging.getLogger(__name__)

NEVER = 1 << 30  # tokens: no limit
TELL_S = 60.0  # between two lines in the log
PATIENCE_S = 3.0  # for what is still to be written at the end; vLLM kills its processes soon after


class HistoSpec:
    """Settings come with `additional_config = {"rhymed": {...}}`, see `settings.Settings`."""

    def __init__(self, vllm_config: Any) -> None:
        _be_heard()
        self._settings = settings = read_settings(vllm_config.additional_config)
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        alone = parallel.rank % parallel.tensor_parallel_size == 0  # of ranks that draft the same
        self._local = open_local(settings.store, model, settings.responses) if settings.store and alone else None
        self._longest = int(model.max_model_len)
        self._library = Library(int(model.get_vocab_size()), settings.orders)
        self._drafter = Drafter(
            settings,
            self._library,
            self._describe,
            width=int(vllm_config.speculative_config.num_speculative_tokens),
            largest=int(vllm_config.scheduler_config.max_num_batched_tokens),
            seen=self._seen if self._local else None,
            ended=self._ended if self._local else None,
        )
        self._told, self._told_s = Account(), time.monotonic()
        Finalize(None, self.close, exitpriority=100)  # atexit is not for child processes that were forked
        self._runner: Any = None
        self._requests: list[str] = []  # in the order of what follows
        self._stops: list[set[int]] = []  # tokens that end a request
        self._ends = np.zeros(0, np.int64)  # tokens of prompt and response that a request may have
        self._starts = np.zeros(0, np.int64)  # tokens of its prompt
        self._keys, self._keyed = np.zeros(0, np.uint64), np.zeros(0, np.bool_)  # of its noise, where it is known
        self._broken = self._closed = False
        plugin.install()

    def load_model(self, *_: Any, **__: Any) -> None:
        """There is no model; what drafts is made ready instead."""
        try:
            rehearse(self._settings)
        except Exception:
            log.exception("drafting cannot start; generation goes on without it")
            self._broken = True

    def bind(self, runner: Any) -> None:
        """The model runner whose requests these are. When it is shut down, so is this."""
        self._runner = runner
        shutdown = getattr(runner, "shutdown", None)
        if shutdown is not None:

            def close_first() -> None:
                self.close()
                shutdown()

            runner.shutdown = close_first

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts by request in batch order; `sampled_token_ids[i]` is empty while a prompt is prefilled."""
        if self._broken or self._closed or self._runner is None:
            return [[] for _ in sampled_token_ids]
        try:
            drafts = self._drafter.step(self._batch(sampled_token_ids, num_tokens_no_spec))
            if time.monotonic() > self._told_s + TELL_S:
                self._tell()
            return drafts
        except Exception:
            log.exception("drafting failed and stops; generation goes on without it")
            self._broken = True
            return [[] for _ in sampled_token_ids]

    def remember(self, prompt: str, context: Sequence[int], past: Sequence[Past]) -> None:
        """A prompt's earlier responses; they draft from the next step after they are indexed."""
        self._library.bring(_named(prompt), context, lambda: past)

    def interrupted(self) -> None:
        """Others had the machine since the engine's last step, see `Drafter.interrupted`."""
        self._drafter.interrupted()

    def accounts(self, requests: Sequence[str]) -> list[Account | None]:
        """What drafting did for these requests, by the names that they were given in `extra_args`."""
        return [self._drafter.account(request) for request in requests]

    def take_yields(self, requests: Sequence[str]) -> list[bytes | None]:
        """How many tokens each forward of these requests made, see `yields`; told once."""
        return [self._drafter.take_yields(request) for request in requests]

    def close(self) -> None:
        """What was generated is in the local store; nothing is drafted any more."""
        if self._closed:
            return
        self._closed = True
        self._drafter.close()
        self._tell()
        in_time = self._library.close(PATIENCE_S)
        if self._local and in_time:
            self._local.close()

    def _tell(self) -> None:
        total = self._drafter.total
        if total.forwards > self._told.forwards:
            log.info("drafts: %s", total - self._told)
        self._told, self._told_s = total, time.monotonic()

    def _seen(self, asked: Asked) -> None:
        local = self._local
        if local:
            self._library.bring(asked.prompt, asked.context, lambda: local.read(asked.prompt))

    def _ended(self, asked: Asked) -> None:
        local, tokens = self._local, list(asked.made)
        if local:
            self._library.do(lambda: local.write(asked.prompt, asked.context, tokens))

    def _batch(self, made: list[list[int]], counts: NDArray[np.int32]) -> Batch:
        runner, size = self._runner, len(made)
        requests = runner.input_batch.req_ids
        joined = requests != self._requests
        if joined:
            self._requests = list(requests)
            self._stops = [_stops(runner.requests[request].sampling_params) for request in requests]
            bounds = [self._bounds(request) for request in requests]
            self._starts = np.array([start for start, _ in bounds], np.int64)
            self._ends = np.array([end for _, end in bounds], np.int64)
            self._keys, self._keyed = self._noise(size)
        lengths = counts[:size] - self._starts
        left = self._ends - counts[:size]
        limits = np.where([bool(one) for one in made], left - 1, 0).clip(0).astype(np.int32)
        over = [
            row
            for row, (tokens, stops) in enumerate(zip(made, self._stops, strict=True))
            if tokens and (left[row] <= 0 or not stops.isdisjoint(tokens))
        ]
        limits[over] = 0
        verified = [len(one) for one in runner.input_batch.spec_token_ids[:size]]
        decoded_only = not joined and all(made)
        noise = Noise(self._keys, counts[:size].astype(np.int64), self._keyed)
        return Batch(self._requests, made, lengths.tolist(), verified, limits, over, decoded_only, noise)

    def _noise(self, requests: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Keys, and whether a request is drawn by one: not when vLLM's own sampler draws, or takes the largest."""
        keyed = getattr(self._runner.sampler, "keyed", None)
        batch = keyed.batch() if keyed else None
        if batch is None or len(batch) != requests:
            return np.zeros(requests, np.uint64), np.zeros(requests, np.bool_)
        return batch.key_B, batch.scale_B > 0

    def _bounds(self, request: str) -> tuple[int, int]:
        state = self._runner.requests[request]
        start = state.num_prompt_tokens
        return start, min(self._longest, start + (state.sampling_params.max_tokens or NEVER))

    def _describe(self, request: str) -> Asked | None:
        state = self._runner.requests.get(request)
        if state is None:
            return None
        told = (state.sampling_params.extra_args or {}).get(KEY, {})
        context = state.prompt_token_ids
        return Asked(
            told.get("name", request),
            _named(told.get("prompt")) or prompt_of(context),
            int(told.get("step", 0)),
            context,
            state.output_token_ids,
            told.get("carried", ()),
        )


def _be_heard() -> None:
    """Where nobody has said what becomes of our log lines, they go where vLLM's go."""
    ours, theirs = logging.getLogger("rhymed"), logging.getLogger("vllm")
    if not ours.hasHandlers():
        ours.handlers, ours.propagate = theirs.handlers, False
        ours.setLevel(theirs.level)


def _stops(params: Any) -> set[int]:
    return set() if params.ignore_eos else {*params.all_stop_token_ids, *(params.stop_token_ids or ())}


def _named(given: Any) -> str:
    """A store's key for a name that somebody has given."""
    name = str(given or "")
    if not name or re.fullmatch(r"[0-9a-f]{16}", name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def prompt_of(tokens: Sequence[int]) -> str:
    """The name of a prompt that nobody has named: a hash of its tokens, 16 hex digits."""
    return hashlib.blake2b(np.asarray(tokens, np.uint32).tobytes(), digest_size=8).hexdigest()
