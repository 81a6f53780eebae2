// The tabs of a page. Owns which one is visible, the keys that move between them, and the link that skips them.

import { fill, h, set } from "./dom.js";
import { go, link, onRoute, route } from "./route.js";
import { hinted } from "./scroll.js";

export class Tabs {
    /** `views`: [name, title, class] of each, the usual one first; `address(name)`: where a click on a tab leads. */
    constructor(views, state, address) {
        this.address = address;
        this.tabs = new Map();
        this.list = hinted(h("div", { role: "tablist", "aria-label": "Views" }));
        this.list.addEventListener("keydown", (event) => this.along(event));
        for (const [name, title, View] of views) this.add(name, title, (panel) => new View(panel, state));
        fill(document.getElementById("tabs"), this.list);
        document.getElementById("skip").addEventListener("click", skip);
        onRoute((at) => this.show(at));
    }

    add(name, title, make) {
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
                onclick: (event) => this.open(event, name),
            },
            title,
        );
        document.getElementById("panels").append(panel);
        this.list.append(tab);
        this.tabs.set(name, { tab, panel, view: make(panel) });
    }

    show(at = route()) {
        const [usual] = this.tabs.keys();
        const name = this.tabs.has(at.tab) ? at.tab : usual;
        for (const [key, { tab, panel, view }] of this.tabs) {
            const shown = key === name;
            set(tab, { "aria-selected": String(shown), tabindex: shown ? "0" : "-1" });
            panel.hidden = !shown;
            if (shown) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
            else view.hide?.();
        }
        this.tabs.get(name).view.show?.(at);
    }

    open(event, name) {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        go(this.address(name));
    }

    /** Arrow keys move between tabs. */
    along(event) {
        const tabs = [...this.list.children];
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        const to = tabs[(tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length];
        to.focus();
        to.click();
    }
}

/** The address stays: its hash is the view. */
function skip(event) {
    event.preventDefault();
    document.getElementById("panels").focus();
}
