"""A Python script that builds a GRPOConfig and a GRPOTrainer: its settings, read from its syntax. Never executed.

Values are followed through names that are assigned once, literals, arithmetic, f-strings, and the defaults of the
script's own command line. Everything else is an `Unknown` with its expression.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rhymed.core.errors import ConfigError
from rhymed.core.text import short
from rhymed.start.migrate.entries import OPERATORS, Unknown, typed

CONFIG, TRAINER = "GRPOConfig", "GRPOTrainer"
CONFIGS, TRAINERS = (CONFIG, "AsyncGRPOConfig"), (TRAINER, "AsyncGRPOTrainer")
PARSE = ("parse_args", "parse_known_args", "parse_args_and_config", "parse_args_into_dataclasses")
"""Calls that read the command line."""
LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "target_modules": "lora_target_modules",
    "lora_dropout": "lora_dropout",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save",
}
LORA_DEFAULTS = {"lora_r": 8, "lora_alpha": 8}
"""Of PEFT's LoraConfig."""
BITS = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
BITS_DEFAULTS = {"bnb_4bit_quant_type": "fp4"}
"""Of transformers' BitsAndBytesConfig."""
ASYNC = {
    "max_completion_length": 2048,
    "max_staleness": 4,
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_importance_sampling_correction": False,
}
"""Defaults of AsyncGRPOConfig that are not those of GRPOConfig. Its ratios are to the engine's log-probs."""

APART = (
    *("model", "args", "reward_funcs", "train_dataset", "eval_dataset", "peft_config"),
    *("tools", "environment_factory"),
)
"""Arguments of the trainer that are read on their own."""


class Script:
    """The syntax of a file, and what its names stand for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.tree = ast.parse(path.read_text(), str(path))
        except (SyntaxError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no Python that can be read: {error}") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        self.functions = {
            node.name: node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        self.assigned: dict[str, list[ast.expr | None]] = defaultdict(list)  # None: something that has no expression
        self.attributes: list[tuple[str, str, ast.expr]] = []  # object, attribute, value
        self.parsed: set[str] = set()  # names of the variables that hold the command line's values
        self.branches = dict(_branches(self.tree.body))
        for node in ast.walk(self.tree):
            self._bind(node)
        self.arguments: dict[str, Any] = {}  # of its command line: name -> default, or `Unknown`
        self.arguments |= dict(self._arguments())

    def _arguments(self) -> Iterator[tuple[str, Any]]:
        for call in self.calls("add_argument"):
            words = [
                word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            named = {word.arg: word.value for word in call.keywords if word.arg}
            options = [word for word in words if word.startswith("-")]
            long = next((word for word in options if word.startswith("--")), options[0] if options else "")
            action = getattr(named.get("action"), "value", "")
            given = self.value(named["dest"]) if "dest" in named else long.lstrip("-").replace("-", "_")
            if not long or not isinstance(given, str):
                yield from ((word, Unknown(f"{word}, an argument of the command line")) for word in words[:1])
            elif "default" in named:
                yield given, typed(self.value(named["default"]))
            elif action in ("store_true", "store_false"):
                yield given, action == "store_false"
            else:
                required = getattr(named.get("required"), "value", False)
                yield given, Unknown(f"{long}, which the command line must give") if required else None
        for holder in self.functions.values():
            if isinstance(holder, ast.ClassDef) and any(
                "dataclass" in ast.unparse(one) for one in holder.decorator_list
            ):
                yield from self._fields(holder)

    def _fields(self, holder: ast.ClassDef) -> Iterator[tuple[str, Any]]:
        """The fields of a dataclass that a parser fills."""
        for field in holder.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            value = field.value
            if isinstance(value, ast.Call) and callee(value) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), None)
            name = field.target.id
            yield name, self.value(value) if value else Unknown(f"{name}, a field of {holder.name}")

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Call) and callee(node.value) in PARSE:
                self.parsed |= {
                    one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)
                }
            for target in node.targets:
                self._target(target, node.value)
        elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
            self._target(node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For):
            self._target(node.target, None)
        elif isinstance(node, ast.arg):
            self.assigned[node.arg].append(None)

    def _target(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.assigned[target.id].append(value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and value is not None:
            self.attributes.append((target.value.id, target.attr, value))
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._target(each, None)

    def follow(self, node: ast.expr) -> ast.expr:
        """The expression that a name stands for; the node itself if that is not one expression."""
        seen: set[str] = set()
        while isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            values = self.assigned.get(node.id, [])
            if len(values) != 1 or values[0] is None:
                return node
            node = values[0]
        return node

    def value(self, node: ast.expr) -> Any:
        """As a literal, or `Unknown`."""
        try:
            return self._value(node)
        except (_NotLiteral, ArithmeticError, TypeError):
            return Unknown(" ".join(ast.unparse(node).split()))

    def _value(self, node: ast.expr) -> Any:
        followed = self.follow(node)
        match followed:
            case ast.Constant():
                return followed.value
            case ast.List() | ast.Tuple():
                return [self._value(each) for each in followed.elts]
            case ast.Dict():
                pairs = zip(followed.keys, followed.values, strict=True)
                return {self._value(key): self._value(value) for key, value in pairs if key is not None}
            case ast.BinOp() if type(followed.op) in OPERATORS:
                return OPERATORS[type(followed.op)](self._value(followed.left), self._value(followed.right))
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(followed.operand)
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(followed.operand)
            case ast.JoinedStr():
                return "".join(str(self._value(each)) for each in followed.values)
            case ast.FormattedValue(format_spec=None):
                return self._value(followed.value)
            case ast.Attribute(value=ast.Name(id="torch")):
                return followed.attr
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if holder in self.parsed:
                if name not in self.arguments or isinstance(self.arguments[name], Unknown):
                    raise _NotLiteral
                return self.arguments[name]
            case ast.Call(func=ast.Name(id="dict" | "BitsAndBytesConfig"), args=[]):
                return {word.arg: self._value(word.value) for word in followed.keywords if word.arg}
        raise _NotLiteral

    def calls(self, name: str) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and callee(node) == name]

    def keywords(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Those of a dict given by `**`, too."""
        for word in call.keywords:
            if word.arg is not None:
                yield word.arg, word.value
                continue
            inner = self.follow(word.value)
            if isinstance(inner, ast.Dict):
                pairs = zip(inner.keys, inner.values, strict=True)
                yield from ((str(key.value), value) for key, value in pairs if isinstance(key, ast.Constant))
            elif isinstance(inner, ast.Call) and callee(inner) == "dict":
                yield from self.keywords(inner)
            else:
                yield f"**{ast.unparse(word.value)}", word.value


class _NotLiteral(Exception):
    pass


def used_arguments(script: Script) -> str:
    """Arguments of the command line that a setting or a copied function uses, as `--name = value`."""
    uses = [node for node in ast.walk(script.tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in uses if isinstance(node.value, ast.Name) and node.value.id in script.parsed}
    known = {name: value for name, value in script.arguments.items() if name in names}
    return ", ".join(f"{name} = {short(value)}" for name, value in known.items() if not isinstance(value, Unknown))


def is_main(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _branches(body: Sequence[ast.stmt], condition: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Each assignment that is made on a condition only, and the condition."""
    for statement in body:
        if condition and isinstance(statement, ast.Assign):
            yield statement.value, condition
        test = ast.unparse(statement.test) if isinstance(statement, ast.If) and not is_main(statement) else condition
        yield from _branches(getattr(statement, "body", []), test)
        yield from _branches(getattr(statement, "orelse", []), f"not ({test})" if test else "")


def callee(call: ast.Call) -> str:
    """The last part of the name that is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def trainer_call(script: Script) -> dict[str, ast.expr]:
    """The arguments of GRPOTrainer(...). Raises `ConfigError` if there is not one call of it."""
    calls = [call for name in TRAINERS for call in script.calls(name)]
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        raise ConfigError(f"{script.path} calls {TRAINER} {len(calls)} times, in lines {lines}: leave one of them")
    if not calls:
        return {}
    named = dict(script.keywords(calls[0]))
    for name, node in zip(("model", "reward_funcs", "args", "train_dataset"), calls[0].args, strict=False):
        named.setdefault(name, node)
    return named


def settings(script: Script) -> dict[str, Any]:
    """Of GRPOConfig, of the trainer and of LoRA. Raises `ConfigError` if neither of the first two is called."""
    trainer = trainer_call(script)
    config = _config_call(script, trainer)
    if not trainer and config is None:
        others = sorted({callee(node) for node in ast.walk(script.tree) if isinstance(node, ast.Call)})
        other = [name for name in others if name.endswith(("Trainer", "Config")) and name != "LoraConfig"]
        has = f"; it has {', '.join(other)}" if other else ""
        raise ConfigError(f"{script.path} calls neither {CONFIG} nor {TRAINER}{has}")
    found: dict[str, Any] = {}
    if config is not None:
        found |= ASYNC if callee(config) == CONFIGS[1] else {}
        found |= {name: script.value(node) for name, node in script.keywords(config)}
        if config.args:
            found.setdefault("output_dir", script.value(config.args[0]))
    holders = {name for name, values in script.assigned.items() if config is not None and config in values}
    if config is None and isinstance(args := trainer.get("args"), ast.Name):  # of a parser, in other lines
        holders.add(args.id)
    found |= {name: _assigned(script, node) for holder, name, node in script.attributes if holder in holders}
    found |= {name: _switched(script, node) for name, node in trainer.items() if name not in APART}
    if "model" in trainer:
        found["model"] = _model(script, trainer["model"])
    for node in _quantisations(script, trainer, config):
        found |= _quantised(script, node)
    if peft := trainer.get("peft_config"):
        found |= _lora(script, script.follow(peft))
    return found


def _assigned(script: Script, node: ast.expr) -> Any:
    """A value that is set after the configuration was made."""
    condition = script.branches.get(node)
    return script.value(node) if condition is None else Unknown(f"{ast.unparse(node)} if {condition}")


def _config_call(script: Script, trainer: dict[str, ast.expr]) -> ast.Call | None:
    given = script.follow(trainer["args"]) if "args" in trainer else None
    if isinstance(given, ast.Call) and callee(given) in CONFIGS:
        return given
    calls = [call for name in CONFIGS for call in script.calls(name)]
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        raise ConfigError(f"{script.path} calls {CONFIG} in lines {lines}, and which one is used is not clear")
    return calls[0] if calls else None


def _switched(script: Script, node: ast.expr) -> Any:
    """An argument of the trainer whose value is an object: whether it is given."""
    inner = script.follow(node)
    if isinstance(inner, ast.Constant) or (isinstance(inner, ast.List | ast.Tuple) and not inner.elts):
        return script.value(inner)
    return True


def _model(script: Script, node: ast.expr) -> Any:
    inner = script.follow(node)
    if isinstance(inner, ast.Call) and callee(inner) == "from_pretrained" and inner.args:
        return script.value(inner.args[0])
    if isinstance(inner, ast.Call) and callee(inner) == "get_peft_model" and inner.args:
        return _model(script, inner.args[0])
    return script.value(node)


def _quantisations(script: Script, trainer: dict[str, ast.expr], config: ast.Call | None) -> Iterator[ast.expr]:
    """Where TRL takes how a model is quantised: the trainer, `model_init_kwargs`, or the model's loading."""
    if "quantization_config" in trainer:
        yield trainer["quantization_config"]
    model = script.follow(trainer["model"]) if "model" in trainer else None
    calls = [dict(script.keywords(model))] if isinstance(model, ast.Call) else []
    given = dict(script.keywords(config)).get("model_init_kwargs") if config is not None else None
    if isinstance(kwargs := script.follow(given) if given is not None else None, ast.Dict):
        named = zip(kwargs.keys, kwargs.values, strict=True)
        calls.append({str(key.value): value for key, value in named if isinstance(key, ast.Constant)})
    yield from (one["quantization_config"] for one in calls if "quantization_config" in one)


def _quantised(script: Script, node: ast.expr) -> dict[str, Any]:
    inner = script.follow(node)
    if isinstance(inner, ast.Constant) and inner.value is None:
        return {}
    if not isinstance(inner, ast.Call) or callee(inner) != "BitsAndBytesConfig":
        return {"quantization_config": True}
    named = {BITS[name]: script.value(value) for name, value in script.keywords(inner) if name in BITS}
    return {"quantization_config": False, **BITS_DEFAULTS, **named}


def _lora(script: Script, node: ast.expr) -> dict[str, Any]:
    if isinstance(node, ast.Constant) and node.value is None:
        return {}
    if not isinstance(node, ast.Call) or callee(node) != "LoraConfig":
        return {"use_peft": Unknown(ast.unparse(node))}
    named = {LORA[name]: script.value(value) for name, value in script.keywords(node) if name in LORA}
    return {"use_peft": True, **LORA_DEFAULTS, **named}
