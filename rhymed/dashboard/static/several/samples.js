// Responses of the chosen runs to the same prompt, side by side. Owns the search, the prompt and the epoch that are shown.

import { debounced, empty, fill, h, option, set } from "../lib/dom.js";
import { number, plural, stepName, whole } from "../lib/format.js";
import { link, route } from "../lib/route.js";
import { promptText } from "../views/samples/details.js";
import { absent, card, grid, meanReward } from "../views/samples/grid.js";
import { epochName } from "../views/samples/response.js";
import { sessionFacts } from "../views/samples/turns.js";
import * as api from "./api.js";
import { heading } from "./settings.js";

const TYPING_MS = 250;
const SHOWN = 60; // prompts in the list
const RESPONSES = 8; // of a run at first

export class Samples {
    constructor(host, state) {
        this.state = state;
        this.visible = false;
        this.search = h("input", {
            type: "search",
            placeholder: "Search prompts",
            "aria-label": "Search prompts",
            oninput: debounced(() => this.list(), TYPING_MS),
        });
        this.status = h("p", { class: "muted hint", role: "status" });
        this.prompts = h("ul", { class: "prompts", "aria-label": "Prompts" });
        this.which = h(
            "select",
            { id: "which", "aria-label": "Epoch", onchange: () => this.paint() },
            option("last", "newest epoch of each run"),
            option("first", "first epoch"),
            option("eval", "newest evaluation"),
        );
        this.view = h("div", { class: "main" });
        fill(
            host,
            h(
                "div",
                { class: "picker" },
                h(
                    "div",
                    { class: "panel side" },
                    h("div", { class: "bar" }, this.search),
                    this.status,
                    this.prompts,
                ),
                this.view,
            ),
        );
        state.on("chosen", () => this.visible && this.list());
        state.on("runs", () => this.visible && !this.listed && this.list());
    }

    show({ path }) {
        this.visible = true;
        this.id = path[0] ?? null;
        if (this.listed) this.load();
        else this.list();
    }

    hide() {
        this.visible = false;
    }

    async list() {
        const { ids } = this.state;
        if (!ids.length) return;
        this.listed = true;
        this.aborter?.abort();
        const { signal } = (this.aborter = new AbortController());
        try {
            const { total, prompts, errors } = await api.prompts(ids, this.search.value.trim(), signal);
            if (signal.aborted) return;
            this.total = total;
            fill(
                this.prompts,
                prompts.slice(0, SHOWN).map((prompt) => this.entry(prompt, ids)),
            );
            const unread = Object.entries(errors).map(([id, why]) => `${this.state.name(id)}: ${why}`);
            this.status.textContent = [
                total > SHOWN
                    ? `${SHOWN} of ${plural(total, "prompt")}: search for others`
                    : plural(total, "prompt"),
                ...unread,
            ].join("; ");
            this.id ??= prompts[0]?.id ?? null;
            await this.load();
        } catch (error) {
            if (!signal.aborted) this.status.textContent = error.message;
        }
    }

    entry(prompt, ids) {
        const rewards = ids.map((id) => (id in prompt.rewards ? number(prompt.rewards[id]) : "none"));
        return h(
            "li",
            {},
            h(
                "a",
                {
                    href: link("samples", [prompt.id], Object.fromEntries(route().query)),
                    "data-prompt": prompt.id,
                    "aria-current": prompt.id === this.id ? "true" : null,
                },
                h("span", { class: "row-text", dir: "auto" }, prompt.text?.slice(0, 200).trim() || prompt.id),
                h("span", { class: "row-facts" }, `reward ${rewards.join(" · ")}`),
            ),
        );
    }

    async load() {
        for (const at of this.prompts.querySelectorAll("a"))
            set(at, { "aria-current": at.dataset.prompt === this.id ? "true" : null });
        if (!this.id) {
            fill(this.view, empty("No prompts", "The chosen runs have no samples here."));
            return;
        }
        this.loading?.abort();
        const { signal } = (this.loading = new AbortController());
        if (!this.answer)
            fill(this.view, h("p", { class: "muted", role: "status" }, "Loading the responses …"));
        try {
            const answer = await api.prompt(this.state.ids, this.id, signal);
            if (signal.aborted) return;
            this.answer = answer;
            this.paint();
        } catch (error) {
            if (!signal.aborted) fill(this.view, empty("This cannot be shown", error.message));
        }
    }

    paint() {
        if (!this.answer) return;
        const { ids } = this.state;
        const { runs, id } = this.answer;
        const text = ids.map((run) => runs[run]?.text).find((own) => own != null);
        const columns = ids.map((run) => ({
            run,
            ...runs[run],
            epoch: epochOf(runs[run], this.which.value),
        }));
        const lacking = ids.filter((run) => runs[run]?.missing);
        const why = lacking.map((run) => `${this.state.name(run)}: no text, ${runs[run].missing}.`);
        const most = Math.max(0, ...columns.map((column) => column.epoch?.samples.length ?? 0));
        const rows = Array.from({ length: Math.min(most, RESPONSES) }, (_, at) => at);
        const heads = columns.map((column) => this.head(column));
        const cells = (at) => columns.map((column) => cell(column, id, at));
        fill(
            this.view,
            h("div", { class: "bar" }, h("h2", {}, "Prompt ", h("code", {}, id)), this.which),
            promptText(text),
            why.map((line) => h("p", { class: "note" }, line)),
            grid("Responses by run", heads, rows.map(cells)),
            most > RESPONSES &&
                h("p", { class: "muted hint" }, `${RESPONSES} of ${most} responses of each run`),
        );
    }

    head({ run, epoch, error }) {
        if (!epoch) return [heading(this.state, run), error ?? "no such responses"];
        const mean = meanReward(epoch.samples);
        const place = new Set([epochName(epoch), stepName(epoch.step)]); // an evaluation has one name
        const facts = [...place, ...(mean == null ? [] : [`reward ${number(mean)}`])];
        return [heading(this.state, run), facts.join(", ")];
    }
}

/** The part of a run's responses that is shown; undefined: there is none. */
function epochOf(answer, which) {
    const epochs = answer?.epochs ?? [];
    const evaluation = (epoch) => epoch.step >= 2 ** 30;
    if (which === "eval") return epochs.findLast(evaluation);
    const trained = epochs.filter((epoch) => !evaluation(epoch) && epoch.step >= 0);
    if (!trained.length) return epochs.findLast(evaluation);
    return which === "first" ? trained[0] : trained.at(-1);
}

function cell({ run, epoch }, prompt, at) {
    const sample = epoch?.samples[at];
    if (!sample) return absent("none");
    return card(sample, {
        href: `run/${encodeURIComponent(run)}/${link("samples", [prompt, sample.step, sample.index])}`,
        facts: [h("span", {}, `${whole(sample.length)} tokens`), ...sessionFacts(sample)],
        lacking: "no text",
    });
}
