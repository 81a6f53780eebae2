// The table of runs: which are chosen, how they do, and the links to their own pages.

import { fill, h, setText } from "../lib/dom.js";
import { date, number, seconds, whole } from "../lib/format.js";
import { hinted } from "../lib/scroll.js";
import { themeSwitch } from "../lib/theme.js";
import { MOST } from "./state.js";

const COLUMNS = ["Run", "State", "Step", "Reward", "Held-out", "Elapsed", "Left", "Started"];
const HINTS = {
    Reward: "mean of the last five steps",
    "Held-out": "mean reward of the newest evaluation, over all held-out prompts",
    Elapsed: "time of work, without the pauses of a run that was resumed",
    Left: "until the last step is trained",
};

export class List {
    constructor(head, notice, host, state) {
        Object.assign(this, { notice, state });
        this.title = h("h1", {}, "Runs");
        this.count = h("span", { class: "muted", id: "count", role: "status" });
        fill(
            head,
            h("div", { class: "title" }, this.title, this.count, h("span", { class: "grow" }), themeSwitch()),
        );
        this.body = h("tbody", {});
        this.status = h("p", { class: "muted hint" });
        const table = h(
            "table",
            { class: "runs" },
            h(
                "thead",
                {},
                h(
                    "tr",
                    {},
                    COLUMNS.map((name) => h("th", { scope: "col", title: HINTS[name] }, name)),
                ),
            ),
            this.body,
        );
        fill(host, hinted(h("div", { class: "scroll tall" }, table)), this.status);
        state.on("runs chosen", () => this.paint());
    }

    paint() {
        const { listing, runs, chosen } = this.state;
        if (listing) {
            setText(this.title, listing.name);
            document.title = `${listing.name} – rhymed`;
            setText(this.count, runs.length === 1 ? "1 run" : `${whole(runs.length)} runs`);
        }
        const had = document.activeElement?.id;
        fill(
            this.body,
            runs.map((run) => this.row(run)),
        );
        if (had?.startsWith("choose-")) document.getElementById(had)?.focus();
        setText(
            this.status,
            !listing
                ? ""
                : runs.length
                  ? `${chosen.size} chosen, at most ${MOST}`
                  : `There are no runs in ${listing.folder}.`,
        );
        this.warn();
    }

    row(run) {
        const id = `choose-${run.id}`;
        const on = this.state.chosen.has(run.id);
        const box = h("input", {
            type: "checkbox",
            id,
            checked: on,
            disabled: run.step === 0 || (!on && this.state.chosen.size >= MOST),
            "aria-label": `Show ${run.name}`,
            onchange: (event) => this.state.choose(run.id, event.target.checked),
        });
        const line = h("i", {
            class: "line",
            style: { "--line": on ? `var(${this.state.colour(run.id)})` : "transparent" },
        });
        const made = run.state !== "waiting" && !(run.state === "failed" && run.step === 0 && !run.started);
        const name = made
            ? h("a", { href: `run/${encodeURIComponent(run.id)}/`, title: run.name }, run.name)
            : run.name;
        return h(
            "tr",
            { "data-run": run.id },
            h("th", { scope: "row" }, h("span", { class: "pick" }, box, line, name)),
            h(
                "td",
                {},
                h("span", { class: "badge", "data-state": run.state, title: run.why || null }, run.state),
            ),
            h("td", {}, run.state === "waiting" ? "–" : `${whole(run.step)} / ${whole(run.steps)}`),
            h("td", {}, number(run.reward)),
            h("td", {}, number(run.held_out)),
            h("td", {}, run.elapsed_s ? seconds(Math.round(run.elapsed_s)) : "–"),
            h("td", {}, run.eta_s == null ? "–" : seconds(Math.round(run.eta_s))),
            h("td", {}, date(run.started)),
        );
    }

    /** Why runs failed, and what cannot be read. */
    warn() {
        const { listing, runs, problem } = this.state;
        const lines = [
            problem && `${problem} The page tries again by itself.`,
            ...runs.filter((run) => run.why).map((run) => `${run.name}: ${run.why.split("\n")[0]}`),
            ...(listing?.damaged ?? []).map((one) => `${one.folder} is damaged: ${one.why}`),
        ].filter(Boolean);
        if (lines.join("\n") === this.shown) return;
        this.shown = lines.join("\n");
        this.notice.hidden = !lines.length;
        this.notice.dataset.tone = "bad";
        fill(
            this.notice,
            h(
                "ul",
                {},
                lines.map((line) => h("li", {}, line)),
            ),
        );
    }
}
