// Metrics of metrics.jsonl as small charts with a common x axis: one for each metric, or one for each unit. Owns the choice,
// which is also in the address.

import { Chart, ZoomGroup } from "../../charts/chart.js";
import { boundaries } from "../../charts/plot.js";
import { fill, h, option, set } from "../../lib/dom.js";
import { unit } from "../../lib/format.js";
import { go, link } from "../../lib/route.js";
import { byUnit, COLOURS, csv, curve, overlaid, table } from "./columns.js";

const LEFT_OUT = new Set(["step", "time"]);
const ALONE = 380; // pixels of the only chart
const ONE_OF_MANY = 200;

export class Metrics {
    constructor(host, state) {
        this.state = state;
        this.chosen = ["reward/mean"];
        this.charts = new Map(); // key -> Chart
        this.group = new ZoomGroup();
        this.search = h("input", {
            type: "search",
            placeholder: "Filter metrics",
            "aria-label": "Filter metrics",
            oninput: () => this.list(),
        });
        const choice = (label, ...options) =>
            h("select", { "aria-label": label, onchange: () => this.changed() }, options);
        this.by = choice(
            "X axis",
            option("step", "over steps"),
            option("time", "over time, hours"),
            option("epoch", "epochs overlaid"),
        );
        this.layout = choice("Charts", option("", "one chart each"), option("unit", "one chart per unit"));
        this.smooth = h("input", { type: "checkbox", onchange: () => this.changed() });
        this.names = h("fieldset", { class: "names" }, h("legend", { class: "unseen" }, "Metrics"));
        this.plot = h("div", { class: "multiples" });
        this.status = h("p", { class: "muted hint" });
        fill(host, this.picker());
        state.on("steps", () => this.refresh());
        this.refresh();
    }

    picker() {
        return h(
            "div",
            { class: "picker" },
            h(
                "div",
                { class: "panel side" },
                h("div", { class: "bar" }, this.search),
                h("div", { class: "bar" }, this.by, this.layout),
                h(
                    "div",
                    { class: "bar" },
                    h("label", { class: "choice" }, this.smooth, "mean of 5"),
                    h("span", { class: "grow" }),
                    h("button", { type: "button", class: "small", onclick: () => this.save() }, "CSV"),
                ),
                this.names,
                this.status,
            ),
            this.plot,
        );
    }

    show({ query }) {
        if (query.has("m")) this.chosen = query.get("m").split(",").filter(Boolean).slice(0, COLOURS);
        for (const [select, name] of [
            [this.by, "by"],
            [this.layout, "charts"],
        ])
            if ([...select.options].some((entry) => entry.value === query.get(name)))
                select.value = query.get(name);
        if (query.has("smooth")) this.smooth.checked = query.get("smooth") === "1";
        this.key = "";
        this.refresh();
    }

    changed() {
        const query = {
            m: this.chosen.join(","),
            by: this.by.value === "step" ? "" : this.by.value,
            charts: this.layout.value,
            smooth: this.smooth.checked ? "1" : "",
        };
        go(link("metrics", [], query), true);
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
            ? `${this.chosen.length} of ${all.length} chosen (at most ${COLOURS})`
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
        else if (this.chosen.length < COLOURS) this.chosen = [...this.chosen, name];
        else box.checked = false;
        this.changed();
    }

    draw() {
        const by = this.by.value;
        const groups =
            this.layout.value === "unit" && by !== "epoch"
                ? byUnit(this.chosen).map(([of, names]) => [of ? `In ${of}` : "Without a unit", of, names])
                : this.chosen.map((name) => [name, unit(name), [name]]);
        const height = groups.length > 1 ? ONE_OF_MANY : ALONE;
        const wanted = new Map(groups.map((group) => [`${group[0]} ${by} ${height}`, group]));
        for (const [key, chart] of this.charts)
            if (!wanted.has(key)) {
                chart.close();
                this.charts.delete(key);
            }
        const rows = by === "epoch" ? null : table(this.state, by);
        for (const [key, [title, of, names]] of wanted) {
            if (!this.charts.has(key)) this.charts.set(key, this.chart(title, of, by, height));
            this.charts.get(key).show(...this.data(rows, names));
        }
        const shown = [...wanted.keys()].map((key) => this.charts.get(key).element);
        if (shown.some((element, i) => this.plot.children[i] !== element)) fill(this.plot, shown);
        set(this.plot, { "data-count": String(shown.length) });
    }

    chart(title, of, by, height) {
        return new Chart({
            title,
            unit: of,
            note: "Choose a metric that this run has.",
            absent:
                by === "epoch"
                    ? "No step has this: an evaluation belongs to a policy version. Choose another x axis."
                    : undefined,
            height,
            group: this.group,
            under: by === "step" ? boundaries(() => this.state.epochs) : undefined,
            whole: by !== "time",
            at: { time: (x) => `after ${x.toFixed(2)} h`, epoch: (x) => `step ${x} of the epoch` }[by],
        });
    }

    data(rows, names) {
        const smooth = this.smooth.checked;
        if (!rows) return overlaid(this.state.steps, names[0], smooth);
        const place = (name) => this.chosen.indexOf(name);
        return [rows.xs, names.map((name) => curve(name, rows.of(name), place(name), smooth))];
    }

    /** The chosen metrics as a file, over steps or over time. */
    save() {
        const by = this.by.value === "time" ? "time" : "step";
        const text = csv(table(this.state, by), this.chosen, by === "time" ? "hours" : "step (from 1)");
        const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
        h("a", { href: address, download: `${this.state.run?.name ?? "metrics"}.csv` }).click();
        setTimeout(() => URL.revokeObjectURL(address), 1000);
    }
}
