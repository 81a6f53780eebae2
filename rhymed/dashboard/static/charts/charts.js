// A line chart: title, legend with values, drag to zoom, logarithmic scale. Owns one uPlot each. What is drawn comes as
// columns; a missing number is null and leaves a gap. Charts of one group share the cursor and the zoom.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { fill, framed, h, say, set } from "../lib/dom.js";
import { bytes, known, number, withUnit } from "../lib/format.js";
import { colour, onTheme } from "../lib/theme.js";

const HEIGHT = 190;
const GRID = 0.6;
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 9 }, (_, power) => digit * 10 ** power)).sort((one, other) => one - other);

/** Charts that are looked at together. */
export class Group {
  charts = new Set();
  key = `group-${Math.random().toString(36).slice(2)}`;

  zoom(from, to) {
    for (const chart of this.charts) chart.zoom(from, to);
  }
}

export class Chart {
  /** `options`: title, unit, note (when there is no point), absent (when no point has a value), stack, zero, height, whole (x: false where not), separate (a scale a unit), group, under(u, pen). */
  constructor(options) {
    this.options = options;
    this.log = false;
    this.off = new Set();
    this.range = null; // [from, to] of x; null: all
    this.given = null;
    this.legend = h("div", { class: "keys" });
    this.host = h("div", { class: "plot" });
    this.none = h("p", { class: "none" }, options.note);
    this.logButton = h("button", { type: "button", class: "small", "aria-pressed": "false", title: "Logarithmic scale", onclick: () => this.toggleLog() }, "log");
    this.allButton = h("button", { type: "button", class: "small", hidden: true, onclick: () => this.everything() }, "show all");
    this.element = h("figure", { class: "panel chart", "data-chart": options.title },
      h("figcaption", {}, h("h3", {}, options.title, options.unit ? h("small", {}, ` ${options.unit}`) : ""), this.allButton, options.stack ? "" : this.logButton),
      this.legend, this.host, this.none);
    options.group?.charts.add(this);
    this.draw = framed(() => this.paint());
    onTheme(() => this.plot?.redraw(false));
    new ResizeObserver(() => this.fit()).observe(this.host);
  }

  /** `series`: [{label, values, colour: "--c1", unit, dash, width, points}], each as long as `xs`. */
  show(xs, series) {
    const fresh = { xs, series: series.filter((one) => one.values.some((value) => value != null)) };
    const same = this.given && this.given.series.length === fresh.series.length && this.given.series.every((one, i) => alike(one, fresh.series[i]));
    this.given = fresh;
    if (!same) this.forget();
    this.draw();
  }

  paint() {
    const { xs, series } = this.given ?? { xs: [], series: [] };
    const some = xs.length > 0 && series.length > 0;
    this.none.hidden = some;
    say(this.none, xs.length > 0 ? this.options.absent ?? "No step of this run has told this so far." : this.options.note);
    this.host.hidden = this.legend.hidden = !some;
    this.logButton.hidden = !some;
    if (!some) {
      this.forget();
      return;
    }
    this.stale = !this.host.clientWidth; // not in sight: the observer comes back
    if (this.stale) return;
    const data = [xs, ...this.columns()];
    if (this.plot) this.plot.setData(data, this.range == null);
    else this.build(data);
    if (this.range) this.plot.setScale("x", { min: this.range[0], max: this.range[1] });
    this.tell(null);
    set(this.element, { "aria-label": `${this.options.title}, ${xs.length} points. ${this.summary()}` });
  }

  build(data) {
    fill(this.legend, this.given.series.map((one, i) => this.entry(one, i)));
    this.values = [...this.legend.querySelectorAll("b")];
    const { group } = this.options;
    this.plot = new uPlot({
      width: this.host.clientWidth,
      height: this.options.height ?? HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, y: false, points: { size: 7 }, ...(group ? { sync: { key: group.key, scales: ["x", null] } } : {}) },
      scales: { x: { time: false, range: (u, min, max) => (u.data[0].length === 1 ? [u.data[0][0] - 0.5, u.data[0][0] + 0.5] : [min, max]) },
        ...Object.fromEntries(this.scales().map((key) => [key, { distr: this.log ? 3 : 1, range: this.log ? undefined : (u, min, max) => roomy(min, max, this.options) }])) },
      axes: [this.axis({ size: 26, space: 56, ...(this.options.whole === false ? {} : { incrs: WHOLE }), values: (u, ticks) => ticks.map(number) }), ...this.scales().slice(0, 2).map((key, i) => this.ordinate(key, i))],
      series: [{}, ...this.given.series.map((one) => this.line(one))],
      bands: this.options.stack ? this.given.series.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [],
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx)], setSelect: [(u) => this.selected(u)], drawClear: [(u) => this.under(u)] },
    }, data, this.host);
    this.plot.over.addEventListener("dblclick", () => this.everything());
  }

  /** A scale for all curves; with `separate` one for each unit, and the first two have an axis. */
  scales() {
    return this.options.separate ? [...new Set(this.given.series.map(scaleOf))] : ["y"];
  }

  ordinate(key, i) {
    const unit = this.options.separate ? key.slice(2) : this.given.series[0].unit ?? this.options.unit;
    return this.axis({ scale: key, side: i ? 1 : 3, size: 50, ...(unit === "bytes" ? { incrs: POWERS } : {}), ...(i ? { grid: { show: false } } : {}),
      values: (u, ticks) => ticks.map((tick) => (tick == null ? "" : ticked(tick, unit))) });
  }

  line(one) {
    return {
      scale: this.options.separate ? scaleOf(one) : "y",
      label: one.label,
      show: !this.off.has(one.label),
      stroke: () => colour(one.colour),
      width: one.width ?? 1.75,
      dash: one.dash,
      fill: this.options.stack ? () => `${colour(one.colour)}a0` : undefined,
      points: { show: one.points || alone(one), size: 6, fill: () => colour(one.colour) },
      spanGaps: true,
    };
  }

  axis(more) {
    return { stroke: () => colour("--muted"), grid: { stroke: () => colour("--grid"), width: GRID }, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}`, ...more };
  }

  entry(one, i) {
    const toggle = () => {
      this.off[this.off.has(one.label) ? "delete" : "add"](one.label);
      button.setAttribute("aria-pressed", String(!this.off.has(one.label)));
      if (this.options.stack) this.plot.setData([this.given.xs, ...this.columns()], this.range == null);
      this.plot?.setSeries(i + 1, { show: !this.off.has(one.label) });
    };
    const line = h("i", { class: one.dash ? "line dashed" : "line", style: { "--line": `var(${one.colour})` } });
    const button = h("button", { type: "button", class: "key", "aria-pressed": String(!this.off.has(one.label)), title: `Show or hide ${one.label}`, onclick: toggle }, line, h("span", {}, one.label), h("b", {}));
    return button;
  }

  /** Values as they are drawn: stacked ones on top of each other; on a logarithmic scale only what is above 0. */
  columns() {
    const { series } = this.given;
    if (this.log) return series.map((one) => one.values.map((value) => (value > 0 ? value : null)));
    if (!this.options.stack) return series.map((one) => one.values);
    let sums = series[0].values.map(() => 0);
    return series.map((one) => {
      if (!this.off.has(one.label)) sums = sums.map((sum, i) => sum + (one.values[i] ?? 0));
      return sums;
    });
  }

  tell(index) {
    const { series } = this.given;
    series.forEach((one, i) => {
      const value = index == null ? lastOf(one.values) : one.values[index];
      if (this.values?.[i]) say(this.values[i], withUnit(value, one.unit ?? this.options.unit));
    });
  }

  summary() {
    return this.given.series.map((one) => `${one.label}: last ${withUnit(lastOf(one.values), one.unit ?? this.options.unit)}`).join("; ");
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
    this.forget();
    this.draw();
  }

  under(u) {
    this.options.under?.(u, u.ctx);
  }

  fit() {
    if (!this.host.clientWidth) return;
    if (!this.plot || this.stale) this.draw();
    else if (this.plot.width !== this.host.clientWidth) this.plot.setSize({ width: this.host.clientWidth, height: this.plot.height });
  }

  forget() {
    this.plot?.destroy();
    this.plot = null;
  }

  /** It will not be shown again. */
  close() {
    this.forget();
    this.options.group?.charts.delete(this);
    this.element.remove();
  }
}

/** Thin lines where epochs begin, for charts over steps; `epochs` is asked at every drawing. */
export function boundaries(epochs, most = 40) {
  return (u, pen) => {
    const begins = epochs().slice(1).map((epoch) => epoch.first_step + 0.5);
    if (begins.length > most) return;
    pen.save();
    pen.strokeStyle = colour("--edge");
    pen.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const begin of begins) {
      const x = Math.round(u.valToPos(begin, "x", true));
      if (x <= u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      pen.beginPath();
      pen.moveTo(x, u.bbox.top);
      pen.lineTo(x, u.bbox.top + u.bbox.height);
      pen.stroke();
    }
    pen.restore();
  };
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i--) if (known(values[i])) return values[i];
  return undefined;
}

/** Some air above and below; from 0 where the values are near to it or the chart says so. */
function roomy(min, max, { stack, zero }) {
  if (min == null) return [0, 1];
  const size = max - min || Math.abs(max) || 1;
  const low = stack || zero || (min >= 0 && min < 0.4 * max) ? Math.min(0, min) : min - size * 0.08;
  return [low, max + (max - low || 1) * 0.06];
}

function ticked(value, unit) {
  if (unit === "share") return `${number(value * 100)} %`;
  return unit === "bytes" ? bytes(value) : number(value);
}

function scaleOf(one) {
  return `y ${one.unit ?? ""}`;
}

function alike(one, other) {
  return one.label === other.label && one.colour === other.colour && one.unit === other.unit && one.points === other.points && alone(one) === alone(other);
}

/** So few values that a line would not be seen. */
function alone(one) {
  return one.values.filter(known).length < 3;
}
