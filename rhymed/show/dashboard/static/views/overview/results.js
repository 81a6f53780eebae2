// What a reader asks first of a run that is over: its sums, and what it reached on held-out prompts.

import { SAVED } from "../../lib/api.js";
import { h, panel, tableOf } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { hinted } from "../../lib/scroll.js";

/** The sums of the whole run, which only a saved page has. */
export function totals() {
    if (!SAVED?.totals.length) return null;
    const fact = ([name, value]) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value));
    return panel("The whole run", "totals", h("dl", { class: "facts" }, SAVED.totals.map(fact)));
}

/** First and last value of every metric of evaluations. */
export function heldOut(evaluations) {
    if (!evaluations.length) return null;
    const [first, last] = [evaluations[0], evaluations[evaluations.length - 1]];
    const keys = [...new Set(evaluations.flatMap((row) => Object.keys(row)))]
        .filter((key) => key.startsWith("val/") && key !== "val/version")
        .sort();
    const head = ["metric", `version ${first.step}`, `version ${last.step}`];
    const row = (key) =>
        h(
            "tr",
            {},
            h("th", { scope: "row" }, key.slice("val/".length)),
            [first, last].map((row) => h("td", {}, number(row[key]))),
        );
    const table = tableOf(head, keys.map(row), { class: "held-out" });
    return panel(
        "Evaluation on held-out prompts",
        "held-out",
        hinted(h("div", { class: "scroll tall" }, table)),
    );
}
