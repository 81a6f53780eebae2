"""Runs inside vLLM's own processes: loads weights from a file, and ends them when the process that started them ends.

vLLM imports this module in every worker process because it is named as `worker_extension_cls`; importing it
registers the weight-transfer backend `BACKEND`. Weights go through vLLM's layerwise reload: loading into the live
parameters would corrupt layers whose weights were repacked. An adapter is merged into the weights of the model's
folder on the way. Knows no versions, requests or rhymed messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.errors import WireError
from rhymed.histospec.plugin import attached, install
from rhymed_workers.engines import activity
from rhymed_workers.engines.gpus.memory import Storage
from rhymed_workers.engines.owner import OWNER, end_with_owner
from rhymed_workers.lora.merge import Adapter

if TYPE_CHECKING:
    from rhymed_workers.weights.broadcast.receiver import Member, Received
    from rhymed_workers.weights.shared.reader import Opened

BACKEND = "rhymed-file"


@dataclass
class NoInit:
    """Reading files needs no initialisation."""


@dataclass
class File:
    path: str  # safetensors: whole weights by their names in the model's Hugging Face folder, or an adapter
    base: str = ""  # of an adapter: the model's folder
    transport: str = "file"  # as `rhymed.gpus.transport` chose it; the file is the fallback


class Taken:
    """Where a rank's last weights came from; memory that it has mapped or received, until all layers are loaded."""

    def __init__(self) -> None:
        self.source = ""
        self.device: Any = None  # of the weights: while they are loaded, vLLM's reload shows them on "meta"
        self.opened: Opened | Received | None = None
        self._member: Member | None = None

    def tensors(self, path: Path, device: Any, transport: str) -> Iterator[tuple[str, Any]]:
        self.release()
        self.source = "file"
        try:
            self.opened = self._take(path, device, transport)
        except WireError as error:
            self.source = f"file: {error}"
        return _read(path) if self.opened is None else self.opened.tensors()

    def _take(self, path: Path, device: Any, transport: str) -> Opened | Received | None:
        """None: the file is what was chosen. Raises `WireError`."""
        if transport == "broadcast":
            from rhymed_workers.weights.broadcast.receiver import Member

            self._member = self._member or Member()
            received = self._member.receive(path, device)
            self.source = "broadcast"
            return received
        if transport != "ipc":
            return None
        from rhymed_workers.weights.shared.reader import Opened

        opened = Opened(path, device)
        self.source = f"GPU {opened.gpu}" if opened.gpu else "shared memory"
        return opened

    def release(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118


def _repack_tied_heads(model: Any) -> None:
    """The layerwise reload skips a head that shares its weights, and with it the head's copy repacked for the CPU."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    layers = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    shared = [id(layer.weight) for layer in layers]
    for layer in layers:
        if isinstance(layer, ParallelLMHead) and shared.count(id(layer.weight)) > 1:
            layer.quant_method.process_weights_after_loading(layer)


def _register() -> None:
    from vllm.distributed.weight_transfer import base, factory

    class FileWeights(base.WeightTransferEngine[Any, Any]):
        """Every rank maps the file and keeps its own shard."""

        init_info_cls = NoInit
        update_info_cls = File

        @cached_property
        def taken(self) -> Taken:
            return Taken()

        def init_transfer_engine(self, init_info: NoInit) -> None:
            pass

        def start_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            self.taken.device = next(self.model.parameters()).device
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: File) -> None:
            if update_info.base:
                self.model.load_weights(Adapter(Path(update_info.path)).merged(Path(update_info.base)))
                return
            device = self.taken.device or next(self.model.parameters()).device
            self.model.load_weights(self.taken.tensors(Path(update_info.path), device, update_info.transport))

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)
            _repack_tied_heads(self.model)
            self.taken.release()

        def shutdown(self) -> None:
            self.taken.release()

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            """vLLM 0.26 demands the trainer's side, too; ours writes files."""
            raise NotImplementedError(f"{BACKEND} has no sender in vLLM")

    if BACKEND not in factory.WeightTransferEngineFactory._registry:
        factory.WeightTransferEngineFactory.register_engine(BACKEND, FileWeights)


def _skip_ranks() -> None:
    """vLLM ranks every sampled token in the vocabulary. It is not used here, and takes a fifth of a step on a CPU."""
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.sample import sampler

    def no_ranks(logprobs: Any, values: Any) -> Any:
        return torch.zeros(logprobs.shape[0], dtype=torch.int64)

    if current_platform.is_cpu() and hasattr(sampler, "batched_count_greater_than"):
        sampler.batched_count_greater_than = no_ranks


class Extension(Storage):
    """Mixed into vLLM's worker class: what the engine calls in its worker processes."""

    def attached(self) -> dict[str, Any]:
        return attached(self.model_runner)

    def weights_from(self) -> str:
        """Of the last update: "file", with the reason if it is not what was chosen, "broadcast", "shared memory" or
        a GPU."""
        backend: Any = getattr(self, "weight_transfer_engine")  # noqa: B009  # of vLLM's worker
        return str(backend.taken.source)

    def remember(self, prompt: str, tokens: list[int], rows: list[tuple[int, float | None, bytes]]) -> None:
        """A prompt's earlier responses: (step, reward, tokens as int32)."""
        if (drafter := self._drafter()) is None:
            return
        import numpy as np

        from rhymed.histospec.index.builder import PastResponse

        past = [PastResponse(np.frombuffer(data, "<i4"), step, reward) for step, reward, data in rows]
        drafter.remember(prompt, tokens, past)

    def refresh_head(self) -> None:
        """Looks whether there is a newer head, as after a refit."""
        if (drafter := self._drafter()) is not None:
            drafter.refresh()

    def head_counts(self) -> tuple[float, ...] | None:
        """What the learned head did: passes, tokens that it drafted, verified and accepted ones, seconds. None: there
        is none."""
        counts = None if (drafter := self._drafter()) is None else drafter.head_counts()
        return None if counts is None else tuple(counts)

    def accounts(self, names: list[str]) -> list[tuple[tuple[float, ...] | None, bytes | None]] | None:
        """For each sample, its drafting account and the number of tokens of each of its forward passes. None: this
        rank does not draft."""
        if (drafter := self._drafter()) is None:
            return None
        from dataclasses import astuple

        accounts = [None if account is None else astuple(account) for account in drafter.accounts(names)]
        return list(zip(accounts, drafter.take_yields(names), strict=True))

    def _drafter(self) -> Any:
        """None on the ranks that do not draft: those of earlier pipeline stages have no drafter, and of the last
        stage only the first rank's drafts are used."""
        drafter = getattr(self.model_runner, "drafter", None)
        return drafter if getattr(drafter, "drafts", False) else None


if os.environ.get(OWNER):
    _register()
    _skip_ranks()
    install()
    activity.install()
    end_with_owner()
