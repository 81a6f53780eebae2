"""`Section`: what all sections have in common. Unknown keys are refused, and text is never converted to a number."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would convert text to numbers and booleans, and booleans to numbers."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if wanted in (bool, bool | None) and isinstance(value, str):
            raise PydanticKnownError("bool_type")
        if wanted in (int, int | None) and isinstance(value, str | bool):
            raise PydanticKnownError("int_type")
        if wanted in (float, float | None) and isinstance(value, str | bool):
            raise PydanticKnownError("float_type")
        return value
