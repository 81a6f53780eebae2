// A table of responses: one column per epoch or per run, one row per response.

import { h } from "../../lib/dom.js";
import { hinted } from "../../lib/scroll.js";
import { finish, parts, reward } from "./response.js";

/** `heads`: [name, facts] of each column; `rows`: the cells of each. */
export function grid(label, heads, rows) {
    const titles = heads.map(([name, facts]) =>
        h("div", { role: "columnheader" }, h("strong", {}, name), h("span", { class: "muted" }, facts)),
    );
    const table = h(
        "div",
        { class: "matrix", role: "table", "aria-label": label, style: { "--columns": heads.length } },
        h("div", { class: "matrix-row head", role: "row" }, titles),
        rows.map((cells) => h("div", { class: "matrix-row", role: "row" }, cells)),
    );
    return hinted(h("div", { class: "scroll" }, table));
}

/** `facts`: more elements for the head; `lacking`: what is shown if there is no text. */
export function card(sample, { href, label = null, facts = [], lacking = "" }) {
    const name = h("b", {}, `#${sample.index + 1}`);
    return h(
        "div",
        { class: "card", role: "cell" },
        h(
            "a",
            { class: "card-link", href, "aria-label": label, title: sample.id },
            h("div", { class: "card-head" }, name, reward(sample), parts(sample), facts, finish(sample)),
            h(
                "div",
                { class: "card-text", dir: "auto" },
                sample.text ?? h("span", { class: "muted" }, lacking),
            ),
        ),
    );
}

export function absent(text) {
    return h("div", { class: "card absent", role: "cell" }, h("span", { class: "muted" }, text));
}

/** Of the rewards that are known; null: there is none. */
export function meanReward(samples) {
    const rewards = samples.map((sample) => sample.reward).filter((reward) => reward != null);
    return rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
}
