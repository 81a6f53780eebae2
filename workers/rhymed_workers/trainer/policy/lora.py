"""A policy of which only PEFT's adapters are trained.

The model's own weights are frozen: they get no gradient, and no optimizer has state for them. Adapters stay in
float32; the frozen linear layers have the type in which the trainer computes, or 4 bits. The reference policy of a KL
term is the same model with its adapters switched off. Several ranks share both, each layer with its adapters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhymed.core.config import Config, Lora
from rhymed.core.errors import CheckpointError, ConfigError, RhymedError
from rhymed_workers.lora import saved
from rhymed_workers.lora.folder import SETTINGS, WEIGHTS, About, digest, names, read_about
from rhymed_workers.lora.layers import chosen, outline
from rhymed_workers.trainer.policy import quantised, sharded
from rhymed_workers.trainer.policy.backbone import Compute, load_model
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Policy, Scores
from rhymed_workers.trainer.saving import Write, copied

NAME = "default"
"""PEFT's name for the only adapter of a model."""


class LoraPolicy(Policy):
    """The model in `source` with new adapters, which change nothing yet: B is 0, A is drawn from `seed`. `base`: the
    model's name for people and for PEFT. `model`: that of `source`, if it is made already; `known`: its digest."""

    published_dtype = "float32"  # engines merge before they round

    def __init__(
        self,
        lora: Lora,
        source: Path,
        *,
        temperature: float = 1.0,
        compute: Compute | None = None,
        base: str = "",
        revision: str = "",
        seed: int = 0,
        model: Any = None,
        known: str | None = None,
    ) -> None:
        """Raises `ConfigError`."""
        from peft import LoraConfig, inject_adapter_in_model

        compute = compute or Compute()
        super().__init__(
            load_model(source, compute) if model is None else model, temperature, getattr(torch, compute.dtype)
        )
        four_bits = quantised.is_quantised(self.model)
        layers = chosen(outline(source) if four_bits else self.model, source, lora)
        if four_bits:
            quantised.check(self.model, source, layers)
        linear = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        self._others = [name for name in linear if name not in layers]
        self._revision = revision
        self.about = About(
            base or str(source), digest(source) if known is None else known, lora.rank, lora.alpha, layers
        )
        # In a model that has a configuration PEFT takes the layers of some shared experts for those of all experts.
        unnamed = nn.ModuleDict({"whole": self.model})
        targets = [f"whole.{layer}" for layer in layers]
        settings = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(settings, unnamed, NAME)
        self.model.requires_grad_(False).eval()
        for parameter in self.adapters().values():
            parameter.data = parameter.data.float()
            parameter.requires_grad_()
        if self.dtype != torch.float32:
            self._store_frozen_layers(self.dtype)

    def _store_frozen_layers(self, dtype: torch.dtype) -> None:
        """Autocast would round their weights in every pass; nothing changes them, so they are rounded once."""
        head = self.model.get_output_embeddings()
        for module in self.model.modules():
            plain = isinstance(module, nn.Linear) and module is not head and not module.weight.requires_grad
            if plain and module.weight.is_floating_point():
                module.weight.data = module.weight.data.to(dtype)

    def adapters(self) -> dict[str, nn.Parameter]:
        """By their names in PEFT's format."""
        found = {}
        for layer in self.about.layers:
            module: Any = self.model.get_submodule(layer)
            for name, part in zip(names(layer), (module.lora_A, module.lora_B), strict=True):
                found[name] = part[NAME].weight
        return found

    def tensors(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """What is published: the adapters only, in float32. Of several ranks the first one gets them."""
        if sharded.is_sharded(self.model):
            return sharded.gather_tensors(self.adapters())
        return {name: parameter.detach() for name, parameter in self.adapters().items()}

    def metadata(self) -> dict[str, str]:
        return self.about.metadata()

    def snapshot(self, *, copy: bool = False) -> Write:
        """In PEFT's format. All ranks call it, and the first one writes."""
        content = copied(self.tensors(), copy=copy)

        def write(folder: Path) -> list[str]:
            from safetensors.torch import save_file

            if not content:
                return []
            whole = {name: tensor.cpu().contiguous() for name, tensor in content.items()}
            # One entry only: safetensors writes several in a random order, so equal adapters would be unequal files.
            save_file(whole, folder / WEIGHTS, metadata=self.metadata())
            saved.write_settings(folder, self.about, self._others, self._revision)
            return [WEIGHTS, SETTINGS]

        return write

    @torch.no_grad()
    def read(self, folder: Path, error: type[RhymedError]) -> None:
        """The adapters in PEFT's format. Raises `error` if they are of another model or shape."""
        from safetensors.torch import load_file

        file, mine = folder / WEIGHTS, self.adapters()
        about, tensors = read_about(file), load_file(file)
        if about is not None and about.digest != self.about.digest:
            raise error(f"{file} is {about}; {self.about.base} has the digest {self.about.digest}")
        if about is not None and about.scale != self.about.scale:
            raise error(f"{file} is multiplied by {about.scale:g}, trainer.lora says {self.about.scale:g}")
        shapes = [{name: tuple(tensor.shape) for name, tensor in one.items()} for one in (tensors, mine)]
        if different := sorted(set(shapes[0].items()) ^ set(shapes[1].items())):
            name = different[0][0]
            raise error(
                f"{file} does not fit trainer.lora, first {name}: {shapes[0].get(name, 'not there')} in the file,"
                f" {shapes[1].get(name, 'not there')} here"
            )
        for name, parameter in mine.items():
            parameter.copy_(tensors[name])

    @contextlib.contextmanager
    def switched_off(self) -> Iterator[None]:
        """Inside, the model is what it was before training."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers = [module for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        for layer in layers:
            layer.enable_adapters(False)
        for parameter in self.adapters().values():
            parameter.requires_grad_()  # the first pass fixes in which type ranks add gradients up
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)  # their parameters require gradients again


class WithoutAdapters:
    """The model that adapters were added to, as a reference policy."""

    def __init__(self, policy: LoraPolicy) -> None:
        self._policy = policy

    def logprobs(self, batch: MicroBatch) -> Tensor:
        with self._policy.switched_off():
            return self._policy.logprobs(batch)


def restore(
    config: Config, source: Path, folder: Path | None, compute: Compute | None = None, mesh: Any = None
) -> tuple[Policy, Scores | None]:
    """The policy, from the checkpoint `folder` or else from the model in `source`, and the reference of the KL term,
    if there is one. `mesh`: of the devices that share them. Raises `ConfigError`, `CheckpointError`."""
    temperature, with_reference = config.rollout.temperature, bool(config.trainer.recipe.kl_coef)
    if config.trainer.lora is None:
        policy = Policy.load(folder or source, temperature, compute, mesh)
        return policy, Policy.load(source, temperature, compute, mesh) if with_reference else None
    adapted = _restore(config, config.trainer.lora, source, folder, compute or Compute(), mesh)
    return adapted, WithoutAdapters(adapted) if with_reference else None


def _restore(
    config: Config, lora: Lora, source: Path, folder: Path | None, compute: Compute, mesh: Any
) -> LoraPolicy:
    """With the adapter of the checkpoint, or of `trainer.lora.adapter`, or a new one."""
    first = mesh is None or torch.distributed.get_rank() == 0

    def build(model: Any) -> LoraPolicy:
        name = config.model.path
        return LoraPolicy(
            lora,
            source,
            temperature=config.rollout.temperature,
            compute=compute,
            base=name if "/" in name and not Path(name).expanduser().exists() else str(source),  # a hub id stays one
            revision=config.model.revision,
            seed=config.run.seed,
            model=model,
            known=None if first else "",  # the first rank alone writes what has the digest in it
        )

    def begin(policy: LoraPolicy) -> None:
        if folder is not None:
            policy.read(folder, CheckpointError)
        elif lora.adapter:
            saved.check_start(lora)
            policy.read(Path(lora.adapter).expanduser(), ConfigError)

    if mesh is not None:
        return sharded.load(source, compute, mesh, build, begin)
    policy = build(load_model(source, compute, quantised=bool(config.model.quantization)))
    begin(policy)
    return policy
