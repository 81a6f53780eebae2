"""Every call of torch in our code fits the torch of every supported vLLM; found by reading, without torch."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rhymed.histospec.versions import RELEASES
from scripts.contract import torch as extracted
from scripts.contract.sources import MODULE, OVERLOADS, VALUE

DATA = Path(__file__).parents[1] / "data"
AGAIN = "run `python -m scripts.contract torch WHEEL tests/data/torch/RELEASE.json` for each release"
TORCHES = ("2.11", "2.13", "2.14")
every_release = pytest.mark.parametrize("release", TORCHES)


@cache
def contract(release: str) -> dict[str, Any]:
    return json.loads((DATA / "torch" / f"{release}.json").read_text())


@cache
def shapes(text: str) -> tuple[inspect.Signature, ...]:
    found: dict[str, Any] = {}
    for one in text.split(OVERLOADS):
        exec(f"def f{one}: pass", found)
        found[one] = inspect.signature(found["f"])
    return tuple(shape for shape in found.values() if isinstance(shape, inspect.Signature))


def fits(shape: inspect.Signature, call: ast.Call) -> bool:
    """As far as the call can be read: `*a` and `**b` may hold anything."""
    spread = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    given = [one for one in call.args if not isinstance(one, ast.Starred)]
    named = {one.arg: one.value for one in call.keywords if one.arg is not None}
    try:
        (shape.bind_partial if spread else shape.bind)(*given, **named)
    except TypeError:
        return False
    return True


def wrong(uses: Any, names: dict[str, str | None]) -> list[str]:
    return [
        f"{use.place}: {use.name}{names[use.name]} is called as {ast.unparse(use.call)}"
        for use in uses
        if use.call and (text := names[use.name]) not in (VALUE, MODULE, None)
        if not any(fits(shape, use.call) for shape in shapes(str(text)))
    ]


def test_the_torch_of_every_vllm_has_its_contract() -> None:
    vllm = [json.loads((DATA / "vllm" / f"{name}.json").read_text()) for name in RELEASES]
    assert [one["torch"] for one in vllm] == [contract(name)["version"] for name in TORCHES]


@every_release
def test_every_name_that_we_take_from_torch_is_in_it(release: str) -> None:
    names = contract(release)["names"]
    assert sorted({use.name for use in extracted.uses()} - names.keys()) == [], AGAIN
    assert {name for name, text in names.items() if text is None} <= extracted.UNSEEN.keys()


@every_release
def test_every_call_fits(release: str) -> None:
    assert wrong(extracted.uses(), contract(release)["names"]) == []


def test_the_installed_torch_is_its_contract() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed")
    made = extracted.contract(Path(spec.origin).parents[1])
    known = contract(".".join(made["version"].split(".")[:2]))
    used = {use.name for use in extracted.uses()}
    assert made["names"] == {name: text for name, text in known["names"].items() if name in used}, AGAIN


OURS = """
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

def flash(query: Tensor, generator: torch.Generator | None, other) -> None:
    varlen_attn(query, query, query, 1, 1, 9, 9, enable_gqa=True)
    varlen_attn(query, query, query, 1, 1, 9, 9, **other)
    query.index_select(0, other, 7)
    other.index_select(0, other, 7)
    torch.full((2,), 1.0, dtype=torch.float32)
    torch.full(2)
    torch.cuda.memory.gone()
"""


def test_what_does_not_fit_is_found(tmp_path: Path) -> None:
    """A keyword that one release lacks, a method of a parameter with an annotation, a missing argument."""
    (tmp_path / "ours.py").write_text(OURS)
    uses = list(extracted.of_file(tmp_path / "ours.py"))
    varlen = "torch.nn.attention.varlen.varlen_attn"
    new = {"torch.Tensor.index_select": "(dim, index)", "torch.cuda.memory.gone": None}
    new |= {use.name: VALUE for use in uses if use.call is None}

    def lines(release: str) -> list[str]:
        names = {
            **new,
            "torch.full": contract(release)["names"]["torch.full"],
            varlen: contract(release)["names"][varlen],
        }
        return [text.split(":")[1] for text in wrong(uses, names)]

    assert lines("2.11") == ["7", "9", "12"]
    assert lines("2.13") == ["9", "12"]
    assert "torch.cuda.memory.gone" in {use.name for use in uses}


SOURCES = {
    "torch-9.0.dist-info/METADATA": "Name: torch\nVersion: 9.0+cpu\n",
    "torch/__init__.py": "from torch._C import *\nfrom math import inf\nfrom .functional import *\n",
    "torch/_C/__init__.pyi": (
        "float32: dtype = ...\n"
        "class TensorBase:\n"
        "    @overload\n    def max(self, dim: int, keepdim: bool = ...) -> int: ...\n"
        "    @overload\n    def max(self) -> int: ...\n"
        "    @property\n    def shape(self): ...\n"
    ),
    "torch/functional.py": (
        "import torch\n"
        "class Tensor(torch._C.TensorBase):\n"
        "    @classmethod\n    def made(cls, size: int): ...\n"
        "    @staticmethod\n    def plain(size): ...\n"
        "    class Options:\n        def __init__(self, *, high: bool = False): ...\n"
        "norm = _add_docstr(_C.norm, '\\nnorm(x, ord=2, *, out=None) -> Tensor\\n')\n"
        "@dataclass(frozen=True)\nclass Policy:\n    kind: int\n    whole: bool = True\n"
    ),
}


def test_a_release_is_described_by_sources_and_stubs(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sources = extracted.Sources(tmp_path, "torch")
    assert sources.version() == "9.0+cpu"
    expected = {
        "float32": VALUE,
        "inf": VALUE,
        "functional": MODULE,
        "Tensor.max": "(dim, keepdim=...) | ()",
        "Tensor.shape": VALUE,
        "Tensor.made": "(size)",
        "Tensor.plain": "(size)",
        "Tensor.Options": "(*, high=...)",
        "norm": "(x, ord=..., *, out=...)",
        "Policy": "(kind, whole=...)",
        "gone": None,
        "Tensor.gone": None,
    }
    assert {name: sources.describe(f"torch.{name}") for name in expected} == expected
