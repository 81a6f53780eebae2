"""The optimizer's state of several ranks: torch keeps its metadata as a pickle, which must run no code here."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from rhymed.core.errors import CheckpointError
from rhymed_workers.trainer.optim import moments, shards

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ROOT = Path(__file__).parents[4]


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def made(seed: int) -> tuple[torch.optim.AdamW, moments.Named]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return optimizer, list(model.named_parameters())


def state(optimizer: torch.optim.AdamW, named: moments.Named) -> dict[str, torch.Tensor]:
    return {f"{key}.{name}": value for name, weight in named for key, value in optimizer.state[weight].items()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shards.save(tmp_path / "optimizer", state(*made(1)), None)
    return tmp_path / "optimizer"


def test_what_was_saved_is_restored(place: Path) -> None:
    optimizer, named = made(2)
    shards.load(place, optimizer, named)
    restored, saved = state(optimizer, named), state(*made(1))
    assert restored.keys() == saved.keys()
    assert all(torch.equal(restored[key], saved[key]) for key in saved)


def with_bomb_in_planner(metadata: Any, mark: Path) -> Any:
    metadata.planner_data = Bomb(mark)
    return metadata


def with_bytes(metadata: Any, mark: Path) -> Any:
    name = next(iter(metadata.state_dict_metadata))
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    return metadata


def with_another_file(metadata: Any, mark: Path) -> Any:
    for stored in metadata.storage_data.values():
        stored.relative_path = "../../other"
    return metadata


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda metadata, mark: Bomb(mark), "asks for pathlib.Path.touch|asks for builtins.getattr"),
        (with_bomb_in_planner, "asks for pathlib.Path.touch|asks for builtins.getattr"),
        (with_bytes, "asks for .*BytesStorageMetadata"),
        (with_another_file, "outside of its folder"),
        (lambda metadata, mark: [1, 2], "describes no tensors"),
        (lambda metadata, mark: torch.Size([1]), "describes no tensors"),
    ],
)
def test_a_checkpoint_that_was_changed_runs_nothing(place: Path, tmp_path: Path, change: Any, reason: str) -> None:
    file, mark = place / ".metadata", tmp_path / "ran"
    metadata = pickle.loads(file.read_bytes())
    file.write_bytes(pickle.dumps(change(metadata, mark)))
    optimizer, named = made(2)
    with pytest.raises(CheckpointError, match=reason):
        shards.load(place, optimizer, named)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"\x80", b"no pickle", b"cos\nsystem\n.", b"\x80\x04N."])
def test_damaged_metadata_ends_in_a_sentence(place: Path, content: bytes) -> None:
    (place / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        shards.load(place, *made(2))


UNPICKLES = re.compile(
    r"pickle\.loads?\b|Unpickler\b|torch\.load\b|allow_pickle\s*=\s*True|weights_only\s*=\s*False|\bmarshal\.loads?\b"
    r"|\bshelve\b|\bjoblib\b|FileSystemReader\b|\bdcp\.load\b"
)
KNOWN = {
    "workers/rhymed_workers/trainer/optim/shards.py": "its own Unpickler, given to torch's reader",
    "workers/rhymed_workers/sessions/parsing.py": "the tokenizer, through a pipe from the process that started it",
}


def test_nothing_else_in_our_code_unpickles() -> None:
    found = {
        str(file.relative_to(ROOT))
        for part in ("rhymed", "workers", "broker", "store")
        for file in (ROOT / part).rglob("*.py")
        if UNPICKLES.search(file.read_text())
    }
    assert found == KNOWN.keys()


def test_what_torch_calls_for_a_checkpoint_unpickles_nothing_else(place: Path, monkeypatch) -> None:
    """Every unpickler that is made while a checkpoint is read is ours, or torch's own with `weights_only`."""
    used = list[str]()

    def look(event: str, given: tuple[Any, ...]) -> None:
        if looking and event == "pickle.find_class":
            frame = sys._getframe(1)
            used.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    looking = True
    sys.addaudithook(look)
    with monkeypatch.context() as patch:
        for name in ("load", "loads"):
            patch.setattr(pickle, name, lambda *given, **named: pytest.fail("pickle.load is called"))
        shards.load(place, *made(2))
    looking = False
    assert set(used) == {f"{shards.__name__}.find_class"}
