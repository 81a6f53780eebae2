"""The dashboard's page as one file with its data inside: `report.html`, `rhymed view --save`.

It opens from the disk, without server or network. Its content security policy allows the one script and the one style
sheet of the page, by their hashes, and no request. Any file of the run may be missing or damaged: what cannot be read
is left out and is a sentence in `problems`. Secrets are hidden in every text. An existing file is replaced
atomically.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.printable import visible
from rhymed.core.run import folder as runs
from rhymed.core.run import timeline
from rhymed.core.run.layout import paths_of
from rhymed.core.run.metrics import Row, drafting, filtering, totals
from rhymed.core.run.state import state_of
from rhymed.core.secret import HIDDEN, hide, is_secret
from rhymed.core.text import duration, quoted, size_of, step_phrase
from rhymed.records.history.folder import RunFolder
from rhymed.show.dashboard.data import samples
from rhymed.show.dashboard.data.source import Source, encode
from rhymed.show.dashboard.routes import SCRIPT, STATIC

MOST_SPANS = 5_000  # neighbours are joined beyond
MOST_STEPS = 2_000  # with a row each, of about 3 KB
MOST_SAMPLES = 1_000_000  # in the store; reading more would take many seconds
SHOWN = 16  # samples


def write(folder: Path, file: Path | None = None, *, ended: bool = False) -> Path:
    """Returns the file. `file`: other than `report.html` in the run's folder; `ended`: the caller knows that the run
    is over although its folder is still locked. Raises `ConfigError`."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist: name a run's folder, e.g. runs/quickstart{runs.near(folder)}")
    if not any((folder / name).exists() for name in ("config.json", "metrics.jsonl", "logs", "store")):
        raise ConfigError(f"{folder} is not a run's folder: name one, e.g. runs/quickstart{runs.near(folder)}")
    folder = folder.resolve()
    target = (file or folder / "report.html").expanduser()
    text = page(gather(folder, ended=ended))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(target, text.encode(errors="replace"))
    except OSError as error:
        raise ConfigError(
            f"{target}: the page cannot be written there: {error.strerror or error}; name another place"
        ) from None
    return target


# What is inside


def gather(folder: Path, *, ended: bool = False) -> dict[str, Any]:
    """`answers` of the dashboard's routes, and what only a saved page has: `totals` of the whole run, `samples`
    of the newest step, how many it has (`of`), and `problems`: what could not be read."""
    source, line, problems = Source(folder), timeline.read(folder), list[str]()
    try:
        run = {**source.run(None), "state": state_of(folder, line, ended=ended)}
        news = source.news(None, serial=-1, most=MOST_SPANS)
        news["steps"]["steps"] = _thinned(news["steps"]["steps"], problems)
        if not source.config:
            problems.append("There is no config.json that can be read.")
        found, of = _newest(source, problems)
        none: dict[str, Any] = {"epochs": []}
        store = source.store(None)
        answers = {
            "api/run": run,
            "api/news": {"over": True, **news},
            "api/lengths": _part(source.lengths, none),
            "api/rewards": _part(source.rewards, none),
            "api/store": store,
        }
    finally:
        source.close()
    rows = runs.read_metrics(paths_of(folder))
    sums = [*_totals(rows, run["elapsed_s"]), *_stored(store)]
    tree = json.loads(encode({"answers": answers, "totals": sums, "samples": found, "of": of, "problems": problems}))
    return dict(_clean(tree))


def _thinned(rows: list[Any], problems: list[str]) -> list[Any]:
    """At most `MOST_STEPS` of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= MOST_STEPS:
        return rows
    problems.append(
        f"The curves have {MOST_STEPS:,} of {len(rows):,} steps, evenly spread; the sums cover all of them."
    )
    return [rows[round(place * (len(rows) - 1) / (MOST_STEPS - 1))] for place in range(MOST_STEPS)]


def _part(read: Callable[[], dict[str, Any]], without: dict[str, Any]) -> dict[str, Any]:
    try:
        return read()
    except RhymedError:  # that there is no store is one of the problems
        return without


def _clean(value: Any, key: str = "") -> Any:
    """The value under `key`, without secrets and without characters that cannot be seen. Numbers stay, as names of
    measurements may end as names of secrets do."""
    if isinstance(value, str):
        return HIDDEN if value and is_secret(key) else visible(hide(value))
    if isinstance(value, dict):
        return {visible(hide(name)): _clean(own, key if is_secret(key) else name) for name, own in value.items()}
    if not isinstance(value, list):
        return value
    if key == "pieces":
        value = [piece for _, run in groupby(value, lambda piece: piece.get("run")) for piece in _unsplit(list(run))]
    return [_clean(own, key) for own in value]


def _unsplit(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pieces of a response, which are cut where drafts begin and end; one piece if a secret may be cut, too."""
    text = "".join(piece["text"] for piece in pieces)
    return [{**pieces[0], "text": hide(text)}] if hide(text) != text else pieces


def _totals(rows: list[Row], elapsed_s: float) -> Iterator[tuple[str, str]]:
    if elapsed_s:
        yield "time", duration(elapsed_s)
    if not rows:
        return
    sums = totals(rows, elapsed_s)
    yield "reward, first to last steps", f"{sums['reward_first']:.3f} → {sums['reward_last']:.3f}"
    yield "steps", f"{len(rows):,}"
    yield "response tokens", f"{sums['tokens']:,.0f}"
    yield "tokens per second, rollout", f"{sums['tokens_per_s']:,.0f}"
    drafts = drafting(rows)
    if drafts and drafts["drafted"]:
        yield "drafted tokens accepted", f"{drafts['accept_rate'] or 0:.0%}"
        yield "tokens per forward", f"{drafts['accept_length'] or 1:.2f}"
        if drafts["net_speedup"] is not None:
            yield "net speed-up, estimated", f"{drafts['net_speedup']:.2f}x"
    if bubbles := [row["rollout/bubble_ratio"] for row in rows if row.get("rollout/bubble_ratio") is not None]:
        yield "mean bubble ratio", f"{sum(bubbles) / len(bubbles):.0%}"
    yield "samples dropped", f"{sums['dropped']:,.0f}"
    if groups := filtering(rows):
        yield "groups without signal, dropped", f"{groups['filtered_groups']:,.0f}"
        yield "groups that replaced them", f"{groups['refilled_groups']:,.0f}"


def _stored(store: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if store["samples"] is not None:
        yield "samples in the store", f"{store['samples']:,}"
    if store["used_bytes"] is not None:
        yield "size of the store", size_of(store["used_bytes"])


def _newest(source: Source, problems: list[str]) -> tuple[list[dict[str, Any]], int]:
    """Samples of the newest step that was trained, or of the newest evaluation of a run that trained none; and how
    many this step has. With more than `SHOWN`, the first response to each prompt comes before the second one."""
    try:
        with source.opened() as run:
            if (count := run.browse.totals().samples) > MOST_SAMPLES:
                problems.append(
                    f"The store has {count:,} samples: too many to find the newest within seconds."
                    f" `rhymed history show --run {quoted(source.folder)}` shows them prompt by prompt."
                )
                return [], 0
            columns = run.browse.columns()
            if columns.damaged:
                problems.append(f"{columns.damaged:,} damaged samples are left out; see `rhymed history verify`.")
            steps = columns.step[columns.step >= 0]
            trained = steps[steps < EVAL]
            if not len(steps):
                return [], 0
            step = int((trained if len(trained) else steps).max())
            return list(_pages(run, step, problems)), int((columns.step == step).sum())
    except RhymedError as error:
        problems.append(f"The store cannot be read: {error}.")
        return [], 0


def _pages(run: RunFolder, step: int, problems: list[str]) -> Iterator[dict[str, Any]]:
    found: list[SampleId] = []
    for prompt in run.browse.prompts_of_step(step, SHOWN):
        try:
            found += [record.sample for record in run.browse.headers(prompt) if record.sample.step == step]
        except RhymedError as error:
            problems.append(f"The samples of prompt {prompt} cannot be read: {error}.")
    first = sorted(found, key=lambda sample: sample.index)[:SHOWN]
    for sample in sorted(first, key=lambda sample: (sample.prompt, sample.index)):
        try:
            yield samples.sample_page(run, sample)
        except RhymedError as error:
            problems.append(f"A sample of {step_phrase(step)}, prompt {sample.prompt}, cannot be read: {error}.")


# The file


def page(data: dict[str, Any]) -> str:
    """Texts of `data` cannot end the element that they are in."""
    text = Template((STATIC / "page.html").read_text()).substitute(script=SCRIPT)
    sheets = re.findall(r'<link rel="stylesheet" href="static/([^"]+)"', text)
    style = "\n".join((STATIC / sheet).read_text() for sheet in sheets)
    script = bundle(SCRIPT)
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />\n<style>{style}</style>\n</head>'
    inside = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    end = f'<script type="application/json" id="saved">{inside}</script>\n<script>{script}</script>\n</body>'
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    text = text.replace('href="static/icon.svg"', f'href="data:image/svg+xml;base64,{icon}"')
    text = re.sub(r'\s*<link rel="stylesheet"[^>]*>|\s*<script type="module"[^>]*></script>', "", text)
    return text.replace("</head>", head, 1).replace("</body>", end, 1)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


IMPORT = re.compile(r'^import\s+(?:\* as (\w+)|(\w+)|(\{[^}]*\}))\s+from\s+"([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
DEFAULT = re.compile(r"^export \{ (\w+) as default \};", re.MULTILINE)


def bundle(name: str) -> str:
    """The module and those that it imports as one classic script, which a page from the disk may run. A module has
    either a default export or others."""
    parts: dict[str, str] = {}  # in the order of their imports

    def add(module: str) -> None:
        if module in parts:
            return
        text = (STATIC / module).read_text()
        taken = []
        for everything, default, some, path in IMPORT.findall(text):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(module), path))
            add(other)
            names = everything or some.replace(" as ", ": ") or f"{{ default: {default} }}"
            taken.append(f"const {names} = modules[{json.dumps(other)}];\n")
        given = [f"default: {own}" for own in DEFAULT.findall(text)] or EXPORT.findall(text)
        body = DEFAULT.sub("", EXPORT.sub("", IMPORT.sub("", text)))
        end = f"return {{ {', '.join(given)} }};"
        parts[module] = f"modules[{json.dumps(module)}] = (() => {{\n{''.join(taken)}{body}\n{end}\n}})();"

    add(name)
    code = '"use strict";\nconst modules = {};\n' + "\n".join(parts.values())
    return code.replace("</script", "<\\/script")
