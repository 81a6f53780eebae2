// Two texts word by word: what only one of them has. Pure.

const MOST = 4000; // words of each text
const BLOCK = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;

/** [[{text, changed}] of the first, the same of the second]; null for texts that are too long. */
export function difference(first, second) {
    const [a, b] = [words(first), words(second)];
    if (a.length > MOST || b.length > MOST) return null;
    const kept = common(a, b);
    return [marked(a, new Set(kept.map(([i]) => i))), marked(b, new Set(kept.map(([, j]) => j)))];
}

function words(text) {
    return text.match(BLOCK) ?? [];
}

function marked(parts, kept) {
    const pieces = [];
    parts.forEach((text, i) => {
        const changed = !kept.has(i);
        const last = pieces[pieces.length - 1];
        if (last?.changed === changed) last.text += text;
        else pieces.push({ text, changed });
    });
    return pieces;
}

/** Pairs of places of a longest common subsequence; equal beginnings and ends are taken off first. */
function common(a, b) {
    let start = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    let end = 0;
    while (
        end < a.length - start &&
        end < b.length - start &&
        a[a.length - 1 - end] === b[b.length - 1 - end]
    )
        end++;
    const pairs = Array.from({ length: start }, (_, i) => [i, i]);
    const inner = longest(a.slice(start, a.length - end), b.slice(start, b.length - end));
    pairs.push(...inner.map(([i, j]) => [i + start, j + start]));
    for (let k = end; k > 0; k--) pairs.push([a.length - k, b.length - k]);
    return pairs;
}

function longest(a, b) {
    const wide = b.length + 1;
    const lengths = new Uint16Array((a.length + 1) * wide);
    for (let i = a.length - 1; i >= 0; i--)
        for (let j = b.length - 1; j >= 0; j--)
            lengths[i * wide + j] =
                a[i] === b[j]
                    ? lengths[(i + 1) * wide + j + 1] + 1
                    : Math.max(lengths[(i + 1) * wide + j], lengths[i * wide + j + 1]);
    const pairs = [];
    let [i, j] = [0, 0];
    while (i < a.length && j < b.length) {
        if (a[i] === b[j]) pairs.push([i++, j++]);
        else if (lengths[(i + 1) * wide + j] >= lengths[i * wide + j + 1]) i++;
        else j++;
    }
    return pairs;
}
