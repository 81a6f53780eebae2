"""`python scripts/draw.py RESULTS.json PICTURE.png`: draws the results of `rhymed bench spec --out` for the docs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLOURS = {
    "none": "#9db4c8",
    "keyed": "#c9d6df",
    "ngram": "#d9b44a",
    "suffix": "#cc7351",
    "aimd": "#8f8fbf",
    "history": "#1f5f8b",
    "siblings": "#6a994e",
    "again": "#444444",
}


def draw(results: dict[str, Any], path: Path) -> None:
    """One panel per workload and epoch: speed relative to plain vLLM by batch size, with the range over rounds."""
    from matplotlib.figure import Figure

    panels = [(name, head) for name, cells in results.items() for head in sorted({_head(cell) for cell in cells})]
    rows, columns = min(2, len(panels)), -(-len(panels) // 2)
    figure = Figure(figsize=(6 * columns, 3.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).T.flatten()
    for axis, (name, head) in zip(axes, panels, strict=False):
        cells = {cell: rows for cell, rows in results[name].items() if _head(cell) == head}
        methods = [method for method in COLOURS if any(method in rows for rows in cells.values())]
        for place, method in enumerate(methods):
            results_of = [cells[cell][method] for cell in cells]
            medians = [row["ratio"] for row in results_of]
            spread = [
                [row["ratio"] - row["ratio_min"] for row in results_of],
                [row["ratio_max"] - row["ratio"] for row in results_of],
            ]
            at = [index + (place - len(methods) / 2 + 0.5) * 0.8 / len(methods) for index in range(len(results_of))]
            axis.bar(at, medians, 0.8 / len(methods), yerr=spread, label=method, color=COLOURS[method], ecolor="#444")
        axis.axhline(1.0, color="#444", linewidth=0.8)
        axis.set_xticks(range(len(cells)), [cell.rpartition(" ")[2] for cell in cells])
        axis.set(title=f"{name}, {head}", xlabel="requests at once", ylabel="tokens/s over plain vLLM")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=110)


def _head(cell: str) -> str:
    """`epoch 2 T=1 batch 16` without the batch."""
    return cell.rpartition(" batch ")[0]


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
