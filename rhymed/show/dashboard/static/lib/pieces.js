// A response's text with parts of it marked: accepted drafts, differences, or each token by a number. A response may have 100,000 tokens, so the page gets a part at a time. Text
// is only inserted as text.

import { h, setText } from "./dom.js";
import { percent, plural, whole } from "./format.js";

const PART_CHARACTERS = 40_000;
const PART_PIECES = 3_000;

/** An element with the text, growing on demand. `pieces`: [{text, and one of drafted (true: an accepted draft), changed, shade (0 to 1) with a title}]. */
export function responseText(pieces, label) {
    const text = h("pre", {
        class: "response",
        role: "group",
        tabindex: "0",
        "aria-label": label,
        dir: "auto",
    });
    const status = h("span", { class: "muted" });
    const more = h("button", { type: "button", onclick: () => grow() }, "Show more");
    const bar = h("div", { class: "bar more" }, more, status);
    const total = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
    let shown = 0;
    let rest = pieces;

    function grow() {
        const [now, later] = part(rest);
        text.append(...now.map(mark));
        shown += now.reduce((sum, piece) => sum + piece.text.length, 0);
        rest = later;
        bar.hidden = rest.length === 0;
        setText(status, `${whole(shown)} of ${whole(total)} characters are shown`);
    }

    grow();
    if (!total) text.append(h("span", { class: "muted" }, "(an empty response)"));
    return h("div", {}, text, bar);
}

/** How many tokens of a sample were accepted drafts. */
export function draftedSentence(row) {
    if (row.drafted == null) return "It is not known which tokens were accepted drafts.";
    const length = row.length - (row.session?.environment_tokens ?? 0); // those that the policy wrote
    return `${whole(row.drafted)} of ${plural(length, "token")} (${percent(length ? row.drafted / length : 0)}) were accepted drafts`;
}

function mark(piece) {
    if (piece.drafted) return h("mark", { title: "accepted draft" }, piece.text);
    if (piece.changed) return h("mark", { class: "changed", title: "not in the other response" }, piece.text);
    if (piece.shade != null)
        return h(
            "span",
            {
                class: "shade",
                title: piece.title,
                style: { "--shade": `${Math.round(100 * piece.shade)}%` },
            },
            piece.text,
        );
    return document.createTextNode(piece.text);
}

/** The next pieces to show, and those after them; a piece that is too long is cut between two characters. */
function part(pieces) {
    const now = [];
    let room = PART_CHARACTERS;
    let i = 0;
    for (; i < pieces.length && room > 0 && now.length < PART_PIECES; i++) {
        const { text, ...kind } = pieces[i];
        if (text.length <= room) now.push(pieces[i]);
        else {
            const cut = isLow(text.charCodeAt(room)) ? room - 1 : room;
            now.push({ text: text.slice(0, cut), ...kind });
            return [now, [{ text: text.slice(cut), ...kind }, ...pieces.slice(i + 1)]];
        }
        room -= text.length;
    }
    return [now, pieces.slice(i)];
}

function isLow(code) {
    return code >= 0xdc00 && code <= 0xdfff;
}
