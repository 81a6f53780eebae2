// Dark and light. Owns the choice (system, light, dark), where it is stored, and the colours that canvases need, read from
// the style sheet.

import { h } from "./dom.js";

const KEY = "rhymed-theme";
const NAMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let cache = new Map();

/** Returns a function that ends it. */
export function onTheme(work) {
    listeners.add(work);
    return () => listeners.delete(work);
}

/** The value of a colour of the style sheet, `--c1` and so on, in the theme that is shown. */
export function colour(name) {
    if (!cache.has(name))
        cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return cache.get(name);
}

function choose(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
        localStorage.setItem(KEY, theme);
    } catch {
        // The theme is still shown if the browser stores nothing.
    }
    changed();
}

export function themeSwitch() {
    const button = h("button", { class: "theme", type: "button", onclick: () => choose(next()) });
    const update = () => {
        const theme = chosen();
        button.textContent = { system: "◐", light: "○", dark: "●" }[theme];
        button.title = `Theme: ${theme}`;
        button.setAttribute("aria-label", `Theme: ${theme}. Change to ${next()}`);
    };
    onTheme(update);
    update();
    return button;
}

export function begin() {
    let theme = "system";
    try {
        theme = localStorage.getItem(KEY) ?? "system";
    } catch {
        // as above
    }
    if (NAMES.includes(theme) && theme !== "system") document.documentElement.dataset.theme = theme;
    dark.addEventListener("change", changed);
}

function chosen() {
    return document.documentElement.dataset.theme ?? "system";
}

function next() {
    return NAMES[(NAMES.indexOf(chosen()) + 1) % NAMES.length];
}

function changed() {
    cache = new Map();
    for (const work of listeners) work();
}
