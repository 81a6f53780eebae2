// The settings in which the chosen runs differ, as a table: one row per key, one column per run.

import { empty, fill, h } from "../lib/dom.js";
import { hinted } from "../lib/scroll.js";

export class Settings {
    constructor(host, state) {
        Object.assign(this, { host, state });
        state.on("runs chosen", () => this.paint());
    }

    paint() {
        const { ids, listing } = this.state;
        const rows = (listing?.settings ?? [])
            .map(({ key, values }) => [key, ids.map((id) => written(values[id]))])
            .filter(([, values]) => new Set(values).size > 1);
        const key = JSON.stringify([ids, rows, ids.map((id) => this.state.colour(id))]);
        if (key === this.shown) return;
        this.shown = key;
        if (!rows.length) {
            const text =
                ids.length < 2 ? "Choose two runs or more in the list above." : "All settings are the same.";
            fill(this.host, empty("No difference", text));
            return;
        }
        fill(
            this.host,
            h(
                "section",
                { class: "panel", "aria-label": "Settings that differ" },
                hinted(h("div", { class: "scroll" }, this.table(ids, rows))),
            ),
        );
    }

    table(ids, rows) {
        return h(
            "table",
            { class: "differences" },
            h(
                "thead",
                {},
                h(
                    "tr",
                    {},
                    h("th", { scope: "col" }, "Setting"),
                    ids.map((id) => h("th", { scope: "col" }, heading(this.state, id))),
                ),
            ),
            h(
                "tbody",
                {},
                rows.map(([key, values]) =>
                    h(
                        "tr",
                        {},
                        h("th", { scope: "row" }, h("code", {}, key)),
                        values.map((value) => h("td", {}, h("code", {}, value))),
                    ),
                ),
            ),
        );
    }
}

/** A run's name with the colour of its curves. */
export function heading(state, id) {
    return h(
        "span",
        { class: "pick" },
        h("i", { class: "line", style: { "--line": `var(${state.colour(id)})` } }),
        h("span", { class: "run-name" }, state.name(id)),
    );
}

function written(value) {
    if (value == null) return "–";
    return typeof value === "string" ? value || "“”" : JSON.stringify(value);
}
