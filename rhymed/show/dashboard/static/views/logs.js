// The newest lines of the run's logs, by level, process and words; refreshed while the run is alive. Owns the choice, which is
// also in the address.

import * as api from "../lib/api.js";
import { debounced, empty, fill, h, option, setText } from "../lib/dom.js";
import { plural, whole } from "../lib/format.js";
import { go, link } from "../lib/route.js";

const EVERY_MS = 3_000;
const LEVELS = ["debug", "info", "warning", "error"];

export class Logs {
    constructor(host, state) {
        this.host = host;
        this.state = state;
        this.search = h("input", {
            type: "search",
            placeholder: "Filter lines",
            "aria-label": "Filter lines",
            oninput: debounced(() => this.changed(), 250),
        });
        const choice = (label, ...options) =>
            h("select", { "aria-label": label, onchange: () => this.changed() }, options);
        this.level = choice("Lowest level", ...LEVELS.map((level) => option(level, `${level} and above`)));
        this.level.value = "info";
        this.process = choice("Process", option("", "all processes"));
        this.libraries = h("input", { type: "checkbox", onchange: () => this.changed() });
        this.status = h("span", { class: "muted", role: "status" });
        this.lines = h("ol", { class: "log", tabindex: "0", "aria-label": "Log lines" });
        fill(
            host,
            h(
                "section",
                { class: "panel" },
                h(
                    "div",
                    { class: "bar" },
                    this.search,
                    this.level,
                    this.process,
                    h("label", { class: "choice" }, this.libraries, "libraries"),
                    this.status,
                ),
                this.lines,
            ),
        );
        setInterval(() => this.state.connection === "live" && this.load(), EVERY_MS);
    }

    show({ query }) {
        this.search.value = query.get("query") ?? this.search.value;
        if (LEVELS.includes(query.get("level"))) this.level.value = query.get("level");
        this.wanted = query.get("process") ?? this.process.value;
        if (query.has("libraries")) this.libraries.checked = query.get("libraries") === "1";
        this.load();
    }

    changed() {
        this.wanted = this.process.value;
        const level = this.level.value === "info" ? "" : this.level.value;
        const libraries = this.libraries.checked ? "1" : "";
        go(
            link("logs", [], { level, process: this.wanted, query: this.search.value.trim(), libraries }),
            true,
        );
        this.load();
    }

    async load() {
        if (this.host.hidden || document.hidden) return;
        this.aborter?.abort();
        const { signal } = (this.aborter = new AbortController());
        const wanted = {
            level: this.level.value,
            process: this.wanted,
            query: this.search.value.trim(),
            libraries: this.libraries.checked ? 1 : 0,
        };
        try {
            const answer = await api.logs(wanted, signal);
            if (!signal.aborted) this.paint(answer);
        } catch (error) {
            if (!signal.aborted) setText(this.status, error.message);
        }
    }

    paint({ processes, total, hidden, lines }) {
        const names = processes.join();
        if (names !== this.names) {
            this.names = names;
            fill(
                this.process,
                option("", "all processes"),
                processes.map((name) => option(name)),
            );
        }
        this.process.value = this.wanted ?? "";
        const left = total > lines.length ? `, the newest of ${whole(total)} read` : "";
        const others = hidden ? `; ${whole(hidden)} of libraries are hidden` : "";
        setText(this.status, `${plural(lines.length, "line")}${left}${others}`);
        const key = JSON.stringify(lines);
        if (key === this.shown) return; // what is selected stays selected
        this.shown = key;
        const atEnd = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 30;
        fill(this.lines, lines.length ? lines.map(row) : this.nothing(processes));
        if (atEnd) this.lines.scrollTop = this.lines.scrollHeight;
    }

    nothing(processes) {
        return processes.length
            ? h("li", {}, empty("No such line", "None of the newest lines has this level, process and text."))
            : h(
                  "li",
                  {},
                  empty("No logs here", "The logs are in the run's folder on the machines of its processes."),
              );
    }
}

function row({ t, level, process, text, trace }) {
    const time = new Date(t);
    const known = !Number.isNaN(time.getTime());
    return h(
        "li",
        { "data-level": level },
        h("time", { title: t }, known ? time.toLocaleTimeString([], { hourCycle: "h23" }) : "–"),
        h("span", { class: "process" }, process),
        h("span", { class: "level" }, level),
        h("span", { class: "line-text", dir: "auto" }, text, trace && h("pre", {}, trace)),
    );
}
