"""Weights in memory that another process offers: the same bits as in the file, or a reason to take the file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rhymed.core.errors import WireError
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.shared import HANDLE, READERS, Offers, Opened
from tests.packages import PLACES, on

CPU = torch.device("cpu")
TRAINER = """
import sys
from pathlib import Path
import torch
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.shared import Offers

publisher = Publisher(Path(sys.argv[1]) / "weights", "bfloat16", offers=Offers())
for line in sys.stdin:
    generator = torch.Generator().manual_seed(int(line))
    table = torch.randn(700, 33, generator=generator).to(sys.argv[2])
    turned = torch.randn(30, 41, generator=generator).to(sys.argv[2]).T
    none, one = torch.empty(0, device=sys.argv[2]), torch.ones(1, device=sys.argv[2])
    named = {"embed": table, "turned": turned, "none": none, "head": table, "one": one}
    print(publisher.publish(int(line), named.items()).path, flush=True)
"""


class Trainer:
    """Publishes versions of random weights in a process of its own."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.device = device
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(folder), device.type],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RHYMED_SHARED_MEMORY": str(folder)},
        )

    def publish(self, version: int) -> Path:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(version, file=self.process.stdin, flush=True)
        return Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture(scope="module", params=PLACES)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """The last test ends it."""
    made = Trainer(tmp_path_factory.mktemp("run"), on(request.param))
    yield made
    made.kill()


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, bytes]]:
    return {
        name: (tensor.shape, tensor.cpu().contiguous().view(torch.int16).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def read(opened: Opened) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in opened.tensors()}


def why(path: Path) -> str:
    with pytest.raises(WireError) as refused:
        Opened(path, CPU)
    return str(refused.value)


def test_memory_of_another_process_has_the_bits_of_the_file(trainer: Trainer) -> None:
    for version in (1, 2):
        path = trainer.publish(version)
        file = load_file(path)
        assert file["embed"].dtype == torch.bfloat16
        for _ in range(2):  # a second reader, or the same one again
            opened = Opened(path, trainer.device)
            assert bool(opened.gpu) == (trainer.device.type == "cuda")
            assert bits(read(opened)) == bits(file)
            opened.close()


def test_what_was_opened_stays_although_the_trainer_publishes_again(trainer: Trainer) -> None:
    path = trainer.publish(3)
    first, second = Opened(path, trainer.device), Opened(path, trainer.device)
    before = bits(load_file(path))
    first.close()
    trainer.publish(4)
    assert why(path) == "the trainer offers the memory of this version no more"
    trainer.publish(5)
    assert bits(read(second)) == before
    second.close()
    newest = trainer.publish(6)
    assert not path.with_suffix(READERS).exists(), "it has no reader: its memory is free"
    assert newest.with_suffix(READERS).exists()


def test_an_offer_that_vanished_or_is_something_else_is_refused(trainer: Trainer) -> None:
    path = trainer.publish(7)
    shared = path.with_suffix(HANDLE)
    content = shared.read_bytes()
    shared.write_bytes(b"\xc1" + content)
    assert "is no handle" in why(path)
    if trainer.device.type == "cpu":
        shared.write_bytes(content.replace(b"torch_", b"other_"))
        assert "cannot be opened" in why(path)
    else:
        shared.write_bytes(content)
        assert "which this engine does not use" in why(path), "it computes on processors"
    shared.unlink()
    assert why(path) == "the trainer offers the memory of this version no more"
    path.with_suffix(READERS).unlink()
    assert why(path) == "the trainer offers no memory of this version"
    assert len(load_file(path)) == 4


def test_a_dead_trainer_offers_nothing_and_what_is_open_stays(trainer: Trainer) -> None:
    path = trainer.publish(8)
    opened, file = Opened(path, trainer.device), bits(load_file(path))
    trainer.kill()
    assert why(path) == "the trainer that offered memory has ended"
    if trainer.device.type == "cpu":  # a GPU's driver promises nothing
        assert bits(read(opened)) == file
    opened.close()


def test_without_memory_the_file_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(size: int, device: torch.device) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("rhymed_workers.weights.shared.allocate", full)
    publisher = Publisher(tmp_path, offers=Offers())
    path = publisher.publish(0, {"w": torch.ones(3)}.items()).path
    assert why(path) == "the trainer offers no memory of this version"
    assert "out of memory" in caplog.text
    publisher.close()


def test_a_slow_reader_keeps_memory_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(tmp_path, offers=Offers())
    readers = []
    for version in range(4):
        readers.append(Opened(publisher.publish(version, {"w": torch.full((9,), version)}.items()).path, CPU))
    publisher.withdraw()
    assert [float(dict(reader.tensors())["w"][8]) for reader in readers] == [0.0, 1.0, 2.0, 3.0]
    assert "4 versions are still read from memory" in caplog.text
    for reader in readers:
        reader.close()
    publisher.close()
    assert not list(tmp_path.glob(f"*{READERS}"))


def test_a_handle_of_a_gpu_has_torch_s_arguments_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: torch's two functions are replaced, with the names that they have in the installed torch."""
    import inspect

    from torch.multiprocessing import reductions

    from rhymed_workers.weights import shared

    names = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    given = {name: name.encode() for name in names}
    opened: dict[str, object] = {}

    class Memory:
        device = torch.device("cuda", 0)

        def __len__(self) -> int:
            return 24

    monkeypatch.setattr(reductions, "reduce_tensor", lambda memory: (None, tuple(given.values())))
    monkeypatch.setattr(
        reductions, "rebuild_cuda_tensor", lambda *values: opened.update(zip(names, values, strict=True))
    )
    monkeypatch.setattr(shared, "gpu_of", lambda device: f"GPU-{device.index or 0}")
    found = shared.share(Memory())  # type: ignore[arg-type]
    shared.open_memory(found, torch.device("cuda"))
    ours = {
        "tensor_cls": torch.Tensor,
        "tensor_size": (24,),
        "tensor_stride": (1,),
        "storage_cls": torch.storage.TypedStorage,
        "dtype": torch.uint8,
        "storage_device": 0,
        "requires_grad": False,
    }
    assert opened == given | ours
    for other in (torch.device("cuda", 1), CPU):
        with pytest.raises(WireError, match="GPU-0, which this engine does not use"):
            shared.open_memory(found, other)
