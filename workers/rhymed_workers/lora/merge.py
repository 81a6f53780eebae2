"""The weights of a model with an adapter merged in: W + scale * B A.

W is read from the model's folder each time, so nothing adds up over versions: the same file gives the same bits in
every process and after every restart. The product and the sum are computed on the CPU in float32, in the order of
PEFT's `merge_and_unload`; who receives a tensor rounds it to its own type, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed_workers.lora.folder import About, entries, file_entries, names, read_about, weight_files

if TYPE_CHECKING:
    from torch import Tensor


class Adapter:
    """A file that rhymed has written. Raises `ConfigError` if it was not."""

    def __init__(self, file: Path) -> None:
        about = read_about(file)
        if about is None:
            raise ConfigError(f"{file} does not say over which model it is: rhymed has not written it")
        self.file = file
        self.about: About = about
        self._layers = {name: layer for layer, name in about.layers.items()}  # by the model's tensor

    def problem(self, base: Mapping[str, tuple[int, ...]], digest: str) -> str:
        """Why it cannot be merged into the model with these tensors (name -> shape) and this digest; empty if it
        can."""
        about = self.about
        if about.digest != digest:
            return f"{self.file} is {about}; the model here has the digest {digest}"
        have = {name: entry.shape for name, entry in file_entries(self.file).items()}
        for layer, name in about.layers.items():
            a, b = (have.get(part) for part in names(layer))
            if a is None or b is None:
                return f"{self.file} lacks the adapter of {layer}"
            if (b[0], a[1]) != base.get(name):
                return f"{self.file}: the adapter of {layer} is for {(b[0], a[1])}, {name} has {base.get(name)}"
        return ""

    def merged(self, base: Path) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the folder `base` by its name there: those of the adapter's layers in float32, the others
        as they are, mapped into memory."""
        for file in weight_files(base):
            yield from self.merged_file(file)

    def merged_file(self, file: Path) -> Iterator[tuple[str, Tensor]]:
        """Of one file of the model."""
        from safetensors import safe_open

        with safe_open(self.file, framework="pt") as factors, safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_tensor(name)
                if layer := self._layers.get(name):
                    a, b = (factors.get_tensor(part) for part in names(layer))
                    tensor = add(tensor, a, b, self.about.scale)
                yield name, tensor


def add(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """(out, in) in float32. a: (rank, in), b: (out, rank)."""
    import torch

    with torch.no_grad():
        return weight.float() + (b.float() @ a.float()) * scale


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every tensor in a model's folder."""
    return {name: entry.shape for name, entry in entries(folder).items()}
