// What is marked in the text of a response: accepted drafts, what differs from the other one, or each token by a number that
// the store has. Pure: samples in, pieces and sentences out.

import { number, plural, whole } from "../../lib/format.js";
import { difference } from "./diff.js";

const DARKEST = 5; // nats: a probability below 1 % has the full shade
const GIVEN = "of its environment, or not known";

/** value, label, whether it needs two responses. */
export const OVERLAYS = [
    ["drafts", "accepted drafts", false],
    ["difference", "differences", true],
    ["logprob", "log-probabilities", false],
    ["version", "policy versions", false],
];

export function byToken(kind) {
    return kind !== "drafts" && kind !== "difference";
}

/** {pieces, note} for each of the samples; null where the accepted drafts are shown. */
export function overlays(kind, samples) {
    if (kind === "difference" && samples.length === 2) return differences(samples);
    if (kind === "logprob") return samples.map(logprobs);
    if (kind === "version") return samples.map(versions);
    return samples.map(() => null);
}

function differences(samples) {
    const found = difference(...samples.map(text));
    if (!found)
        return samples.map((sample) =>
            plain(sample, "These responses are too long to be compared word by word."),
        );
    return found.map((pieces) => {
        const count = pieces.filter((piece) => piece.changed).length;
        return { pieces, note: count ? plural(count, "difference") : "The same text in both responses." };
    });
}

function logprobs(sample) {
    if (sample.unknown || !sample.tokens?.length)
        return plain(
            sample,
            `There are no log-probabilities: ${sample.unknown || sample.missing || "none are stored"}.`,
        );
    const known = sample.tokens.map(({ logprob }) => logprob).filter((logprob) => logprob != null);
    const mean = known.reduce((a, b) => a + b, 0) / (known.length || 1);
    return shaded(sample, ({ logprob }) => [
        logprob == null ? 0 : Math.min(1, -logprob / DARKEST),
        logprob == null ? GIVEN : `log-prob ${number(logprob)}, probability ${number(Math.exp(logprob))}`,
        `mean log-prob ${number(mean)} nats per token: the stronger the shade, the less probable`,
    ]);
}

function versions(sample) {
    if (!sample.tokens?.length)
        return plain(sample, sample.unknown || "The tokens of this response are not known.");
    const newest = sample.tokens.reduce((most, { version }) => Math.max(most, version ?? 0), 0);
    const oldest = sample.tokens.reduce((least, { version }) => Math.min(least, version ?? newest), newest);
    return shaded(sample, ({ version }) => [
        newest > oldest ? (newest - (version ?? newest)) / (newest - oldest) : 0,
        version == null ? GIVEN : `policy version ${version}`,
        newest > oldest
            ? `policy versions ${oldest} to ${newest}: the stronger the shade, the older the weights`
            : `all of policy version ${newest}`,
    ]);
}

/** `of(token)`: its shade, its title, and the sentence about all tokens. */
function shaded(sample, of) {
    const pieces = sample.tokens.map((token) => {
        const [shade, title] = of(token);
        return { text: token.text, shade, title };
    });
    const shown = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
    const rest = text(sample).slice(shown);
    const cut = rest ? `; of its first ${whole(pieces.length)} tokens` : "";
    return { pieces: rest ? [...pieces, { text: rest }] : pieces, note: of(sample.tokens[0])[2] + cut };
}

/** Nothing is marked. */
function plain(sample, note) {
    return { pieces: [{ text: text(sample) }], note };
}

function text(sample) {
    return (sample.pieces ?? []).map((piece) => piece.text).join("");
}
