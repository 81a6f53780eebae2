"""Recorded samples in turns, from the store of a run, as responses whose tokens of environments are context."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.traces import Response, Trace
from rhymed.core.errors import ConfigError
from rhymed.records.history.folder import open_folder
from rhymed_store.columns import epochs_of, is_trained


@dataclass(frozen=True)
class Recorded:
    """`runs`: of each response of the trace, tokens of the policy and of its environment, in turn."""

    trace: Trace
    runs: list[list[int]]

    def of(self, epoch: int) -> tuple[list[Response], list[NDArray[np.bool_]]]:
        """An epoch's responses, and of each token whether the policy wrote it."""
        pairs = [
            (response, np.repeat(np.arange(len(runs)) % 2 == 0, runs))
            for response, runs in zip(self.trace.responses, self.runs, strict=True)
            if response.epoch == epoch
        ]
        return [response for response, _ in pairs], [mask for _, mask in pairs]


def read(folder: Path) -> Recorded:
    """The trained samples of a run's folder. A program's samples, which have several rows, are left out. Raises
    `ConfigError` for a run without turns, or of one epoch."""
    trace, pairs = Trace([], []), list[tuple[Response, list[int]]]()
    with open_folder(folder) as run:
        for prompt in run.browse.ids():
            found = [one for one in run.browse.responses(prompt) if one.info.turns and not one.info.forks]
            epochs = epochs_of(one.info.id.step for one in found)
            kept = [one for one in found if is_trained(epochs[one.info.id.step])]
            if not kept:
                continue
            trace.prompts.append(np.asarray(kept[0].prompt_tokens, np.int32))
            for one in kept:
                info, tokens = one.info, np.asarray(one.tokens, np.int32)
                number = len(trace.prompts) - 1
                response = Response(number, epochs[info.id.step], info.id.index, info.reward or 0.0, tokens)
                pairs.append((response, info.turns))
    pairs.sort(key=lambda pair: (pair[0].epoch, pair[0].prompt, pair[0].sample))
    trace.responses.extend(response for response, _ in pairs)
    if len(trace.epochs) < 2:
        raise ConfigError(f"{folder}: {len(trace.epochs)} epochs of samples in turns, at least two are needed")
    return Recorded(trace, [runs for _, runs in pairs])
