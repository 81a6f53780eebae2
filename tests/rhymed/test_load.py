import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.load import load_config


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "run.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_without_anything_it_is_the_default() -> None:
    assert load_config(None, environ={}) == Config()


def test_the_later_wins_file_environment_option(file: Any) -> None:
    path = file("[trainer]\nlr = 1e-5\nepochs = 2\nsteps = 7\n")
    environ = {"RHYMED_TRAINER__LR": "2e-5", "RHYMED_TRAINER__EPOCHS": "3", "RHYMED_HOME": "x", "TRAINER__LR": "9"}
    config = load_config(path, ["trainer.lr=3e-5"], environ)
    assert (config.trainer.lr, config.trainer.epochs, config.trainer.steps) == (3e-5, 3, 7)


def test_options_are_read_as_toml_and_else_as_text() -> None:
    options = [
        "run.name=first",
        "data.args={min_terms = 2}",
        "trainer.betas=[0.8, 0.9]",
        "net.insecure=true",
        'model.path="a b"',
        "data.template=x={prompt}",
    ]
    config = load_config(None, options, {})
    assert (config.run.name, config.data.args, config.trainer.betas) == ("first", {"min_terms": 2}, (0.8, 0.9))
    assert (config.net.insecure, config.model.path, config.data.template) == (True, "a b", "x={prompt}")


def test_what_a_run_wrote_down_is_read_again(file: Any) -> None:
    config = load_config(None, ["trainer.lr=3e-5", "rollout.workers=3"], {})
    assert load_config(file(config.model_dump_json(), "config.json"), environ={}) == config


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trainer.learning_rate=1", "unknown key trainer.learning_rate; known here: "),
        ("trainer.kl_coeff=1", "unknown key trainer.kl_coeff; did you mean kl_coef?"),
        ("trainr.lr=1", "unknown key trainr; did you mean trainer?"),
        ("trainer.lr=fast", "trainer.lr: Input should be a valid number"),
        ("trainer.lr=0", "trainer.lr: Input should be greater than 0 (given: 0)"),
        ("trainer.lr=nan", "trainer.lr"),
        ("rollout.group_size=2.5", "rollout.group_size: Input should be a valid integer"),
        ("rollout.engine=sglang", "rollout.engine: Input should be 'vllm' or 'trace'"),
        ("run.name=../up", "run.name"),
        ("trainer=3", "trainer"),
        ("trainer.lr", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("trainer.lr.x=3", "trainer.lr"),
        ("trainer.minibatches=7", "does not divide the 64 samples of a step"),
        ("data.size=2", "data.size = 2 is less than rollout.prompts_per_step = 8"),
        ("data.source=jsonl", "data.path is needed for data.source = 'jsonl'"),
        ("schedule.lost_after_s=1", "schedule.lost_after_s must be more than twice"),
    ],
)
def test_mistakes_are_named(option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [option], {})
    assert message in str(caught.value)


def test_an_option_below_a_value_names_itself() -> None:
    with pytest.raises(ConfigError, match=r"-o trainer\.lr\.x=3: lr is not a section"):
        load_config(None, ["trainer.lr=1", "trainer.lr.x=3"], {})


def test_all_mistakes_are_told_at_once_with_the_file(file: Any) -> None:
    path = file("[trainer]\nlr = 0\nfoo = 1\n[rollout]\nworkers = -1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") for line in lines)


@pytest.mark.parametrize(("name", "text"), [("run.toml", "[trainer\n"), ("run.json", "{"), ("run.json", "[1, 2]")])
def test_a_file_that_cannot_be_read(file: Any, name: str, text: str) -> None:
    path = file(text, name)
    with pytest.raises(ConfigError, match=str(path)):
        load_config(path, environ={})


def test_missing_file_folder_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "bytes.toml"):
        with pytest.raises(ConfigError, match=str(path)):
            load_config(path, environ={})


def test_every_default_can_be_written_down_as_json() -> None:
    assert Config.model_validate(json.loads(Config().model_dump_json())) == Config()
