// A hint where a row continues beyond the edge: its element gets `data-more` (left, right or both), and the style fades there.

import { onFrame, set } from "./dom.js";

const SLACK = 2; // pixels

/** Watches an element that scrolls sideways; returns it. */
export function hinted(element) {
    const look = onFrame(() => {
        const { scrollLeft, clientWidth, scrollWidth } = element;
        const left = scrollLeft > SLACK;
        const right = scrollLeft + clientWidth < scrollWidth - SLACK;
        const more = [left && "left", right && "right"].filter(Boolean).join(" ");
        if ((element.getAttribute("data-more") ?? "") !== more) set(element, { "data-more": more || null });
    });
    element.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(element);
    new MutationObserver(look).observe(element, { childList: true, subtree: true });
    look();
    return element;
}
