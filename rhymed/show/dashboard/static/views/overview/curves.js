// Which curves the overview has: titles, units and metrics. Data only.

/** What the policy learns from: next to the reward. Series: [label, metric, colour, more]. */
export const SIGNAL = [
    {
        title: "Flat groups, clipped responses",
        unit: "share",
        zero: true,
        series: [
            ["flat groups", "reward/flat_groups", "--c4"],
            ["clipped", "response_length/clip_ratio", "--c2", { dash: [6, 4] }],
            ["scoring errors", "reward/error_rate", "--c5", { dash: [2, 3] }],
        ],
    },
    {
        title: "Reward spread",
        unit: "",
        zero: true,
        series: [["standard deviation", "reward/std", "--c1"]],
    },
    {
        title: "Response length",
        unit: "tokens",
        series: [
            ["mean", "response_length/mean", "--c1"],
            ["max", "response_length/max", "--c4", { dash: [6, 4], width: 1 }],
            ["min", "response_length/min", "--c3", { dash: [2, 3], width: 1 }],
        ],
    },
];

/** How fast it is. */
export const CHARTS = [
    {
        title: "Throughput",
        unit: "tokens/s",
        zero: true,
        series: [["rollout", "rollout/tokens_per_s", "--c1"]],
    },
    {
        title: "Time per phase",
        unit: "s",
        stack: true,
        series: [
            ["rollout", "timing_s/rollout", "--c1"],
            ["reward", "timing_s/reward", "--c2"],
            ["train", "timing_s/train", "--c3"],
        ],
    },
    {
        title: "Bubble ratio",
        unit: "share",
        zero: true,
        series: [["slot time without a sample", "rollout/bubble_ratio", "--c4"]],
    },
    {
        title: "Staleness",
        unit: "steps",
        zero: true,
        series: [
            ["mean", "staleness/mean", "--c1"],
            ["max", "staleness/max", "--c4", { dash: [6, 4] }],
        ],
    },
    {
        title: "Acceptance length",
        unit: "tokens per forward pass",
        absent: "Appears after a step with drafts. Without drafts it is 1.",
        series: [
            ["accepted + 1", "rollout/spec_accept_length", "--c1", { unit: "tokens" }],
            ["estimated net speed-up", "rollout/spec_net_speedup", "--c2", { unit: "×", dash: [6, 4] }],
        ],
    },
    {
        title: "Acceptance rate",
        unit: "share",
        zero: true,
        absent: "Appears after a step with drafts.",
        series: [
            ["of drafted tokens", "rollout/spec_accept_rate", "--c1"],
            ["generated ahead and kept", "rollout/ahead_kept_ratio", "--c3", { dash: [6, 4] }],
        ],
    },
];

/** Small charts in a row of their own; those without a value are hidden. */
export const HEALTH = [
    { title: "Loss", unit: "", series: [["loss", "actor/loss", "--c1"]] },
    {
        title: "Mismatch KL",
        unit: "nats/token",
        zero: true,
        series: [["KL", "mismatch_kl/mean", "--c4"]],
    },
    { title: "Entropy", unit: "nats/token", series: [["entropy", "actor/entropy", "--c1"]] },
    { title: "KL to the reference", unit: "nats/token", series: [["KL", "actor/kl", "--c2"]] },
    {
        title: "Gradient norm",
        unit: "",
        zero: true,
        series: [["before clipping", "actor/grad_norm", "--c3"]],
    },
    {
        title: "Clip fraction",
        unit: "share",
        zero: true,
        series: [["tokens clipped", "actor/pg_clipfrac", "--c4"]],
    },
    { title: "Learning rate", unit: "", zero: true, series: [["rate", "actor/lr", "--c6"]] },
    {
        title: "Critic",
        optional: true,
        unit: "",
        series: [["explained variance", "critic/explained_variance", "--c1"]],
    },
    {
        title: "Values and returns",
        optional: true,
        unit: "reward",
        series: [
            ["mean value", "critic/value_mean", "--c2"],
            ["mean return", "critic/return_mean", "--c4", { dash: [6, 4] }],
        ],
    },
];

/** Over epochs instead of steps. */
export const EPOCH_SERIES = [
    ["accepted + 1", "accept_length", "--c1", { unit: "tokens" }],
    ["estimated net speed-up", "net_speedup", "--c2", { unit: "×", dash: [6, 4] }],
];
