// Metrics of metrics.jsonl: several in one chart, or one of them with its epochs overlaid. Owns the choice, which is also in
// the address.

import { Chart } from "../charts/chart.js";
import { boundaries } from "../charts/plot.js";
import { fill, h, option } from "../lib/dom.js";
import { unit } from "../lib/format.js";
import { go, link } from "../lib/route.js";

const MOST = 8; // curves in one chart: there are no more colours
const LEFT_OUT = new Set(["step", "time"]);

export class Metrics {
    constructor(host, state) {
        this.state = state;
        this.chosen = ["reward/mean"];
        this.search = h("input", {
            type: "search",
            placeholder: "Filter metrics",
            "aria-label": "Filter metrics",
            oninput: () => this.list(),
        });
        this.by = h(
            "select",
            { "aria-label": "X axis", onchange: () => this.changed() },
            option("step", "over steps"),
            option("time", "over time, hours"),
            option("epoch", "epochs overlaid"),
        );
        this.names = h("fieldset", { class: "names" }, h("legend", { class: "unseen" }, "Metrics"));
        this.plot = h("div", {});
        this.status = h("p", { class: "muted hint" });
        fill(
            host,
            h(
                "div",
                { class: "picker" },
                h(
                    "div",
                    { class: "panel side" },
                    h("div", { class: "bar" }, this.search, this.by),
                    this.names,
                    this.status,
                ),
                this.plot,
            ),
        );
        state.on("steps", () => this.refresh());
        this.refresh();
    }

    show({ query }) {
        if (query.has("m")) this.chosen = query.get("m").split(",").filter(Boolean).slice(0, MOST);
        if ([...this.by.options].some((entry) => entry.value === query.get("by")))
            this.by.value = query.get("by");
        this.key = "";
        this.refresh();
    }

    changed() {
        go(
            link("metrics", [], {
                m: this.chosen.join(","),
                by: this.by.value === "step" ? "" : this.by.value,
            }),
            true,
        );
        this.refresh();
    }

    refresh() {
        const names = new Set();
        for (const row of [...this.state.steps, ...this.state.evaluations])
            for (const name of Object.keys(row)) if (typeof row[name] === "number") names.add(name);
        const all = [...names].filter((name) => !LEFT_OUT.has(name)).sort();
        if (all.join() !== this.key) {
            this.key = all.join();
            this.all = all;
            this.list();
        }
        this.status.textContent = all.length
            ? `${this.chosen.length} of ${all.length} chosen (at most ${MOST}); each unit has its own scale`
            : "Metrics appear here when the first step has been trained.";
        this.draw();
    }

    list() {
        const words = this.search.value.toLowerCase().split(/\s+/);
        const matching = this.all.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
        const box = (name) =>
            h(
                "label",
                {},
                h("input", {
                    type: "checkbox",
                    value: name,
                    checked: this.chosen.includes(name),
                    onchange: (event) => this.pick(name, event.target),
                }),
                h("span", {}, name),
            );
        fill(
            this.names,
            this.names.firstChild,
            [
                ...matching.filter((name) => this.chosen.includes(name)),
                ...matching.filter((name) => !this.chosen.includes(name)),
            ].map(box),
            matching.length || !this.all.length
                ? null
                : h("p", { class: "none" }, "No metric name contains these words."),
        );
    }

    pick(name, box) {
        if (!box.checked) this.chosen = this.chosen.filter((other) => other !== name);
        else if (this.chosen.length < MOST) this.chosen = [...this.chosen, name];
        else box.checked = false;
        this.changed();
    }

    draw() {
        const by = this.by.value;
        const title = by === "epoch" ? (this.chosen[this.chosen.length - 1] ?? "Metrics") : "Metrics";
        const key = `${title} ${by} ${this.chosen}`;
        if (!this.chart || this.drawn !== key) {
            this.chart?.close();
            this.drawn = key;
            const under = by === "step" ? boundaries(() => this.state.epochs) : undefined;
            this.chart = new Chart({
                title,
                unit: units(this.chosen),
                note: "Choose a metric that this run has.",
                height: 380,
                under,
                whole: by !== "time",
                separate: true,
            });
            fill(this.plot, this.chart.element);
        }
        if (by === "epoch") this.chart.show(...this.epochs());
        else this.chart.show(...this.columns(by));
    }

    columns(by) {
        const rows = new Map(); // x -> merged row; an evaluation is placed at its version
        const begin = Math.min(
            ...[this.state.steps[0], this.state.evaluations[0]].map((row) => row?.time ?? Infinity),
        );
        const place = (row, x) => rows.set(x, { ...row, ...(rows.get(x) ?? {}) });
        for (const row of this.state.steps)
            place(row, by === "time" ? (row.time - begin) / 3600 : row.step + 1);
        for (const row of this.state.evaluations)
            place(row, by === "time" ? (row.time - begin) / 3600 : row.step);
        const xs = [...rows.keys()].filter(Number.isFinite).sort((a, b) => a - b);
        return [
            xs,
            this.chosen.map((name, i) => ({
                label: name,
                values: xs.map((x) => rows.get(x)[name] ?? null),
                colour: `--c${i + 1}`,
                unit: unit(name),
            })),
        ];
    }

    /** The metric chosen last: one curve per epoch over the steps within it; the newest epoch is the thickest. */
    epochs() {
        const name = this.chosen[this.chosen.length - 1];
        const groups = new Map();
        for (const row of this.state.steps) {
            const epoch = row["training/epoch"];
            if (epoch != null) groups.set(epoch, [...(groups.get(epoch) ?? []), row[name] ?? null]);
        }
        const shown = [...groups].slice(-MOST);
        const longest = Math.max(0, ...shown.map(([, values]) => values.length));
        const xs = Array.from({ length: longest }, (_, i) => i + 1);
        return [
            xs,
            shown.map(([epoch, values], i) => ({
                label: `epoch ${epoch}`,
                values: xs.map((x) => values[x - 1] ?? null),
                colour: `--c${i + 1}`,
                unit: unit(name ?? ""),
                width: i === shown.length - 1 ? 2.5 : 1.5,
            })),
        ];
    }
}

function units(names) {
    const all = new Set(names.map(unit));
    return all.size === 1 ? [...all][0] : "";
}
