// A response in turns: its text run by run, the policy's and its environment's told apart, with the calls between them. Pure.

import { h } from "../../lib/dom.js";
import { number, plural, seconds, whole } from "../../lib/format.js";
import { responseText } from "../../lib/pieces.js";

/** `2 turns`, `3 calls, 1 failed`; empty for a response without an environment. */
export function sessionFacts({ session }) {
    if (!session) return [];
    const { turns, rows, calls, errors } = session;
    const failed = errors ? h("span", { class: "failed" }, `, ${whole(errors)} failed`) : null;
    return [
        h("span", {}, plural(turns, "turn")),
        rows > 1 && h("span", {}, plural(rows, "row")),
        calls > 0 && h("span", {}, plural(calls, "call"), failed),
    ].filter(Boolean);
}

/** What its environment wrote and gave. */
export function environmentSentence({ session, length }) {
    if (!session) return null;
    const share = `${whole(session.environment_tokens)} of ${plural(length, "token")} are its environment's, and are not trained`;
    return session.earned == null ? share : `${share}; it gave the reward ${number(session.earned)}`;
}

/** `pieces`: of the whole text, marked in any way; `name`: of the response, for the labels. */
export function turnsText(sample, pieces, name) {
    const parts = divided(pieces, lengths(sample));
    const last = sample.runs[sample.runs.length - 1];
    let row = 1;
    let called = [];
    const items = sample.runs.flatMap((run, at) => {
        const title = run.environment ? "Environment" : `Turn ${run.turn + 1}`;
        const begins = run.fork && rowBegins(run.fork, ++row);
        const shown = h(
            "li",
            { class: run.environment ? "turn environment" : "turn" },
            h(
                "h4",
                {},
                title,
                h("span", { class: "muted" }, plural(run.tokens, "token")),
                run.reward ? h("span", {}, `reward ${number(run.reward)}`) : null,
                run.environment && called.map(call),
            ),
            responseText(parts[at], `${name}, ${title.toLowerCase()}`),
        );
        called = run.environment ? [] : run.calls;
        return begins ? [begins, shown] : [shown];
    });
    if (!last.environment && last.calls.length)
        items.push(h("li", { class: "turn environment" }, h("h4", {}, "Environment", last.calls.map(call))));
    if (sample.loose?.length)
        items.push(h("li", { class: "turn" }, h("h4", {}, "Calls of its turns", sample.loose.map(call))));
    return h("ol", { class: "turns" }, items);
}

function rowBegins({ row, shared }, number) {
    const words = `Row ${number} begins after the first ${plural(shared, "token")} of row ${row + 1}`;
    return h("li", { class: "row-begins muted" }, words);
}

function call({ name, seconds: spent, error }) {
    return h(
        "span",
        { class: error ? "call failed" : "call", title: error ? "a call that failed" : "a call" },
        h("code", {}, name),
        spent > 0 && ` ${seconds(spent)}`,
        error && `: ${error}`,
    );
}

/** Characters of each run; where the text could not be cut, all are of the first. */
function lengths({ runs, pieces }) {
    const found = runs.map(() => 0);
    for (const { text, run } of pieces) found[run ?? 0] += text.length;
    return found;
}

/** The pieces of each run, of so many characters each; a piece of several runs is cut. */
export function divided(pieces, lengths) {
    const rest = pieces.map((piece) => ({ ...piece }));
    return lengths.map((length, at) => {
        const found = [];
        let room = length;
        const isLast = at === lengths.length - 1;
        while (rest.length && (room > 0 || isLast)) {
            const [piece] = rest;
            const size = isLast ? piece.text.length : Math.min(room, piece.text.length);
            found.push({ ...piece, text: piece.text.slice(0, size) });
            piece.text = piece.text.slice(size);
            room -= size;
            if (!piece.text) rest.shift();
        }
        return found;
    });
}
