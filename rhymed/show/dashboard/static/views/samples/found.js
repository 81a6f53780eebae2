// Responses that contain the searched words. The server searches a part of the store per request; this asks until there is
// enough to show. Owns the list and its progress.

import * as api from "../../lib/api.js";
import { empty, fill, h, setText } from "../../lib/dom.js";
import { EVALUATION, epochName, number, plural, stepName, whole } from "../../lib/format.js";
import { link } from "../../lib/route.js";

const ENOUGH = 50; // responses found until the user asks for more
const MOST = 1000; // in the page

export class Found {
    /** `query()`: the part of the address that links keep. */
    constructor(query) {
        this.query = query;
        this.status = h("p", { class: "muted count", role: "status" });
        this.list = h("ol", { class: "found", "aria-label": "Responses found" });
        this.more = h(
            "button",
            { type: "button", hidden: true, onclick: () => this.go(this.count + ENOUGH) },
            "Search more",
        );
        this.element = h("div", { class: "found-box", hidden: true }, this.status, this.list, this.more);
    }

    /** Starts again with these words. */
    search(words) {
        this.aborter?.abort();
        Object.assign(this, { words, from: "", count: 0, searched: 0, prompts: 0 });
        fill(this.list);
        this.more.hidden = true;
        if (words) return this.go(ENOUGH);
        setText(this.status, "Words to search for in all responses, the newest of each prompt first.");
    }

    async go(enough) {
        const { signal } = (this.aborter = new AbortController());
        this.more.hidden = true;
        try {
            while (this.from != null && this.count < Math.min(enough, MOST)) {
                const answer = await api.responses(this.words, this.from, signal);
                if (signal.aborted) return;
                this.take(answer);
                if (answer.missing) {
                    fill(this.list, empty("Responses have no text here", answer.missing));
                    return;
                }
            }
            this.more.hidden = this.from == null || this.count >= MOST;
        } catch (error) {
            if (!signal.aborted) setText(this.status, error.message);
        }
    }

    take({ found, searched, next, before, prompts }) {
        this.count += found.length;
        this.searched += searched;
        this.from = next;
        this.list.append(...found.map((row) => this.row(row)));
        const part = next == null ? "" : `, ${whole(before)} of ${plural(prompts, "prompt")}`;
        setText(
            this.status,
            `${plural(this.count, "response")} with “${this.words}” (${whole(this.searched)} searched${part})`,
        );
    }

    row({ prompt, step, index, epoch, reward, length, text: [before, match, after] }) {
        const facts = [
            `response ${index + 1}`,
            step >= 0 && step < EVALUATION ? `${epochName(epoch)}, ${stepName(step)}` : stepName(step),
            reward == null ? "no reward" : `reward ${number(reward)}`,
            `${whole(length)} tokens`,
        ];
        return h(
            "li",
            {},
            h(
                "a",
                { href: link("samples", [prompt, step, index], this.query()) },
                h(
                    "div",
                    { class: "row-text", dir: "auto" },
                    before && `…${before}`,
                    h("mark", {}, match),
                    after,
                ),
                h("div", { class: "row-facts" }, facts.join(" · ")),
            ),
        );
    }
}
