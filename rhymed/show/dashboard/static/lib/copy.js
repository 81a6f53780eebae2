// Text to be copied with a click or Enter. Where the browser does not let a page copy, the text is selected.

import { h, setText } from "./dom.js";

const STATUS_MS = 2_000;

/** `title`: what the text is for. */
export function copyable(text, title) {
    const status = h("small", { role: "status" });
    const code = h(
        "code",
        {
            class: "copyable",
            role: "button",
            tabindex: "0",
            title,
            "aria-label": `Copy ${text}`,
            onclick: () => copy(code, text, status),
            onkeydown: (event) => {
                if (event.key !== "Enter" && event.key !== " ") return;
                event.preventDefault();
                copy(code, text, status);
            },
        },
        text,
    );
    return h("span", { class: "copy" }, code, status);
}

async function copy(code, text, status) {
    getSelection().selectAllChildren(code);
    try {
        await navigator.clipboard.writeText(text);
        setText(status, "copied");
    } catch {
        setText(status, "selected: copy it with the keyboard");
    }
    clearTimeout(status.timer);
    status.timer = setTimeout(() => setText(status, ""), STATUS_MS);
}
