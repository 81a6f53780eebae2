"""TRL's losses, advantages, KL and importance sampling -> the settings of an algorithm. See docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rhymed.start.migrate.entries import Entry, Item, Note, Put, chosen, flag, same, sapo, unless

DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "beta": 0.0,
    "multi_objective_aggregation": "sum_then_normalize",
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "mask_truncated_completions": False,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "use_bias_correction_kl": True,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
}

LOSSES = {
    "grpo": ("grpo", "seq-mean-token-mean"),
    "dapo": ("grpo", "token-mean"),
    "bnpo": ("bnpo", "token-mean"),
    "dr_grpo": ("dr_grpo", "seq-mean-token-sum-norm"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "luspo": ("grpo", "seq-mean-token-sum"),
}
"""loss_type -> our algorithm and the aggregation of its tokens."""

CORRECTIONS = {
    "sequence_mask": ("sequence-mask", "sequence_mask_cap"),
    "token_truncate": ("token-tis", "tis_cap"),
    "token_mask": ("icepop", "icepop_max"),
}
"""vllm_importance_sampling_mode -> our correction, and the key of its limit."""

MODE, MOST = ("vllm_importance_sampling_mode",), ("vllm_importance_sampling_clip_max",)
SCALES = {True: "group", "group": "group", "batch": "batch", False: "none", "none": "none"}


def _loss(kind: str, level: str, low: float, high: float | None, delta: float | None) -> Iterator[Item]:
    algorithm, aggregation = yield from chosen(LOSSES, kind, "loss_type", "dapo")
    why = "TRL's `dapo` is the mean over tokens, without the other parts of that algorithm"
    yield Put("trainer.algorithm", algorithm, why if kind == "dapo" else "", ("loss_type",))
    yield Put("trainer.aggregation", aggregation, of=("loss_type",))
    if algorithm in ("grpo", "bnpo", "dr_grpo"):
        yield Put("trainer.clip_eps_low", low, of=("epsilon",))
        yield Put("trainer.clip_eps_high", low if high is None else high, of=("epsilon_high", "epsilon"))
        if level == "sequence":
            yield Put("trainer.ratio", "sequence", of=("importance_sampling_level",))
        if delta is not None:
            yield Put("trainer.dual_clip", delta, of=("delta",))
    elif level == "sequence":
        yield Note("importance_sampling_level", "unsupported", f"{kind} has ratios of tokens here")
    if algorithm == "cispo":
        trap = "" if high is not None else "TRL takes epsilon where epsilon_high is not set; the paper has 5.0"
        yield Put("trainer.cispo_max", low if high is None else high, trap, ("epsilon_high", "epsilon"))
        yield Put("trainer.cispo_min", 0.0, of=("loss_type",))


def _scale(value: Any, several: str) -> Iterator[Item]:
    if several == "normalize_then_sum":
        yield Put("trainer.advantage", "decoupled", of=("multi_objective_aggregation",))
        return
    yield Put("trainer.advantage_scale", (yield from chosen(SCALES, value, "scale_rewards", "group")))


def _entropy(coef: float, adaptive: bool) -> Iterator[Item]:
    if coef:
        yield Put("trainer.entropy_coef", float(coef))
    if adaptive:
        yield Note("use_adaptive_entropy", "unsupported", "the weight of the entropy bonus is fixed")


def _kl(beta: float, corrected: bool, sync: bool | None) -> Iterator[Item]:
    yield Put("trainer.kl_coef", float(beta), "0: no reference model" if not beta else "")
    if beta:
        yield Put("trainer.kl_estimator", "k3")
        yield Put("trainer.kl_in", "loss")
        if not corrected:
            yield Note("use_bias_correction_kl", "different", "the KL term is always multiplied by the ratio")
    if sync:
        yield Note("sync_ref_model", "unsupported", "the reference model stays the initial one")


def _correction(
    vllm: bool | None, on: bool, mode: str, most: float | None, least: float | None, cap: float | None
) -> Iterator[Item]:
    limit = cap if cap is not None else most
    if not vllm:
        why = "TRL samples with the trained model itself; here engine and trainer differ a little: trainer.correction"
        yield Note("use_vllm", "different", f"responses always come from vLLM. {why}")
    elif not on:
        yield Put("trainer.correction", "none")
    elif mode in CORRECTIONS and limit is not None:
        correction, key = CORRECTIONS[mode]
        yield Put("trainer.correction", correction, of=MODE)
        if mode == "token_mask":
            yield Put("trainer.icepop_min", least or 0.0)
        yield Put(f"trainer.{key}", limit, of=MOST)
    else:
        yield Note(
            "vllm_importance_sampling_mode", "unsupported", f"no {mode} with these limits; see trainer.correction"
        )
    if vllm and on and least is not None and mode != "token_mask":
        yield Note("vllm_importance_sampling_clip_min", "unsupported", f"{mode} has no lower limit here")


ENTRIES = (
    Entry(
        ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta"),
        ("trainer.algorithm", "trainer.clip_eps_low", "trainer.clip_eps_high"),
        _loss,
    ),
    Entry(("loss_type", "sapo_temperature_pos", "sapo_temperature_neg"), ("trainer.sapo_tau_pos",), sapo),
    Entry(("scale_rewards", "multi_objective_aggregation"), ("trainer.advantage_scale",), _scale, named=1),
    Entry(("beta", "use_bias_correction_kl", "sync_ref_model"), ("trainer.kl_coef",), _kl, named=1),
    same("mask_truncated_completions", "trainer.overlong_filter"),
    same("off_policy_mask_threshold", "trainer.off_policy_mask"),
    Entry(
        (
            "use_vllm",
            "vllm_importance_sampling_correction",
            "vllm_importance_sampling_mode",
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_clip_min",
            "vllm_importance_sampling_cap",
        ),
        ("trainer.correction",),
        _correction,
    ),
    unless("top_entropy_quantile", 1.0, "unsupported", "tokens of any entropy are trained on"),
    Entry(("entropy_coef", "use_adaptive_entropy"), ("trainer.entropy_coef",), _entropy),
    flag("router_aux_loss_coef", "unsupported", "the loss has no term for routers"),
)
