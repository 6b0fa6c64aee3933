"""The inner loops of the three roles, over tables in the layout of `layout`.

Numbers of rows are multiples of 16, `first_row` too. Equations are in the ring of integers modulo 2^64. u' = x'w is the
score of a row at the scale of `format`; C, A and B are the coordinator, the host and the guest.

- **Scores.** A has z_1 = X_A w_A1 + U_A (w_A2 - a) + D_B w_B1 + s_1 + OFFSET, and B z_2 likewise, without OFFSET.
  C knows r = s_1 + s_2 - U_A a - U_B b. z = z_1 + z_2 = u' + r + OFFSET.
- **Dealt values** of a row: cos and sin of k r for each term k; r without the low bits that the residual drops; W, the
  top bit of r; R, r without the low bits that the square drops; R^2; W^2 - 2 R W; with sample weights, U_c e. The
  even-numbered ones, from 0, are the host's stream and corrections for the guest; the others the reverse.
- **Residual.** sigma(u) - 1/2 = z - r + (W if the top bit of z is clear), cut, plus sum_k b_k sin(k (z - r)).
- **Loss** of a row, without its linear and constant parts: u'^2 - sum_k 2048 L_k / P cos(k (z - r)).
"""

from trilateral.common.shares.reference import (
    Columns,
    DealerKeys,
    DealerSums,
    Residual,
    Weights,
    add_mask_products,
    add_products,
    deal,
    mask,
    residual,
    score_part,
)
from trilateral.common.shares.reference import elements as stream

__all__ = [
    "Columns",
    "DealerKeys",
    "DealerSums",
    "Residual",
    "Weights",
    "add_mask_products",
    "add_products",
    "deal",
    "mask",
    "residual",
    "score_part",
    "stream",
]
