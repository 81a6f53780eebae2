"""Keyed samplers on vLLM's own batch and processors: what they draw, verify and report, against what vLLM defines."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from rhymed.histospec.plugin import attach
from rhymed.histospec.sampling import noise
from rhymed.histospec.sampling.sampler import floors_of
from rhymed_workers.trainer.policy.head import among_kept
from tests.histospec.sampling.fake_runner import Runner, V

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own

KINDS = {
    "random": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.3},
    "greedy": {"temperature": 0.0},
    "top-p": {"top_p": 0.7, "temperature": 0.8},
    "top-k": {"top_k": 4},
    "both": {"top_k": 9, "top_p": 0.9},
    "min-p": {"min_p": 0.1, "temperature": 1.3},
    "all": {"min_p": 0.05, "top_k": 12, "top_p": 0.95, "temperature": 0.9},
}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """vLLM compiles how it ranks tokens; that takes longer than these tests."""
    monkeypatch.setattr("vllm.v1.sample.sampler.batched_count_greater_than", lambda x, values: (x >= values).sum(-1))


def params(key, **given):
    return SamplingParams(logprobs=0, extra_args={"rhymed": {"key": key}}, **given)


def attached(asked, mode="processed_logprobs", **given):
    runner = Runner(asked, mode, **given)
    assert attach(runner)
    return runner


def processed(asked, logits):
    """vLLM's own processed logits of these rows."""
    runner = Runner(asked, "processed_logits")
    for one in asked:
        assert one.logprobs == 0
    metadata = runner.metadata
    rows = runner.sampler.apply_logits_processors(logits.clone(), metadata, False)
    return runner.sampler.sample(rows, metadata)[1]


def rows(count, seed=0, spread=2.0):
    return torch.randn(count, V, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_drawn_from_what_vllm_processes(kind):
    asked = [params(key, **KINDS[kind]) for key in range(32)]
    x = rows(32)
    expected = processed(asked, x).numpy()
    made = attached(asked, length=7).plain(x.clone())
    tokens = made.sampled_token_ids[:, 0].numpy()
    if kind == "greedy":
        assert (tokens == x.argmax(1).numpy()).all()
    else:
        assert tokens.tolist() == [noise.draw(expected[r], r, 7) for r in range(32)]
    logprobs = torch.from_numpy(expected).log_softmax(1)[torch.arange(32), torch.from_numpy(tokens).long()]
    assert made.logprobs_tensors.logprobs[:, 0].numpy() == pytest.approx(logprobs.numpy(), abs=3e-6)
    assert made.logprobs_tensors.logprob_token_ids[:, 0].tolist() == tokens.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_over_keys_follow_the_exact_probabilities(kind):
    x = rows(1, seed=4)[:, :V]
    probabilities = processed([params(0, **KINDS[kind])], x).softmax(1)[0].double().numpy()
    counts = np.zeros(V)
    for batch in range(40):
        made = attached([params(60 * batch + i, **KINDS[kind]) for i in range(60)], mode="processed_logprobs")
        counts += np.bincount(made.plain(x.repeat(60, 1)).sampled_token_ids[:, 0], minlength=V)
    if kind == "greedy":
        assert counts[x.argmax()] == 2400
        return
    assert counts[probabilities == 0].sum() == 0
    expected = 2400 * probabilities
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    big = expected >= 8  # the rest is one cell
    counts = np.append(counts[big], counts[~big].sum())
    expected = np.append(expected[big], expected[~big].sum())
    kept = expected > 0
    chi = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = max(1, kept.sum() - 1)
    assert (chi - freedom) / np.sqrt(2 * freedom) < 4.5


def mixed(count):
    kinds = list(KINDS.values())
    asked = [params(1000 + r, **kinds[r % len(kinds)]) for r in range(count)]
    for one in asked:
        one.extra_args["rhymed"]["floor"] = True
    return asked


def speculate(asked, x, guess, lengths, mode="processed_logprobs"):
    """Steps of verification until every request has all its rows' tokens, and each token's log-prob.

    x: logits that do not depend on tokens, [requests, positions, V]. guess(request, position): the draft.
    """
    runner = attached(asked, mode)
    tokens, logprobs = [[] for _ in asked], [[] for _ in asked]
    steps = 0
    while min(map(len, tokens)) < x.shape[1] - 8:
        steps += 1
        drafts, taken = [], []
        for r in range(len(asked)):
            at = len(tokens[r])
            runner.input_batch.num_tokens_no_spec[r] = 5 + at
            drafts.append([guess(r, at + j) for j in range(min(lengths(r, steps), x.shape[1] - 1 - at))])
            taken.append(x[r, at : at + len(drafts[r]) + 1])
        made = runner.verify(torch.cat(taken), drafts) if any(drafts) else runner.plain(torch.cat(taken).clone())
        logprob_rows = made.logprobs_tensors.logprobs[:, 0].view(made.sampled_token_ids.shape)
        for r, row in enumerate(made.sampled_token_ids.tolist()):
            kept = [token for token in row if token >= 0]
            tokens[r] += kept
            logprobs[r] += logprob_rows[r, : len(kept)].tolist()
    return tokens, logprobs


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs", "processed_logits", "raw_logits"])
def test_drafts_change_neither_tokens_nor_logprobs(mode):
    count, positions = 27, 24
    x = torch.stack([rows(positions, seed=r, spread=1.5) for r in range(count)])
    plain, plain_logprobs = speculate(mixed(count), x, None, lambda r, step: 0, mode)
    guesses = {
        "right": (lambda r, t: plain[r][t] if t < len(plain[r]) else 0, lambda r, step: 4),
        "wrong": (lambda r, t: (plain[r][t] + 1) % V if t < len(plain[r]) else 0, lambda r, step: 3),
        "some": (
            lambda r, t: plain[r][t] if (r + t) % 3 and t < len(plain[r]) else 5,
            lambda r, step: (r + step) % 6,
        ),
    }
    for guess, lengths in guesses.values():
        tokens, logprobs = speculate(mixed(count), x, guess, lengths, mode)
        for r in range(count):
            shared = min(len(tokens[r]), len(plain[r]))
            assert shared >= positions - 8
            assert tokens[r][:shared] == plain[r][:shared]
            assert logprobs[r][:shared] == pytest.approx(plain_logprobs[r][:shared], abs=1e-6)


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_top_logprobs_are_vllms(mode):
    asked = [SamplingParams(logprobs=3, temperature=0.7, min_p=0.01, seed=r) for r in range(6)]
    x = rows(6)
    made = attached(asked, mode).plain(x.clone())
    theirs = Runner(asked, mode).plain(x.clone())
    assert (made.logprobs_tensors.logprob_token_ids[:, 1:] == theirs.logprobs_tensors.logprob_token_ids[:, 1:]).all()
    ours, other = made.logprobs_tensors.logprobs[:, 1:], theirs.logprobs_tensors.logprobs[:, 1:]
    assert ours.numpy() == pytest.approx(other.numpy(), abs=1e-5)
    assert made.logprobs_tensors.logprob_token_ids[:, 0].tolist() == made.sampled_token_ids[:, 0].tolist()


CHANGED = {
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "allowed": {"allowed_token_ids": [3, 5, 8, 13, 21]},
    "minimum": {"min_tokens": 4, "stop_token_ids": list(range(0, 200))},
    "none": {},
}


def test_processors_apply_to_drafted_rows_as_to_plain_ones():
    """A row with j right drafts before it is the plain row of the same request j tokens later."""
    x = rows(1, seed=9)
    kinds = list(CHANGED.values())
    drafts = [[5, 8, 3], [21, 13, 3, 5], [], [8], [250, 251, 3], [5, 5], [3], [13, 13, 13, 13, 13]]
    asked = [params(r, **kinds[r % 4]) for r in range(8)]
    for one in asked:
        one._all_stop_token_ids = set(one.stop_token_ids or [])
    runner = Runner(asked)
    runner.input_batch.refresh_metadata()
    made = attach(runner) and runner.sampler.keyed
    counts = np.array([len(draft) + 1 for draft in drafts])
    for spec, draft in zip(runner.input_batch.spec_token_ids, drafts, strict=False):
        spec[:] = draft
    spec = made._processed(x.repeat(int(counts.sum()), 1), runner.metadata, object(), counts)
    at = 0
    for r, draft in enumerate(drafts):
        for j in range(len(draft) + 1):
            one = Runner([])
            one.add("alone", asked[r], 5, tuple(draft[:j]))
            one.input_batch.refresh_metadata()
            expected = one.sampler.apply_logits_processors(x.clone(), one.metadata, False)
            assert torch.equal(spec[at + j], expected[0]), (r, j)
        at += len(draft) + 1


def test_keys_come_from_the_request_its_seed_or_are_its_own():
    asked = [
        params(5),
        SamplingParams(seed=5),
        SamplingParams(seed=6, extra_args={"rhymed": {"key": 5}}),
        SamplingParams(),
        SamplingParams(),
        params(-1),
    ]
    runner = attached(asked)
    same = rows(1).repeat(6, 1)
    draws = [runner.plain(same.clone()).sampled_token_ids[:, 0].tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    batch = runner.sampler.keyed._batch
    assert batch.key_B[:3].tolist() == [5, 5, 5]
    assert batch.key_B[5] == 2**64 - 1
    assert batch.key_B[3] != batch.key_B[4]
    runner.input_batch.remove_request("request-0")
    runner.input_batch.condense()
    runner.input_batch.refresh_metadata()
    runner.plain(same[:5].clone())
    again = runner.sampler.keyed._batch
    kept = dict(zip(runner.input_batch.req_ids, again.key_B.tolist(), strict=True))
    assert (kept["request-3"], kept["request-4"]) == (int(batch.key_B[3]), int(batch.key_B[4]))


def test_a_sample_goes_on_elsewhere_with_the_same_noise():
    x = rows(1, seed=2)
    here = attached([params(9)], length=11).plain(x.clone()).sampled_token_ids
    prompt_and_partial = Runner([])
    prompt_and_partial.add("moved", params(9), 4, made=(1, 2, 3, 4, 5, 6, 7))
    prompt_and_partial.input_batch.refresh_metadata()
    attach(prompt_and_partial)
    assert prompt_and_partial.plain(x.clone()).sampled_token_ids.tolist() == here.tolist()


def test_min_p_may_come_with_the_key_since_vllm_refuses_it_with_drafts():
    x = rows(20)
    reported = [SamplingParams(logprobs=0, extra_args={"rhymed": {"key": r, "min_p": 0.2}}) for r in range(20)]
    own = [params(r, min_p=0.2) for r in range(20)]
    made, expected = (attached(asked).plain(x.clone()) for asked in (reported, own))
    assert made.sampled_token_ids.tolist() == expected.sampled_token_ids.tolist()
    assert torch.equal(made.logprobs_tensors.logprobs, expected.logprobs_tensors.logprobs)


class Custom(LogitsProcessor):
    def __init__(self):
        pass

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        logits[:, 10:] = -torch.inf
        return logits


def test_what_is_not_expressed_goes_vllms_way_with_one_warning(caplog):
    asked = [SamplingParams(seed=r, logprobs=0) for r in range(8)]
    runner = attached(asked)
    runner.metadata.logitsprocs.argmax_invariant.append(Custom())
    with caplog.at_level("WARNING", "rhymed"):
        drawn = [runner.plain(rows(8)).sampled_token_ids for _ in range(3)]
    assert max(int(tokens.max()) for tokens in drawn) < 10
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "a logits processor of the user" in caplog.text
    assert len(runner.sampler.keyed.vllm_metadata(runner.metadata).generators) == 8


def test_warm_up_runs_with_metadata_of_their_own_reach_vllm():
    runner = attached([params(1)])
    other = Runner([SamplingParams(temperature=0.0)] * 3)
    x = rows(3)
    assert runner.sampler(logits=x.clone(), sampling_metadata=other.metadata).sampled_token_ids[:, 0].tolist() == (
        x.argmax(1).tolist()
    )


def test_the_rest_of_vllms_samplers_stays_reachable():
    runner = attached([params(1)])
    assert isinstance(runner.sampler.original, Sampler)
    assert isinstance(runner.rejection_sampler.original, RejectionSampler)
    assert runner.sampler.logprobs_mode == "processed_logprobs"
    assert runner.rejection_sampler.parse_output is RejectionSampler.parse_output
    with pytest.raises(AttributeError):
        _ = runner.sampler.no_such_thing


@pytest.mark.parametrize("spread", [1.5, 4.0])
@pytest.mark.parametrize("moved", [0.0, 0.02, 0.1])
def test_ratios_to_the_engine_have_mean_one_also_when_the_policy_has_moved(spread, moved):
    """`moved`: nats, of each logit, since the engine drew with top-p 0.8 from a few or from hundreds of tokens."""
    torch.manual_seed(0)
    z = torch.randn(200, 1000) * spread
    kept = apply_top_k_top_p(z.clone(), None, torch.full((len(z),), 0.8))
    floors, said = floors_of(z.clone(), kept), kept.log_softmax(1)
    now = (z + moved * torch.randn(z.shape)).log_softmax(1)
    ratios, among_all, other = [], [], []
    for token in torch.multinomial(said.exp(), 50, replacement=True).T:
        parts = said, among_kept(now.clone(), token, floors)
        engine, trainer = (part.gather(1, token[:, None])[:, 0] for part in parts)
        ratios.append((trainer - engine).exp())
        among_all.append((now.gather(1, token[:, None])[:, 0] - engine).exp())
        same = now.masked_fill(kept.isneginf(), -1e9).log_softmax(1).gather(1, token[:, None])[:, 0]
        other.append((trainer - same).abs())
    assert abs(torch.cat(ratios).mean() - 1) < (1e-6 if not moved else 0.005)
    assert torch.cat(among_all).mean() < 0.85
    assert torch.cat(other).mean() < (1e-6 if not moved else 0.012), "against the ids of what was kept"
