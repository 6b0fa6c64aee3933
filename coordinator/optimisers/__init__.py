"""The optimisers, pure mathematics: gradients in, steps out.

Where the paper's equations are:

    (5)  s_t, the difference of the means of w over two windows   window_means.py
    (6)  the pair (s_t, v_t), and which pairs are kept            pairs.py
    (8)  H g by the two-loop recursion                            two_loop.py
    g~ = eta H g, the step                                        sqn.py, its baseline sgd.py
"""
