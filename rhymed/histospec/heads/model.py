"""The head: from the policy's hidden state and the token that followed it, states that predict the tokens after.

    s_0 = the policy's last hidden state (after its final norm), before token x_1 was drawn
    c   = [norm(s_k), norm(e(x_k+1))]                                   e: the head's embedding of a token
    s_k+1 = down(silu(gate(c)) * up(c)) + mix(c);  logits of x_k+2 = s_k+1 · out

One network for all depths, as in ReDrafter (Zhang et al., arXiv 2403.09919) and Hydra (Ankner et al., arXiv
2402.05109). It has no attention: a draft costs no key-value cache, and a head can be dropped or replaced between two
steps. Its vocabulary is the run's most frequent tokens (FR-Spec, Zhao et al., arXiv 2502.14856), because the output
layer would be the largest part; all other tokens share one embedding and are never drafted.

`draw` makes drafts of its logits. Does not know vLLM. Left out: attention over the text (EAGLE), trees of drafts
(Medusa).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.histospec.jit import native
from rhymed.histospec.sampling.cpu import _bound, _float, _hash, _order, row_word

FORMAT = "rhymed-head-1"
SMALL = 1e-6  # of the norms
NAMES = ("embed_RD", "out_RD", "mix", "gate", "up", "down", "norm_state", "norm_token")


@dataclass(frozen=True)
class Head:
    """R: tokens that it drafts; D: width of the policy; H: width of the head."""

    ids_R: torch.Tensor  # int64, ascending
    row_V: torch.Tensor  # int64: token -> row of `embed_RD`; R for all tokens that it does not know
    weights: dict[str, torch.Tensor]  # float32, see NAMES; embed_RD has R + 1 rows, out_RD has R
    about: dict[str, str]  # of its file

    @property
    def width(self) -> int:
        return int(self.weights["out_RD"].shape[1])

    def to(self, device: Any) -> Head:
        weights = {name: tensor.to(device) for name, tensor in self.weights.items()}
        return Head(self.ids_R.to(device), self.row_V.to(device), weights, self.about)

    def advance(self, state_BD: torch.Tensor, token_B: torch.Tensor) -> torch.Tensor:
        """The next state. `token_B`: the tokens that follow the states, ids of the policy's vocabulary."""
        w = self.weights
        embedded_BD = functional.embedding(self.row_V[token_B], w["embed_RD"])
        c = torch.cat((_norm(state_BD, w["norm_state"]), _norm(embedded_BD, w["norm_token"])), -1)
        hidden = functional.silu(c @ w["gate"]) * (c @ w["up"])
        return torch.addmm(hidden @ w["down"], c, w["mix"]) if c.dim() == 2 else hidden @ w["down"] + c @ w["mix"]

    def logits(self, state_BD: torch.Tensor) -> torch.Tensor:
        """Of the tokens `ids_R`. Shape: [B, R]."""
        return state_BD @ self.weights["out_RD"].T

    def save(self, path: Path) -> None:
        """Replaces the file at once. Raises `OSError`."""
        from safetensors.torch import save

        tensors = {"ids": self.ids_R.contiguous(), **{name: one.contiguous() for name, one in self.weights.items()}}
        about = {"format": FORMAT, "vocabulary": str(len(self.row_V)), **self.about}
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, save(tensors, about))


def begin(ids_R: torch.Tensor, input_VD: torch.Tensor, output_VD: torch.Tensor, hidden: int, seed: int = 0) -> Head:
    """A head that is not trained yet. `input_VD`, `output_VD`: the policy's embeddings. `hidden`: H."""
    maker = torch.Generator().manual_seed(seed)
    width, vocabulary = input_VD.shape[1], input_VD.shape[0]
    row_V = torch.full((vocabulary,), len(ids_R), dtype=torch.int64)
    row_V[ids_R] = torch.arange(len(ids_R))

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=maker) * rows**-0.5

    known = input_VD[ids_R].float()
    weights = {
        "embed_RD": torch.cat((known, known.mean(0, keepdim=True))),
        "out_RD": output_VD[ids_R].float().clone(),
        "mix": matrix(2 * width, width),
        "gate": matrix(2 * width, hidden),
        "up": matrix(2 * width, hidden),
        "down": matrix(hidden, width) * 0.1,
        "norm_state": torch.ones(width),
        "norm_token": torch.ones(width),
    }
    return Head(ids_R, row_V, weights, {})


def load(path: Path, width: int = 0, vocabulary: int = 0) -> Head:
    """`width`, `vocabulary`: of the policy that it is for; 0: any. Raises `ConfigError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load as tensors_of

    try:
        data = path.read_bytes()  # not mapped: whoever writes into the file must not end the engine
        tensors = tensors_of(data)
        about = dict(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {})
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path} is no head: {error}; `rhymed drafter fit RUN` makes one") from None
    if about.get("format") != FORMAT or {"ids", *NAMES} != set(tensors):
        raise ConfigError(f"{path} is no head of this release: `rhymed drafter fit RUN` makes one")
    ids_R, size = tensors.pop("ids"), int(about["vocabulary"])
    found = int(tensors["out_RD"].shape[1]), size
    if width and vocabulary and found != (width, vocabulary):
        raise ConfigError(
            f"{path} is a head for a model of width {found[0]} with {found[1]:,} tokens, and this one has {width} and"
            f" {vocabulary:,}: fit one for it"
        )
    row_V = torch.full((size,), len(ids_R), dtype=torch.int64)
    row_V[ids_R] = torch.arange(len(ids_R))
    return Head(ids_R, row_V, tensors, about)


def describe(head: Head) -> str:
    """One line for people."""
    count = sum(tensor.numel() for tensor in head.weights.values())
    known = {key: value for key, value in head.about.items() if key not in ("format", "vocabulary")}
    return f"{count / 1e6:.1f} M parameters, {len(head.ids_R):,} tokens, {json.dumps(known)}"


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, SMALL)


# Draws drafts from a head's logits with the sampler's noise.
#
# The sampler will draw `argmax z[v] + g(key, position, v)` with z the policy's logits / temperature, and g is known
# before z is (`rhymed.histospec.sampling.noise`). So the draft is `argmax q[v] + g(key, position, v)` with q the
# head's logits / temperature: where q = z it is that token, and otherwise it is at least as often as (1 - TV) / (1 +
# TV) (Daliri, Musco, Suresh, arXiv 2408.07978), against max p for the most probable token. Without the sampler's
# noise (greedy, or vLLM's own sampler) the most probable token is drafted.
#
# The evidence of a draft is the probability that the noise's winner would stay the winner: its lead over the second.

BLOCK = 64  # tokens whose scores are bounded with vector instructions before any is computed


@native
def draw(
    logits_BR: NDArray[np.float32],
    ids_R: NDArray[np.int32],
    keys_B: NDArray[np.uint64],
    positions_B: NDArray[np.int64],
    scale_B: NDArray[np.float32],
    tokens_B: NDArray[np.int32],
    lead_B: NDArray[np.float32],
) -> None:
    """Fills the token (an id of the policy) and the lead of its score over the second best, in nats, of each row.
    `scale_B`: 1 / temperature; 0: the most probable token."""
    for i in range(len(logits_BR)):
        word = row_word(keys_B[i], positions_B[i])
        tokens_B[i], lead_B[i] = _best(logits_BR[i], ids_R, word, scale_B[i])


@native
def _best(
    logits_R: NDArray[np.float32], ids_R: NDArray[np.int32], word: np.uint64, scale: np.float32
) -> tuple[int, float]:
    low, high = np.uint32(word & np.uint64(0xFFFFFFFF)), np.uint32(word >> np.uint64(32))
    best, second, token = -np.inf, -np.inf, 0
    for start in range(0, len(ids_R), BLOCK):
        block, ids = logits_R[start : start + BLOCK], ids_R[start : start + BLOCK]
        top = np.int32(-(2**31))
        for v in range(len(block)):
            z = block[v] * scale + _bound(_hash(low, high, ids[v])) if scale != 0 else block[v]
            top = max(top, _order(z))
        least = np.float32(second - 1e-5 * (1.0 + abs(second)))
        if least >= np.float32(_float(top)):
            continue
        for v in range(len(block)):
            score = np.float64(block[v])
            if scale != 0:
                h = _hash(low, high, ids[v])
                if block[v] * scale + _bound(h) <= least:
                    continue
                score = np.float64(block[v] * scale) - math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))
            if score > best:
                best, second, token = score, best, start + v
            elif score > second:
                second = score
    return ids_R[token], best - second
