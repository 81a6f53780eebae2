"""Single settings of verl and what each becomes; the losses are in `rhymed.start.migrate.verl.loss`. Pure
functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rhymed.core.errors import ConfigError
from rhymed.start.migrate.entries import Item, Note, Put, chosen, run_name
from rhymed.start.migrate.sources import read_yaml

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"


FROM = {
    "path": "data.train_files",
    "prompt_column": "data.prompt_key",
    "limit": "data.train_max_samples",
    "overlong": "data.filter_overlong_prompts",
}


def _files(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)] if value else []


def train(files: Any, key: str | None, limit: int | None, overlong: bool | None) -> Iterator[Item]:
    shared: dict[str, Any] = {"prompt_column": key} if key and key != "prompt" else {}
    shared |= {"limit": limit} if limit and limit > 0 else {}
    shared |= {"overlong": "drop"} if overlong else {}
    paths = _files(files)
    if len(paths) == 1:
        yield from (
            Put(f"data.{name}", value, of=(FROM[name],)) for name, value in {"path": paths[0], **shared}.items()
        )
    else:
        yield Put("data.datasets", [{"path": path, **shared, "weight": 1.0} for path in paths])
        why = "verl puts files one after the other; here each has a weight, its share of the prompts"
        yield Note("data.train_files", "different", why)


def made_rows(path: str | None) -> Iterator[Item]:
    """A class of the user makes rows of the files. The file named here is not there yet, so no run begins before."""
    if path:
        file = "custom_cls_rows.jsonl"
        yield Put("data.path", file, "to be written: the rows that the class makes")
        why = f"rows are read from files: write those that your class makes to {file}, or set data.path"
        yield Note("data.custom_cls.path", "unsupported", why)


def held_out(files: Any, limit: int | None) -> Iterator[Item]:
    shared = {"limit": limit} if limit and limit > 0 else {}
    taken: dict[str, dict[str, Any]] = {}
    for path in _files(files):
        stem = run_name(PurePosixPath(path).stem)
        name = stem if stem not in taken else f"{stem}-{len(taken) + 1}"
        taken[name] = {"name": name, "path": path, **shared}
    if taken:
        yield Put("eval.datasets", list(taken.values()))


def evaluation(every: int, first: bool, n: int, temperature: float, sample: bool) -> Iterator[Item]:
    if every > 0:
        yield Put("eval.every", every, of=("trainer.test_freq",))
        yield Put("eval.at_start", bool(first), of=("trainer.val_before_train",))
    yield Put("eval.samples", n, of=(f"{ROLLOUT}.val_kwargs.n",))
    yield Put("eval.temperature", temperature if sample else 0.0, of=(f"{ROLLOUT}.val_kwargs.temperature",))


def batch(prompts: int, mini: int, group: int, epochs: int) -> Iterator[Item]:
    yield Put("rollout.prompts_per_step", prompts, of=("data.train_batch_size",))
    yield Put("rollout.group_size", group, of=(f"{ROLLOUT}.n",))
    yield Put(
        "trainer.minibatches",
        max(1, prompts // mini),
        f"{prompts} prompts / {mini}",
        (f"{ACTOR}.ppo_mini_batch_size",),
    )
    if prompts % mini:
        yield Note(f"{ACTOR}.ppo_mini_batch_size", "unsupported", f"{mini} does not divide {prompts} prompts")
    if epochs > 1:
        yield Note(f"{ACTOR}.ppo_epochs", "unsupported", "each sample is trained on once per step")


def micro(dynamic: bool | None, tokens: int, samples: int | None, prompt: int, response: int) -> Iterator[Item]:
    if dynamic or not samples:
        yield Put("trainer.micro_tokens", tokens, "" if dynamic else "changes memory and speed only")
    else:
        yield Put("trainer.micro_tokens", samples * (prompt + response), f"{samples} samples of full length")


def warmup(steps: int, ratio: float, total: int | None) -> Iterator[Item]:
    if steps and steps > 0:
        yield Put("trainer.warmup_steps", steps)
    elif ratio and total and total > 0:
        yield Put("trainer.warmup_steps", max(1, round(total * ratio)), f"{ratio:g} of total_training_steps")
    elif ratio:
        why = (
            f"{ratio:g} of all steps: set trainer.warmup_steps to that share of the steps that `rhymed check` prints"
        )
        yield Note(f"{OPTIM}.lr_warmup_steps_ratio", "unknown", why)


def schedule(kind: str, old: str | None, least: float | None) -> Iterator[Item]:
    known = {"constant": "constant", "cosine": "cosine"}
    written = yield from chosen(known, old or kind, f"{OPTIM}.lr_scheduler_type", "constant")
    yield Put("trainer.schedule", written)
    if written == "cosine":
        yield Put("trainer.min_lr_ratio", least or 0.0)


def length(epochs: int, steps: int | None) -> Iterator[Item]:
    yield Put("trainer.epochs", epochs, of=("trainer.total_epochs",))
    if steps and steps > 0:
        yield Put("trainer.steps", steps, of=("trainer.total_training_steps",))


def devices(nodes: int, gpus: int, parallel: int, memory: float, processes: int | None) -> Iterator[Item]:
    """`processes`: asked for by --gpus."""
    gpus = gpus if processes is None else processes
    if gpus == 0:
        yield Put("trainer.device", "cpu")
        return
    parallel = min(parallel, gpus)
    yield Put("trainer.gpus", gpus, of=("trainer.n_gpus_per_node",))
    yield Put("rollout.workers", max(1, gpus // parallel) * nodes, "engines: all GPUs / tensor_model_parallel_size")
    yield Put("rollout.tensor_parallel", parallel, of=(f"{ROLLOUT}.tensor_model_parallel_size",))
    yield Put("rollout.gpu_memory", memory, of=(f"{ROLLOUT}.gpu_memory_utilization",))
    yield Put("schedule.colocate", True, "verl's engines and trainer take turns on the same GPUs")
    if nodes > 1:
        yield Put("trainer.nodes", nodes)
        why = "set net.ranks to an address of the first machine; see docs/machines.md"
        yield Note("trainer.nnodes", "unknown", why)


def custom(new: str | None, old: str | None, name: str | None, name_old: str | None) -> Iterator[Item]:
    if path := new or old:
        yield Put("reward.scorer", f"{path}:{name or name_old or 'compute_score'}", "unchanged: verl's parameters")
    else:
        yield Put("reward.scorer", "math", "verl chooses a function by data_source; try this one with `rhymed check`")
        why = (
            "verl's function for data_source is not part of rhymed: math compares with math-verify, so for gsm8k an"
            " answer without `####` counts, too. To score as verl does, copy its file, e.g."
            " verl/utils/reward_score/gsm8k.py, and add the source reward.custom_reward_function.path=gsm8k.py"
        )
        yield Note("reward.custom_reward_function.path", "unsupported", why)


def mode(mode: str) -> Iterator[Item]:
    if mode != "sync":
        yield Put("schedule.max_staleness", 1, f"trainer_mode = {mode}: engines are a step ahead")
        yield Note("trainer.v1.trainer_mode", "different", "schedule.max_staleness bounds how old tokens may be")


# verl's multi-turn rollouts: functions with `@function_tool` are tools here, unchanged.
#
# Classes (`BaseTool`) get a module with one function each, which does what verl's agent loop does for a call:
# `create`, `execute`, `release`.

DECORATOR = "function_tool"
SETTING = "multi_turn.function_tool_path"
ENABLE = "actor_rollout_ref.rollout.multi_turn.enable"
CLASSES = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
HEAD = '''"""Tools of {file}: classes of verl, each behind a function."""

from verl.tools.function_tool import function_tool
from verl.tools.schemas import OpenAIFunctionToolSchema

{imports}
'''
TOOL = """

{schema} = {value}
{tool} = {kind}(config={config}, tool_schema=OpenAIFunctionToolSchema.model_validate({schema}))


@function_tool({name!r}, schema={schema})
async def {function}(**arguments):
    instance, _ = await {tool}.create()
    try:
        return await {tool}.execute(instance, arguments)
    finally:
        await {tool}.release(instance)
"""


def tools(enabled: bool | None, path: str | None, classes: str | None) -> Iterator[Item]:
    """`path`: a file with decorated functions. `classes`: a list of classes with settings, in YAML."""
    if not enabled:
        if path or classes:
            yield Note("multi_turn.enable", "dropped", "it is false: the source's tools are not used")
        return
    names = _decorated(Path(path)) if path else []
    if names:
        yield Put("environment.tools", f"{path}:{','.join(names)}", "unchanged: functions of verl's @function_tool")
    elif path:
        yield Note(
            SETTING, "unknown", f"{path} has no function with @{DECORATOR} that can be read: set environment.tools"
        )
    elif not classes:
        yield Note("multi_turn.enable", "unknown", "the source names no tools: set environment.tools or factory")


def class_tools(path: Any, module: Path) -> tuple[list[Item], str]:
    """`environment.tools`, and the text of the file `module`, of the YAML that lists classes with their settings."""
    setting = "multi_turn.tool_config_path"
    try:
        entries = [dict(one) for one in read_yaml(Path(str(path)).expanduser())["tools"]]
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        return [Note(setting, "unknown", f"{path} cannot be read ({error}): set environment.tools")], ""
    items, imports, texts, functions = list[Item](), list[str](), list[str](), list[str]()
    for entry in entries:
        place, _, kind = str(entry.get("class_name", "")).rpartition(".")
        schema, config = entry.get("tool_schema"), entry.get("config") or {}
        if not place or not isinstance(schema, dict) or config.get("type") == "mcp":
            cure = "write a function, and name it in environment.tools"
            why = f"{entry.get('class_name')} has no tool_schema, or is a server's: {cure}"
            items.append(Note(setting, "unsupported", why))
            continue
        name = str(schema["function"]["name"])
        function = re.sub(r"\W", "_", name)
        imports.append(f"from {place} import {kind}")
        parts = {"schema": f"{function.upper()}", "tool": f"_{function}", "kind": kind, "function": function}
        texts.append(TOOL.format(**parts, name=name, config=repr(config), value=repr(schema)))
        functions.append(function)
        needs = "verl" if place.partition(".")[0] == "verl" else f"{place} on PYTHONPATH"
        why = f"{name} is {kind} behind a function, which needs {needs}; create() gets no tools_kwargs of the row"
        items.append(Note(setting, "different", why))
    if functions:
        items.append(
            Put("environment.tools", f"{module}:{','.join(functions)}", "classes of verl's tool_config_path")
        )
    head = HEAD.format(file=Path(str(path)).name, imports="\n".join(dict.fromkeys(imports)))
    return items, head + "".join(texts) if texts else ""


def limits(enabled: bool | None, turns: int | None, parser: str | None) -> Iterator[Item]:
    if enabled and turns:
        yield Put("environment.max_turns", turns)
    if enabled and parser and parser != "hermes":
        yield Put("environment.parser", parser, "vLLM's parser of this name")


def _decorated(path: Path) -> list[str]:
    """Functions of the file, which is read and never run."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if any(_is_tool(each) for each in node.decorator_list)]


def _is_tool(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) == DECORATOR
