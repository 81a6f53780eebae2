"""All algorithms by name, with the defaults of their publication or of the implementation that most people use."""

from __future__ import annotations

from rhymed.algorithms.recipe import Recipe

_RECIPES = (
    Recipe("grpo", "DeepSeekMath, arXiv 2402.03300; TRL, loss_type grpo", aggregation="seq-mean-token-mean"),
    Recipe("bnpo", "TRL, loss_type bnpo"),
)

ALGORITHMS: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}
