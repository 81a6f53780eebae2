"""Tools and environments as the policy will know them: schemas, the parser, and the first row as it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rhymed.check.report import Report, Section
from rhymed.check.rows import short_prompt
from rhymed.config import Config
from rhymed.inputs.lengths import Measured

if TYPE_CHECKING:
    from rhymed_workers.environment.preview import Preview

KINDS = {
    "tools": "functions without state",
    "methods": "a class for each sample, whose public methods are tools",
    "text": "a class for each sample, which reads the policy's text",
}


def load(config: Config, report: Report) -> Preview | None:
    """To be closed by `__exit__`. None: the run has no environment, or it cannot be loaded, which is reported."""
    if not config.environment.active:
        return None
    from rhymed_workers.environment.preview import Preview

    return report.attempt(lambda: Preview(config).__enter__())


def describe(config: Config, preview: Preview, training: Measured) -> Section:
    """Raises `EnvironmentFailed`, `ConfigError` and `DataError`."""
    settings, section = config.environment, Section("environment")
    named = settings.command or " and ".join(filter(None, [settings.tools, settings.stateful]))
    kind = "a program for each sample" if settings.command else KINDS[preview.about.kind]
    section.add("code", f"{named}: {kind}")
    for tool in preview.about.tools:
        name = tool["function"]["name"]
        again = "; may be called again" if name in preview.about.idempotent else ""
        again = "; pure" if name in preview.about.pure else again
        section.add(name, _described(tool["function"]) + again)
    section.add("turns", f"at most {settings.max_turns} (environment.max_turns)")
    section.add("at once", f"{preview.slots} samples of each of {settings.workers} workers")
    if preview.about.tools or settings.command:
        section.add("parser", f"{settings.parser} (environment.parser)")
    if problem := preview.dialogue.problem():
        section.warnings.append(problem)
    if settings.command:
        section.add("prompts", "the program writes them; it has its row in RHYMED_ROW")
        return section
    where, row = training.rows[0]
    begun = preview.begin(where, row)
    section.add("row 1", f"{where}, {begun.length} tokens as the policy reads it:\n{short_prompt(begun.text)}")
    if begun.length > (most := config.rollout.max_prompt_length):
        section.errors.append(
            f"{where} has {begun.length} tokens, its environment and tools included; rollout.max_prompt_length is"
            f" {most}"
        )
    return section


def _described(function: dict[str, Any]) -> str:
    """name(argument: type, ...) without the name, the description, and a line for each argument."""
    schema = function.get("parameters") or {}
    arguments, required = schema.get("properties") or {}, schema.get("required") or []
    shown = [f"{name}: {_type(each)}{'' if name in required else ' = ...'}" for name, each in arguments.items()]
    lines = [f"({', '.join(shown)}) {function.get('description', '')}".rstrip()]
    said = {name: each.get("description", "") if isinstance(each, dict) else "" for name, each in arguments.items()}
    return "\n".join([*lines, *(f"  {name}: {text}" for name, text in said.items())])


def _type(schema: dict[str, Any] | bool) -> str:
    """JSON Schema has true for any value and false for none."""
    if isinstance(schema, bool):
        return "any" if schema else "none"
    kind = schema.get("type", "any")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
