// The sample browser: prompts on the left with search and order, the responses to one of them on the right. Owns the list
// and the keys; the address holds what is open: #samples/<prompt>/<step>/<index>?query=…&sort=…

import * as api from "../../lib/api.js";
import { empty, fill, h, option, setText, debounced, typing } from "../../lib/dom.js";
import { number, plural, whole } from "../../lib/format.js";
import { List } from "../../lib/list.js";
import { go, link } from "../../lib/route.js";
import { Found } from "./found.js";
import { Group } from "./group.js";

const NO_STEP = -1; // `lastStep` without a step
const ORDERS = [
    ["id", "by id"],
    ["reward/asc", "lowest reward first"],
    ["reward/desc", "highest reward first"],
    ["spread/desc", "largest reward spread first"],
    ["spread/asc", "smallest reward spread first"],
    ["length/desc", "longest first"],
    ["length/asc", "shortest first"],
];
const KEYS =
    "Keys: J and K next and previous prompt, ← → epoch, N and P next and previous response, Esc back, / search.";

export class Samples {
    constructor(host, state) {
        this.state = state;
        this.path = [];
        this.search = h("input", {
            type: "search",
            placeholder: "Search",
            "aria-label": "Search",
            oninput: debounced(() => this.change(), 250),
        });
        this.order = h(
            "select",
            { "aria-label": "Order", onchange: () => this.change() },
            ORDERS.map(([value, label]) => option(value, label)),
        );
        this.kind = h("select", {
            "aria-label": "Kind of prompt",
            hidden: true,
            onchange: () => this.change(),
        });
        this.within = h(
            "select",
            { "aria-label": "Search in", onchange: () => this.change() },
            option("", "in prompts"),
            option("responses", "in responses"),
        );
        this.found = new Found(() => this.query());
        this.fresh = h(
            "button",
            { type: "button", class: "small", hidden: true, onclick: () => this.refresh() },
            "new samples: refresh",
        );
        this.status = h("p", { class: "muted count", role: "status" });
        this.list = new List({
            label: "Prompts",
            height: 80,
            draw: row,
            fetch: (...page) => this.fetch(...page),
            failed: (error) => this.report(error),
            chosen: (prompt) => this.open([prompt.id]),
        });
        this.none = h("div", { hidden: true });
        this.group = new Group({
            open: (path, query) => this.open(path, query),
            back: () => this.back(),
            step: (by) => this.step(by),
            run: () => state.run?.folder ?? "",
        });
        this.split = h(
            "div",
            { class: "split" },
            h(
                "div",
                { class: "side panel" },
                h("div", { class: "bar" }, this.search, this.within),
                (this.bar = h("div", { class: "bar" }, this.status, this.fresh, this.kind, this.order)),
                this.found.element,
                this.list.element,
                this.none,
            ),
            h("div", { class: "main" }, this.group.element, h("p", { class: "muted hint" }, KEYS)),
        );
        fill(host, this.split);
        document.addEventListener("keydown", (event) => host.hidden || this.key(event));
        state.on("steps", () => this.stale());
    }

    /** Called for each address of this tab. */
    show({ path, query }) {
        const [words, order] = [query.get("query") ?? "", query.get("sort") ?? "id"];
        const [kind, within] = [query.get("kind") ?? "", query.get("in") ?? ""];
        const same = this.loaded && this.asked === [words, order, kind, within].join("\n");
        this.asked = [words, order, kind, within].join("\n");
        if (words !== this.search.value.trim()) this.search.value = words;
        this.wantedKind = this.kind.value = kind;
        this.within.value = within === "responses" ? within : "";
        this.order.value = ORDERS.some(([value]) => value === order) ? order : "id";
        this.path = path;
        this.split.dataset.open = String(path.length > 0);
        if (!same) this.load();
        if (path.length) this.group.show(path, query);
        else this.group.nothing();
        this.list.mark((prompt) => prompt.id === path[0]);
    }

    open(path, query = {}) {
        go(link("samples", path, { ...this.query(), ...query }));
    }

    back() {
        this.open(this.path.length > 1 ? [this.path[0]] : []);
        if (this.path.length <= 1) this.list.element.focus();
    }

    query() {
        return {
            query: this.search.value.trim(),
            sort: this.order.value === "id" ? "" : this.order.value,
            kind: this.kind.value,
            in: this.within.value,
        };
    }

    change() {
        this.wantedKind = this.kind.value;
        go(link("samples", this.path, this.query()), true);
        const { query, sort, kind, in: within } = this.query();
        this.asked = [query, sort || "id", kind, within].join("\n");
        this.load();
    }

    load() {
        this.loaded = true;
        this.fresh.hidden = true;
        this.loadedAt = this.state.lastStep;
        const responses = this.within.value === "responses";
        this.found.element.hidden = !responses;
        this.bar.hidden = this.list.element.hidden = responses;
        if (responses) {
            this.none.hidden = true;
            return this.found.search(this.search.value.trim());
        }
        return this.list.reload();
    }

    async refresh() {
        this.fresh.hidden = true;
        this.loadedAt = this.state.lastStep;
        await this.list.reload(true);
        if (this.path.length) this.group.load();
    }

    stale() {
        if (!this.loaded) return;
        if (this.list.total === 0) this.load();
        else if (this.loadedAt === NO_STEP)
            this.loadedAt = this.state.lastStep; // the list was loaded before the first step
        else this.fresh.hidden = this.loadedAt === this.state.lastStep;
    }

    async fetch(offset, limit, signal) {
        const [sort, order] = this.order.value.split("/");
        const answer = await api.prompts(
            { query: this.search.value.trim(), sort, order, kind: this.wantedKind, offset, limit },
            signal,
        );
        this.choices(answer.kinds);
        return { total: answer.total, rows: answer.prompts };
    }

    /** The choice of kinds, where there are prompts of several. */
    choices(kinds) {
        const there = Object.entries(kinds ?? {}).filter(([, count]) => count > 0);
        const labels = there.map(([kind, count]) => `${kind} (${whole(count)})`);
        if (this.labels !== labels.join()) {
            this.labels = labels.join();
            fill(
                this.kind,
                option("", "all prompts"),
                there.map(([kind], i) => option(kind, labels[i])),
            );
        }
        this.kind.value = this.wantedKind ?? "";
        this.kind.hidden = there.length < 2 && !this.wantedKind;
    }

    report(error) {
        if (this.within.value === "responses") return;
        const total = this.list.total;
        const words = this.search.value.trim();
        this.list.element.hidden = error != null || total === 0;
        this.none.hidden = !this.list.element.hidden;
        setText(
            this.status,
            error ? "" : words ? `${plural(total, "prompt")} with “${words}”` : plural(total, "prompt"),
        );
        if (error)
            fill(
                this.none,
                empty("The prompts could not be read", error.message),
                h("button", { type: "button", onclick: () => this.load() }, "Try again"),
            );
        else if (words)
            fill(
                this.none,
                empty(
                    "No prompt contains these words",
                    "The search covers the texts of the prompts and the beginnings of their ids.",
                ),
            );
        else
            fill(
                this.none,
                empty("No samples yet", "A prompt appears here when its first response is in the store."),
            );
        if (!error && this.path.length) this.list.mark((prompt) => prompt.id === this.path[0]);
    }

    step(by) {
        this.list.choose(this.list.active + by);
    }

    key(event) {
        if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
        if (typing(event)) {
            if (event.key === "Escape") this.list.element.focus();
            return;
        }
        const act = {
            j: () => this.step(1),
            k: () => this.step(-1),
            "/": () => this.search.focus(),
            Escape: () => this.path.length && this.back(),
            ArrowLeft: () => this.group.epoch(-1),
            ArrowRight: () => this.group.epoch(1),
            n: () => this.group.index(1),
            p: () => this.group.index(-1),
        }[event.key];
        if (!act) return;
        event.preventDefault();
        act();
    }
}

function row(prompt) {
    const spread = prompt.spread > 0 ? ` ± ${number(Math.round(prompt.spread * 100) / 100)}` : "";
    const facts = [
        prompt.reward == null ? "no reward" : `reward ${number(prompt.reward)}${spread}`,
        prompt.length == null ? null : `${number(prompt.length)} tokens`,
        `${plural(prompt.samples, "sample")}${prompt.epochs > 0 || prompt.kind == null ? `, ${plural(prompt.epochs, "epoch")}` : ""}`,
    ];
    return [
        h("div", { class: "row-text", dir: "auto" }, prompt.text?.slice(0, 300).trim() || prompt.id),
        h(
            "div",
            { class: "row-facts" },
            prompt.kind && prompt.kind !== "training" && h("span", { class: "kind" }, prompt.kind),
            facts.filter(Boolean).join(" · "),
        ),
    ];
}
