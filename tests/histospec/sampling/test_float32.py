"""The bound of the float32 noise: over every one of its 2**32 inputs, and against what the kernels' bound allows."""

from __future__ import annotations

import math

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
    def worst(first, last, step, around, mirrored):
        largest = 0.0
        for value in range(first, last, step):
            for near in range(value - around, value + around + 1):
                h = np.uint32(2**32 - 1 - near if mirrored else near)
                exact = -math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))
                largest = max(largest, abs(np.float64(noise(h)) - exact))
        return largest

    return worst


def extremes(last):
    """Ranges whose h have the largest errors of all in [2**25, last), with their neighbours.

    The noise is computed from h (or from its complement) rounded to float32: all h of one float have one noise, while
    the exact one rises with h, so that the first or the last of them is the farthest. Both lie at a border between
    two floats, and the borders lie in the middle between them: [2**n, 2**(n + 1)) has 2**23 floats.
    """
    for n in range(25, 32):
        apart = 2 ** (n - 23)
        yield 2**n + apart // 2, min(last, 2 ** (n + 1)), apart, 1


@pytest.mark.parametrize("multiply_add", [rounded_twice, fused])
def test_the_bound_holds_on_a_sample_and_at_the_ends(multiply_add):
    worst = largest_error(multiply_add)
    sampled = worst(0, 2**32, 9973, 0, False)
    ends = [(0, 2**16), (2**30 - 2**15, 2**30 + 2**15), (2**32 - 2**16, 2**32)]
    assert max(sampled, *(worst(first, last, 1, 0, False) for first, last in ends)) < float32.NOISE_ERROR
    assert sampled > float32.NOISE_ERROR / 2, "the bound is not far from the truth"


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("multiply_add", [rounded_twice, fused])
def test_the_bound_holds_for_all_noise(multiply_add):
    worst = largest_error(multiply_add)
    every = [(0, 2**25, 1, 0), (2**30 - 1, 2**30, 1, 1)]
    found = [worst(*part, False) for part in (*every, *extremes(2**30))]
    found += [worst(*part, True) for part in (*every, *extremes(3 * 2**30))]
    assert max(found) < float32.NOISE_ERROR


def test_the_tolerance_has_room_for_the_roundings_of_a_score():
    assert 2 * (float32.NOISE_ERROR + 24 * 2.0**-24) < float32.ABSOLUTE
    assert float32.RELATIVE >= 4 * 2.0**-24
