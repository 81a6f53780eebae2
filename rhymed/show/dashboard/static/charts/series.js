// Columns of curves, computed from rows of metrics.jsonl. Pure.

export const SMOOTH = 5; // values in a mean

/** The mean of each value and those before it, at most `SMOOTH`; null where there is none. */
export function smoothed(values) {
    const recent = [];
    return values.map((value) => {
        if (value == null) return null;
        recent.push(value);
        if (recent.length > SMOOTH) recent.shift();
        return recent.reduce((a, b) => a + b, 0) / recent.length;
    });
}

/** Curves of evaluations: [{label, points: version -> value}], accuracy first. Version v is the one that step v starts with. */
export function evaluations(rows) {
    const keys = new Set(rows.flatMap((row) => Object.keys(row)));
    const wanted = [...keys]
        .filter(
            (key) => key.includes("/acc/mean@") || (key.startsWith("val/") && key.endsWith("/reward/mean")),
        )
        .sort();
    return wanted.map((key) => ({
        label: key,
        points: new Map(rows.filter((row) => row[key] != null).map((row) => [row.step, row[key]])),
    }));
}

/** Names of the scorers whose rewards the rows have, and their metrics: [name, metric]. */
export function scorers(rows) {
    const found = new Map();
    for (const row of rows)
        for (const key of Object.keys(row)) {
            const name = /^reward\/(.+)\/mean$/.exec(key)?.[1];
            if (name) found.set(name, key);
        }
    return [...found].sort();
}
