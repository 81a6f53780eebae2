"""The noise in float32, and how far a float32 score can be from the exact one: numbers that `kernels` computes with.

With h as in `noise`, f = h + 0.5 and eps = f / 2**32, the noise is g = -log(-log(1 - eps)). One logarithm is

    log(f) = exponent * log(2) + LOG(mantissa),         LOG: polynomial, mantissa in [1, 2)

and there are two branches, so that no difference of nearly equal numbers is taken:

    eps <  1/4:   g = -log(eps) - RATIO(eps)            RATIO(eps) approximates log(-log(1 - eps) / eps)
    eps >= 1/4:   g = -log(y), y = -log(1 - eps)        1 - eps = (not h + 0.5) / 2**32, y > 0.28

**Bound of the noise.** g depends on 32 bits alone, so its largest error was computed over all 2**32 of them, once
with every operation rounded to float32 and once with fused multiply-adds: both are below `NOISE_ERROR`
(tests/histospec/sampling/test_float32.py: a sample of the bits in `make test`; in `make test-thorough`, of all h that
round to one float, those with the largest error).

**Bound of a score.** The exact score is s = x + g with x = logit / temperature rounded to float32, as on a CPU. Two
more roundings happen, one of the product (if it is fused with the sum) and one of the sum: at most 2**-24 |x| +
2**-24 |score|, and |x| <= |score| + 24. So with A = `ABSOLUTE` and B = `RELATIVE`, which have room for twice that,

    |score - s| <= A + B |score|

**Near ties.** Let j be the token with the largest float32 score, `top`, and i the one with the largest s. Then
score_i >= s_i - A - B |score_i| >= s_j - A - B |score_i| >= top - 2 A - B |top| - B |score_i|: the winner is among
the tokens whose score is at least top - 2 (A + B |top|); the room covers B |top - score_i|. If there is one such
token, it is the winner. If there are more (about one row in 4,000), float64 decides among them with the arithmetic of
`cpu`: a token can differ only where two exact scores differ by less than float64 resolves, some 1e-15 of them.
"""

from __future__ import annotations

from typing import Final

LN2: Final = 0.6931471805599453
LOG: Final = (-1.94106434, 3.52930466, -2.46122164, 1.13062584, -0.28873984, 0.031104)  # minimax on [1, 2], 9e-6
RATIO: Final = (-4.50481931e-06, 5.00547431e-01, 1.98040171e-01, 1.84362816e-01)  # minimax on [0, 1/4], 5e-6
QUARTER: Final = 2**30  # h below it: eps < 1/4

NOISE_ERROR: Final = 5e-5
ABSOLUTE: Final = 2.0**-13
RELATIVE: Final = 2.0**-22
