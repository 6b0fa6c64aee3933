"""The optimisers: pure mathematics that turns gradients into steps.

| in the paper | here |
| --- | --- |
| (5), s_t, the difference of the means of w over two windows | `sqn.WindowMeans` |
| (6), the pair (s_t, v_t), and which pairs are kept | `inverse_hessian.CurvaturePairs` |
| (8), H g by the two-loop recursion | `inverse_hessian.two_loop` |
| Algorithm 1, the step g~_k = eta_k H g_k | `sqn.Sqn` |
| the baseline, g~_k = eta_k g_k | `sgd.Sgd` |

`lbfgs` is not in the paper. With protocol `paillier` it is `lbfgs.Lbfgs`, which takes exact steps because the Taylor
loss is quadratic. With protocol `shares` it is `quasi_newton.QuasiNewton`, for the logistic loss; with an L1 penalty or
folds, `proximal.ProximalNewton`.

The losses and their derivatives, for `paillier` (2) to (4) and (6), are in `common.protocol.taylor` and
`common.protocol.logistic`.
"""
