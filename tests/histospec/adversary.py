"""HistoSpec with scripted wrong drafts, loaded by a vLLM engine in another process as drafter and extension."""

from __future__ import annotations

import copy
import logging
import random
from typing import Any

from rhymed.histospec.drafts.requests import RequestInfo
from rhymed.histospec.plugin import drafter_of
from rhymed.histospec.proposer import HistoSpec
from rhymed_workers.engines import extension

KINDS = ("right", "wrong", "turning", "empty", "endless")
EOS = 1


class Adversary(HistoSpec):
    """Drafts the known responses with errors of every kind; without known responses it is HistoSpec."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._config = vllm_config
        self._width = vllm_config.speculative_config.num_speculative_tokens
        self._known: dict[int, list[int]] = {}  # by key: the response
        self._carried: dict[int, Any] = {}  # by key: the request's carried tokens
        self._random = random.Random(0)
        self.drafted = dict.fromkeys(KINDS, 0)
        self.skipped = 0  # steps whose tokens were not looked at at once

    def skips(self, ids: list[str], tokens: Any) -> bool:
        skips = super().skips(ids, tokens)
        self.skipped += skips
        return skips

    def propose(
        self, sampled: list[list[int]], counts: Any, tokens: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        drafts = super().propose(sampled, counts, tokens, slot_mappings)
        if not self._known:
            return drafts
        return [self._script(row, int(counts[row])) if made else [] for row, made in enumerate(sampled)]

    def _script(self, row: int, at: int) -> list[int]:
        """`at`: tokens of prompt and response so far. Drafts go past limits, ends and end tokens as they like."""
        state = self._runner.requests[self._runner.input_batch.req_ids[row]]
        known = self._known[state.sampling_params.extra_args["rhymed"]["key"]][at - state.num_prompt_tokens :]
        kind = self._random.choice(KINDS)
        width = self._random.randint(1, self._width)
        draft = known[:width]
        if kind == "empty":
            draft = []
        elif kind == "wrong":
            draft = [EOS if self._random.random() < 0.1 else 2 + (token + 7) % 250 for token in draft]
        elif kind == "turning":
            turn = self._random.randrange(len(draft) or 1)
            draft = [token if place < turn else (token + 1) % 256 for place, token in enumerate(draft)]
        elif kind == "endless":
            draft = known + [self._random.choice((EOS, 5))] * self._width
        self.drafted[kind] += len(draft[: self._width])
        return draft[: self._width]

    def script(self, known: dict[int, list[int]]) -> None:
        self._known = known

    def carry(self, carried: dict[int, Any]) -> None:
        self._carried = carried

    def _describe(self, request: str) -> RequestInfo | None:
        info = super()._describe(request)
        if info is None or not self._carried:
            return info
        state = self._runner.requests[request]
        return info._replace(carried=self._carried[state.sampling_params.extra_args["rhymed"]["key"]])

    def restart(self, settings: dict[str, Any]) -> None:
        """Restarts the drafter with these settings."""
        config, runner = copy.copy(self._config), self._runner
        config.additional_config = {"rhymed": settings}
        self.__init__(config)  # type: ignore[misc]
        self.bind(runner)


class Extension(extension.Extension):
    """The worker methods that the tests call, in addition to those of the rollout worker."""

    def script(self, known: dict[int, list[int]]) -> dict[str, int]:
        """Returns how many tokens of each kind were drafted since the restart."""
        drafter_of(self.model_runner).script(known)
        return drafter_of(self.model_runner).drafted

    def carry(self, carried: dict[int, Any]) -> None:
        """Until the restart, by key."""
        drafter_of(self.model_runner).carry(carried)

    def skipped(self) -> int:
        """Steps that were skipped unseen since the restart, see `HistoSpec.skips`."""
        return drafter_of(self.model_runner).skipped

    def restart_drafter(self, settings: dict[str, Any]) -> None:
        drafter_of(self.model_runner).restart(settings)

    def warnings(self) -> list[str]:
        """The warnings of rhymed since the last call."""
        lines, WARNINGS.lines = WARNINGS.lines, []
        return lines


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


WARNINGS = Warnings()
logging.getLogger("rhymed").addHandler(WARNINGS)
