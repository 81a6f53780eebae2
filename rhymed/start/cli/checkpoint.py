"""`rhymed checkpoint`: lists and verifies the checkpoints of a run, and exports one as a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples, add_json, add_run, make_parser, print_json


def add(parser: argparse.ArgumentParser) -> None:
    add_examples(
        parser,
        "rhymed checkpoint list",
        "rhymed checkpoint export runs/quickstart my-model",
        "rhymed checkpoint export runs/quickstart my-best --step best",
        "rhymed checkpoint export runs/lora my-model --merged",
        "hf upload me/my-model my-model --private     # to a hub, as every folder of a model",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = make_parser(verbs, "list", "every checkpoint, and whether it is intact", handle_list)
    add_run(listing)
    add_json(listing)
    export = make_parser(
        verbs, "export", "write one as a Hugging Face folder, or a LoRA adapter in PEFT's format", handle_export
    )
    export.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    export.add_argument("target", type=Path, metavar="FOLDER", help="new folder; must not exist")
    export.add_argument(
        "--step",
        type=_step,
        metavar="N|best",
        help="best: the one with the highest held-out reward (trainer.keep_best); default: the newest intact one",
    )
    export.add_argument("--merged", action="store_true", help="LoRA: the whole model, with the adapter merged in")
    export.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: bfloat16; of an adapter, float32"
    )


def _step(text: str) -> int | str:
    return text if text == "best" else int(text)


def handle_list(arguments: argparse.Namespace) -> int:
    """Exit status 1 if one is damaged."""
    from rhymed.core.run.checkpoint import best, checkpoints_in, damage

    folder = _folder(arguments.run)
    top, there = best(arguments.run), checkpoints_in(folder)
    if top is not None and top.checkpoint.step not in [one.step for one in there]:
        there = sorted([*there, top.checkpoint])
    found: list[dict[str, Any]] = [
        {
            "step": checkpoint.step,
            "folder": str(checkpoint.folder),
            "bytes": sum(file.stat().st_size for file in checkpoint.folder.iterdir()),
            "damage": damage(checkpoint.folder) or None,
            "held_out": top.reward if top is not None and top.checkpoint.step == checkpoint.step else None,
        }
        for checkpoint in there
    ]
    if arguments.json:
        print_json(found)
    elif not found:
        show(f"{arguments.run} has no checkpoint yet")
    else:
        for each in found:
            state = f"DAMAGED: {each['damage']}" if each["damage"] else "good"
            best_of = "" if each["held_out"] is None else f"   best: held-out reward {each['held_out']:.3f}"
            show(f"step {each['step']:<8} {each['bytes'] / 2**20:>10.1f} MiB   {state}{best_of}")
    return int(any(each["damage"] for each in found))


def handle_export(arguments: argparse.Namespace) -> int:
    from rhymed_workers.lora.saved import is_adapter
    from rhymed_workers.trainer.export import DType, chosen, export

    checkpoint = chosen(_folder(arguments.run), arguments.step)
    base = _base(arguments.run) if arguments.merged else None
    adapter = base is None and is_adapter(checkpoint.folder)
    dtype: DType = arguments.dtype or ("float32" if adapter else "bfloat16")
    export(checkpoint, arguments.target, dtype, base)
    kind = ", a LoRA adapter (--merged: the whole model)" if adapter else ""
    show(f"{arguments.target}: {checkpoint.step} steps trained, {dtype}{kind}")
    return 0


def _base(run: Path) -> Path:
    """The model that the run was trained over."""
    from rhymed.core.config.load import load_run
    from rhymed.inputs.quantised import base_of

    return base_of(load_run(run))


def _folder(run: Path) -> Path:
    from rhymed.core.run.folder import no_run

    if not (run / "config.json").exists():
        raise ConfigError(no_run(run))
    return run / "checkpoints"
