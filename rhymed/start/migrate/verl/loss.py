"""verl's advantages, losses, KL and corrections -> the settings of an algorithm. See docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rhymed.start.migrate.entries import Entry, Item, Note, Put, chosen, flag, sapo, unless

ACTOR, LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.actor.policy_loss"
CORRECTION = "algorithm.rollout_correction"

DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.filter_groups.max_num_gen_batches": 0,
    f"{CORRECTION}.rollout_is": None,
    f"{CORRECTION}.rollout_is_threshold": 2.0,
    f"{CORRECTION}.rollout_rs": None,
    f"{LOSS}.loss_mode": "vanilla",
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.tau_pos": 1.0,
    f"{ACTOR}.tau_neg": 1.05,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.entropy_coeff": 0,
    "critic.optim.lr": 1e-5,
    "critic.cliprange_value": 0.5,
    "trainer.critic_warmup": 0,
}

ESTIMATORS = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++-baseline",
}
LOSSES = {"vanilla": "clip", "gspo": "clip", "cispo": "cispo", "geo_mean": "gmpo", "sapo": "sapo"}
KLS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
AGGREGATIONS = {
    name: name for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
}


def _advantage(estimator: str, by_std: bool, gamma: float, lam: float, mode: str) -> Iterator[Item]:
    kind = str(estimator).lower().rpartition(".")[2]
    name = yield from chosen(ESTIMATORS, kind, "algorithm.adv_estimator", "grpo")
    yield Put("trainer.algorithm", name, of=("algorithm.adv_estimator",))
    if name == "grpo":
        yield Put("trainer.advantage_scale", "group" if by_std else "none", of=("algorithm.norm_adv_by_std_in_grpo",))
    if name == "rloo" and mode == "vanilla":
        yield Put("trainer.ratio", "token", "verl's ratio, where TRL has the sequence's")
    if name in ("ppo", "reinforce++"):
        yield Put("trainer.gamma", gamma, of=("algorithm.gamma",))
    if name == "ppo":
        yield Put("trainer.gae_lambda", lam, of=("algorithm.lam",))


def _loss(mode: str, both: float, low: float | None, high: float | None, dual: float) -> Iterator[Item]:
    loss = yield from chosen(LOSSES, mode, f"{LOSS}.loss_mode", "vanilla")
    below, above = both if low is None else low, both if high is None else high
    if loss != "clip":
        yield Put("trainer.loss", loss, of=(f"{LOSS}.loss_mode",))
    if loss in ("clip", "gmpo"):
        yield Put("trainer.clip_eps_low", below, of=(f"{ACTOR}.clip_ratio_low",))
        yield Put("trainer.clip_eps_high", above, of=(f"{ACTOR}.clip_ratio_high",))
    if mode == "gspo":
        yield Put("trainer.ratio", "sequence", of=(f"{LOSS}.loss_mode",))
    elif loss == "clip":
        yield Put(
            "trainer.dual_clip", float(dual), "verl always limits tokens with A < 0", (f"{ACTOR}.clip_ratio_c",)
        )
    if both != 0.2 and low == high == 0.2:
        yield Note(f"{ACTOR}.clip_ratio", "different", "verl reads clip_ratio_low and clip_ratio_high, which are 0.2")
    if loss == "cispo":
        yield Put("trainer.cispo_min", max(0.0, 1 - below))
        yield Put("trainer.cispo_max", 1 + above)


def _aggregation(mode: str, loss: str) -> Iterator[Item]:
    forced = "seq-mean-token-mean" if loss == "sapo" else mode
    yield Put(
        "trainer.aggregation", (yield from chosen(AGGREGATIONS, forced, f"{ACTOR}.loss_agg_mode", "token-mean"))
    )


def _kl(in_loss: bool, loss_coef: float, loss_kind: str, in_reward: bool, coef: float, kind: str) -> Iterator[Item]:
    if in_loss and in_reward:
        yield Note(
            "algorithm.use_kl_in_reward", "unsupported", "the KL term is in the loss or in the reward, not in both"
        )
    if not in_loss and not in_reward:
        yield Put("trainer.kl_coef", 0.0, "no reference model", (f"{ACTOR}.use_kl_loss",))
        return
    used, kind_name = (loss_kind, f"{ACTOR}.kl_loss_type") if in_loss else (kind, "algorithm.kl_penalty")
    switch = _names(ACTOR, "use_kl_loss", "kl_loss_coef")
    if not in_loss:
        switch = _names("algorithm", "use_kl_in_reward", "kl_ctrl.kl_coef")
    yield Put("trainer.kl_coef", float(loss_coef if in_loss else coef), of=switch[1:])
    yield Put("trainer.kl_in", "loss" if in_loss else "reward", of=switch[:1])
    yield Put("trainer.kl_estimator", (yield from chosen(KLS, used, kind_name, "k3")), of=(kind_name,))


def _entropy(coef: float, mode: str) -> Iterator[Item]:
    if coef:
        yield Put("trainer.entropy_coef", float(coef))
        if mode != "token-mean":
            yield Note(
                f"{ACTOR}.entropy_coeff", "different", "the bonus is a mean over tokens, whatever mean the loss uses"
            )


def _filter(on: bool, metric: str, most: int) -> Iterator[Item]:
    if not on:
        return
    yield Put("trainer.dynamic_sampling.enabled", True)
    if metric in ("reward", "score", "seq_reward", "seq_final_reward"):
        yield Put("trainer.dynamic_sampling.metric", "reward")
    else:
        why = f"groups are compared by their reward, not by {metric}; a scorer's name is possible, too"
        yield Note("algorithm.filter_groups.metric", "different", why)
    if most > 0:
        yield Put("trainer.dynamic_sampling.max_refills", float(max(0, most - 1)), "batches beyond the first")
    else:
        yield Note("algorithm.filter_groups.max_num_gen_batches", "different", "refills have a limit: max_refills")


def _overlong(on: bool | None, tokens: int | None, factor: float | None, response: int) -> Iterator[Item]:
    if on and tokens:
        yield Put("trainer.overlong_cache", tokens / response, f"{tokens} of {response} tokens")
        yield Put("trainer.overlong_penalty", factor or 1.0)


def _correction(kind: str | None, threshold: Any, rejection: str | None) -> Iterator[Item]:
    low, _, high = str(threshold).partition("_")
    if rejection:
        yield Note(
            f"{CORRECTION}.rollout_rs", "unsupported", "see trainer.correction = 'geometric' and 'sequence-mask'"
        )
    if kind is None:
        yield Put("trainer.correction", "none", of=(f"{CORRECTION}.rollout_is",))
    elif kind == "token" and high:
        yield Put("trainer.correction", "icepop")
        yield Put("trainer.icepop_min", float(low))
        yield Put("trainer.icepop_max", float(high))
    elif kind == "token":
        yield Put("trainer.correction", "token-tis")
        yield Put("trainer.tis_cap", float(low))
    else:
        yield Put("trainer.correction", "sequence-mask")
        yield Put("trainer.sequence_mask_cap", float(high or low))
        yield Note(f"{CORRECTION}.rollout_is", "different", "samples above the limit are left out, not truncated")


def _critic(estimator: str, lr: float, clip: float, warmup: int) -> Iterator[Item]:
    if str(estimator).lower().rpartition(".")[2] == "gae":
        yield Put("trainer.critic.lr", lr, of=("critic.optim.lr",))
        yield Put("trainer.critic.value_clip", clip, of=("critic.cliprange_value",))
        yield Put("trainer.critic.warmup_steps", warmup, of=("trainer.critic_warmup",))


def _names(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


BUFFERS = ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg")
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"

ENTRIES = (
    Entry(
        (*_names("algorithm", "adv_estimator", "norm_adv_by_std_in_grpo", "gamma", "lam"), f"{LOSS}.loss_mode"),
        ("trainer.algorithm",),
        _advantage,
    ),
    Entry(
        (f"{LOSS}.loss_mode", *_names(ACTOR, "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")),
        ("trainer.loss", "trainer.clip_eps_low", "trainer.clip_eps_high"),
        _loss,
    ),
    Entry((f"{LOSS}.loss_mode", *_names(ACTOR, "tau_pos", "tau_neg")), ("trainer.sapo_tau_pos",), sapo),
    Entry((f"{ACTOR}.loss_agg_mode", f"{LOSS}.loss_mode"), ("trainer.aggregation",), _aggregation, named=1),
    Entry(
        (
            *_names(ACTOR, "use_kl_loss", "kl_loss_coef", "kl_loss_type"),
            *_names("algorithm", "use_kl_in_reward", "kl_ctrl.kl_coef", "kl_penalty"),
        ),
        ("trainer.kl_coef",),
        _kl,
    ),
    Entry(
        _names("algorithm.filter_groups", "enable", "metric", "max_num_gen_batches"),
        ("trainer.dynamic_sampling.enabled",),
        _filter,
    ),
    *(
        Entry(
            (*_names(buffer, "enable", "len", "penalty_factor"), "data.max_response_length"), (), _overlong, named=3
        )
        for buffer in (BUFFER, *BUFFERS)
    ),
    Entry(
        _names(CORRECTION, "rollout_is", "rollout_is_threshold", "rollout_rs"), ("trainer.correction",), _correction
    ),
    Entry(
        ("algorithm.adv_estimator", "critic.optim.lr", "critic.cliprange_value", "trainer.critic_warmup"),
        ("trainer.critic.lr",),
        _critic,
        named=4,
    ),
    unless("algorithm.kl_ctrl.type", "fixed", "unsupported", "trainer.kl_coef stays as it is"),
    Entry((f"{ACTOR}.entropy_coeff", f"{ACTOR}.loss_agg_mode"), ("trainer.entropy_coef",), _entropy, named=1),
    flag("algorithm.use_pf_ppo", "unsupported", "samples are trained on as they are"),
)
