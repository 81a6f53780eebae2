// Text that is there to be taken along: a click, or Enter, copies it. Where the browser does not let a page copy, the text is
// selected, and is copied as any other.

import { h, say } from "./dom.js";

const SAID_MS = 2_000;

/** `title` says what the text is for. */
export function copyable(text, title) {
  const said = h("small", { role: "status" });
  const code = h("code", { class: "copyable", role: "button", tabindex: "0", title, "aria-label": `Copy ${text}`, onclick: () => take(code, text, said),
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      take(code, text, said);
    } }, text);
  return h("span", { class: "copy" }, code, said);
}

async function take(code, text, said) {
  getSelection().selectAllChildren(code);
  try {
    await navigator.clipboard.writeText(text);
    say(said, "copied");
  } catch {
    say(said, "selected: copy it with the keyboard");
  }
  clearTimeout(said.timer);
  said.timer = setTimeout(() => say(said, ""), SAID_MS);
}
