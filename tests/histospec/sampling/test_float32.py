"""The bound of the float32 noise: over every one of its 2**32 inputs, and against what the kernels' bound allows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from rhymed.histospec.sampling import float32

single = np.float32
LOG_0, LOG_1, LOG_2, LOG_3, LOG_4, LOG_5 = map(single, float32.LOG)
RATIO_0, RATIO_1, RATIO_2, RATIO_3 = map(single, float32.RATIO)
LN2, QUARTER = single(float32.LN2), np.uint32(float32.QUARTER)


@numba.njit(error_model="numpy")
def rounded_twice(a, b, c):
    return single(single(a * b) + c)


@numba.njit(error_model="numpy")
def fused(a, b, c):
    return single(np.float64(a) * np.float64(b) + np.float64(c))


def largest_error(multiply_add):
    """A function of (first, last, step): the largest error of the noise of these h, as `kernels._noise` has it."""

    @numba.njit(error_model="numpy")
    def minus_log(f, exponent):
        bits = single(f).view(np.int32)
        n = single(np.int32(exponent) - (bits >> np.int32(23)))
        m = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(single)
        p = multiply_add(m, LOG_5, LOG_4)
        p = multiply_add(m, p, LOG_3)
        p = multiply_add(m, p, LOG_2)
        p = multiply_add(m, p, LOG_1)
        p = multiply_add(m, p, LOG_0)
        return multiply_add(n, LN2, -p)

    @numba.njit(error_model="numpy")
    def noise(h):
        small = h < QUARTER
        f = single(single(h if small else np.uint32(~h)) + single(0.5))
        y = minus_log(f, 159)
        if not small:
            return minus_log(y, 127)
        eps = single(f * single(2.0**-32))
        ratio = multiply_add(eps, RATIO_3, RATIO_2)
        ratio = multiply_add(eps, ratio, RATIO_1)
        return single(y - multiply_add(eps, ratio, RATIO_0))

    @numba.njit(error_model="numpy", nogil=True)
    def worst(first, last, step):
        largest = 0.0
        for value in range(first, last, step):
            h = np.uint32(value)
            exact = -math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))
            largest = max(largest, abs(np.float64(noise(h)) - exact))
        return largest

    return worst


@pytest.mark.parametrize("multiply_add", [rounded_twice, fused])
def test_the_bound_holds_on_a_sample_and_at_the_ends(multiply_add):
    worst = largest_error(multiply_add)
    sampled = worst(0, 2**32, 9973)
    ends = [(0, 2**16), (2**30 - 2**15, 2**30 + 2**15), (2**32 - 2**16, 2**32)]
    assert max(sampled, *(worst(first, last, 1) for first, last in ends)) < float32.NOISE_ERROR
    assert sampled > float32.NOISE_ERROR / 2, "the bound is not far from the truth"


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("multiply_add", [rounded_twice, fused])
def test_the_bound_holds_for_all_noise(multiply_add):
    worst = largest_error(multiply_add)
    worst(0, 1, 1)
    with ThreadPoolExecutor() as pool:
        parts = pool.map(lambda part: worst(part << 24, (part + 1) << 24, 1), range(256))
        assert max(parts) < float32.NOISE_ERROR


def test_the_tolerance_has_room_for_the_roundings_of_a_score():
    assert 2 * (float32.NOISE_ERROR + 24 * 2.0**-24) < float32.ABSOLUTE
    assert float32.RELATIVE >= 4 * 2.0**-24
