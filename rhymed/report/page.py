"""The report as one page: results, curves, notable samples, and how to reproduce the run.

Pure: facts and pictures in, HTML out. Sections without content are left out.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.advice.rules import advise
from rhymed.report import html, settings
from rhymed.report.facts import INCIDENTS, Facts
from rhymed.report.highlights import MOST, Pick
from rhymed.report.style import CSS
from rhymed.run.provenance import LARGEST, Start
from rhymed.run.totals import drafting, filtering, totals
from rhymed.text import clock, counted, duration, readable, size_of, step_phrase

HEAD, TAIL = 1600, 1200  # characters of a response
ASKED = 1200  # of a prompt
MOST_INCIDENTS = 60
TOO_LARGE = f"unknown: larger than {size_of(LARGEST)}"


class Shown(NamedTuple):
    source: str  # a data: address
    title: str
    about: str


def page(
    facts: Facts, pictures: Sequence[Shown], gantt: Shown | None, defaults: dict[str, Any], note: str = ""
) -> str:
    """`defaults`: the default configuration; `note`: why there are no pictures."""
    missing = [html.paragraph(text, "bad") for text in facts.missing]
    curves = "\n".join(html.figure(*one) for one in pictures)
    body = [
        _head(facts),
        html.numbers(_headline(facts)),
        *missing,
        html.section("Advice", *_advice(facts)),
        html.section(
            "Curves",
            f'<div class="pictures">\n{curves}\n</div>' if curves else html.paragraph(note, "soft") if note else "",
        ),
        html.section("Timeline of the workers", html.figure(*gantt) if gantt else ""),
        html.section("Evaluation", _evaluations(facts)),
        html.section("Incidents", _incidents(facts)),
        html.section("Notable samples", *_samples(facts)),
        html.section("Configuration", *settings.tables(facts.config, defaults)),
        html.section("Versions and hardware", _versions(facts)),
        html.section("How to reproduce", *_reproduce(facts)),
    ]
    return html.page(f"{facts.name}: run report", CSS, "\n".join(part for part in body if part))


def _head(facts: Facts) -> str:
    count = len(facts.rows) or len(facts.trained)
    steps = counted(count, "step") if count else "no step trained"
    started = f", started {_day(facts.starts[0].t)}" if facts.starts else ""
    return f"<h1>{html.text(facts.name)}</h1>\n" + html.paragraph(f"{facts.state}, {steps}{started}", "soft")


def _day(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _headline(facts: Facts) -> Iterator[tuple[str, str]]:
    rows = facts.rows
    if rows:
        sums = totals(rows, facts.elapsed_s)
        yield "reward, first to last steps", f"{sums['reward_first']:.3f} → {sums['reward_last']:.3f}"
        yield "steps", f"{len(rows):,}"
    if facts.elapsed_s:
        yield "time", duration(facts.elapsed_s)
    if rows:
        yield "response tokens", f"{sums['tokens']:,.0f}"
        yield "tokens per second, rollout", f"{sums['tokens_per_s']:,.0f}"
        yield from _drafts(rows)
        if bubbles := [row["rollout/bubble_ratio"] for row in rows if row.get("rollout/bubble_ratio") is not None]:
            yield "mean bubble ratio", f"{sum(bubbles) / len(bubbles):.0%}"
        yield "samples dropped", f"{sums['dropped']:,.0f}"
        if groups := filtering(rows):
            yield "groups without signal, dropped", f"{groups['filtered_groups']:,.0f}"
            yield "groups that replaced them", f"{groups['refilled_groups']:,.0f}"
    if facts.store is not None:
        yield "samples in the store", f"{facts.store.samples:,}"
        yield "size of the store", size_of(facts.store.used_bytes)


def _advice(facts: Facts) -> Iterator[str]:
    """What is wrong in the newest steps, and what to change."""
    for found in advise(facts.rows, facts.config):
        yield f"<p><strong>{html.text(found.wrong)}</strong> {html.text(found.change)}</p>"


def _drafts(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    found = drafting(rows)
    if not found or not found["drafted"]:
        return
    yield "drafted tokens accepted", f"{found['accept_rate'] or 0:.0%}"
    yield "tokens per forward", f"{found['accept_length'] or 1:.2f}"
    if found["net_speedup"] is not None:
        yield "net speed-up, estimated", f"{found['net_speedup']:.2f}x"


def _evaluations(facts: Facts) -> str:
    """First and last value of every evaluation metric."""
    if not facts.evaluations:
        return ""
    first, last = facts.evaluations[0], facts.evaluations[-1]
    keys = sorted({key for row in facts.evaluations for key in row if key.startswith("val/")} - {"val/version"})
    rows = [(key.removeprefix("val/"), _value(first.get(key)), _value(last.get(key))) for key in keys]
    return html.table(("metric", f"version {first['step']}", f"version {last['step']}"), rows)


def _value(value: float | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.4g}"


def _incidents(facts: Facts) -> str:
    """Workers that were lost, left, had to rest, came back or were started again."""
    times = [event.t for event in facts.timeline.events[:1]] + [span.t - span.s for span in facts.timeline.spans]
    start = min(times, default=0.0)
    here: dict[str, bool] = {}  # every worker that ever joined
    rows = []
    for event in facts.timeline.events:
        worker, what = event.worker or "", str(event.event)
        if what == "joined":
            what = "" if worker not in here else "started again" if here[worker] else "came back"
            here[worker] = True
        elif what in ("left", "lost"):
            here[worker] = False
        if what in (*INCIDENTS, "started again", "came back"):
            rows.append((clock(event.t - start), worker, what, event.text or ""))
    if facts.state != "running":
        while rows and rows[-1][2] == "left":  # all workers leave at the end
            rows.pop()
    more = html.paragraph(f"and {len(rows) - MOST_INCIDENTS:,} more", "soft") if len(rows) > MOST_INCIDENTS else ""
    return html.table(("after", "worker", "event", ""), rows[:MOST_INCIDENTS]) + more


def _samples(facts: Facts) -> Iterator[str]:
    if not facts.samples:
        return
    marked = any(piece["drafted"] for _, row in facts.samples for piece in row["pieces"])
    given = any(row["session"] for _, row in facts.samples)
    yield html.paragraph(
        f"At most {MOST}, selected by fixed rules: extremes of reward and length, the prompts that changed most, the"
        " most drafted, the first and last dropped, then the next best, worst and longest. Steps count from 1; in"
        " sample ids from 0.",
        "soft",
    )
    if facts.textless:
        yield html.paragraph(f"Responses are token ids, not text: {facts.textless}.", "soft")
    if marked:
        yield f'<p class="soft"><mark>Marked</mark> {html.text("text: accepted drafts.")}</p>'
    if given:
        yield f'<p class="soft"><i class="given">Framed</i> {html.text("text: written by environments.")}</p>'
    for pick, row in facts.samples:
        yield _sample(pick, row)


def _sample(pick: Pick, row: dict[str, Any]) -> str:
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:g}"
    drafted = "" if row["drafted"] is None else f", {row['drafted']:,} of them drafts"
    tokens = f"{row['length']:,} tokens{drafted} ({row['finish_reason']})"
    facts = f"{row['state']}, {reward}, {tokens}{_turns(row)}, of {step_phrase(row['step'])}"
    reason = html.paragraph(f"dropped: {row['reason']}", "bad") if row["reason"] else ""
    prompt = row["prompt"] or ""
    return (
        f"<article>\n<h3>{html.text(pick.why[:1].upper() + pick.why[1:])}</h3>\n"
        f'<p class="soft"><code>{html.text(readable(row["id"]))}</code> {html.text(facts)}</p>{reason}\n'
        f'<pre class="prompt">{html.text(_short(prompt))}</pre>\n{_answer(row)}'
        f"<pre>{_pieces(row['pieces'], row['runs'])}</pre>{_failures(row)}\n</article>"
    )


def _turns(row: dict[str, Any]) -> str:
    """`, 2 turns with 1 call`, of a sample in turns."""
    session = row["session"]
    if not session:
        return ""
    failed = f", {session['errors']} failed" if session["errors"] else ""
    calls = f" with {counted(session['calls'], 'call')}{failed}" if session["calls"] else ""
    return f", {counted(session['turns'], 'turn')}{calls}"


def _failures(row: dict[str, Any]) -> str:
    """Calls that failed, with their errors."""
    made = [call for run in row["runs"] for call in run["calls"]] + row["loose"]
    return "".join(html.paragraph(f"{call['name']}: {call['error']}", "bad") for call in made if call["error"])


def _answer(row: dict[str, Any]) -> str:
    """The reference answer, if a column of the row has one."""
    answer = row.get("answer")
    if answer is None:
        return ""
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return html.paragraph(f"right answer: {_short(text)}", "soft") + "\n"


def _short(text: str) -> str:
    return text[:ASKED] + ("…" if len(text) > ASKED else "")


def _pieces(pieces: Iterable[dict[str, Any]], runs: Sequence[dict[str, Any]] = ()) -> str:
    """Without the middle of a long response."""
    given = [run["environment"] for run in runs] or [False]
    kinds = [
        (piece["text"], "given" if given[piece.get("run", 0)] else "drafted" * bool(piece["drafted"]))
        for piece in pieces
    ]
    return "".join(FRAMES[kind].format(html.text(part)) for part, kind in _cut(kinds))


FRAMES = {"": "{}", "drafted": "<mark>{}</mark>", "given": '<i class="given">{}</i>'}
"""By what a piece of a response is."""


def _cut(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    whole = sum(len(part) for part, _ in pieces)
    if whole <= HEAD + TAIL:
        return pieces
    found: list[tuple[str, str]] = []
    at = 0
    for part, kind in pieces:
        head = part[: max(0, HEAD - at)]
        tail = part[max(0, whole - TAIL - at) :] if at + len(part) > whole - TAIL else ""
        if head:
            found.append((head, kind))
        if at < HEAD <= at + len(part):
            found.append((f"\n… {whole - HEAD - TAIL:,} characters …\n", ""))
        if tail:
            found.append((tail, kind))
        at += len(part)
    return found


def _versions(facts: Facts) -> str:
    if not facts.starts:
        return ""
    last = facts.starts[-1]
    return html.table(("", ""), [*last.machine.items(), *last.versions.items()])


def _reproduce(facts: Facts) -> Iterator[str]:
    folder = facts.folder.resolve()
    if facts.starts:
        yield from _code(facts.starts[-1])
        yield html.paragraph("It was started by:")
        yield html.commands(f"{one.command}   # {_day(one.t)}, in {one.folder}{_at(one)}" for one in facts.starts)
        once = dict.fromkeys(pair for start in facts.starts for pair in start.files.items())
        files = [(file, sha or TOO_LARGE) for file, sha in once]  # once per content
        yield html.table(("file", "SHA-256 at the start"), files)
    if facts.config:
        base = f" (its relative paths are based on {facts.starts[-1].folder})" if facts.starts else ""
        yield html.paragraph(f"The same run again, from its stored configuration{base}, into ./runs:")
        yield html.commands([f"rhymed run {_quote(folder / 'config.json')} -o run.folder=runs"])
        yield html.paragraph("Compare the two sample by sample, and audit this one:")
        yield html.commands(
            [f"rhymed history compare {_quote(folder)} OTHER", f"rhymed history audit {_quote(folder)}"]
        )
        yield html.paragraph("Write this page again:")
        yield html.commands([f"rhymed report {_quote(folder)}"])


def _code(start: Start) -> Iterator[str]:
    """How to get the code that it ran on."""
    if start.commit:
        but = ", without its uncommitted changes" if start.changed else ""
        yield html.paragraph(f"The same code, in a clone of rhymed{but}. Its packages are listed above.")
    else:
        yield html.paragraph("The commit is not known. In a clone of rhymed at the version above:")
    yield html.commands([*([f"git checkout {start.commit}"] if start.commit else []), "make setup"])


def _at(start: Start) -> str:
    return f", at {start.commit[:12]}{', changed' * start.changed}" if start.commit else ""


def _quote(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
