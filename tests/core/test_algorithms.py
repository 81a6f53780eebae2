"""Names of algorithms, what settings change, and the errors for what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.core.algorithms import ALGORITHMS, SETTINGS, expand
from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError


def test_a_name_alone_is_its_entry() -> None:
    for name, recipe in ALGORITHMS.items():
        assert expand(name, dict.fromkeys(SETTINGS)) == recipe
        assert recipe.name == name
        assert recipe.source


def test_a_setting_replaces_one_part() -> None:
    made = Config.model_validate({"trainer": {"clip_eps_high": 0.3}}).trainer.recipe
    assert (made.clip_eps_high, made.clip_eps_low) == (0.3, ALGORITHMS["grpo"].clip_eps_low)


def test_an_unknown_name_names_the_near_ones() -> None:
    with pytest.raises(ValueError, match=r"'gropo' is unknown; did you mean 'grpo'"):
        expand("gropo", {})
    with pytest.raises(ValueError, match=r"clip_eps_hi is no setting .*did you mean 'clip_eps_high'"):
        expand("grpo", {"clip_eps_hi": 1})


def error(tmp_path: Path, text: str) -> str:
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "my.toml", (), {})
    return str(caught.value)


def test_a_setting_without_effect_is_an_error(tmp_path: Path) -> None:
    found = error(tmp_path, '[trainer]\ncorrection = "none"\ntis_cap = 3.0\n')
    assert "my.toml: trainer: tis_cap is not used by algorithm = 'grpo'" in found
    assert "correction = 'token-tis'" in found


def test_a_choice_that_may_be_left_out_names_its_values(tmp_path: Path) -> None:
    found = error(tmp_path, '[trainer]\naggregation = "token_mean"\n')
    assert "my.toml: trainer.aggregation = 'token_mean': it must be 'token-mean', " in found


def test_several_settings_without_effect_are_all_reported(tmp_path: Path) -> None:
    text = '[trainer]\nalgorithm = "gspo"\ncispo_max = 4.0\nkl_in = "reward"\nicepop_min = 0.1\n'
    found = error(tmp_path, text).splitlines()
    assert [line.partition(" is not used")[0].rpartition(" ")[2] for line in found] == [
        "cispo_max",
        "kl_in",
        "icepop_min",
    ]
    assert "loss = 'cispo' (as in cispo)" in found[0]
    assert "near names that are used: kl_coef" in found[1]


def test_limits_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    found = error(tmp_path, '[trainer]\ncorrection = "icepop"\nicepop_min = 6.0\n')
    assert "icepop_min = 6 is above icepop_max = 5" in found
    assert "dual_clip = 0.5 must be above 1" in error(tmp_path, "[trainer]\ndual_clip = 0.5\n")


def test_what_a_run_wrote_is_read_again() -> None:
    """A run's config.json has every key, those without a value as null."""
    for name in (name for name, recipe in ALGORITHMS.items() if recipe.advantage != "none"):  # they need a teacher
        made = Config.model_validate({"trainer": {"algorithm": name}})
        assert Config.model_validate_json(made.model_dump_json()) == made
