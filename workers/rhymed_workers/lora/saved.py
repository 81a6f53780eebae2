"""An adapter's folder in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

Only plain LoRA is read: one rank, scale alpha / rank, no biases, no further trained modules. Needs neither torch nor
PEFT.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rhymed.core.config import Lora
from rhymed.core.errors import ConfigError
from rhymed_workers.lora.folder import PREFIX, SETTINGS, WEIGHTS, About, short_names

PLAIN: dict[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
}
"""Settings of PEFT that change the product or train more than it, with the value that does not."""


def write_settings(folder: Path, about: About, other_layers: list[str], revision: str = "") -> None:
    """`other_layers`: linear layers without an adapter."""
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": about.base,
        "revision": revision or None,
        "r": about.rank,
        "lora_alpha": about.alpha,
        "lora_dropout": 0.0,
        "target_modules": short_names(about.layers, other_layers),
        "init_lora_weights": True,
        "inference_mode": True,
        **PLAIN,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def is_adapter(folder: Path) -> bool:
    return (folder / SETTINGS).is_file()


def settings_of(folder: Path) -> dict[str, Any]:
    """adapter_config.json of a plain LoRA adapter. Raises `ConfigError`."""
    file = folder / SETTINGS
    try:
        settings: dict[str, Any] = dict(json.loads(file.read_text()))
        rank, alpha = settings["r"], settings["lora_alpha"]
        if not isinstance(rank, int) or not isinstance(alpha, int | float):
            raise ValueError(f"r = {rank!r}, lora_alpha = {alpha!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no adapter's configuration: {error!r}") from None
    if settings.get("peft_type", "LORA") != "LORA":
        raise ConfigError(f"{file}: peft_type = {settings['peft_type']}, only LORA can be trained on")
    for key, plain in PLAIN.items():
        if settings.get(key) and settings[key] != plain:
            raise ConfigError(f"{file}: {key} = {settings[key]!r}: only plain LoRA can be trained on")
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(f"{folder} has no {WEIGHTS}")
    return settings


def lora_of(folder: Path) -> Lora:
    """The section [trainer.lora] that begins with this adapter. Raises `ConfigError`."""
    from rhymed_workers.lora.folder import file_entries

    settings = settings_of(folder)
    tensors = [name for name in file_entries(folder / WEIGHTS) if name.endswith(".lora_A.weight")]
    layers = [name.removeprefix(PREFIX).removesuffix(".lora_A.weight") for name in tensors]
    return Lora(rank=settings["r"], alpha=settings["lora_alpha"], targets=sorted(layers), adapter=str(folder))


def check_start(lora: Lora) -> None:
    """Raises `ConfigError` if `trainer.lora.adapter` cannot be what training begins with."""
    if not lora.adapter:
        return
    folder = Path(lora.adapter).expanduser()
    if not is_adapter(folder):
        raise ConfigError(f"trainer.lora.adapter = {lora.adapter!r} is no adapter's folder: it has no {SETTINGS}")
    settings = settings_of(folder)
    for key, theirs in (("rank", settings["r"]), ("alpha", settings["lora_alpha"])):
        if getattr(lora, key) != theirs:
            raise ConfigError(
                f"trainer.lora.{key} = {getattr(lora, key):g}, but the adapter {lora.adapter} has {theirs:g}:"
                " set it to that"
            )


def check_layers(lora: Lora, chosen: Iterable[str]) -> None:
    """Raises `ConfigError` if `trainer.lora.adapter` is of other layers than `trainer.lora.targets` chooses."""
    have, wanted = set(lora_of(Path(lora.adapter).expanduser()).targets), set(chosen)
    if have != wanted:
        first = min(have ^ wanted)
        owner = "the adapter" if first in have else "the choice"
        kinds = sorted({layer.rpartition(".")[2] for layer in have})
        raise ConfigError(
            f"trainer.lora.adapter = {lora.adapter!r} has {len(have)} layers, and trainer.lora.targets chooses"
            f" {len(wanted)}: only {owner} has {first}; set trainer.lora.targets to the adapter's layers"
            f" ({', '.join(kinds)})"
        )
