// The last tab: configuration and software versions. Owns the table and its filter.

import { fill, h } from "../lib/dom.js";
import { date } from "../lib/format.js";

export class Configuration {
    constructor(host, state) {
        this.state = state;
        this.search = h("input", {
            type: "search",
            placeholder: "Filter keys and values",
            "aria-label": "Filter keys and values",
            oninput: () => this.paint(),
        });
        this.status = h("span", { class: "muted", role: "status" });
        this.tables = h("div", { class: "config" });
        fill(
            host,
            h(
                "div",
                { class: "bar" },
                this.search,
                h("button", { type: "button", onclick: () => this.copy() }, "Copy as JSON"),
                this.status,
            ),
            this.tables,
        );
        state.on("run", () => this.paint());
        this.paint();
    }

    paint() {
        const run = this.state.run;
        if (!run) return;
        const words = this.search.value.toLowerCase();
        const about = {
            name: run.name,
            folder: run.folder,
            state: run.state,
            started: date(run.started),
            "policy version": run.version,
            ...Object.fromEntries(
                Object.entries(run.versions ?? {}).map(([name, version]) => [`${name} (software)`, version]),
            ),
        };
        const sections = [
            ["This run", about],
            ...(run.about ?? []).map(([title, rows]) => [title, Object.fromEntries(rows)]),
            ...Object.entries(run.config ?? {}).map(([name, value]) => [
                name,
                isTable(value) ? value : { [name]: value },
            ]),
        ];
        const shown = sections.map(([name, values]) => section(name, values, words)).filter(Boolean);
        fill(
            this.tables,
            shown.length ? shown : h("p", { class: "none" }, "No key or value contains these characters."),
        );
    }

    async copy() {
        try {
            await navigator.clipboard.writeText(JSON.stringify(this.state.run?.config ?? {}, null, 2));
            this.status.textContent = "copied";
        } catch {
            this.status.textContent =
                "This browser does not let pages copy. The same is in config.json in the run folder.";
        }
    }
}

function section(name, values, words) {
    const rows = flat(values).filter(([key, value]) =>
        `${name}.${key} ${value}`.toLowerCase().includes(words),
    );
    if (!rows.length) return null;
    return h(
        "section",
        { class: "panel", "aria-label": name },
        h("h3", {}, name),
        h(
            "table",
            {},
            h(
                "tbody",
                {},
                rows.map(([key, value]) =>
                    h("tr", {}, h("th", { scope: "row" }, broken(key)), h("td", {}, h("code", {}, value))),
                ),
            ),
        ),
    );
}

/** A long key continues on the next line after a dot or an underscore. */
function broken(key) {
    return key.split(/(?<=[._])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}

/** [key, text] of every value; tables in a list are numbered from 1. */
function flat(values, prefix = "") {
    return Object.entries(values).flatMap(([key, value]) => {
        if (isTable(value) && Object.keys(value).length) return flat(value, `${prefix}${key}.`);
        if (Array.isArray(value) && value.length && value.every(isTable))
            return value.flatMap((each, place) => flat(each, `${prefix}${key} ${place + 1}.`));
        return [[prefix + key, written(value)]];
    });
}

function written(value) {
    if (value == null) return "–";
    return typeof value === "string" ? value || "“”" : JSON.stringify(value);
}

function isTable(value) {
    return value !== null && typeof value === "object" && !Array.isArray(value);
}
