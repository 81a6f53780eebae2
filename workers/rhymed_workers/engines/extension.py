"""Runs inside vLLM's own processes: loads weights from a file, and ends them when the process that started them ends.

vLLM mixes `Extension` into its worker class, because it is named as `worker_extension_cls`. The first worker that a
process makes registers the weight-transfer backend `BACKEND` there. Importing this module does nothing: a forked
process has its parent's modules, but neither its threads nor the work that they have not finished.

Weights go through vLLM's layerwise reload: loading into the live parameters would corrupt layers whose weights were
repacked. An adapter is merged into the weights of the model's folder on the way. Knows no versions, requests or
messages of rhymed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import WireError
from rhymed.histospec.plugin import attached, drafter_of, install
from rhymed_workers.engines import activity
from rhymed_workers.engines.memory import Storage
from rhymed_workers.lora.merge import Adapter

if TYPE_CHECKING:
    from rhymed_workers.weights.shared import Opened

BACKEND = "rhymed-file"


@dataclass
class NoInit:
    """Reading files needs no initialisation."""


@dataclass
class File:
    path: str  # safetensors: whole weights by their names in the model's Hugging Face folder, or an adapter
    base: str = ""  # of an adapter: the model's folder
    transport: str = "file"  # as `rhymed.placement.gpus` chose it; the file is the fallback


class Taken:
    """Where a rank's last weights came from; memory that it has mapped, until all layers are loaded."""

    def __init__(self) -> None:
        self.source = ""
        self.device: Any = None  # of the weights: while they are loaded, vLLM's reload shows them on "meta"
        self.opened: Opened | None = None

    def tensors(self, path: Path, device: Any, transport: str) -> Iterator[tuple[str, Any]]:
        self.release()
        self.source = "file"
        try:
            self.opened = self._take(path, device, transport)
        except WireError as error:
            self.source = f"file: {error}"
        return _read(path) if self.opened is None else self.opened.tensors()

    def _take(self, path: Path, device: Any, transport: str) -> Opened | None:
        """None: the file is what was chosen. Raises `WireError`."""
        if transport != "ipc":
            return None
        from rhymed_workers.weights.shared import Opened

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


def _copies_loaded(model: Any) -> Any:
    """While it is entered, what a model copies into its parameters by itself (gpt-oss) goes through their loaders.

    During the layerwise reload parameters have no memory: what is copied into them would be lost, and the old weights
    would stay."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    parameters = {
        id(parameter): (parameter, layer, name)
        for layer in model.modules()
        for name, parameter in layer._parameters.items()
        if parameter is not None and parameter.is_meta
    }
    if not parameters:
        return contextlib.nullcontext()
    from vllm.model_executor.model_loader.reload.layerwise import make_online_process_loader
    from vllm.model_executor.model_loader.reload.meta import CopyCounter
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    attribute, copy = torch.Tensor.data, torch.Tensor.copy_
    data = attribute.__get__

    class Copies(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            direct = function in (data, copy) and not isinstance(_get_current_dispatch_mode(), CopyCounter)
            if not direct or id(args[0]) not in parameters:  # a loader that runs is counted
                return function(*args, **(kwargs or {}))
            parameter, layer, name = parameters[id(args[0])]
            if function is copy:
                parameter.weight_loader = default_weight_loader
                parameter.weight_loader = make_online_process_loader(layer, name)
                parameter.weight_loader(parameter, args[1])
            return parameter

    return Copies()


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
            device = self.taken.device or next(self.model.parameters()).device
            path = Path(update_info.path)
            with _copies_loaded(self.model):
                if update_info.base:
                    self.model.load_weights(Adapter(path).merged(Path(update_info.base)))
                else:
                    self.model.load_weights(self.taken.tensors(path, device, update_info.transport))

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


def _pack_experts() -> None:
    """vLLM packs the weights of experts for a processor when it has loaded them first, and not after an update: its
    kernel would then read new weights in the wrong order."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as Method

    set_up = getattr(Method, "_setup_kernel", None)
    if set_up is None:
        return

    def packed(method: Any, layer: Any, **weights: Any) -> None:
        experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)  # None: they are loaded first
        pack = getattr(experts, "process_weights_after_loading", None)
        if experts is None or pack is None:
            set_up(method, layer, **weights)
            return
        done = []
        experts.process_weights_after_loading = lambda layer: done.append(pack(layer))
        try:
            set_up(method, layer, **weights)
        finally:
            del experts.process_weights_after_loading
        if not done:  # a release that packs again by itself has done it
            pack(layer)

    Method._setup_kernel = packed


def _rotate_heads() -> None:
    """vLLM's kernel for a CPU takes (tokens, heads, head size) for (tokens, one head): it rotates LFM2's queries by
    other positions than theirs. As (tokens, heads x head size) they are right."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    rotate = getattr(RotaryEmbedding, "forward_cpu", None)
    if rotate is None:
        return

    def flat(embedding: Any, positions: Any, query: Any, key: Any = None) -> tuple[Any, Any]:
        if query.ndim != 3 or positions.ndim != 1:
            return rotate(embedding, positions, query, key)
        found = rotate(embedding, positions, query.flatten(1), None if key is None else key.flatten(1))
        return found[0].view(query.shape), None if key is None else found[1].view(key.shape)

    RotaryEmbedding.forward_cpu = flat


_prepared = 0
"""Id of the process whose vLLM has rhymed's extensions."""


def prepare() -> None:
    """Adds rhymed's extensions to the vLLM of this process, once, before it has a model runner; only in rhymed's
    engines."""
    global _prepared
    if not os.environ.get(OWNER) or _prepared == os.getpid():
        return
    _prepared = os.getpid()
    _register()
    _skip_ranks()
    _pack_experts()
    _rotate_heads()
    install()
    activity.install()
    end_with_owner()


class Extension(Storage):
    """Mixed into vLLM's worker class: what the engine calls in its worker processes."""

    def __new__(cls, *_: Any, **__: Any) -> Extension:
        prepare()
        return super().__new__(cls)

    def attached(self) -> dict[str, Any]:
        return attached(self.model_runner)

    def weights_from(self) -> str:
        """Of the last update: "file", with the reason if it is not what was chosen, "shared memory" or a GPU."""
        backend: Any = getattr(self, "weight_transfer_engine")  # noqa: B009  # of vLLM's worker
        return str(backend.taken.source)

    def remember(self, prompt: str, tokens: list[int], rows: list[tuple[int, bytes]]) -> None:
        """A prompt's earlier responses: (step, tokens as int32)."""
        if (drafter := self._drafter()) is None:
            return
        import numpy as np

        from rhymed.histospec.index.builder import PastResponse

        past = [PastResponse(np.frombuffer(data, "<i4"), step) for step, data in rows]
        drafter.remember(prompt, tokens, past)

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
        drafter = drafter_of(self.model_runner)
        return drafter if getattr(drafter, "drafts", False) else None


# Ends an engine's processes when the process that started them ends, however it does. Needs no engine.

OWNER = "RHYMED_ENGINE_OWNER"
"""Environment variable with the pid of the process that started the engine."""


def end_with_owner() -> None:
    """When the owner ends, kill this process and the engine's processes between the two.

    PR_SET_PDEATHSIG would signal too early: when the parent's thread ends.
    """
    owner = int(os.environ.get(OWNER, "0"))
    if not owner or not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        raise RuntimeError(f"process {owner}, which started this engine, is gone") from None
    chain = _between(owner)

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        for pid in [*chain, os.getpid()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    threading.Thread(target=watch, name="end-with-owner", daemon=True).start()


def _between(owner: int) -> list[int]:
    """Pids between the owner and this process, the uppermost first; empty if the owner is no ancestor."""
    import psutil

    ancestors = [process.pid for process in psutil.Process().parents()]
    return ancestors[: ancestors.index(owner)][::-1] if owner in ancestors else []
