// The page: its tabs. Owns which tab is visible; the rest belongs to the views.

import { Configuration } from "../views/config.js";
import { fill, h, set } from "./dom.js";
import { Head } from "../views/head.js";
import { Live } from "./live.js";
import { Metrics } from "../views/metrics/metrics.js";
import { Overview } from "../views/overview/overview.js";
import { Logs } from "../views/logs.js";
import { forgetToken, go, link, onRoute, route } from "./route.js";
import { hinted } from "./scroll.js";
import { Samples } from "../views/samples/samples.js";
import { State } from "./state.js";
import { begin } from "./theme.js";
import { Workers } from "../views/workers.js";

const TABS = [
    ["overview", "Overview", Overview],
    ["workers", "Workers", Workers],
    ["samples", "Samples", Samples],
    ["metrics", "Metrics", Metrics],
    ["logs", "Logs", Logs],
    ["configuration", "Configuration", Configuration],
];
const last = {}; // tab -> its address when it was left, to return to the same view

function page() {
    forgetToken();
    begin();
    const state = new State();
    new Head(document.getElementById("head"), document.getElementById("notice"), state);
    const tabs = new Map();
    const list = hinted(h("div", { role: "tablist", "aria-label": "Views" }));
    for (const [name, title, View] of TABS) {
        const panel = h("section", {
            id: `panel-${name}`,
            role: "tabpanel",
            "aria-labelledby": `tab-${name}`,
            hidden: true,
        });
        const tab = h(
            "a",
            {
                id: `tab-${name}`,
                role: "tab",
                href: link(name),
                "aria-controls": `panel-${name}`,
                "aria-selected": "false",
                tabindex: "-1",
                onclick: (event) => open(event, name),
            },
            title,
        );
        document.getElementById("panels").append(panel);
        list.append(tab);
        tabs.set(name, { tab, panel, view: new View(panel, state) });
    }
    list.addEventListener("keydown", (event) => along(event, list));
    fill(document.getElementById("tabs"), list);
    onRoute((at) => show(tabs, at));
    show(tabs, route());
    new Live(state).start();
}

function show(tabs, at) {
    const name = tabs.has(at.tab) ? at.tab : "overview";
    for (const [key, { tab, panel }] of tabs) {
        const shown = key === name;
        set(tab, { "aria-selected": String(shown), tabindex: shown ? "0" : "-1" });
        panel.hidden = !shown;
        if (shown) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    tabs.get(name).view.show?.(at);
}

function open(event, name) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    last[route().tab] = location.hash;
    go(last[name] ?? link(name));
}

/** Arrow keys move between tabs. */
function along(event, list) {
    const tabs = [...list.children];
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const to = tabs[(tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length];
    to.focus();
    to.click();
}

page();
