// The page of one run: its head, its tabs, and what keeps them up to date.

import { Configuration } from "./config.js";
import { Head } from "./head.js";
import { SAVED } from "../lib/api.js";
import { Live } from "../lib/live.js";
import { Logs } from "./logs.js";
import { Metrics } from "./metrics/metrics.js";
import { Newest } from "./samples/newest.js";
import { Overview } from "./overview/overview.js";
import { forgetToken, link, route } from "../lib/route.js";
import { Samples } from "./samples/samples.js";
import { State } from "../lib/state.js";
import { Tabs } from "../lib/tabs.js";
import { begin } from "../lib/theme.js";
import { Workers } from "./workers.js";

const VIEWS = [
    ["overview", "Overview", Overview],
    ["workers", "Workers", Workers],
    ["samples", "Samples", SAVED ? Newest : Samples],
    ["metrics", "Metrics", Metrics],
    ...(SAVED ? [] : [["logs", "Logs", Logs]]),
    ["configuration", "Configuration", Configuration],
];
const last = {}; // tab -> its address when it was left

function page() {
    forgetToken();
    begin();
    const state = new State();
    new Head(document.getElementById("head"), document.getElementById("notice"), state);
    new Tabs(VIEWS, state, returning).show();
    new Live(state).start();
}

/** A tab opens as it was left. */
function returning(name) {
    last[route().tab] = location.hash;
    return last[name] ?? link(name);
}

page();
