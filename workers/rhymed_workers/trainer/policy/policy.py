"""The language model as the loss sees it: log-probs and entropies of response tokens, and their gradient.

One module, in whose forward hidden states and the head's loss are made. Where the engine drew from some tokens only
(top-k, top-p, min-p), log-probs and entropies are those among the tokens that the batch's floors leave. Knows nothing
of rewards or optimizers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.policy import sharded
from rhymed_workers.trainer.policy.backbone import Compute, device_of, hidden_states, load_model, prepare
from rhymed_workers.trainer.policy.grades import grade_of
from rhymed_workers.trainer.policy.head import DenseHeadLoss, DenseLoss, Head, HeadLoss, Loss
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.publish import unique
from rhymed_workers.trainer.saving import Write, copied

FACTORS, DIVISORS, CAP = ("logit_scale", "lm_head_multiplier"), ("logits_scaling",), "final_logit_softcapping"
"""Configuration keys of models that change logits after the head's matrix product: by factors, then by a soft cap."""
UNKNOWN_HEADS = ("output_multiplier",)
"""Those that `Head` does not know."""
MULTIPLIES = "hyperclovax"
"""The type of models that multiply by `DIVISORS`."""


def _weight_files(folder: Path) -> list[str]:
    """Of a Hugging Face folder that was written: the names that it must have."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    return sorted({index.name, *json.loads(index.read_text())["weight_map"].values()})


class Scores(Protocol):
    """What a reference policy must be able to do."""

    def logprobs(self, batch: MicroBatch) -> Tensor: ...


class Policy(nn.Module):
    """`model`: a causal language model of transformers, also within PEFT's. Raises `TrainerError` for an odd one."""

    published_dtype = ""  # empty: `model.dtype`, which the engine has

    def __init__(self, model: Any, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = prepare(model)
        self.grade = grade_of(self.model)
        self.temperature, self.dtype = temperature, dtype
        _ = self.head

    @classmethod
    def load(cls, folder: Path, temperature: float = 1.0, compute: Compute | None = None, mesh: Any = None) -> Policy:
        """A Hugging Face folder; its weights are converted to float32. `mesh`: of the devices that share them."""
        compute = compute or Compute()
        if mesh is not None:
            build = partial(cls, temperature=temperature, dtype=getattr(torch, compute.dtype))
            return sharded.load(folder, compute, mesh, build)
        return cls(load_model(folder, compute), temperature, getattr(torch, compute.dtype))

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def vocabulary(self) -> int:
        """Tokens that it can read."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def head(self) -> Head:
        config = self.model.config.get_text_config()
        layer = self.model.get_output_embeddings()
        unknown = UNKNOWN_HEADS + (DIVISORS if config.model_type.startswith(MULTIPLIES) else ())
        odd = [key for key in unknown if getattr(config, key, None) not in (None, 1.0)]
        if odd or type(layer) is not nn.Linear or layer.bias is not None:
            what = ", ".join(odd) or "an output head that is not a plain matrix"
            raise TrainerError(f"{type(self.model).__name__} cannot be trained: it has {what}")
        scale = math.prod(getattr(config, key, None) or 1.0 for key in FACTORS)
        scale /= math.prod(getattr(config, key, None) or 1.0 for key in DIVISORS)
        return Head(layer.weight, self.temperature, self.dtype, scale, getattr(config, CAP, None) or None)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that the optimizer changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def snapshot(self, *, copy: bool = False) -> Write:
        """For a Hugging Face folder, see `taken`. All ranks call it, and the first one writes."""
        if sharded.is_sharded(self.model):
            content = sharded.gather(self.model)
        else:
            content = copied(dict(unique(self.model.state_dict().items())), copy=copy)

        def write(folder: Path) -> list[str]:
            if not content:
                return []
            before = {file.name for file in folder.iterdir()}
            self.model.save_pretrained(folder, state_dict=dict(content))  # which takes out what it has written
            made = {file.name for file in folder.iterdir() if file.is_file()} - before  # also a model's own code
            return sorted({"config.json", *_weight_files(folder), *made})

        return write

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.snapshot()(folder)

    def metadata(self) -> dict[str, str]:
        """For a published file's header."""
        return {}

    @torch.no_grad()
    def tensors(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The weights, by their names in a Hugging Face folder, which engines read. `dtype`: in which sharded ones
        are gathered; the first rank gets them, the others nothing.

        In the model some architectures have other names, because transformers renames and merges tensors when it
        loads. A tied head is removed first: reverting changes the order, and the first of its names counts.
        """
        from transformers.core_model_loading import revert_weight_conversion

        whole = not sharded.is_sharded(self.model)
        content = dict(unique(self.model.state_dict().items())) if whole else sharded.gather(self.model, dtype)
        return revert_weight_conversion(self.model, content) if content else {}

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """What `work` returns. The weights are used nowhere else: sharded ones are whole only in here."""
        return work()

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> Tensor:
        """(N,) log-probs of the batch's response tokens, in the batch's order."""
        target_N, floor_N = self._to_device(batch.target_N), self._floors(batch)
        found_N: Tensor = self(lambda: self.head.logprobs(self.hidden(batch), target_N, floor_N))
        return found_N

    def backward(self, batch: MicroBatch, loss: Loss, *, whole_sequences: bool = False) -> Tensor:
        """Add the gradient of `loss` to the parameters' `grad`; returns its value, a scalar on the device.

        `whole_sequences`: the loss is called once, with all tokens of the batch.
        """
        target_N, flat_N = self._to_device(batch.target_N), self._to_device(batch.flat_N)
        floor_N = self._floors(batch)

        def work() -> Tensor:
            head, hidden_NH = self.head, self.hidden(batch)
            about = head, target_N, flat_N, loss, whole_sequences, floor_N
            value: Tensor = HeadLoss.apply(hidden_NH, head.weight_VH, *about)
            return value

        return self.differentiate(work)

    def differentiate(self, work: Callable[[], Tensor]) -> Tensor:
        """Add the gradient of what `work` returns to the parameters' `grad`; returns its value."""
        value: Tensor = self(work)
        value.backward()
        return value.detach()

    def follow(self, batch: MicroBatch) -> Tensor:
        """As `backward` with a loss of 0, where other ranks compute theirs."""
        return self.backward(batch, lambda logp_N, entropy_N, flat_N: (logp_N * 0).sum())

    def distil(
        self, batch: MicroBatch, loss: DenseLoss, teacher: Policy | None, teacher_batch: MicroBatch | None = None
    ) -> Tensor:
        """As `backward`, for a loss of the whole distributions of policy and teacher, or of the policy's alone.

        `teacher_batch`: the same response tokens behind other prompts, in any order; else the teacher reads `batch`.
        """
        if teacher is None:
            return self._differentiate_dense(batch, loss, None)
        read, found = teacher_batch or batch, list[Tensor]()

        def teach() -> Tensor:
            hidden_NH = _in_order(teacher.hidden(read), read, batch)
            if teacher is not self:  # its head is whole in here only
                with torch.enable_grad():
                    found.append(self._differentiate_dense(batch, loss, (hidden_NH, teacher.head)))
            return hidden_NH

        with torch.no_grad():
            hidden_NH = teacher(teach)
        return found[0] if found else self._differentiate_dense(batch, loss, (hidden_NH, None))

    def _differentiate_dense(
        self, batch: MicroBatch, loss: DenseLoss, teacher: tuple[Tensor, Head | None] | None
    ) -> Tensor:
        """`teacher`: its hidden states, and its head if that is not the policy's."""
        flat_N = self._to_device(batch.flat_N)

        def work() -> Tensor:
            head, hidden_NH = self.head, self.hidden(batch)
            seen = None if teacher is None else (teacher[0], teacher[1] or head)
            value: Tensor = DenseHeadLoss.apply(hidden_NH, head.weight_VH, head, seen, flat_N, loss)
            return value

        return self.differentiate(work)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """(N, H) last hidden states that predict the response tokens."""
        return hidden_states(self.model, batch, self.dtype)

    def _floors(self, batch: MicroBatch) -> Tensor | None:
        return None if batch.floor_N is None else self._to_device(batch.floor_N)

    def _to_device(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _in_order(hidden_NH: Tensor, read: MicroBatch, wanted: MicroBatch) -> Tensor:
    """Hidden states of the response tokens of `read`, in the order of those of `wanted`, which are the same."""
    if read is wanted:
        return hidden_NH
    place = np.argsort(read.flat_N)[np.argsort(np.argsort(wanted.flat_N))]
    assert np.array_equal(read.flat_N[place], wanted.flat_N), "other response tokens"
    return hidden_NH[torch.from_numpy(place).to(hidden_NH.device)]
