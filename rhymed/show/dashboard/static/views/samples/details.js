// What belongs to a prompt: its text, the columns of its row, and how its reward and length changed over the epochs.

import { Chart } from "../../charts/chart.js";
import { h } from "../../lib/dom.js";
import { EVALUATION, whole } from "../../lib/format.js";
import { responseText } from "../../lib/pieces.js";

const LONGEST = 5_000; // characters of a column

export function promptText(text) {
    if (text == null) return h("p", { class: "muted" }, "The prompt's row is not in the store.");
    return h(
        "details",
        { class: "panel prompt", open: true },
        h("summary", {}, "Prompt"),
        responseText([{ text, drafted: null }], "Text of the prompt"),
    );
}

/** The prompt of a response in turns, as the policy read it: its environment wrote it. */
export function readText({ read }) {
    if (read == null) return null;
    return h(
        "details",
        { class: "panel prompt" },
        h("summary", {}, "Prompt as the policy read it, with its tools"),
        responseText([{ text: read, drafted: null }], "Prompt as the policy read it"),
    );
}

/** The reference answer, if a column has one, and below it all columns. */
export function rowColumns({ row, answer }) {
    const names = Object.keys(row ?? {});
    if (!names.length) return null;
    const table = h(
        "table",
        { "aria-label": "Columns of the row" },
        h(
            "tbody",
            {},
            names.map((name) =>
                h("tr", {}, h("th", { scope: "row" }, name), h("td", { dir: "auto" }, written(row[name]))),
            ),
        ),
    );
    return h(
        "details",
        { class: "panel prompt columns" },
        h(
            "summary",
            {},
            answer == null ? "Row" : ["Right answer: ", h("b", { class: "answer" }, written(answer))],
            h("small", {}, ` ${names.length === 1 ? "1 column" : `${names.length} columns`}`),
        ),
        table,
    );
}

function written(value) {
    const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
    return text.length > LONGEST ? `${text.slice(0, LONGEST)}… (${whole(text.length)} characters)` : text;
}

/** Charts of the mean reward and length over the prompt's epochs; for a held-out prompt, over policy versions. To be closed. */
export function learningCurve({ epochs }) {
    const trained = epochs.filter(({ step }) => step >= 0 && step < EVALUATION);
    const evaluated = epochs.filter(({ step }) => step >= EVALUATION);
    const shown = trained.length ? trained : evaluated;
    if (shown.length < 2) return [];
    const xs = shown.map(({ epoch, step }) => (trained.length ? epoch + 1 : step - EVALUATION));
    const at = (x) => (trained.length ? `epoch ${x}` : `version ${x}`);
    const known = (key) =>
        shown.map(({ samples }) => samples.map((sample) => sample[key]).filter((value) => value != null));
    const over = trained.length ? "by epoch" : "by policy version";
    const chart = (title, unit, curves) => {
        const made = new Chart({
            title,
            unit,
            height: 110,
            note: "",
            at,
            absent: "No response has one yet.",
        });
        made.show(xs, curves);
        return made;
    };
    const [rewards, lengths] = [known("reward"), known("length")];
    return [
        chart(`Reward ${over}`, "", [
            curve("mean", rewards.map(mean), "--c1", { width: 2.5, points: true }),
            curve("best", rewards.map(extreme(Math.max)), "--c3", { dash: [6, 4], width: 1 }),
            curve("worst", rewards.map(extreme(Math.min)), "--c4", { dash: [2, 3], width: 1 }),
        ]),
        chart(`Length ${over}`, "tokens", [
            curve("mean", lengths.map(mean), "--c1", { width: 2.5, points: true }),
        ]),
    ];
}

function curve(label, values, colour, more) {
    return { label, values, colour, ...more };
}

function mean(values) {
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function extreme(of) {
    return (values) => (values.length ? of(...values) : null);
}
