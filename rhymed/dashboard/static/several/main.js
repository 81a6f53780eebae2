// The page of several runs: the list above, tabs below.

import { h } from "../lib/dom.js";
import { forgetToken, link, route } from "../lib/route.js";
import { Tabs } from "../lib/tabs.js";
import { begin } from "../lib/theme.js";
import { Curves } from "./curves.js";
import { List } from "./list.js";
import { Samples } from "./samples.js";
import { Settings } from "./settings.js";
import { State } from "./state.js";

const VIEWS = [
    ["curves", "Curves", Curves],
    ["settings", "Settings", Settings],
    ["samples", "Samples", Samples],
];

function page() {
    forgetToken();
    begin();
    const state = new State();
    const at = (id) => document.getElementById(id);
    const runs = h("section", { id: "runs", "aria-label": "Runs" });
    at("tabs").before(runs);
    new List(at("head"), at("notice"), runs, state);
    const tabs = new Tabs(VIEWS, state, choosing);
    state.watch();
    tabs.show();
}

/** The choice of runs stays in the address. */
const choosing = (name) => link(name, [], Object.fromEntries(route().query));

page();
