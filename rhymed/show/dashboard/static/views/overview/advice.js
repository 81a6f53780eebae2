// What is wrong in the newest steps, and what to change. Owns its panel, which is hidden for a healthy run.

import { fill, h, panel } from "../../lib/dom.js";

export class AdvicePanel {
    constructor(state) {
        this.state = state;
        this.list = h("ul", {});
        this.element = panel("Advice", "advice", this.list);
        state.on("steps", () => this.paint());
        this.paint();
    }

    paint() {
        const { advice } = this.state;
        this.element.hidden = advice.length === 0;
        const key = JSON.stringify(advice);
        if (key === this.shown) return; // a selection in the text stays
        this.shown = key;
        fill(
            this.list,
            advice.map(({ name, wrong, change }) =>
                h("li", { "data-advice": name }, h("strong", {}, wrong), " ", change),
            ),
        );
    }
}
