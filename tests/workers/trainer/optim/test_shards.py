"""State in safetensors files, of one rank or several; and nothing in our code unpickles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from rhymed.core.errors import CheckpointError
from rhymed_workers.trainer.optim import shards
from rhymed_workers.trainer.optim.shards import Stored

ROOT = Path(__file__).parents[4]
WHOLE = {"step.a": torch.tensor(3.0), "exp_avg.a": torch.arange(15.0).reshape(5, 3), "exp_avg.b": torch.ones(1, 2)}


def test_what_was_saved_is_taken_once(tmp_path: Path) -> None:
    assert shards.save(tmp_path, "optimizer", WHOLE, 0) == ["optimizer.state"]
    stored = Stored(tmp_path, "optimizer")
    assert stored.left == set(WHOLE)
    assert all(torch.equal(stored.take(key, tensor), tensor) for key, tensor in WHOLE.items())
    assert not stored.left
    assert stored.take("exp_avg.c", torch.ones(1)) is None
    assert stored.take("exp_avg.a", torch.ones(5, 4)) is None
    assert stored.take("exp_avg.a", torch.ones(5, 3, dtype=torch.float64)) is None


def test_rows_of_several_ranks_are_one_tensor(tmp_path: Path) -> None:
    """In the order of the ranks, of which the last ones may have none. Ranks that read: `ranks/test_ranks.py`."""
    from safetensors.torch import save_file

    shards.save(tmp_path, "optimizer", WHOLE | {"exp_avg.a": WHOLE["exp_avg.a"][:3]}, 0)
    for rank, rows in ((1, slice(3, 5)), (2, slice(5, 5))):
        save_file({"exp_avg.a": WHOLE["exp_avg.a"][rows].contiguous()}, tmp_path / f"optimizer-000{rank}.state")
    stored = Stored(tmp_path, "optimizer")
    assert all(torch.equal(stored.take(key, tensor), tensor) for key, tensor in WHOLE.items())


@pytest.mark.parametrize("content", [b"", b"\x80", b"no safetensors file", b"cos\nsystem\n."])
def test_a_damaged_file_ends_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    shards.save(tmp_path, "optimizer", WHOLE, 0)
    (tmp_path / "optimizer-0001.state").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Stored(tmp_path, "optimizer")


UNPICKLES = re.compile(
    r"pickle\.loads?\b|Unpickler\b|torch\.load\b|allow_pickle\s*=\s*True|weights_only\s*=\s*False|\bmarshal\.loads?\b"
    r"|\bshelve\b|\bjoblib\b|FileSystemReader\b|\bdcp\.load\b"
)
KNOWN = {
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
