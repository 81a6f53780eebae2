"""The cost of a step at the shape of a large model with random weights: plain, keyed, with 0 to 8 drafts a request.

`pace` drafts wrong tokens, so a step makes one token a request. If all k drafts are right, a step makes k + 1: `pays`
has the accepted tokens from which drafts pay. Then HistoSpec drafts from responses, right and partly wrong.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.part import Recorder
from rhymed.core.errors import ConfigError
from rhymed.start.bench import spec
from rhymed.start.bench.engine import EngineProcess, Request, Run
from rhymed.start.bench.spec import BenchWorkload

METHODS = ("stock", "keyed", "history")
SHAPES = ("7b", "1.5b", "135m")  # the first that fits is measured
CONTEXT, PROMPT = 512, 48  # tokens


def record(record: Recorder) -> None:
    assert record.out is not None
    batches = [4] if record.small else [64, 16, 256]
    folder, place = _choose(record, batches)
    workload = BenchWorkload(f"random weights of {folder.name}", folder, [[2]], CONTEXT - spec.WIDTH - 2)
    bench = spec.Bench(workload, METHODS, place=place, more={"load_format": "dummy"})
    try:
        abouts = bench.each(METHODS, lambda method, process: process.about())
        for method in METHODS:
            failure = {"ok": False, "error": bench.failed.get(method, "")[-900:]}
            found = {"ok": True, **abouts[method]} if method in abouts else failure
            record.emit(f"{folder.name}: {method} starts", model=workload.name, dtype=place.dtype, **found)
        for batch in batches:
            _pace(record, bench, batch)
            if "history" in bench.engines:
                record.check(f"{folder.name}: HistoSpec, batch {batch}", partial(_history, record, bench, batch))
    finally:
        bench.close()


def _choose(record: Recorder, batches: Sequence[int]) -> tuple[Path, spec.Place]:
    """Raises `ConfigError` if nothing fits."""
    assert record.out is not None
    shapes = ("tiny",) if not record.gpu else SHAPES[-1:] if record.small else SHAPES
    for shape in shapes:
        folder = models.only_shape(record.out / "models", shape, "bfloat16" if record.gpu else "float32")
        try:
            return folder, spec.place_of(record.device, "", folder, len(METHODS), batches)
        except ConfigError as error:
            record.emit(f"{shape}: left out", why=str(error))
    raise ConfigError("no shape fits this GPU")


def _requests(vocabulary: int, batch: int, tokens: int, number: int) -> list[Request]:
    """Requests, eight for each prompt."""
    rng = random.Random(batch * 1000 + number)
    prompts = [[rng.randrange(100, vocabulary) for _ in range(PROMPT)] for _ in range(max(1, batch // 8))]
    return [
        Request(prompts[r % len(prompts)], tokens, 1.0, 10_000 * number + r + 1, str(r), str(r % len(prompts)), 1)
        for r in range(batch)
    ]


def _pace(record: Recorder, bench: spec.Bench, batch: int) -> None:
    steps, most = (3, 3) if record.small else (20, 9)
    name, vocabulary = bench.workload.model.name, models.SHAPES[bench.workload.model.name]["vocab_size"]
    paces: dict[str, dict[str, list[float]]] = {}
    for method in list(bench.engines):
        counts = [count for count in (0, 1, 2, 3, 4, 6, 8) if count < most] if method == "history" else [0]

        def pace(method: str = method, counts: list[int] = counts) -> dict[str, list[float]]:
            asked = _requests(vocabulary, batch, CONTEXT - PROMPT - spec.WIDTH - 2, 7)
            found = bench.each([method], lambda _, process: process.pace(asked, batch, counts, steps))
            if method not in found:
                raise RuntimeError(bench.failed[method])
            return found[method]

        if found := record.check(f"{name}: milliseconds of a step of {method}, batch {batch}", pace):
            paces[method] = found
    if {"stock", "history"} <= paces.keys():
        base = paces["stock"]["0"][0]
        accepted = {count: round(found[0] / base - 1, 3) for count, found in paces["history"].items()}
        record.emit(f"{name}: pays, batch {batch}", stock_ms=base, accepted=accepted)


def _history(record: Recorder, bench: spec.Bench, batch: int) -> dict[str, Any]:
    """Tokens per second of whole responses: without history, from the same responses, and from changed ones."""
    engine, vocabulary = bench.engines["history"], models.SHAPES[bench.workload.model.name]["vocab_size"]
    asked = _requests(vocabulary, batch, 12 if record.small else 160, 3)
    found = {
        method: _rate(process.run(asked, batch, whole=True), batch)
        for method, process in bench.engines.items()
        if method != "history"
    }
    draw = random.Random(0)
    plain = _drafted(engine, asked, batch, [[] for _ in asked])
    found["no history"] = _rate(plain, batch)
    for label, one_in in (("right", 0), ("1 in 12 wrong", 12), ("1 in 4 wrong", 4)):
        past = [
            [draw.randrange(100, 400) if one_in and not draw.randrange(one_in) else token for token in response]
            for response in plain.responses
        ]
        run = _drafted(engine, asked, batch, past)
        pairs = list(zip(run.responses, plain.responses, strict=True))
        same, compared = (sum(column) for column in zip(*(spec.agreement(*pair) for pair in pairs), strict=True))
        found[label] = _rate(run, batch) | {"same": same, "of": compared}
    return found


def _drafted(engine: EngineProcess, asked: Sequence[Request], batch: int, past: Sequence[list[int]]) -> Run:
    """The second of two runs: in the first, with other noise, the engine learns what steps of this size cost. It
    reads the last responses of a run at the first step of the next: two equal runs would draft from each other."""
    for requests in ([one._replace(seed=one.seed + 5_000) for one in asked], asked):
        engine.forget()
        for prompt in sorted({one.history for one in asked}):
            own = [response for one, response in zip(asked, past, strict=True) if one.history == prompt]
            engine.remember(prompt, next(one.prompt for one in asked if one.history == prompt), own)
        time.sleep(0.5)  # to build the indexes
        run = engine.run(requests, batch, whole=True)
    return run


def _rate(run: Run, batch: int) -> dict[str, Any]:
    accounts = [account for account in run.accounts if account]
    _, drafted, accepted = [sum(column) for column in zip(*accounts, strict=True)][:3] if accounts else (0, 0, 0)
    return {
        "tokens_a_s": round(run.tokens / run.seconds, 1),
        "steps": run.steps,
        "a_step": round(run.tokens / run.steps / batch, 2),
        "drafted": int(drafted),
        "accepted": int(accepted),
    }
