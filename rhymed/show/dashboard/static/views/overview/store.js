// The store's growth over the steps, and its size now.

import { fill, h } from "../../lib/dom.js";
import { bytes, known, number, percent, plural } from "../../lib/format.js";

export class StoreGrowth {
    /** `chart(options)` makes a chart. */
    constructor(chart) {
        this.chart = chart({
            title: "Store growth",
            unit: "",
            note: "Appears when the first step's samples are stored.",
            zero: true,
        });
        this.line = h("p", { class: "meter", hidden: true });
        this.element = this.chart.element;
        this.element.append(this.line);
    }

    /** The store's bytes if the run reports them; otherwise the generated tokens. */
    show(steps, rows) {
        let sum = 0;
        const used = {
            label: "used",
            values: rows.map((row) => row["store/used_bytes"] ?? null),
            colour: "--c3",
            unit: "bytes",
        };
        const tokens = {
            label: "response tokens generated",
            values: rows.map((row) => (sum += row["rollout/tokens"] ?? 0)),
            colour: "--c3",
            unit: "tokens",
        };
        this.chart.show(steps, [used.values.some(known) ? used : tokens]);
    }

    meter(store) {
        if (!store) return;
        const { samples, tokens, used_bytes: used, limit_bytes: limit } = store;
        this.line.hidden = samples == null && used == null;
        const bar =
            limit > 0
                ? h("meter", {
                      min: 0,
                      max: limit,
                      value: used,
                      high: limit * 0.85,
                      "aria-label": "Used part of the store",
                  })
                : "";
        fill(
            this.line,
            `${plural(samples, "sample")}, ${number(tokens)} tokens; ${bytes(used)}${limit > 0 && known(used) ? ` of ${bytes(limit)} (${percent(used / limit)})` : ""} `,
            bar,
        );
    }
}
