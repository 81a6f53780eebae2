"""Scripts with a command line, conditions and settings that are assigned later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config.load import load_config
from rhymed.start.cli import main
from rhymed.start.migrate import Migration, migrate
from rhymed.start.migrate.migration import document

GAME = '''"""A game with a server, on a command line."""
import argparse
import os

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

try:
    import fast_json as json
except ImportError:
    import json

PROMPT = [{"role": "user", "content": "Play."}]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-host", default="127.0.0.1")
    parser.add_argument("--env-port", type=int, default=8001)
    parser.add_argument("--env-mode", choices=["local", "space"], default="local")
    parser.add_argument("--model", default="some/model")
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    parser.add_argument("--dataset-size", type=int, default=1000)
    parser.add_argument("--save-interval", type=int)
    parser.add_argument("--use-colocate", action="store_true")
    parser.add_argument("--token", required=True)
    return parser.parse_args()


def reward(completions, **columns):
    return [1.0] * len(completions)


def main():
    args = parse_args()
    if args.env_mode == "local":
        env_url = f"http://{args.env_host}:{args.env_port}"
        print("local")
    else:
        env_url = args.env_host

    dataset = Dataset.from_dict({"prompt": [PROMPT] * args.dataset_size})

    class Game:
        def __init__(self):
            self.url = json.loads(json.dumps(env_url))

        def reset(self, **row):
            return None

        def move(self, by: int) -> str:
            """Moves.

            Args:
                by: How far.
            """
            return self.url

    config = GRPOConfig(
        output_dir="game",
        learning_rate=args.learning_rate,
        num_generations=4,
        per_device_train_batch_size=8,
        num_train_epochs=1,
        use_vllm=args.use_colocate,
        hub_token=args.token,
        max_completion_length=int(os.environ["LENGTH"]),
    )
    config.chat_template_kwargs = {"enable_thinking": False}
    if args.env_mode == "space":
        config.temperature = 0.7
    GRPOTrainer(args.model, reward, config, dataset, environment_factory=Game).train()


if __name__ == "__main__":
    main()
'''


def translated(tmp_path: Path, text: str, *more: str) -> Migration:
    script = tmp_path / "game.py"
    script.write_text(text)
    return migrate([str(script), *more], tmp_path / "mine.toml")


def reasons(migration: Migration, verdict: str) -> dict[str, str]:
    return {note.name: note.reason for note in migration.notes if note.verdict == verdict}


def test_defaults_of_the_command_line_are_read_and_settings_that_are_assigned_later(tmp_path: Path) -> None:
    found = translated(tmp_path, GAME)
    values = found.values
    assert values["model.path"] == "some/model"
    assert values["trainer.lr"] == 5e-6
    assert values["model.chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs = { enable_thinking = false }" in document(found, "game.py")
    unknown = reasons(found, "unknown")
    assert unknown["temperature"] == "it is `0.7 if args.env_mode == 'space'`: set rollout.temperature"
    assert unknown["max_completion_length"].startswith("it is `int(os.environ['LENGTH'])`")
    assert "learning_rate = 5e-06" in reasons(found, "different")["args"]
    assert "save_interval" not in reasons(found, "different")["args"], "the script does not use it"


@pytest.mark.parametrize("line", ["python game.py --learning-rate 1e-5 --token x\n", None])
def test_a_command_line_gives_the_script_other_values(tmp_path: Path, line: str | None) -> None:
    (tmp_path / "run.sh").write_text(line or "")
    found = translated(tmp_path, GAME, str(tmp_path / "run.sh") if line else "learning_rate=1e-5")
    assert found.values["trainer.lr"] == 1e-5


def test_the_copied_class_has_its_conditions_and_the_defaults_of_the_command_line(tmp_path: Path) -> None:
    found = translated(tmp_path, GAME)
    text = found.modules[tmp_path / "mine_tools.py"]
    assert "parse_args" not in text
    assert 'print("local")' not in text
    names: dict[str, Any] = {}
    exec(compile(text, "mine_tools.py", "exec"), names)
    assert names["Game"]().move(1) == "http://127.0.0.1:8001"
    exec(compile(text.replace("env_mode='local'", "env_mode='space'"), "mine_tools.py", "exec"), names)
    assert names["Game"]().move(1) == "127.0.0.1"
    assert "`args.env_mode == 'local'`" in reasons(found, "different")[str(tmp_path / "mine_tools.py")]


PARSED = """
from dataclasses import dataclass, field
from trl import GRPOConfig, GRPOTrainer, TrlParser


@dataclass
class ScriptArguments:
    model: str = field(default="some/model", metadata={"help": "a model"})
    rows: str = "rows.jsonl"


def main(script_args, training_args):
    training_args.max_completion_length = 99
    GRPOTrainer(script_args.model, print, args=training_args).train()


if __name__ == "__main__":
    script_args, training_args = TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config()
    main(script_args, training_args)
"""


def test_a_parser_of_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python game.py --learning_rate 3e-6 --model other/model\n")
    values = translated(tmp_path, PARSED, str(tmp_path / "run.sh")).values
    assert values["rollout.max_response_length"] == 99
    assert values["trainer.lr"] == 3e-6
    assert values["model.path"] == "other/model"
    assert translated(tmp_path, PARSED).values["model.path"] == "some/model"


def test_options_may_stand_between_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("python -m verl.trainer.main_ppo data.train_files=rows.parquet\n")
    words = ["run.sh", "--gpus", "0", "-o", "x.toml", "data.train_batch_size=64"]
    assert main(["migrate-config", *words]) == 0
    assert "prompts_per_step = 64" in Path("x.toml").read_text()
    with pytest.raises(SystemExit):
        main(["migrate-config", "run.sh", "--gpu-count", "0"])
    assert "unrecognized arguments: --gpu-count" in capsys.readouterr().err


def test_the_asynchronous_trainer_has_its_staleness(tmp_path: Path) -> None:
    text = (
        "from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer\n"
        "AsyncGRPOTrainer('some/model', print, args=AsyncGRPOConfig('out', max_staleness=2, queue_maxsize=9))\n"
    )
    found = translated(tmp_path, text)
    assert found.values["schedule.max_staleness"] == 2
    assert found.values["rollout.max_response_length"] == 2048
    assert found.values["trainer.correction"] == "none"
    load_config(None, (), {}, found.values)


BITS = """
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
{code}
"""


@pytest.mark.parametrize(
    "code",
    [
        "GRPOTrainer('some/model', print, args=GRPOConfig(), quantization_config=bits, peft_config=LoraConfig())",
        "args = GRPOConfig('out', model_init_kwargs={'revision': 'v1', 'quantization_config': bits})\n"
        "GRPOTrainer('some/model', print, args=args, peft_config=LoraConfig(r=8))",
        "model = AutoModelForCausalLM.from_pretrained('some/model', quantization_config=bits)\n"
        "GRPOTrainer(model, print, args=GRPOConfig('out'), peft_config=LoraConfig(r=8))",
    ],
)
def test_weights_of_4_bits_wherever_a_script_asks_for_them(tmp_path: Path, code: str) -> None:
    found = translated(tmp_path, BITS.format(code=code))
    assert found.values["model.quantization"] == "nf4"
    assert found.values["trainer.lora.rank"] == 8, "PEFT's own"
    load_config(None, (), {}, found.values)
    assert "quantization" not in "".join(note.name for note in found.notes if note.verdict == "unsupported")


ROWS = """
from datasets import concatenate_datasets, load_dataset
from trl import GRPOConfig, GRPOTrainer

{code}
GRPOTrainer("some/model", print, args=GRPOConfig("out"), train_dataset={rows}, eval_dataset={rows})
"""
HUB = {"data.path": "org/x", "data.subset": "main", "data.split": "train"}


@pytest.mark.parametrize(
    ("code", "rows", "carried"),
    [
        ("rows = load_dataset('org/x', 'main', split='train')", "rows", HUB),
        ("rows = load_dataset('org/x', 'main')", "rows['train'].shuffle(seed=1)", HUB),
        ("def rows():\n    return load_dataset('org/x', 'main', split='train')", "rows()", HUB),
        ("rows = load_dataset('json', data_files='a.jsonl', split='train')", "rows", {"data.path": "a.jsonl"}),
        (
            "rows = load_dataset('org/x', split='train[:9]')",
            "rows",
            {"data.path": "org/x", "data.split": "train[:9]"},
        ),
        ("rows = load_dataset('json', data_files='a.jsonl', split='train[:9]')", "rows", {}),
        ("rows = load_dataset('org/x', data_files='part.json')", "rows['train']", {}),
        ("rows = load_dataset('org/x', 'main', 'folder')", "rows['train']", {}),
        ("rows = load_dataset('org/x', split='train').filter(len)", "rows", {}),
        ("rows = load_dataset('org/x', split='train')\nrows = rows.map(dict)", "rows", {}),
        ("rows = load_dataset('org/x', split='train').shuffle(seed=1).select(range(9))", "rows", {}),
        ("rows = load_dataset('org/x', split='train')", "rows.train_test_split(0.1)['train']", {}),
        ("rows = load_dataset('org/x', split='train')", "rows[:9]", {}),
        ("rows = load_dataset('org/x', split='train')", "concatenate_datasets([rows, rows])", {}),
        ("rows = load_dataset('org/x', split='train')", "rows.some_method_of_tomorrow()", {}),
        ("rows = load_dataset('org/x')\nrows['train'] = rows['train'].skip(9)", "rows['train']", {}),
        ("def rows(n=3):\n    return load_dataset('org/x', split='train').take(n)", "rows()", {}),
        ("from elsewhere import rows", "rows", {}),
    ],
)
def test_all_rows_of_a_source_are_carried_and_no_run_begins_without_those_that_a_script_makes(
    tmp_path: Path, code: str, rows: str, carried: dict[str, str]
) -> None:
    found = translated(tmp_path, ROWS.format(code=code, rows=rows))
    missing = {"data.path": f"{tmp_path}/mine_rows.jsonl"}
    assert {key: value for key, value in found.values.items() if key.startswith("data.")} == (carried or missing)
    unknown = reasons(found, "unknown")
    if carried:
        (held_out,) = found.values["eval.datasets"]
        assert {f"data.{key}": value for key, value in held_out.items() if key != "name"} == carried
    else:
        assert f'dataset.to_json("{tmp_path}/mine_rows.jsonl")' in unknown["train_dataset"]
        assert "eval.datasets" not in found.values
        assert "write [[eval.datasets]]" in unknown["eval_dataset"]


def test_a_run_on_other_rows_than_the_script_makes_is_refused(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that the script filters has rows, too."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 8)
    load = "rows = load_dataset('json', data_files='rows.jsonl', split='train').filter(len)"
    Path("train.py").write_text(ROWS.format(code=load, rows="rows"))
    assert main(["migrate-config", "train.py", "-o", "mine.toml"]) == 0
    assert main(["check", "mine.toml", "-o", f"model.path={tiny_model}"]) != 0
    assert "mine_rows.jsonl" in "".join(capsys.readouterr())


# verl


def test_rows_that_a_class_of_verl_makes_are_not_those_of_its_files(tmp_path: Path) -> None:
    found = migrate(["data.train_files=rows.parquet", "data.custom_cls.path=mine.py"], tmp_path / "mine.toml")
    assert found.values["data.path"] == "custom_cls_rows.jsonl"


def test_verl_is_not_evaluated_on_files_that_the_source_does_not_name(tmp_path: Path) -> None:
    found = migrate(["data.train_files=rows.parquet", "data.filter_overlong_prompts=True"], tmp_path / "mine.toml")
    assert "eval.datasets" not in found.values
    assert found.puts["data.overlong"] == ("drop", "data.filter_overlong_prompts = True")


def test_values_of_verls_template_are_one_table(tmp_path: Path) -> None:
    found = migrate(["+data.apply_chat_template_kwargs.enable_thinking=False"], tmp_path / "mine.toml")
    assert found.values["model.chat_template_kwargs"] == {"enable_thinking": False}
