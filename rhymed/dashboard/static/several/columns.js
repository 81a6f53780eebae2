// Curves of several runs as columns over the same x. Pure.

/** `curves`: run -> {steps, hours, values}. Returns [xs, a column for each of `ids`]; null where a run has no value. */
export function aligned(curves, ids, by) {
    const points = ids.map(
        (id) => new Map((curves[id]?.[by] ?? []).map((x, at) => [x, curves[id].values[at]])),
    );
    const xs = [...new Set(points.flatMap((own) => [...own.keys()]))].sort((a, b) => a - b);
    return [xs, points.map((own) => xs.map((x) => own.get(x) ?? null))];
}

/** The mean of each value and those before it, at most `window`; null stays null. */
export function smoothed(values, window) {
    const recent = [];
    return values.map((value) => {
        if (value == null) return null;
        recent.push(value);
        if (recent.length > window) recent.shift();
        return recent.reduce((a, b) => a + b, 0) / recent.length;
    });
}
