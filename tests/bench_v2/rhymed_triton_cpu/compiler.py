"""Compiles nothing: Triton asks for the class."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class InterpreterBackend(BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: Any) -> Any:
        return options

    def add_stages(self, stages: Any, options: Any, language: Any = None) -> None:
        raise NotImplementedError("nothing is compiled")

    def load_dialects(self, context: Any) -> None:
        pass

    def get_module_map(self) -> dict[str, Any]:
        return {}
