// The page of several runs: the list above, tabs below. Owns which tab is visible; the rest belongs to the views.

import { fill, h, set } from "../lib/dom.js";
import { forgetToken, go, link, onRoute, route } from "../lib/route.js";
import { hinted } from "../lib/scroll.js";
import { begin } from "../lib/theme.js";
import { Curves } from "./curves.js";
import { List } from "./list.js";
import { Samples } from "./samples.js";
import { Settings } from "./settings.js";
import { State } from "./state.js";

const TABS = [
    ["curves", "Curves", Curves],
    ["settings", "Settings", Settings],
    ["samples", "Samples", Samples],
];

function page() {
    forgetToken();
    begin();
    const state = new State();
    const at = (id) => document.getElementById(id);
    new List(at("head"), at("notice"), at("runs"), state);
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
                onclick: (event) => open(event, name),
            },
            title,
        );
        at("panels").append(panel);
        list.append(tab);
        tabs.set(name, { tab, panel, view: new View(panel, state) });
    }
    fill(at("tabs"), list);
    onRoute((to) => show(tabs, to));
    state.watch();
    show(tabs, route());
}

function show(tabs, to) {
    const name = tabs.has(to.tab) ? to.tab : "curves";
    for (const [key, { tab, panel, view }] of tabs) {
        const shown = key === name;
        set(tab, { "aria-selected": String(shown) });
        panel.hidden = !shown;
        if (!shown) view.hide?.();
    }
    tabs.get(name).view.show?.(to);
}

/** The choice of runs stays in the address. */
function open(event, name) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link(name, [], Object.fromEntries(route().query)));
}

page();
