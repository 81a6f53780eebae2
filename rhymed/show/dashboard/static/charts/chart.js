// A line chart: title, legend with values, drag to zoom, logarithmic scale. Owns one uPlot each. What is drawn comes as
// columns; a missing number is null and leaves a gap. Charts of one group share the cursor and the zoom.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { fill, onFrame, h, setText, set } from "../lib/dom.js";
import { known, withUnit } from "../lib/format.js";
import { onTheme } from "../lib/theme.js";
import { few, plotOptions } from "./plot.js";

/** Charts that zoom together and share the cursor. */
export class ZoomGroup {
    charts = new Set();
    key = `group-${Math.random().toString(36).slice(2)}`;

    zoom(from, to) {
        for (const chart of this.charts) chart.zoom(from, to);
    }
}

/** The figure of a chart: `tools` are next to its title, the rest is below. */
export function framed({ title, unit }, tools, ...below) {
    const heading = h("h3", {}, title, unit ? h("small", {}, ` ${unit}`) : "");
    return h(
        "figure",
        { class: "panel chart", "data-chart": title, "aria-label": title },
        h("figcaption", {}, heading, ...tools),
        ...below,
    );
}

export function logButton(onclick) {
    const options = {
        type: "button",
        class: "small",
        "aria-pressed": "false",
        title: "Logarithmic scale",
        onclick,
    };
    return h("button", options, "log");
}

export class Chart {
    /**
     * `options`: title, unit, note (shown while there is no point), absent (shown while no point has a value), optional
     * (hidden while no point has a value), stack, zero, height, whole (false: x is fractional), group, under(u, pen), at: x -> its name (a step, if not given).
     */
    constructor(options) {
        this.options = options;
        this.log = false;
        this.hidden = new Set();
        this.range = null; // [from, to] of x; null: all
        this.data = null;
        this.legend = h("div", { class: "keys" });
        this.host = h("div", { class: "plot", role: "img", "aria-label": options.title });
        this.none = h("p", { class: "none" }, options.note);
        this.at = h("span", { class: "at muted" });
        this.logButton = logButton(() => this.toggleLog());
        this.allButton = h(
            "button",
            { type: "button", class: "small", hidden: true, onclick: () => this.everything() },
            "show all",
        );
        const tools = [this.at, this.allButton, options.stack ? "" : this.logButton];
        this.element = framed(options, tools, this.legend, this.host, this.none);
        options.group?.charts.add(this);
        this.draw = onFrame(() => this.paint());
        this.leave = onTheme(() => this.plot?.redraw(false));
        new ResizeObserver(() => this.fit()).observe(this.host);
    }

    /** `series`: [{label, values, colour: "--c1", unit, dash, width, points}], each as long as `xs`. */
    show(xs, series) {
        const fresh = { xs, series: series.filter((curve) => curve.values.some((value) => value != null)) };
        const same =
            this.data &&
            this.data.series.length === fresh.series.length &&
            this.data.series.every((curve, i) => alike(curve, fresh.series[i]));
        this.data = fresh;
        if (!same) this.destroy();
        this.draw();
    }

    paint() {
        const { xs, series } = this.data ?? { xs: [], series: [] };
        const some = xs.length > 0 && series.length > 0;
        this.none.hidden = some;
        if (this.options.optional) this.element.hidden = !some;
        setText(
            this.none,
            xs.length > 0
                ? (this.options.absent ?? "No step of this run has reported this yet.")
                : this.options.note,
        );
        this.host.hidden = this.legend.hidden = !some;
        this.logButton.hidden = !some;
        if (!some) {
            this.destroy();
            return;
        }
        this.stale = !this.host.clientWidth; // not visible: the observer calls again
        if (this.stale) return;
        const data = [xs, ...this.columns()];
        if (this.plot) this.plot.setData(data, this.range == null);
        else this.build(data);
        if (this.range) this.plot.setScale("x", { min: this.range[0], max: this.range[1] });
        this.showValues(null);
        set(this.host, { "aria-label": `${this.options.title}, ${xs.length} points. ${this.summary()}` });
    }

    build(data) {
        fill(
            this.legend,
            this.data.series.map((curve, i) => this.entry(curve, i)),
        );
        this.values = [...this.legend.querySelectorAll("b")];
        const options = plotOptions(this.options, this.data.series, { log: this.log, hidden: this.hidden });
        options.width = this.host.clientWidth;
        options.hooks = {
            setCursor: [(u) => this.showValues(u.cursor.idx)],
            setSelect: [(u) => this.selected(u)],
            drawClear: [(u) => this.options.under?.(u, u.ctx)],
        };
        this.plot = new uPlot(options, data, this.host);
        this.plot.over.addEventListener("dblclick", () => this.everything());
    }

    entry(curve, i) {
        const toggle = () => {
            this.hidden[this.hidden.has(curve.label) ? "delete" : "add"](curve.label);
            button.setAttribute("aria-pressed", String(!this.hidden.has(curve.label)));
            if (this.options.stack) this.plot.setData([this.data.xs, ...this.columns()], this.range == null);
            this.plot?.setSeries(i + 1, { show: !this.hidden.has(curve.label) });
        };
        const line = h("i", {
            class: curve.dash ? "line dashed" : "line",
            style: { "--line": `var(${curve.colour})` },
        });
        const button = h(
            "button",
            {
                type: "button",
                class: "key",
                "aria-pressed": String(!this.hidden.has(curve.label)),
                title: `Show or hide ${curve.label}`,
                onclick: toggle,
            },
            line,
            h("span", {}, curve.label),
            h("b", {}),
        );
        return button;
    }

    /** Values as drawn: stacked, or on a logarithmic scale only those above 0. */
    columns() {
        const { series } = this.data;
        if (this.log) return series.map((curve) => curve.values.map((value) => (value > 0 ? value : null)));
        if (!this.options.stack) return series.map((curve) => curve.values);
        let sums = series[0].values.map(() => 0);
        return series.map((curve) => {
            if (!this.hidden.has(curve.label)) sums = sums.map((sum, i) => sum + (curve.values[i] ?? 0));
            return sums;
        });
    }

    showValues(index) {
        const { xs, series } = this.data;
        const name = this.options.at ?? ((x) => `step ${x}`);
        setText(this.at, index == null ? "" : name(xs[index]));
        series.forEach((curve, i) => {
            const value = index == null ? lastOf(curve.values) : curve.values[index];
            if (this.values?.[i]) setText(this.values[i], withUnit(value, curve.unit ?? this.options.unit));
        });
    }

    summary() {
        return this.data.series
            .map(
                (curve) =>
                    `${curve.label}: last ${withUnit(lastOf(curve.values), curve.unit ?? this.options.unit)}`,
            )
            .join("; ");
    }

    selected(u) {
        if (u.select.width < 4) return;
        const from = u.posToVal(u.select.left, "x");
        const to = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        (this.options.group ?? this).zoom(from, to);
    }

    zoom(from, to) {
        this.range = from == null ? null : [from, to];
        this.allButton.hidden = this.range == null;
        this.draw();
    }

    everything() {
        (this.options.group ?? this).zoom(null, null);
    }

    toggleLog() {
        this.log = !this.log;
        this.logButton.setAttribute("aria-pressed", String(this.log));
        this.destroy();
        this.draw();
    }

    fit() {
        if (!this.host.clientWidth) return;
        if (!this.plot || this.stale) this.draw();
        else if (this.plot.width !== this.host.clientWidth)
            this.plot.setSize({ width: this.host.clientWidth, height: this.plot.height });
    }

    destroy() {
        this.plot?.destroy();
        this.plot = null;
    }

    close() {
        this.destroy();
        this.leave();
        this.options.group?.charts.delete(this);
        this.element.remove();
    }
}

function lastOf(values) {
    return values.findLast(known);
}

/** Whether the plot can be kept. */
function alike(a, b) {
    return (
        a.label === b.label &&
        a.colour === b.colour &&
        a.unit === b.unit &&
        a.points === b.points &&
        few(a) === few(b)
    );
}
