"""All algorithms by name, with the defaults of their publication or of the implementation that most people use.

The correction of the difference between engine and trainer is no part of any publication but DPPO's: it is truncated
importance sampling of tokens elsewhere.

To add an algorithm: a recipe here. For a part that does not exist: its name in `recipe`, and its code in
rhymed_workers.trainer.algorithms.
"""

from __future__ import annotations

from rhymed.core.algorithms.recipe import Recipe

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
