// The Gantt chart's texts: the legend with each activity's share of the visible time, and the tooltip at a point.

import { shares } from "./timeline.js";
import { ofSpan } from "./usage.js";
import { fill, h, setText } from "../lib/dom.js";
import { clock, eventText, number, percent, seconds } from "../lib/format.js";

const NEAR = 6; // pixels from an event within which the tooltip names it

export class Legend {
    constructor() {
        this.element = h("ul", {
            class: "legend",
            "aria-label": "Activities with their share of the visible time",
        });
        this.text = "";
    }

    show(timeline, rows, from, to) {
        const { names, oldest, newest } = timeline;
        const all = from <= oldest && to >= newest;
        const sums = names.map(() => 0);
        for (const row of rows) {
            const own = all ? null : shares(row.spans, names.length, from, to);
            names.forEach((name, k) => (sums[k] += (all ? row.sums[name] : own[k]) ?? 0));
        }
        const whole = sums.reduce((a, b) => a + b, 0);
        const parts = names.map((name, k) => [name, sums[k] / whole]).filter(([, share]) => share > 0);
        const text = parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
        if (text === this.text) return;
        this.text = text;
        fill(
            this.element,
            parts.map(([name, share]) =>
                h("li", {}, swatch(timeline.activities[name]), `${name} `, h("b", {}, percent(share))),
            ),
        );
    }
}

export class Tip {
    constructor() {
        this.element = h("div", { class: "tip", hidden: true, role: "status" });
        this.point = null;
    }

    show(gantt, x, y) {
        const target = gantt.under(x, y);
        this.point = target ? [x, y] : null;
        this.element.hidden = !target;
        if (!target) return;
        fill(this.element, lines(gantt, target));
        const host = gantt.scroller;
        const wide = this.element.offsetWidth;
        const left = Math.min(host.offsetLeft + x + 14, host.offsetLeft + host.clientWidth - wide - 4);
        this.element.style.left = `${Math.max(4, left)}px`;
        this.element.style.top = `${host.offsetTop + y + 18}px`;
    }

    /** Up or down one worker, for the keyboard; starts at the middle of the visible time. */
    step(gantt, by) {
        const [x, y] = this.point ?? [
            gantt.gutter + gantt.width / 2,
            gantt.top(by > 0 ? -1 : gantt.rows.length) + gantt.height / 2,
        ];
        const to = y + by * gantt.height;
        if (gantt.under(x, to)) this.show(gantt, x, to);
    }

    /** The chart under it has changed. */
    update(gantt) {
        if (this.point) this.show(gantt, ...this.point);
    }

    hide() {
        this.point = null;
        this.element.hidden = true;
    }
}

function lines(gantt, { worker, span, time, second }) {
    const timeline = gantt.timeline();
    const pixel = second - time;
    const wide = span && pixel < span.s;
    const [from, to] = wide ? [span.t - span.s, span.t] : [time, second];
    const sums = shares(worker.spans, timeline.names.length, from, to);
    const whole = sums.reduce((a, b) => a + b, 0);
    const events = timeline.events.filter(
        (event) => (!event.worker || event.worker === worker.name) && Math.abs(event.t - time) < pixel * NEAR,
    );
    return [
        h("strong", {}, worker.name),
        h("div", { class: "muted" }, `${worker.role}${worker.host ? ` on ${worker.host}` : ""}`),
        h(
            "div",
            {},
            `${clock(from)}, ${seconds(to - from)}`,
            span?.version >= 0 ? `, version ${span.version}` : "",
            span?.speed ? `, ${number(span.speed)} tokens/s` : "",
        ),
        ofSpan(span) && h("div", { class: "muted" }, ofSpan(span)),
        whole > 0
            ? h(
                  "ul",
                  {},
                  timeline.names.map(
                      (name, k) =>
                          sums[k] > 0 &&
                          h(
                              "li",
                              {},
                              swatch(timeline.activities[name]),
                              name,
                              h("b", {}, percent(sums[k] / whole)),
                          ),
                  ),
              )
            : h("div", { class: "muted" }, "no data for this time"),
        events
            .slice(0, 4)
            .map((event) => h("div", { class: "event" }, `${clock(event.t)} ${eventText(event)}`)),
    ];
}

function swatch(colour) {
    return h("i", { class: "swatch", style: { "background-color": colour } });
}
