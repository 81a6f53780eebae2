"""The output head and the loss behind it, with both gradients: of the hidden states and of the head's matrix.

Logits exist only in slices of `LOGITS_BYTES`, one at a time. The gradient of a slice is computed as soon as its loss
is known, so no logits are kept for a backward pass; within a slice, `ROWS_BYTES` are worked on at a time, which stay
in the processor's cache. A head that needs no gradient gets none. Knows no models.

Axes: N response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOGITS_BYTES = 1 << 28
ROWS_BYTES = 1 << 21

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probs_N that carry gradient, entropies_N, flat_N) -> scalar, a sum over these tokens."""

DenseLoss = Callable[[Tensor, "Tensor | None", Tensor], Tensor]
"""(log-probs_NV that carry gradient, the teacher's or None, flat_N) -> scalar, a sum over these tokens."""


class Head(NamedTuple):
    weight_VH: Tensor
    temperature: float = 1.0  # divides the logits, as it did when the engine sampled
    dtype: torch.dtype = torch.float32  # of the matrix products; all else is float32

    def slices(self, count: int, buffers: int = 1) -> list[slice]:
        """Of `count` tokens, so that a slice's logits take `LOGITS_BYTES` / `buffers`."""
        size = max(1, LOGITS_BYTES // (4 * buffers * self.weight_VH.shape[0]))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """(N, V), without temperature."""
        return hidden_NH.to(self.dtype) @ self.weight_VH.to(self.dtype).T

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """In float32 or wider, at the temperature."""
        wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return (wide_NV if self.temperature == 1 else wide_NV / self.temperature).log_softmax(-1)

    @torch.no_grad()
    def logprobs(self, hidden_NH: Tensor, target_N: Tensor) -> Tensor:
        parts = [self._reduce(self.logits(hidden_NH[part]), target_N[part])[0] for part in self.slices(len(target_N))]
        return torch.cat(parts)

    def _reduce(self, logits_NV: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs_N and entropies_N. The logits become probabilities, in place."""
        logp, entropy = [], []
        for rows_NV, rows in _rows(logits_NV):
            logp_NV = self.log_softmax(rows_NV)
            probs_NV = logp_NV.exp()
            entropy.append(-torch.linalg.vecdot(probs_NV, logp_NV))
            logp.append(logp_NV.gather(1, target_N[rows, None]).squeeze(1))
            rows_NV.copy_(probs_NV)
        return torch.cat(logp), torch.cat(entropy)

    def _differentiate(self, probs_NV: Tensor, target_N: Tensor, slope_N: Tensor) -> Tensor:
        """The probabilities become the gradient of the logits, in place. `slope_N`: of the loss by each log-prob."""
        slope = slope_N[:, None] / self.temperature
        for rows_NV, rows in _rows(probs_NV):
            target, step = target_N[rows, None], slope[rows]
            if rows_NV.dtype == step.dtype:
                rows_NV.mul_(-step).scatter_add_(1, target, step)
            else:
                rows_NV.copy_((rows_NV * -step).scatter_add_(1, target, step))
        return probs_NV


def _rows(tensor_NV: Tensor) -> Iterator[tuple[Tensor, slice]]:
    size = max(1, ROWS_BYTES // (4 * tensor_NV.shape[1])) if tensor_NV.device.type == "cpu" else len(tensor_NV)
    for start in range(0, len(tensor_NV), size):
        rows = slice(start, start + size)
        yield tensor_NV[rows], rows


class _Gradients:
    """Of hidden states and head; a part that is not needed is not made."""

    def __init__(self, hidden_NH: Tensor, head: Head, needed: tuple[bool, bool]) -> None:
        self._inputs_NH, self._head = hidden_NH.to(head.dtype), head
        self._weight_VH = head.weight_VH.to(head.dtype)
        self.hidden_NH = torch.empty_like(hidden_NH) if needed[0] else None
        self.weight_VH = torch.zeros_like(head.weight_VH) if needed[1] else None

    def logits(self, part: slice) -> Tensor:
        return self._inputs_NH[part] @ self._weight_VH.T

    def add(self, gradient_NV: Tensor, part: slice) -> None:
        """`gradient_NV`: of the slice's logits."""
        gradient_NV = gradient_NV.to(self._head.dtype)
        if self.hidden_NH is not None:
            if self.hidden_NH.dtype == gradient_NV.dtype:
                torch.mm(gradient_NV, self._weight_VH, out=self.hidden_NH[part])
            else:
                self.hidden_NH[part] = gradient_NV @ self._weight_VH
        if self.weight_VH is not None:
            if self.weight_VH.dtype == gradient_NV.dtype:
                self.weight_VH.addmm_(gradient_NV.T, self._inputs_NH[part])
            else:
                self.weight_VH += gradient_NV.T @ self._inputs_NH[part]


class HeadLoss(torch.autograd.Function):
    """(hidden_NH, weight_VH, head, target_N, flat_N, loss, whole) -> the loss's value.

    With `whole`, the loss is called once with all tokens: where they need several slices, their log-probs are
    computed first, and again for the gradient. Else it is called slice by slice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        head: Head,
        target_N: Tensor,
        flat_N: Tensor,
        loss: Loss,
        whole: bool,
    ) -> Tensor:
        gradients = _Gradients(hidden_NH, head, ctx.needs_input_grad[:2])
        slices = head.slices(len(target_N))
        slopes_N: Tensor | None = None
        value = torch.zeros((), dtype=torch.float64, device=hidden_NH.device)
        if whole and len(slices) > 1:
            reduced = [head._reduce(gradients.logits(part), target_N[part]) for part in slices]
            logp_N, entropy_N = (torch.cat(parts) for parts in zip(*reduced, strict=True))
            value, slopes_N = _slope(loss, logp_N, entropy_N, flat_N)
        for part in slices:
            work_NV = gradients.logits(part)
            logp_N, entropy_N = head._reduce(work_NV, target_N[part])
            if slopes_N is None:
                added, slope_N = _slope(loss, logp_N, entropy_N, flat_N[part])
                value = value + added
            else:
                slope_N = slopes_N[part]
            gradients.add(head._differentiate(work_NV, target_N[part], slope_N), part)
            del work_NV  # before the next slice's is made
        ctx.gradients = (gradients.hidden_NH, gradients.weight_VH)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, outer[0]), None, None, None, None, None


class DenseHeadLoss(torch.autograd.Function):
    """(hidden_NH, weight_VH, head, teacher's hidden_NH and head, flat_N, loss) -> the loss's value.

    For divergences over the whole vocabulary: the loss is called slice by slice with all log-probs under both heads.
    Only the policy gets a gradient. The teacher is None if its log-probs do not come from a model here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        head: Head,
        teacher: tuple[Tensor, Head] | None,
        flat_N: Tensor,
        loss: DenseLoss,
    ) -> Tensor:
        gradients = _Gradients(hidden_NH, head, ctx.needs_input_grad[:2])
        value = torch.zeros((), dtype=torch.float64, device=hidden_NH.device)
        for part in head.slices(len(flat_N), buffers=4):
            leaf_NV = head.log_softmax(gradients.logits(part)).requires_grad_()
            teacher_NV = None
            if teacher is not None:
                teacher_NV = teacher[1].log_softmax(teacher[1].logits(teacher[0][part]))
            with torch.enable_grad():
                total = loss(leaf_NV, teacher_NV, flat_N[part])
                (slope_NV,) = torch.autograd.grad(total, leaf_NV)
            del teacher_NV
            value = value + total.detach()
            slope_NV = slope_NV.sub(leaf_NV.detach().exp_() * slope_NV.sum(-1, keepdim=True))
            gradients.add(slope_NV.div_(head.temperature), part)
            del leaf_NV, slope_NV
        ctx.gradients = (gradients.hidden_NH, gradients.weight_VH)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, outer[0]), None, None, None, None


def _scaled(ctx: Any, outer: Tensor) -> list[Tensor | None]:
    """The gradients were made in the forward pass, and are used up here."""
    made, ctx.gradients = ctx.gradients, None
    return [None if gradient is None else gradient.mul_(outer) for gradient in made]


def _slope(loss: Loss, logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> tuple[Tensor, Tensor]:
    """Value of the loss, and its derivative by each log-prob."""
    with torch.enable_grad():
        leaf_N = logp_N.detach().requires_grad_()
        total = loss(leaf_N, entropy_N, flat_N)
        (slope_N,) = torch.autograd.grad(total, leaf_N)
    return total.detach(), slope_N
