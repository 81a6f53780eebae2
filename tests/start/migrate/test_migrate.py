"""Scripts and configurations as people have them, and what becomes of them."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.start.cli import main
from rhymed.start.migrate import Migration, migrate
from rhymed.start.migrate.migration import document

SOURCES = Path(__file__).parent / "sources"
SHORT = ("-o", "rollout.max_prompt_length=64", "-o", "rollout.max_response_length=64")
OUT, MODULE = Path("mine.toml"), Path("mine_rewards.py")


def translated(*sources: str, gpus: int | None = None) -> Migration:
    return migrate(
        [str(SOURCES / source) if (SOURCES / source).is_file() else source for source in sources], OUT, gpus
    )


def reasons(migration: Migration, verdict: str) -> dict[str, str]:
    return {note.name: note.reason for note in migration.notes if note.verdict == verdict}


def subset(migration: Migration, **keys: Any) -> None:
    expected = {key.replace("__", "."): value for key, value in keys.items()}
    assert {key: migration.values.get(key) for key in expected} == expected


# TRL


def test_a_script_is_read_through_its_names() -> None:
    found = translated("chat_grpo.py")
    subset(
        found,
        model__path="Qwen/Qwen2.5-0.5B-Instruct",
        run__name="qwen-grpo",
        data__path="sums.jsonl",
        rollout__group_size=8,
        rollout__prompts_per_step=8,  # 16 samples x 4 / 8
        rollout__max_response_length=786,
        rollout__gpu_memory=0.4,  # set after the call
        trainer__minibatches=1,
        trainer__lr=5e-6,
        trainer__schedule="cosine",
        trainer__epochs=1,
        trainer__lora__rank=16,
        trainer__lora__targets=["q_proj", "v_proj"],
        schedule__colocate=True,
        metrics__sinks=["wandb"],
    )
    load_config(None, (), {}, found.values)


def test_defaults_that_differ_are_written() -> None:
    subset(
        translated("chat_grpo.py"),
        trainer__algorithm="grpo",
        trainer__aggregation="token-mean",  # loss_type = "dapo"
        trainer__kl_coef=0.0,
        trainer__advantage_scale="group",
        trainer__clip_eps_high=0.2,
        trainer__correction="sequence-mask",
        trainer__gradient_checkpointing=True,
    )


def test_what_has_no_counterpart_is_named_with_a_reason() -> None:
    found = translated("chat_grpo.py")
    unknown = reasons(found, "unknown")
    assert unknown["max_grad_norm"] == "it is `float(os.environ['CLIP'])`: set trainer.max_grad_norm"
    assert "rhymed check" in unknown["warmup_ratio"]
    assert reasons(found, "unsupported") == {}
    subset(found, trainer__entropy_coef=0.01)
    assert "not cut" in reasons(found, "different")["max_prompt_length"]
    assert set(reasons(found, "dropped")) == {"logging_steps, processing_class"}
    assert "max_grad_norm" not in str(found.values)


@pytest.mark.parametrize(
    ("sources", "kept"),
    [
        (["use_vllm=true", "loss_type=grpo", "top_p=0.8"], {"rollout.top_p": 0.8}),
        (["use_vllm=true", "loss_type=grpo", "min_p=0.1"], {"rollout.min_p": 0.1}),
        (["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.top_k=20"], {"rollout.top_k": 20}),
    ],
)
def test_sampling_from_some_tokens_is_no_reason_to_leave_samples_out(
    sources: list[str], kept: dict[str, Any]
) -> None:
    found = migrate(sources, OUT)
    assert kept.items() <= found.values.items()
    load_config(None, (), {}, {**found.values, "rollout.group_size": 4})
    assert not {name.rpartition(".")[2] for name in reasons(found, "different")} & {"top_p", "top_k", "min_p"}


def test_entropy_and_normalised_objectives_are_carried() -> None:
    found = migrate(
        ["multi_objective_aggregation=normalize_then_sum", "use_adaptive_entropy=true", "use_vllm=true"], OUT
    )
    subset(found, trainer__advantage="decoupled")
    assert set(reasons(found, "unsupported")) == {"use_adaptive_entropy"}
    verl = ["actor_rollout_ref.actor.entropy_coeff=0.001", "algorithm.adv_estimator=grpo"]
    subset(migrate(verl, OUT), trainer__entropy_coef=0.001)


def test_reward_functions_are_copied_with_what_they_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = translated("chat_grpo.py")
    assert found.values["reward.scorers"][:2] == [
        {"scorer": "mine_rewards.py:correct"},
        {"scorer": "mine_rewards.py:reward_2"},
    ]
    assert found.values["reward.scorers"][2]["scorer"] == "format"
    assert "torch" not in found.modules[MODULE]
    assert "# one per completion" in found.modules[MODULE]  # the text is that of the script
    names: dict[str, Any] = {}
    exec(compile(found.modules[MODULE], "mine_rewards.py", "exec"), names)
    said = [[{"role": "assistant", "content": "it is 1,200"}], [{"role": "assistant", "content": "7" * 500}]]
    assert names["correct"](prompts=[], completions=said, answer=["1200", "3"]) == [1.0, 0.0]
    assert names["reward_2"](completions=said) == [0.1, 0.0]


def test_a_reward_of_another_file_is_named_there(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text("def right(completions, **columns): return [1.0] * len(completions)\n")
    script = tmp_path / "train.py"
    script.write_text(
        "from scoring import right\nfrom other.package import wrong\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "def main(args):\n"
        "    options = dict(learning_rate=args.lr, num_generations=4)\n"
        "    GRPOTrainer('some/model', [right, wrong], args=GRPOConfig('out', **options), train_dataset=args.data)\n"
    )
    found = migrate([str(script)], OUT)
    assert [row["scorer"] for row in found.values["reward.scorers"]] == [
        f"{tmp_path}/scoring.py:right",
        "other.package:wrong",
    ]
    assert found.modules == {}
    assert reasons(found, "unknown")["learning_rate"] == "it is `args.lr`: set trainer.lr"
    assert "args.data" in reasons(found, "unknown")["train_dataset"]
    subset(found, rollout__group_size=4, model__path="some/model", data__path="mine_rows.jsonl")


def test_a_weight_stays_with_its_reward_where_another_one_cannot_be_used(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "def near(completions, **columns): return [1.0] * len(completions)\n"
        "GRPOTrainer('m', ['some/reward-model', near], args=GRPOConfig('out', reward_weights=[0.1, 2]))\n"
    )
    found = migrate([str(script)], OUT)
    assert found.values["reward.scorers"] == [{"scorer": "mine_rewards.py:near", "weight": 2.0}]
    script.write_text(script.read_text().replace("[0.1, 2]", "args.weights"))
    assert "`args.weights`" in reasons(migrate([str(script)], OUT), "unknown")["reward_weights"]


def test_options_of_a_shell_script_end_with_their_command(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "LR=1e-6\nLR=3e-6\nif true; then\n    LR=5e-6\nfi\n"
        'trl grpo --learning_rate $LR --num_generations 4 "$@"\n'
        "trl grpo --epsilon 0.1\necho done\ntrl grpo --top_p 0.9 2>&1 | tee log\n"
    )
    subset(
        migrate([str(script)], OUT),
        trainer__lr=3e-6, rollout__group_size=4, trainer__clip_eps_low=0.1, rollout__top_p=0.9,
    )  # fmt: skip


def test_functions_inside_of_others_and_settings_of_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import math\n"
        "from trl import GRPOTrainer, TrlParser\n"
        "def main():\n"
        "    limit = 3\n"
        "    def near(completions, **columns):\n"
        "        # of the limit\n"
        "        found = [math.floor(len(text)) for text in completions]\n"
        "        return [float(length <= limit) for length in found]\n"
        "    def far(completions, **columns):\n"
        "        return [float(len(text) > args.limit) for text in completions]\n"
        "    GRPOTrainer('some/model', [near, far], args=training_args)\n"
        "if __name__ == '__main__':\n"
        "    args, training_args = TrlParser(()).parse_args_and_config()\n"
        "    main()\n"
    )
    found = migrate([str(script)], OUT)
    names: dict[str, Any] = {}
    exec(compile(found.modules[MODULE], "mine_rewards.py", "exec"), names)
    assert names["near"](["ab", "abcd"]) == [1.0, 0.0]
    assert "mine_rewards.py uses args, which only the script has" in reasons(found, "unknown")["reward_funcs"]
    assert "command line" in reasons(found, "unknown")["args"]
    (tmp_path / "run.sh").write_text(
        "accelerate launch train.py --learning_rate 2e-6 \\\n  --num_generations 4 --bf16\n"
    )
    both = migrate([str(script), str(tmp_path / "run.sh")], OUT)
    subset(both, trainer__lr=2e-6, rollout__group_size=4)
    assert "args" not in reasons(both, "unknown")


def test_yaml_of_the_command_line_tool() -> None:
    found = translated("grpo.yaml")
    subset(
        found,
        trainer__lr=1e-5,  # YAML reads this as text
        rollout__prompts_per_step=8,
        trainer__minibatches=4,  # 8 passes, 2 of them per update
        trainer__steps=50,  # 200 updates
        trainer__warmup_steps=2,
        eval__every=10,
        trainer__schedule="linear",
        trainer__algorithm="cispo",
        trainer__cispo_max=5.0,
        trainer__kl_coef=0.04,
        trainer__kl_estimator="k3",
        trainer__lora__rank=16,
        data__path="openai/gsm8k",
        data__subset="main",
    )
    assert found.values["eval.datasets"][0]["split"] == "test"
    assert found.values["reward.scorers"] == [
        {"scorer": "math", "args": {"column": "solution"}, "weight": 1.0},
        {"scorer": "length_penalty", "args": {"max_length": 1280, "buffer": 256}, "weight": 0.5},
    ]
    load_config(None, (), {}, found.values)


def test_settings_after_the_file_win_and_gpus_are_those_of_here() -> None:
    found = translated("grpo.yaml", "learning_rate=2e-6", gpus=4)
    subset(found, trainer__lr=2e-6, trainer__gpus=4, rollout__workers=4, rollout__prompts_per_step=32)
    subset(translated("grpo.yaml", gpus=0), trainer__device="cpu", schedule__colocate=None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss_type": "cispo"}, {"trainer.cispo_max": 0.2}),  # TRL's trap: epsilon
        ({"loss_type": "dr_grpo"}, {"trainer.algorithm": "dr_grpo", "trainer.advantage_scale": "group"}),
        (
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            {"trainer.aggregation": "seq-mean-token-sum"},
        ),
        ({"loss_type": "grpo", "delta": 4.0}, {"trainer.dual_clip": 4.0}),
        ({"scale_rewards": False}, {"trainer.advantage_scale": "none"}),
        ({"warmup_ratio": 0.1, "max_steps": 100}, {"trainer.warmup_steps": 10}),
        ({"optim": "paged_adamw_8bit"}, {"trainer.optimizer": "paged_adamw_8bit"}),
    ],
)
def test_single_settings_of_trl(given: dict[str, Any], expected: dict[str, Any]) -> None:
    from rhymed.start.migrate.entries import Put
    from rhymed.start.migrate.trl.table import TRL

    puts = {item.key: item.value for item, _, _ in TRL.apply(given) if isinstance(item, Put)}
    assert {key: puts[key] for key in expected} == expected
    load_config(None, (), {}, {key: puts[key] for key in puts if key.startswith("trainer.")})


NF4 = {"load_in_4bit": True, "use_peft": True}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (NF4, ""),
        ({**NF4, "use_bnb_nested_quant": True}, "the factor of 64 weights stays a float32"),
        ({**NF4, "bnb_4bit_quant_type": "fp4"}, "fp4: weights of 4 bits are nf4 here"),
        ({"load_in_4bit": True}, "only adapters over weights of 4 bits can be trained: use_peft"),
        ({**NF4, "processes": 2}, "one process trains over weights of 4 bits"),
    ],
)
def test_weights_of_4_bits(given: dict[str, Any], why: str) -> None:
    from rhymed.start.migrate.entries import Note, Put
    from rhymed.start.migrate.trl.table import TRL

    items = [item for item, _, _ in TRL.apply(given)]
    puts = {item.key: item.value for item in items if isinstance(item, Put)}
    notes = [item for item in items if isinstance(item, Note) and item.name in (*given, "quantization_config")]
    assert [note.reason for note in notes] == [why] * bool(why)
    assert ("model.quantization" in puts) == all(note.verdict != "unsupported" for note in notes)
    load_config(None, (), {}, {key: puts[key] for key in puts if key.startswith(("trainer.", "model."))})


# verl


def test_a_shell_script_of_verl() -> None:
    found = translated("run_grpo.sh")
    subset(
        found,
        model__path="Qwen/Qwen2.5-0.5B-Instruct",
        data__path="~/data/gsm8k/train.parquet",
        data__overlong="drop",
        rollout__prompts_per_step=128,
        rollout__group_size=5,
        rollout__max_response_length=2048,
        trainer__minibatches=4,
        trainer__dual_clip=3.0,  # a default of verl
        trainer__weight_decay=0.01,
        trainer__kl_coef=0.001,
        trainer__kl_estimator="k3",
        trainer__correction="none",
        trainer__lr=3e-6,
        reward__scorer="score.py:compute_score",
        eval__temperature=0.0,
    )
    assert reasons(found, "unknown") == {
        "trainer.n_gpus_per_node": "it is `${GPUS}`: set trainer.gpus and rollout.workers"
    }
    assert "# gpus = # to be set" in document(found, "run_grpo.sh")
    subset(translated("run_grpo.sh", "trainer.n_gpus_per_node=8"), trainer__gpus=8, rollout__workers=8)


def test_hydra_yaml_of_verl() -> None:
    found = translated("dapo.yaml")
    subset(
        found,
        run__name="dapo-test",
        trainer__minibatches=1,  # an interpolation
        trainer__ratio="sequence",
        trainer__clip_eps_low=0.2,
        trainer__clip_eps_high=0.28,
        trainer__advantage_scale="none",
        trainer__dynamic_sampling__enabled=True,
        trainer__dynamic_sampling__max_refills=9.0,
        trainer__overlong_cache=0.25,
    )
    assert [row["path"] for row in found.values["data.datasets"]] == ["sums.parquet", "words.parquet"]
    assert "not by acc" in reasons(found, "different")["algorithm.filter_groups.metric"]
    load_config(None, (), {}, found.values)


@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo", "geo_mean", "sapo"])
def test_every_algorithm_of_verl_is_one_that_is_accepted(estimator: str, mode: str) -> None:
    given = [f"algorithm.adv_estimator={estimator}", f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}"]
    found = migrate([*given, "actor_rollout_ref.rollout.n=4", "data.train_batch_size=256"], OUT)
    load_config(None, (), {}, found.values)


# Mistakes


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.py",
            "from trl import SFTTrainer\nSFTTrainer(model='x')\n",
            "neither GRPOConfig nor GRPOTrainer; it has SFT",
        ),
        ("a.py", "GRPOConfig(\n", "no Python that can be read"),
        ("a.py", "GRPOConfig()\nGRPOConfig()\n", "in lines 1, 2"),
        ("a.yaml", "- 1\n", "a map of names to values"),
        ("a.yaml", "a: [\n", "cannot be read as YAML"),
        ("a.sh", "echo hello\n", "no settings of TRL's GRPOConfig or of verl's"),
        ("a.toml", "", "a *.py, *.yaml or *.sh"),
    ],
)
def test_sources_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        migrate([str(tmp_path / name)], OUT)
    assert message in str(error.value)
    with pytest.raises(ConfigError, match="no such file"):
        migrate([str(tmp_path / "missing.py")], OUT)
    with pytest.raises(ConfigError, match="sources before it are of TRL"):
        migrate([str(SOURCES / "grpo.yaml"), "data.train_batch_size=4"], OUT)


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (tmp_path / "a.py").write_text(f"open({str(mark)!r}, 'w')\nGRPOConfig(learning_rate=1e-5)\n")
    (tmp_path / "b.sh").write_text(
        f"touch {mark}; x=$(touch {mark}) python train.py trainer.total_epochs=$(touch {mark})\n"
    )
    migrate([str(tmp_path / "a.py")], OUT)
    migrate([str(tmp_path / "b.sh")], OUT)
    assert not mark.exists()


# The whole way


def test_the_command_writes_what_check_accepts(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = (SOURCES / "chat_grpo.py").read_text().replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model))
    Path("train.py").write_text(script.replace("max_completion_length=786", "max_completion_length=64"))
    rows = [{"prompt": [{"role": "user", "content": f"{n} + 1"}], "answer": str(n + 1)} for n in range(16)]
    Path("sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert main(["migrate-config", "train.py", "report_to=tensorboard", "-o", "mine.toml"]) == 0
    printed = capsys.readouterr().out
    assert "wrote mine_rewards.py" in printed
    assert "rhymed check mine.toml" in printed
    assert main(["check", "mine.toml"]) == 0
    assert "correct 1" in capsys.readouterr().out  # the copied function, on the right answer
    assert main(["migrate-config", "train.py", "-o", "mine.toml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["migrate-config", "train.py"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["rollout"]["group_size"] == 8


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["grpo.yaml", "run_grpo.sh", "dapo.yaml"])
def test_check_accepts_the_others_too(
    name: str, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(SOURCES / name, name)
    text = Path(name).read_text().replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model))
    Path(name).write_text(text.replace("openai/gsm8k", "rows.jsonl").replace("dataset_config: main\n", ""))
    Path("score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return 1.0 * (solution_str == ground_truth)\n"
    )
    prompts = [{"prompt": f"{n} + 1", "solution": str(n + 1), "ground_truth": str(n + 1)} for n in range(160)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    Path("data/gsm8k").mkdir(parents=True)
    verl = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{n} + 2"}],
            "reward_model": {"ground_truth": str(n + 2)},
        }
        for n in range(320)
    ]
    for number, file in enumerate(("sums", "words", "held_out", "data/gsm8k/train", "data/gsm8k/test")):
        pq.write_table(pa.Table.from_pylist(verl[160 * (number % 2) :][:160]), f"{file}.parquet")
    assert main(["migrate-config", name, "--gpus", "1", "-o", "mine.toml"]) == 0
    status = main(["check", "mine.toml", "-o", "metrics.sinks=[]", *SHORT])
    assert status == 0, capsys.readouterr().out
