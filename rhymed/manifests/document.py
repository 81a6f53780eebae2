"""Objects as YAML documents that people read: keys in their order, texts of several lines as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed.errors import ConfigError

WIDTH = 118


def yaml_of(objects: Sequence[dict[str, Any]], about: str) -> str:
    """Raises `ConfigError` without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("writing YAML needs PyYAML: pip install pyyaml") from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # the package has no types
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    bodies = [yaml.dump(one, Dumper=Dumper, sort_keys=False, width=WIDTH, allow_unicode=True) for one in objects]
    return f"# {about}\n" + "---\n".join(bodies)
