"""Steps in which nothing is drafted: vLLM's indices of drafts without their computation."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from rhymed.histospec import plugin


class Runner:
    """The parts of vLLM's model runner that compute the indices."""

    use_async_scheduling = False
    device = torch.device("cpu")
    num_spec_tokens = 8
    _get_cumsum_and_arange = GPUModelRunner._get_cumsum_and_arange
    _calc_spec_decode_metadata = GPUModelRunner._calc_spec_decode_metadata

    def __init__(self):
        self.arange_np, self._arange_scratch = np.arange(512), np.zeros(512, np.int64)
        self.input_ids = SimpleNamespace(gpu=torch.arange(512, dtype=torch.int32))
        self._draft_token_ids = []

    def take_draft_token_ids(self):
        return "taken"


@pytest.mark.parametrize("drafts", [[0], [0, 0, 0, 0], [0, 2, 0, 1]])
def test_the_indices_are_those_that_vllm_computes(drafts):
    counts, scheduled = np.array(drafts, np.int32), np.cumsum([5, *(1 + drafts[i] for i in range(1, len(drafts)))])
    expected = Runner()._calc_spec_decode_metadata(counts, scheduled)
    runner = Runner()
    plugin.patch_undrafted_steps(runner)
    for _ in range(2):
        found = runner._calc_spec_decode_metadata(counts, scheduled)
        assert vars(found).keys() == vars(expected).keys()
        for name, value in vars(expected).items():
            mine = getattr(found, name)
            if isinstance(value, torch.Tensor):
                assert (mine.dtype, mine.tolist()) == (value.dtype, value.tolist()), name
            else:
                assert mine == value, name


def test_the_scheduler_hears_of_drafts_alone():
    runner = Runner()
    plugin.patch_undrafted_steps(runner)
    for drafts, reported in (([[], []], None), ([[], [3]], "taken"), (torch.zeros(1, 1), "taken")):
        runner._draft_token_ids = drafts
        assert runner.take_draft_token_ids() == reported


def test_a_runner_of_a_device_stays_as_it_is():
    runner = Runner()
    runner.device = torch.device("meta")
    plugin.patch_undrafted_steps(runner)
    assert "take_draft_token_ids" not in vars(runner)
