// The responses to one prompt: all of them side by side by epoch, or one in full next to the same one of another epoch.
// Owns which epochs are shown.

import * as api from "../../lib/api.js";
import { empty, fill, h, option, set } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { matrix } from "./matrix.js";
import { learningCurve, promptText, readText, rowColumns } from "./details.js";
import { byToken, OVERLAYS, overlays } from "./overlay.js";
import { epochName, fullResponse } from "./response.js";

const COLUMNS = 3; // epochs side by side at first
const RESPONSES = 24; // of a group at first
const PREVIOUS = "previous";

export class Group {
    constructor({ open, back, step, run }) {
        Object.assign(this, { open, back, step, run });
        this.element = h("div", { class: "group" });
        this.shown = null; // steps of the epochs in the columns; null: the first and the newest ones
        this.responses = RESPONSES;
        this.compared = PREVIOUS; // step of the response to compare with, or "none"
        this.nothing();
    }

    nothing() {
        this.path = [];
        fill(
            this.element,
            empty(
                "Choose a prompt",
                "Its responses appear here by epoch, with their rewards. Tokens that were accepted drafts are marked.",
            ),
        );
    }

    async show(path, query) {
        const fresh = path[0] !== this.path[0];
        this.path = path;
        this.compared = query.get("compare") ?? PREVIOUS;
        this.overlay = query.get("show") ?? "drafts";
        if (fresh) {
            this.prompt = null;
            this.shown = null;
            this.responses = RESPONSES;
        }
        await this.load(!fresh);
    }

    /** `kept`: the prompt that is loaded is new enough. */
    async load(kept = false) {
        this.aborter?.abort();
        const { signal } = (this.aborter = new AbortController());
        set(this.element, { "aria-busy": "true" });
        try {
            if (!kept || !this.prompt) this.prompt = await api.prompt(this.path[0], signal);
            const content = this.path.length === 3 ? await this.sampleView(signal) : this.groupView();
            if (!signal.aborted) this.put(content);
        } catch (error) {
            if (!signal.aborted)
                fill(this.element, empty("This cannot be shown", error.message), this.toolbar());
        }
        if (!signal.aborted) set(this.element, { "aria-busy": null });
    }

    /** If the focused element goes, the new title gets the focus, for keyboards and screen readers. */
    put(content) {
        const had = this.element.contains(document.activeElement);
        for (const chart of this.drawn ?? []) chart.close();
        this.drawn = this.charts ?? [];
        this.charts = null;
        fill(this.element, content);
        const title = this.element.querySelector("h2");
        if (had && title) set(title, { tabindex: "-1" }).focus({ preventScroll: true });
    }

    toolbar(...more) {
        return h(
            "div",
            { class: "bar" },
            h("button", { type: "button", class: "back", onclick: () => this.back() }, "← Back"),
            more,
        );
    }

    // -- the group ------------------------------------------------------------------------------------------------

    groupView() {
        const { id, epochs } = this.prompt;
        const columns = this.columns();
        this.charts = learningCurve(this.prompt);
        const indices = [
            ...new Set(epochs.flatMap((epoch) => epoch.samples.map((sample) => sample.index))),
        ].sort((a, b) => a - b);
        const some = indices.slice(0, this.responses);
        const more =
            indices.length > some.length &&
            h(
                "button",
                {
                    type: "button",
                    onclick: () => {
                        this.responses *= 4;
                        this.load(true);
                    },
                },
                `Show more of ${plural(indices.length, "response")}`,
            );
        return [
            this.toolbar(
                h("h2", {}, "Prompt ", h("code", {}, id)),
                h("span", { class: "muted" }, plural(epochs.length, "epoch")),
            ),
            promptText(this.prompt.text),
            rowColumns(this.prompt),
            this.charts.length > 0 &&
                h(
                    "div",
                    { class: "learning" },
                    this.charts.map((chart) => chart.element),
                ),
            this.prompt.missing &&
                h("p", { class: "note" }, `No text here: ${this.prompt.missing}.`.replace(/\.+$/, ".")),
            epochs.length > 1 && this.chips(),
            matrix(this.prompt, columns, some, this.linked()),
            more,
        ];
    }

    columns() {
        const { epochs } = this.prompt;
        const usual = epochs.filter((_, at) => at === 0 || at > epochs.length - COLUMNS);
        const chosen = this.shown ? epochs.filter((epoch) => this.shown.has(epoch.step)) : usual;
        return chosen.length ? chosen : usual;
    }

    chips() {
        const chosen = new Set(this.columns().map((epoch) => epoch.step));
        const toggle = (epoch) => {
            chosen[chosen.has(epoch.step) ? "delete" : "add"](epoch.step);
            this.shown = chosen;
            this.load(true);
        };
        return h(
            "div",
            { class: "chips", role: "group", "aria-label": "Epochs shown" },
            this.prompt.epochs.map((epoch) =>
                h(
                    "button",
                    {
                        type: "button",
                        class: "chip",
                        "aria-pressed": String(chosen.has(epoch.step)),
                        onclick: () => toggle(epoch),
                    },
                    epochName(epoch),
                ),
            ),
        );
    }

    linked() {
        const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
        return Object.fromEntries(["query", "sort", "kind"].map((name) => [name, query.get(name)]));
    }

    // -- one response ---------------------------------------------------------------------------------------------

    get shownStep() {
        return Number(this.path[1]);
    }

    async sampleView(signal) {
        const [id, step, index] = this.path;
        const others = this.prompt.epochs.filter(
            (epoch) =>
                epoch.step !== Number(step) && epoch.samples.some((sample) => sample.index === Number(index)),
        );
        const earlier = others.filter((epoch) => epoch.step < Number(step));
        const other =
            this.compared === PREVIOUS
                ? earlier[earlier.length - 1]
                : others.find((epoch) => String(epoch.step) === this.compared);
        const ids = [`${step}/${id}/${index}`, ...(other ? [`${other.step}/${id}/${index}`] : [])];
        const samples = await Promise.all(
            ids.map((sample) => api.sample(sample, signal, byToken(this.overlay))),
        );
        const shown = overlays(this.overlay, samples);
        const choice = h(
            "select",
            {
                "aria-label": "Compare with",
                onchange: () => this.open(this.path, this.linkedView({ compare: choice.value })),
            },
            option("none", "no comparison"),
            option(PREVIOUS, "compare with the previous epoch"),
            others.map((epoch) => option(String(epoch.step), `compare with ${epochName(epoch)}`)),
        );
        choice.value =
            other && this.compared !== PREVIOUS
                ? String(other.step)
                : this.compared === PREVIOUS
                  ? PREVIOUS
                  : "none";
        return [
            this.toolbar(
                h("h2", {}, `Response ${Number(index) + 1}`),
                h("button", { type: "button", onclick: () => this.index(-1), title: "P" }, "previous"),
                h("button", { type: "button", onclick: () => this.index(1), title: "N" }, "next"),
                others.length > 0 && choice,
                this.overlayChoice(samples.length),
            ),
            promptText(samples[0].prompt ?? this.prompt.text),
            readText(samples[0]),
            rowColumns(this.prompt),
            shown.every((content) => content == null) &&
                h(
                    "p",
                    { class: "legend-line" },
                    h("mark", {}, "marked"),
                    " tokens were drafted from history and accepted; the others were decoded one by one.",
                ),
            h(
                "div",
                { class: "pair" },
                samples.map((sample, i) => fullResponse(sample, this.prompt, this.run(), shown[i])),
            ),
        ];
    }

    overlayChoice(count) {
        const choice = h(
            "select",
            {
                "aria-label": "Marked in the text",
                onchange: () => this.open(this.path, this.linkedView({ show: choice.value })),
            },
            OVERLAYS.filter(([, , two]) => !two || count === 2).map(([value, label]) => option(value, label)),
        );
        choice.value = [...choice.options].some((entry) => entry.value === this.overlay)
            ? this.overlay
            : "drafts";
        return choice;
    }

    /** What the address keeps of this view. */
    linkedView(more = {}) {
        return {
            compare: this.compared === PREVIOUS ? "" : this.compared,
            show: this.overlay === "drafts" ? "" : this.overlay,
            ...more,
        };
    }

    // -- keys -----------------------------------------------------------------------------------------------------

    epoch(by) {
        if (this.path.length !== 3 || !this.prompt) return;
        const steps = this.prompt.epochs
            .filter((epoch) => epoch.samples.some((sample) => sample.index === Number(this.path[2])))
            .map((epoch) => epoch.step);
        const to = steps[steps.indexOf(this.shownStep) + by];
        if (to != null) this.open([this.path[0], to, this.path[2]], this.linkedView({ compare: "" }));
    }

    index(by) {
        if (!this.prompt) return;
        const epoch =
            this.prompt.epochs.find((epoch) => epoch.step === this.shownStep) ??
            this.prompt.epochs[this.prompt.epochs.length - 1];
        const indices = (epoch?.samples ?? []).map((sample) => sample.index).sort((a, b) => a - b);
        const at =
            this.path.length === 3
                ? indices.indexOf(Number(this.path[2])) + by
                : by > 0
                  ? 0
                  : indices.length - 1;
        if (indices[at] != null) this.open([this.path[0], epoch.step, indices[at]], this.linkedView());
    }
}
