"""`Section`: what all sections have in common. Unknown keys are refused, text is never converted to a number, and no
value is larger than what can be held, computed with or written to a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

LARGEST = (1 << 63) - 1
BY_UNIT = {"_s": 1e9, "_gib": 1 << 17, "_mib": 1 << 27}
"""Largest values, by the unit at the end of a setting's name: 30 years, and what a process can address."""
MOST_PROCESSES = 1024
LEAST_GIB = 0.0625  # of memory, to load the simplest scorer
MOST_TOKENS = 1 << 24
MOST_STEPS = (1 << 30) - 1  # larger ones number evaluations
NAME_LENGTH = 100  # of what becomes a part of a file's name, which has at most 255 bytes


def _loads(memory_gib: float) -> float:
    if 0 < memory_gib < LEAST_GIB:
        raise ValueError(f"{memory_gib:g} is less than {LEAST_GIB:g}, which a subprocess needs; 0: no limit")
    return memory_gib


ProcessGib = Annotated[float, AfterValidator(_loads)]
"""Memory of a subprocess; 0: no limit."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would convert text to numbers and booleans, and booleans to numbers."""
        name = str(info.field_name)
        wanted = cls.model_fields[name].annotation
        if wanted in (bool, bool | None) and isinstance(value, str):
            raise PydanticKnownError("bool_type")
        if wanted in (int, int | None) and isinstance(value, str | bool):
            raise PydanticKnownError("int_type")
        if wanted in (float, float | None) and isinstance(value, str | bool):
            raise PydanticKnownError("float_type")
        if wanted == dict[str, Any] or not isinstance(value, dict | list):  # other tables are sections of their own
            _check_value(value)
        most = next((most for unit, most in BY_UNIT.items() if name.endswith(unit)), None)
        if most is not None and isinstance(value, int | float) and value > most:
            raise ValueError(f"{value:g} is more than {most:,.0f}, the largest possible value")
        return value

    def changed(self, *names: str) -> list[str]:
        """Which of these settings, or of all, differ from their defaults. Not `model_fields_set`: a configuration
        that another process wrote sets every key."""
        fields = type(self).model_fields
        return [name for name in names or fields if getattr(self, name) != fields[name].default]


def _check_value(value: Any) -> None:
    """Raises `ValueError` for what cannot be written to JSON and read again, also inside of tables and lists."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_value(key)
            _check_value(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("the number has more than 64 bits")
    elif isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise ValueError("the text has a character that cannot be written to a file")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Empty maps are left out."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found
