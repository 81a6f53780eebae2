"""Types of verl's tools: arguments and results, for `verl.stand_in`. pydantic is imported where a file names them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ToolResponse(BaseModel):
    """verl's: a result with images, too, which is refused here."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class OpenAIFunctionToolSchema(BaseModel, extra="allow"):
    """verl's: a tool's name and parameters, in OpenAI's form."""

    type: str
    function: Any
