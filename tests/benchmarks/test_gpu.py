"""`python -m benchmarks gpu`: its plan, its parts as processes with a limit, and what each leaves in
`results.jsonl`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.gpu import engines, facts, gpu, models
from benchmarks.gpu.gpu import LIMIT, PARTS, Part
from benchmarks.gpu.part import RESULTS, Recorder
from benchmarks.gpu.peaks import peak_of
from rhymed.core.errors import ConfigError
from rhymed.start.bench import engine as engine_process
from rhymed.start.bench import spec
from rhymed.start.bench.engine import MOST_CACHE, SHARED, share

GIB = 1 << 30

PIECES = """
import os, signal, subprocess, sys, time

def endless(record):
    record.emit("first", value=1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    record.emit("child", pid=child.pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

def dies(record):
    record.check("before", lambda: {"value": 2})
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def some(record):
    record.check("wrong", lambda: 1 / 0)
    record.check("right", lambda: {"device": record.device})
    record._seconds = -1.0
    record.check("late", lambda: 1)
"""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_plan_has_less_than_fifteen_minutes_and_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--dry"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: {part.about}: " in printed for name, part in PARTS.items())
    assert sum(part.seconds for part in PARTS.values()) < 15 * 60
    assert LIMIT <= 2
    assert main(["gpu", "--dry", "--parts", "exact,facts", "--seconds", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == {"facts": 10.0, "exact": 10.0}


def test_without_a_gpu_it_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(facts.gpus, "torch_is_for_cpus", lambda: False)
    monkeypatch.setattr(facts.gpus, "here", lambda: None)
    for words, why in {
        f"--out {tmp_path}/out": "nvidia-smi finds no GPU",
        "--parts engin": "no such part; choose from facts, sampler, tests",
        "--seconds 0": "each part needs some time",
        f"--device cpu --out {__file__}": "cannot be written",
    }.items():
        assert main(["gpu", *words.split()]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_part_that_never_ends_or_dies_keeps_its_lines_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pieces_of_gpu.py").write_text(PIECES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(gpu, "STOP_S", 0.2)
    parts = {name: Part(f"it is {name}", 60, f"pieces_of_gpu:{name}") for name in ("endless", "dies", "some")}
    parts["endless"] = parts["endless"]._replace(seconds=20)
    monkeypatch.setattr(gpu, "PARTS", parts)
    found = gpu.run(False, device="cpu", out=tmp_path / "out")
    assert not found["good"]
    rows = {(row["part"], row["what"]): row for row in lines(tmp_path / "out")}
    assert rows["endless", "first"]["value"] == 1
    assert not alive(rows["endless", "child"]["pid"])
    assert rows["endless", "the part"]["error"] == "ended after its limit of 32 s"
    assert rows["dies", "before"]["value"] == 2
    assert rows["dies", "the part"]["error"] == "its process ended with -9: dies: before: s=0 value=2\nthe last words"
    wrong = rows["some", "wrong"]
    assert (wrong["ok"], wrong["error"]) == (False, "ZeroDivisionError: division by zero")
    assert rows["some", "right"]["device"] == "cpu"
    assert rows["some", "late"]["skipped"] == "the part's time is over"
    assert rows["some", "the part"]["ok"]
    table = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert table[0] == f"{len(rows)} results, 3 failed"
    assert [line[:6] for line in table[1:5]] == ["FAILED"] * 3 + ["endles"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_cheap_parts_run_on_processors_from_the_command_to_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm")
    words = f"--device cpu --parts facts,sampler,trainer --seconds 800 --json --out {tmp_path}"
    assert main(["gpu", *words.split()]) == 0, capsys.readouterr().err
    rows = lines(tmp_path)
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path),
        "results": len(rows),
        "failed": [],
        "good": True,
    }
    by_part = {
        part: {row["what"]: row for row in rows if row["part"] == part} for part in ("facts", "sampler", "trainer")
    }
    assert by_part["facts"]["machine"]["versions"].keys() >= {"rhymed", "torch", "python"}
    assert by_part["sampler"]["1 x 5000"]["equal"] == by_part["sampler"]["1 x 5000"]["compared"] == 1
    assert by_part["trainer"]["equal to a CPU: shared prompts, bfloat16"]["gradient"] < 0.1
    assert by_part["trainer"]["equal to a CPU: one response, float32"]["gradient"] < 1e-4
    steps = [row for row in rows if "step_s" in row]
    assert [(row["model"], len(row["step_s"])) for row in steps] == [("random weights of tiny", 1)] * 2


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_an_engine_that_fails_costs_only_its_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real engines; one gets a type of number that vLLM does not know."""
    pytest.importorskip("vllm")
    made = spec.engine

    def engine(workload: Any, method: str, *others: Any) -> dict[str, Any]:
        return made(workload, method, *others) | ({"dtype": "float7"} if method == "again" else {})

    monkeypatch.setattr(spec, "engine", engine)
    monkeypatch.setattr(engine_process, "START_S", 1500.0)
    engines.measure(Recorder("engines", tmp_path, "cpu"), "engines", ["again", "keyed", "history"], [4])
    rows = {row["what"]: row for row in lines(tmp_path)}
    assert not rows["engines: again starts"]["ok"]
    assert "float7" in rows["engines: again starts"]["error"]
    assert rows["engines: keyed starts"]["keyed"]
    assert rows["engines: history starts"]["drafter"] == "HistoSpec"
    batch = rows["engines: batch 4"]
    assert batch.keys() >= {"keyed", "history"}
    assert "again" not in batch
    assert batch["history"]["same_tokens"] == batch["history"]["compared_tokens"] > 0


@pytest.mark.parametrize("engines", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [24 * GIB, 80 * GIB])
def test_engines_of_one_gpu_ask_for_no_more_than_there_is(engines: int, total: int) -> None:
    made = share(engines, total, weights=10 << 20, logits=256 * 32 * 446)
    assert engines * made["gpu_memory_utilization"] <= SHARED + 0.001 * engines
    assert 0 < made["kv_cache_memory_bytes"] <= min(MOST_CACHE, made["gpu_memory_utilization"] * total)


def test_engines_that_do_not_fit_a_gpu_are_refused_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the shape of a 7B model, whose largest step is one of 256 requests with drafts."""
    pytest.importorskip("transformers")
    folder = models.only_shape(tmp_path, "7b", "bfloat16")
    assert spec.dimensions(folder) == (7_615_616_512, 152_064)
    for text, count, fits in (("H100", 3, True), ("H100", 4, False), ("A10", 1, True), ("A10", 2, False)):
        size = {"H100": "80GB", "A10": "24GB"}[text]
        monkeypatch.setattr(spec.gpus, "here", lambda t=text, s=size: facts.gpus.parse(f"1x {t} {s}"))
        if fits:
            place = spec.place_of("cuda", "", folder, count, [256])
            assert (place.most, place.dtype) == (256, "bfloat16")
            assert dict(place.memory)["kv_cache_memory_bytes"] > GIB
        else:
            with pytest.raises(ConfigError, match="has no room for"):
                spec.place_of("cuda", "", folder, count, [256])


@pytest.mark.parametrize(
    ("kind", "tera", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 3.35),
        ("NVIDIA H100 PCIe", 756, 2.0),
        ("NVIDIA A100-SXM4-40GB", 312, 1.555),
        ("NVIDIA A100-SXM4-80GB", 312, 2.039),
        ("NVIDIA GeForce RTX 4090", 165, 1.008),
        ("NVIDIA L40S", 362, 0.864),
        ("NVIDIA L4", 121, 0.3),
    ],
)
def test_a_peak_is_found_by_the_name(kind: str, tera: float, bandwidth: float) -> None:
    peak = peak_of(kind)
    assert peak is not None
    assert (peak.bfloat16, peak.memory) == pytest.approx((tera * 1e12, bandwidth * 1e12))
    assert peak_of("L400") is None


def test_memory_tells_two_gpus_of_one_name_apart() -> None:
    small, large = peak_of("A100", 40 * GIB), peak_of("A100", 80 * GIB)
    assert small is not None
    assert large is not None
    assert small.memory < large.memory
