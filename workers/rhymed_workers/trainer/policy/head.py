"""The output head and the loss behind it, with both gradients: of the hidden states and of the head's matrix.

Logits exist only in slices, one at a time. The gradient of a slice is computed as soon as its loss is known, so no
logits are kept for a backward pass; within a slice, fewer rows are worked on at a time, because that takes buffers of
their size. A head that needs no gradient gets none. Knows no models.

Axes: N response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOGITS_BYTES, GPU_LOGITS_BYTES = 1 << 28, 1 << 30
"""Bytes of the logits of a slice. A GPU's matrix product of a few hundred rows leaves most of the GPU idle."""
ROWS_BYTES, GPU_ROWS_BYTES = 1 << 21, 1 << 27
"""Bytes of the rows that are worked on at a time: they fit a processor's cache, and fill a GPU."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probs_N and entropies_N that carry gradient, flat_N) -> scalar, a sum over these tokens."""

DenseLoss = Callable[[Tensor, "Tensor | None", Tensor], Tensor]
"""(log-probs_NV that carry gradient, the teacher's or None, flat_N) -> scalar, a sum over these tokens."""


class Head(NamedTuple):
    weight_VH: Tensor
    temperature: float = 1.0  # divides the logits, as it did when the engine sampled
    dtype: torch.dtype = torch.float32  # of the matrix products; all else is float32
    scale: float = 1.0  # of the logits, whatever the temperature
    cap: float | None = None  # of the scaled logits: cap * tanh(logits / cap)

    def slices(self, count: int, buffers: int = 1) -> list[slice]:
        """The slices of `count` tokens, so that a slice's logits in float32 take the bytes of a slice / `buffers`."""
        most = LOGITS_BYTES if self.weight_VH.device.type == "cpu" else GPU_LOGITS_BYTES
        buffers += self.cap is not None
        size = max(1, most // (4 * buffers * self.weight_VH.shape[0]))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """(N, V), without temperature."""
        return self._finish(hidden_NH.to(self.dtype) @ self.weight_VH.to(self.dtype).T)

    def _finish(self, product_NV: Tensor) -> Tensor:
        """The logits, of the head's matrix product, which they replace."""
        if self.scale != 1:
            product_NV.mul_(self.scale)
        if self.cap is not None:
            product_NV.div_(self.cap).tanh_().mul_(self.cap)
        return product_NV

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """In float32 or wider, at the temperature."""
        wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return (wide_NV if self.temperature == 1 else wide_NV / self.temperature).log_softmax(-1)

    @torch.no_grad()
    def logprobs(self, hidden_NH: Tensor, target_N: Tensor, floor_N: Tensor | None = None) -> Tensor:
        parts = [
            self._reduce(self.logits(hidden_NH[part]), target_N[part], _part(floor_N, part))[0]
            for part in self.slices(len(target_N))
        ]
        return torch.cat(parts)

    def _reduce(self, logits_NV: Tensor, target_N: Tensor, floor_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probs_N and entropies_N, with floors as in `among_kept`. The logits become probabilities, in place."""
        logp, entropy = [], []
        for rows_NV, rows in _rows(logits_NV):
            logp_NV = self.log_softmax(rows_NV)
            if floor_N is not None:
                logp_NV = among_kept(logp_NV, target_N[rows], floor_N[rows])
            probs_NV = logp_NV.exp()
            entropy.append(-torch.linalg.vecdot(probs_NV, logp_NV))
            logp.append(logp_NV.gather(1, target_N[rows, None]).squeeze(1))
            rows_NV.copy_(probs_NV)
        return torch.cat(logp), torch.cat(entropy)

    def _differentiate(self, probs_NV: Tensor, target_N: Tensor, slopes: Slopes, entropy_N: Tensor) -> Tensor:
        """The probabilities become the gradient of the logits, in place."""
        slope = slopes.logp_N[:, None] / self.temperature
        for rows_NV, rows in _rows(probs_NV):
            target, step = target_N[rows, None], slope[rows]
            if slopes.entropy_N is not None:  # dH/dz = -p (log p + H)
                wide_NV = rows_NV.to(step.dtype)
                added_NV = torch.xlogy(wide_NV, wide_NV).addcmul_(wide_NV, entropy_N[rows, None])
                added_NV.mul_(-slopes.entropy_N[rows, None] / self.temperature)
                rows_NV.copy_(added_NV.sub_(wide_NV * step).scatter_add_(1, target, step))
            elif rows_NV.dtype == step.dtype:
                rows_NV.mul_(-step).scatter_add_(1, target, step)
            else:
                rows_NV.copy_((rows_NV * -step).scatter_add_(1, target, step))
        return probs_NV


NEVER = -1e4
"""Log-prob of a token that is left out: a finite number whose exponential is 0."""


def among_kept(logp_NV: Tensor, target_N: Tensor, floor_N: Tensor) -> Tensor:
    """Log-probs among the tokens whose log-prob is at least the floor, to which the target always belongs: it was
    drawn from them. `logp_NV` changes in place."""
    out_NV = (logp_NV < floor_N[:, None]).scatter_(1, target_N[:, None], False)
    return logp_NV.masked_fill_(out_NV, NEVER).log_softmax(-1)


def _part(tensor_N: Tensor | None, part: slice) -> Tensor | None:
    return None if tensor_N is None else tensor_N[part]


def _rows(tensor_NV: Tensor) -> Iterator[tuple[Tensor, slice]]:
    most = ROWS_BYTES if tensor_NV.device.type == "cpu" else GPU_ROWS_BYTES
    size = max(1, most // (4 * tensor_NV.shape[1]))
    for start in range(0, len(tensor_NV), size):
        rows = slice(start, start + size)
        yield tensor_NV[rows], rows


class Slopes(NamedTuple):
    """Derivatives of a loss."""

    logp_N: Tensor  # by each log-prob
    entropy_N: Tensor | None  # by each entropy; None: it does not depend on them

    def part(self, part: slice) -> Slopes:
        return Slopes(self.logp_N[part], None if self.entropy_N is None else self.entropy_N[part])


class _Gradients:
    """Of hidden states and head; a part that is not needed is not made."""

    def __init__(self, hidden_NH: Tensor, head: Head, needed: tuple[bool, bool]) -> None:
        self._inputs_NH, self._head = hidden_NH.to(head.dtype), head
        self._weight_VH = head.weight_VH.to(head.dtype)
        self.hidden_NH = torch.empty_like(hidden_NH) if needed[0] else None
        self.weight_VH = torch.zeros_like(head.weight_VH) if needed[1] else None
        self._slope_NV: Tensor | float = head.scale  # of the newest slice's logits by the matrix product

    def logits(self, part: slice) -> Tensor:
        self._slope_NV = self._head.scale  # before the next slice's is made
        logits_NV = self._head._finish(self._inputs_NH[part] @ self._weight_VH.T)
        if self._head.cap is not None:
            self._slope_NV = (logits_NV / self._head.cap).square_().neg_().add_(1).mul_(self._head.scale)
        return logits_NV

    def add(self, gradient_NV: Tensor, part: slice) -> None:
        """`gradient_NV`: of the logits of the slice that was asked for last."""
        gradient_NV = gradient_NV.to(self._head.dtype)
        if self._head.scale != 1 or self._head.cap is not None:
            gradient_NV = gradient_NV.mul_(self._slope_NV)
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
    """(hidden_NH, weight_VH, head, target_N, flat_N, loss, whole, floor_N) -> the loss's value.

    With `whole`, the loss is called once with all tokens: where they need several slices, their log-probs are
    computed first, and again for the gradient. Else it is called slice by slice. `floor_N`: see `among_kept`; None:
    log-probs are among all tokens.
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
        floor_N: Tensor | None = None,
    ) -> Tensor:
        gradients = _Gradients(hidden_NH, head, ctx.needs_input_grad[:2])
        slices = head.slices(len(target_N))
        slopes: Slopes | None = None
        value = torch.zeros((), dtype=torch.float64, device=hidden_NH.device)
        if whole and len(slices) > 1:
            reduced = [head._reduce(gradients.logits(part), target_N[part], _part(floor_N, part)) for part in slices]
            logp_N, entropy_N = (torch.cat(parts) for parts in zip(*reduced, strict=True))
            value, slopes = _slopes(loss, logp_N, entropy_N, flat_N)
        for part in slices:
            work_NV = gradients.logits(part)
            logp_N, entropy_N = head._reduce(work_NV, target_N[part], _part(floor_N, part))
            if slopes is None:
                added, own = _slopes(loss, logp_N, entropy_N, flat_N[part])
                value = value + added
            else:
                own = slopes.part(part)
            gradients.add(head._differentiate(work_NV, target_N[part], own, entropy_N), part)
            del work_NV  # before the next slice's is made
        ctx.gradients = (gradients.hidden_NH, gradients.weight_VH)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, outer[0]), None, None, None, None, None, None


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


def _slopes(loss: Loss, logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> tuple[Tensor, Slopes]:
    """Value of the loss, and its derivatives."""
    with torch.enable_grad():
        leaf_N, entropy_leaf_N = logp_N.detach().requires_grad_(), entropy_N.detach().requires_grad_()
        total = loss(leaf_N, entropy_leaf_N, flat_N)
        by_logp_N, by_entropy_N = torch.autograd.grad(total, (leaf_N, entropy_leaf_N), allow_unused=True)
    return total.detach(), Slopes(torch.zeros_like(leaf_N) if by_logp_N is None else by_logp_N, by_entropy_N)
