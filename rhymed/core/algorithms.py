"""Algorithms by name, without torch: what each name stands for, and how settings change it.

A `Recipe` has every part decided, as the trainer reads it; every field but name and source is a setting of
`[trainer]`. `ALGORITHMS` has one of each name, with the defaults of its publication or of the implementation that
most people use. The correction of the difference between engine and trainer is no part of any publication but DPPO's:
it is truncated importance sampling of tokens elsewhere. `expand` makes a recipe of a name and the settings that a
user changed; one error lists every mistake.

To add an algorithm: a recipe here. For a part that does not exist: its name here, and its code in
rhymed_workers.trainer.algorithms. Knows neither torch nor files.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

Advantage: TypeAlias = Literal["group-mean", "leave-one-out", "decoupled", "return", "gae", "none"]
Scale: TypeAlias = Literal["none", "group", "batch", "mean"]
Loss: TypeAlias = Literal["clip", "cispo", "gmpo", "sapo", "dppo", "likelihood"]
Ratio: TypeAlias = Literal["token", "sequence", "sequence-product"]
Aggregation: TypeAlias = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
Place: TypeAlias = Literal["loss", "reward"]
Correction: TypeAlias = Literal["none", "token-tis", "sequence-mask", "icepop", "geometric"]


@dataclass(frozen=True)
class Recipe:
    """Defaults are those that most algorithms share; each entry of `ALGORITHMS` lists what it changes."""

    name: str
    source: str  # where the defaults were published

    advantage: Advantage = "group-mean"
    advantage_scale: Scale = "group"
    whiten: bool = False
    gamma: float = 1.0
    gae_lambda: float = 1.0

    loss: Loss = "clip"
    ratio: Ratio = "token"
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    dual_clip: float = 0.0  # 0: off
    cispo_min: float = 0.0
    cispo_max: float = 5.0
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    dppo_mask_low: float = 0.2
    dppo_mask_high: float = 0.2
    dppo_kl_tau: float = 1e-3
    aggregation: Aggregation = "token-mean"

    kl_coef: float = 0.0  # 0: no reference model
    kl_estimator: Estimator = "k3"
    kl_in: Place = "loss"

    entropy_coef: float = 0.0  # of the bonus

    correction: Correction = "token-tis"  # of the difference between engine and trainer
    tis_cap: float = 2.0
    sequence_mask_cap: float = 3.0
    icepop_min: float = 0.5
    icepop_max: float = 5.0
    geometric_min: float = 0.999
    geometric_max: float = 1.001
    off_policy_mask: float = 0.0  # nats per token; 0: off

    overlong_filter: bool = False
    overlong_cache: float = 0.0  # share of the longest response; 0: off
    overlong_penalty: float = 1.0

    @property
    def old_first(self) -> bool:
        """Whether rewards or advantages need the log-probs before the step's first update."""
        return self.kl_coef > 0 and self.kl_in == "reward"

    @property
    def dense(self) -> bool:
        """Whether a sample without advantage has a gradient, too."""
        return (
            self.critic
            or self.loss == "likelihood"
            or (self.kl_coef > 0 and self.kl_in == "loss")
            or (self.loss == "dppo" and self.dppo_kl_tau > 0)
            or self.entropy_bonus
        )

    @property
    def entropy_bonus(self) -> bool:
        return self.entropy_coef != 0

    @property
    def rejects(self) -> bool:
        """Whether the correction may leave tokens out."""
        return self.correction not in ("none", "token-tis") or self.off_policy_mask > 0

    @property
    def least_group(self) -> int:
        """Samples that a group needs: one sample has no mean to be compared with."""
        return 1 if self.advantage in ("return", "gae", "none") else 2

    @property
    def critic(self) -> bool:
        """Whether a second model estimates the value of every state."""
        return self.advantage == "gae"

    def whole_sequences(self, *, updates: int) -> bool:
        """Whether the loss of a token needs the other tokens of its sample, with so many updates per step.

        Before the first update all ratios are 1, so ratios of sequences need nothing then.
        """
        corrected = self.correction in ("sequence-mask", "geometric") or self.off_policy_mask > 0
        return corrected or (updates > 1 and (self.loss == "gmpo" or self.loss_ratio != "token"))

    @property
    def loss_ratio(self) -> Ratio:
        """The ratio that the loss uses; only the clipped loss has a choice."""
        return self.ratio if self.loss == "clip" else "token"


_RECIPES = (
    Recipe("grpo", "arXiv 2402.03300; TRL loss_type grpo", aggregation="seq-mean-token-mean"),
    Recipe(
        "dr_grpo",
        "arXiv 2503.20783; TRL loss_type dr_grpo, scale_rewards none",
        advantage_scale="none",
        aggregation="seq-mean-token-sum-norm",
    ),
    Recipe(
        "gdpo",
        "arXiv 2601.05242; TRL multi_objective_aggregation normalize_then_sum",
        advantage="decoupled",
        aggregation="seq-mean-token-mean",
    ),
    Recipe(
        "dapo",
        "arXiv 2503.14476, table 1; overlong_cache 4096 of 20480 tokens",
        clip_eps_high=0.28,
        overlong_filter=True,
        overlong_cache=0.2,
    ),
    Recipe("bnpo", "TRL loss_type bnpo"),
    Recipe(
        "gspo",
        "arXiv 2507.18071; TRL importance_sampling_level sequence",
        ratio="sequence",
        clip_eps_low=3e-4,
        clip_eps_high=4e-4,
        aggregation="seq-mean-token-mean",
    ),
    Recipe("cispo", "arXiv 2506.13585; limit 5 of ScaleRL, arXiv 2510.13786", loss="cispo"),
    Recipe(
        "gmpo",
        "arXiv 2507.20673; TRL experimental.gmpo; clip in log space",
        loss="gmpo",
        clip_eps_low=0.4,
        clip_eps_high=0.4,
        aggregation="seq-mean-token-mean",
    ),
    Recipe("sapo", "arXiv 2511.20347; TRL loss_type sapo", loss="sapo", aggregation="seq-mean-token-mean"),
    Recipe(
        "rloo",
        "arXiv 2402.14740; TRL RLOOConfig",
        advantage="leave-one-out",
        advantage_scale="none",
        ratio="sequence-product",
        aggregation="seq-mean-token-mean",
        kl_coef=0.05,
        kl_estimator="k1",
        kl_in="reward",
    ),
    Recipe(
        "reinforce++",
        "arXiv 2501.03262; OpenRLHF advantage_estimator reinforce",
        advantage="return",
        whiten=True,
        kl_coef=0.01,
        kl_estimator="k1",
        kl_in="reward",
    ),
    Recipe(
        "reinforce++-baseline",
        "arXiv 2501.03262; OpenRLHF advantage_estimator reinforce_baseline",
        advantage_scale="none",
        whiten=True,
    ),
    Recipe(
        "ppo",
        "arXiv 1707.06347, 1506.02438; verl adv_estimator gae, use_kl_in_reward",
        advantage="gae",
        advantage_scale="none",
        whiten=True,
        kl_coef=0.001,
        kl_estimator="k1",
        kl_in="reward",
    ),
    Recipe(
        "dppo",
        "arXiv 2602.04879; prime-rl default loss",
        advantage_scale="none",
        loss="dppo",
        correction="none",
    ),
    Recipe("max_rl", "arXiv 2602.02710; prime-rl algorithm max_rl", advantage_scale="mean"),
    Recipe(
        "opd",
        "on-policy distillation, arXiv 2306.13649; tinker-cookbook distillation/train_on_policy",
        advantage="none",
        advantage_scale="none",
    ),
    Recipe(
        "opsd",
        "on-policy self-distillation, arXiv 2601.19897; prime-rl algorithm opsd",
        advantage="none",
        advantage_scale="none",
    ),
    Recipe(
        "sft",
        "negative log-likelihood of right answers, mean over tokens; TRL SFTTrainer, completion_only_loss",
        advantage="none",
        advantage_scale="none",
        loss="likelihood",
        correction="none",
    ),
)

ALGORITHMS: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


# From a name and settings to a recipe.

SETTINGS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "source"))
"""What can be set; each has the same name in `[trainer]`."""

Need = tuple[str, Callable[[Recipe], bool]]


def _one_of(part: str, *values: str) -> Need:
    return f"{part} = {' or '.join(map(repr, values))}", lambda recipe: getattr(recipe, part) in values


def _above_0(part: str) -> Need:
    return f"{part} above 0", lambda recipe: getattr(recipe, part) > 0


def _not(part: str, *values: str, words: str) -> Need:
    return words, lambda recipe: getattr(recipe, part) not in values


_CLIPPED, _CLIP = _one_of("loss", "clip", "gmpo"), _one_of("loss", "clip")
_CISPO, _SAPO, _DPPO = _one_of("loss", "cispo"), _one_of("loss", "sapo"), _one_of("loss", "dppo")
_OTHERS = _not("loss", "dppo", "likelihood", words="a loss other than 'dppo' and 'likelihood', which need none")
_GRADIENT = _not("loss", "likelihood", words="a policy gradient, not loss = 'likelihood'")
_KL, _CACHE = _above_0("kl_coef"), _above_0("overlong_cache")
_TIS, _SEQUENCE = _one_of("correction", "token-tis"), _one_of("correction", "sequence-mask")
_ICEPOP, _GEOMETRIC = _one_of("correction", "icepop"), _one_of("correction", "geometric")
_BASELINE = _one_of("advantage", "group-mean", "leave-one-out")
_TOKENS, _GAE = _one_of("advantage", "return", "gae"), _one_of("advantage", "gae")
_REWARDS = _not("advantage", "none", words="an advantage other than 'none'")

NEEDS: dict[str, Need] = {
    "advantage": _GRADIENT,
    "advantage_scale": _BASELINE,
    "gamma": _TOKENS,
    "gae_lambda": _GAE,
    "whiten": _REWARDS,
    "ratio": _CLIP,
    "clip_eps_low": _CLIPPED,
    "clip_eps_high": _CLIPPED,
    "dual_clip": _CLIP,
    "cispo_min": _CISPO,
    "cispo_max": _CISPO,
    "sapo_tau_pos": _SAPO,
    "sapo_tau_neg": _SAPO,
    "dppo_mask_low": _DPPO,
    "dppo_mask_high": _DPPO,
    "dppo_kl_tau": _DPPO,
    "kl_estimator": _KL,
    "kl_in": _KL,
    "entropy_coef": _GRADIENT,
    "correction": _OTHERS,
    "off_policy_mask": _GRADIENT,
    "tis_cap": _TIS,
    "sequence_mask_cap": _SEQUENCE,
    "icepop_min": _ICEPOP,
    "icepop_max": _ICEPOP,
    "geometric_min": _GEOMETRIC,
    "geometric_max": _GEOMETRIC,
    "overlong_cache": _REWARDS,
    "overlong_penalty": _CACHE,
}
"""Settings that only some recipes use: what they need, in words and as a condition."""

ORDERED = (
    ("cispo_min", "cispo_max"),
    ("icepop_min", "icepop_max"),
    ("geometric_min", "geometric_max"),
)


def expand(name: str, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe of this name with these settings; None stands for the algorithm's own default.

    Raises `ValueError` for an unknown name, and for settings without effect in this recipe, one line each.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm = {name!r} is unknown{_near(name, ALGORITHMS)}")
    given = {key: value for key, value in overrides.items() if value is not None}
    if unknown := sorted(given.keys() - set(SETTINGS)):
        raise ValueError(f"{unknown[0]} is no setting of an algorithm{_near(unknown[0], SETTINGS)}")
    recipe = replace(ALGORITHMS[name], **given)
    wrong = [_unused(key, recipe) for key in given if not uses(recipe, key)]
    for low, high in ORDERED:
        if getattr(recipe, low) > getattr(recipe, high):
            wrong.append(f"{low} = {getattr(recipe, low):g} is above {high} = {getattr(recipe, high):g}")
    if wrong:
        raise ValueError("\n".join(wrong))
    return recipe


def uses(recipe: Recipe, setting: str) -> bool:
    return setting not in NEEDS or NEEDS[setting][1](recipe)


def _unused(setting: str, recipe: Recipe) -> str:
    """What the setting needs, who has it, and the settings of the same family that this recipe uses."""
    users = [name for name, other in ALGORITHMS.items() if uses(other, setting)]
    near = [key for key in SETTINGS if uses(recipe, key) and key.partition("_")[0] == setting.partition("_")[0]]
    text = f"{setting} is not used by algorithm = {recipe.name!r}: it needs {NEEDS[setting][0]}"
    text += f" (as in {', '.join(users)})" if users else ""
    return text + (f"; near names that are used: {', '.join(near)}" if near else "")


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"{hint} (known: {', '.join(known)})"
