import json
import re
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config, Lora
from rhymed.core.config.explain import MEANT, field_of
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError

JUDGE = ["reward.scorer=judge", "reward.judge.url=http://x/v1", "reward.judge.model=m"]


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "run.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"run.name": "a/b"}, "run.name = 'a/b': only letters, digits"),
        ({"run.name": "latest"}, "run.name: 'latest' is the link to the newest run"),
        ({"trainer.lr": -1}, "trainer.lr = -1: "),
        ({"schedule.max_staleness": 10**7}, "schedule.max_staleness = 10000000: "),
        (
            {"schedule.max_staleness": 1000, "rollout.prompts_per_step": 64, "rollout.group_size": 8},
            "schedule.max_staleness = 1000 opens 1001 steps at once, 512,512 samples",
        ),
        ({"schedule.lost_after_s": 1}, "schedule.lost_after_s = 1: schedule.lost_after_s must be more than twice"),
    ],
)
def test_an_error_of_a_keyword_names_it_once(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, (), {}, settings)
    assert str(caught.value).startswith(sentence)
    assert str(caught.value).count(" = ") <= 1


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


def test_names_of_others_lead_to_keys_that_exist() -> None:
    for name, key in MEANT.items():
        assert field_of(key.split(".")) is not None, key
        home = field_of(key.split(".")[:-1])
        assert home is not None
        assert name != key.rpartition(".")[2]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("trainer.wormth=1", "unknown key trainer.wormth; valid here: "),
        ("trainer.learning_rate=1", "unknown key trainer.learning_rate; did you mean trainer.lr?"),
        ("trainer.beta=0", "unknown key trainer.beta; did you mean trainer.kl_coef?"),  # and not betas
        ("rollout.num_generations=8", "unknown key rollout.num_generations; did you mean rollout.group_size?"),
        ("data.train_batch_size=8", "did you mean rollout.prompts_per_step?"),
        ("trainer.kl_coeff=1", "unknown key trainer.kl_coeff; did you mean kl_coef?"),
        ("rollout.lr=1", "unknown key rollout.lr; it belongs to [trainer]"),
        ("trainr.lr=1", "unknown section trainr; did you mean trainer?"),
        ("trainer.betas=[0.9,1]", "trainer.betas.1 = 1: it must be less than 1"),
        ("trainer.lr=fast", "trainer.lr = 'fast': a number without quotes is needed"),
        ("trainer.lr='1e-6'", "trainer.lr = '1e-6': a number without quotes is needed"),
        ("trainer.lr=true", "trainer.lr = true: a number without quotes is needed"),
        ("net.insecure='true'", "net.insecure = 'true': true or false without quotes is needed"),
        ("net.relay=maybe", "net.relay = 'maybe': auto, off or tcp://HOST:PORT is expected"),
        ("net.relay=tcp://10.0.0.1", "auto, off or tcp://HOST:PORT is expected"),
        ("trainer.lr=0", "trainer.lr = 0: it must be greater than 0"),
        ("trainer.lr=nan", "trainer.lr"),
        ("trainer.betas=0.9", "trainer.betas = 0.9: a list, [ ... ] is needed"),
        ("data.args=3", "data.args = 3: a table, { key = value } is needed"),
        ("rollout.group_size=2.5", "rollout.group_size = 2.5: a whole number without quotes is needed"),
        ("rollout.engine=sglang", "rollout.engine = 'sglang': it must be 'vllm', 'trace' or 'dataset'"),
        ("model.dtype=bf16", "it must be 'bfloat16', 'float16' or 'float32'"),
        ("run.name=../up", "run.name = '../up': only letters, digits"),
        ("trainer=3", "trainer = 3: trainer is a section: write [trainer]"),
        ("trainer.lr", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("trainer.lr.x=3", "trainer.lr"),
        ("eval.datasets.0.samples=3", "there is no entry 0 to change"),
        ("trainer.dynamic_sampling.max_refil=1", "did you mean max_refills?"),
        ("trainer.dynamic_sampling.max_refills=inf", "trainer.dynamic_sampling.max_refills"),
        ("trainer.dynamic_sampling.on_exhausted=stop", "it must be 'keep' or 'drop'"),
        ("trainer.minibatches=7", "does not divide the 64 samples of a step"),
        ("data.size=2", "data.size = 2 is less than rollout.prompts_per_step = 8"),
        ("data.limit=2", "data.limit = 2 is less than rollout.prompts_per_step = 8"),
        ("data.source=jsonl", "data: path is needed for source = 'jsonl'"),
        ("trainer.keep_best=true", "trainer.keep_best compares held-out rewards: set eval.every"),
        ("trainer.kl_estimator=k1", "kl_estimator is not used by algorithm = 'grpo': it needs kl_coef above 0"),
        ("trainer.entropy_target=1", "trainer.entropy_target is gone: the weight of the entropy bonus is fixed"),
        ("schedule.lost_after_s=1", "schedule.lost_after_s must be more than twice"),
    ],
)
def test_mistakes_are_named(option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [option], {})
    assert message in str(caught.value)


@pytest.mark.parametrize("cut", ["top_p=0.8", "top_k=2", "min_p=0.5"])
@pytest.mark.parametrize(
    "changes",
    [
        *(["trainer.correction=" + kind] for kind in ("geometric", "sequence-mask", "icepop")),
        ["trainer.off_policy_mask=0.1"],
    ],
)
def test_samples_are_not_left_out_by_ratios_to_the_probabilities_of_kept_tokens(cut: str, changes: list[str]) -> None:
    silent = ["rollout.sampler=vllm", "drafts.method=none"]  # with drafts it takes no min_p
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"rollout.{cut}", *silent, *changes], {})
    assert f"{changes[0].partition('=')[0]} = " in str(caught.value)
    assert f"with rollout.{cut.replace('=', ' = ')}" in str(caught.value)
    assert "too small by the share that was kept" in str(caught.value)
    load_config(None, [f"rollout.{cut}", *silent, "trainer.correction=none"], {})
    load_config(None, [f"rollout.{cut}", *silent], {})
    load_config(None, [f"rollout.{cut}", *changes], {})
    load_config(None, changes, {})


def test_an_option_below_a_value_names_itself() -> None:
    with pytest.raises(ConfigError, match=r"-o trainer\.lr\.x=3: lr is not a section"):
        load_config(None, ["trainer.lr=1", "trainer.lr.x=3"], {})


def test_all_mistakes_are_reported_at_once_with_the_file(file: Any) -> None:
    path = file("[trainer]\nlr = 0\nfoo = 1\n[rollout]\nworkers = -1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines == [
        f"{path}: rollout.workers = -1: it must be greater than or equal to 0",
        f"{path}: trainer.lr = 0: it must be greater than 0",
        f"{path}: unknown key trainer.foo; valid here: {', '.join(sorted(Config().trainer.model_dump()))}",
    ]


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\npath = smol\n", "line 2: not TOML: Invalid value (the line: path = smol): text needs quotes"),
        ("[trainer]\nlr = 1\nlr = 2\n", "line 3: not TOML: Cannot overwrite a value (the line: lr = 2): "),
        ("[trainer\n", "line 1: not TOML: Expected ']' at the end of a table declaration (the line: [trainer)"),
    ],
)
def test_what_is_not_toml_is_shown_with_its_line(file: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file(text), environ={})
    assert message in str(caught.value)


def test_who_set_the_key_is_the_place(file: Any) -> None:
    path = file("[trainer]\nlr = 1e-6\n")
    environ = {"RHYMED_TRAINER__EPOCHS": "none"}
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["trainer.lr=-1"], environ)
    assert str(caught.value).splitlines() == [
        "environment RHYMED_TRAINER__EPOCHS=none: trainer.epochs = 'none': a whole number without quotes is needed",
        "-o trainer.lr=-1: trainer.lr = -1: it must be greater than 0",
    ]


def test_the_first_option_that_a_message_names_is_the_place(file: Any) -> None:
    with pytest.raises(ConfigError, match=r"^-o trainer.cispo_max=3: trainer: cispo_max is not used by"):
        load_config(file("[trainer]\nlr = 1e-6\n"), ["trainer.algorithm=gspo", "trainer.cispo_max=3"], {})


def test_contradictions_are_reported_together_each_at_a_key_that_it_names(file: Any) -> None:
    path = file(
        "[trainer]\nsteps = 2\nwarmup_steps = 5\nminibatches = 7\n[net]\nbroker = 'ipc://a'\nstore = 'ipc://a'\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{path}: trainer.minibatches = 7 does not divide")
    assert lines[1].startswith(f"{path}: trainer.warmup_steps = 5 is more than trainer.steps = 2")
    assert lines[2].startswith(f"{path}: net.broker, net.store, net.weights and net.ranks must be")


@pytest.mark.parametrize(
    ("changes", "group", "seconds"),
    [
        (["reward.timeout_s=120"], 8, 8 * 120),  # 8 samples for each of 2 processes, one after the other
        (["reward.scorer=f.py:f", "reward.call=sample"], 16, 8 * 10),
        (["reward.scorer=f.py:f", "reward.call=group"], 6, 2 * 6 * 10),  # 3 groups of 6 for 2 processes
        (["reward.scorer=f.py:f"], 6, 3 * 2 * 6 * 10),  # the group, each alone, and the rest of the group
        (["reward.scorer=f.py:f"], 64, 3 * 64 * 10),  # more than the worker's slots
        ([*JUDGE, "reward.judge.patience_s=900"], 8, 960),
    ],
)
def test_the_longest_time_until_a_score_has_every_call(changes: list[str], group: int, seconds: float) -> None:
    assert load_config(None, changes, {}).reward.longest_s(group) == seconds


def test_an_entry_of_a_list_is_named_and_can_be_changed(file: Any) -> None:
    text = "[eval]\nevery = 2\n[[eval.datasets]]\nname = 'a'\n\n[[eval.datasets]]\nname = 'b'\nsplitt = 'x'\n"
    path = file(text)
    with pytest.raises(ConfigError, match=r"run.toml: unknown key eval\.datasets\.1\.splitt; did you mean split\?"):
        load_config(path, environ={})
    path = file(text.replace("splitt", "split"))
    assert load_config(path, ["eval.datasets.1.limit=3"], {}).eval.datasets[1].limit == 3


def test_text_on_the_command_line_needs_no_quotes() -> None:
    config = load_config(None, ["run.name=7", "model.revision=1e5"], {})
    assert (config.run.name, config.model.revision) == ("7", "1e5")


def test_a_section_that_was_left_out_can_be_switched_on(file: Any) -> None:
    """A run writes it as null."""
    assert load_config(file("[trainer]\nlr = 1e-5"), ["trainer.lora.rank=4"], {}).trainer.lora == Lora(rank=4)
    written = file(Config().model_dump_json(), "config.json")
    assert Config().trainer.lora is None
    assert load_config(written, ["trainer.lora.alpha=4"], {}).trainer.lora == Lora(alpha=4)
    assert load_config(written, [], {}).trainer.lora is None


def test_a_runs_folder_in_place_of_a_file_is_answered_with_resume(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"Is a directory.*rhymed run --resume"):
        load_config(tmp_path / "old", environ={})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["reward.scorer=judge"], "scorer = 'judge' and the section judge (its url and model) belong together"),
        (["reward.judge.url=http://x", "reward.judge.model=m"], "and the section judge (its url and model) belong"),
        (["reward.scorer=judge", "reward.judge.url=x", "reward.judge.model=m"], "an address without a password"),
        (["reward.scorer=judge", "reward.judge.url=http://x"], "reward.judge.model is missing"),
        ([*JUDGE, "reward.answer=tag"], "a judge reads the whole response"),
        ([*JUDGE, "reward.args={ a = 1 }"], "scorer judge has no arguments"),
        ([*JUDGE, "reward.judge.url=http://x:99999/v1"], "Port out of range"),
        ([*JUDGE, "reward.judge.range=[1, 1]"], "write [least, most]"),
        ([*JUDGE, "reward.judge.rubric=Rate it."], "the rubric must name {response}"),
        ([*JUDGE, "reward.judge.pattern=("], "pattern: missing )"),
        ([*JUDGE, "reward.judge.api=score", "reward.judge.system=x"], "system is for api = 'chat'"),
        ([*JUDGE, "reward.judge.options={ model = 1 }"], "options.model is set by rhymed"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(changes: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_config(None, changes)


def test_judges_are_among_several_scorers(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[[reward.scorers]]\nscorer = "exact"\n[[reward.scorers]]\nscorer = "judge"\n'
        '[reward.scorers.judge]\nurl = "http://x/v1"\nmodel = "m"\nconcurrency = 100\n'
    )
    reward = load_config(tmp_path / "c.toml").reward
    assert [judge.model for judge in reward.judges] == ["m"]
    assert (reward.slots, reward.longest_s(8)) == (100, 50 * 10.0 + 180.0)
    assert Config.model_validate_json(Config(reward=reward).model_dump_json()).reward == reward


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("store.shards=2", "store.shards is gone: one store takes 10,000 samples"),
        ("metrics.traces=http://localhost:4318", "metrics.traces is gone: `rhymed logs --sample ID` shows the story"),
        ("net.transport=broadcast", "net.transport = 'broadcast' is gone: engines map the trainer's file"),
    ],
)
def test_a_setting_that_is_gone_is_answered_with_one_sentence(change: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_config(None, [change])
