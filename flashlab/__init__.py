"""flashlab: how FlashAttention works, one small module per lesson.

===============  ===============================================================
``machine``      what a GPU is and what it charges: memories, rates, clocks
``reference``    one idea per module, in numpy
``kernels``      Triton and Gluon: ``from flashlab.kernels import flash_attention``
``models``       torch modules and caches that use the kernels
``distributed``  one sequence over several GPUs, by rings and their relatives
``course``       lessons, exercises, checks, hints
``bench``        measurements on your GPU: ``python -m flashlab.bench``
===============  ===============================================================

The vocabulary is that of the papers. It is the same in numpy, torch, Triton, Gluon, figures and prose:

========================  =====================================================================================
``Q K V S P O``           queries, keys, values, scores, weights, output; tiles ``Q_i K_j V_j S_ij P_ij O_i``
``dQ dK dV dO dP_ij ...`` their gradients
``m_i  l_i``              running maximum and running denominator of a row; ``m_new`` the next maximum, ``m_safe``
                          the same with 0 in place of -inf (a row that has met no key yet)
``alpha``                 the rescale factor exp(m_old - m_new)
``lse``                   log-sum-exp of a row of scores, natural logarithm
``delta``                 rowsum(dO * O)
``d  N  Nq  Nk``          head dimension, length, lengths of queries and keys where they differ
``B  H  Hk``              batch, heads, key/value heads
``Br Bc  Tr Tc  i j``     rows and columns of a tile, number of tiles, index of a tile
``M``                     size of the fast memory in elements; ``sram_bytes`` where bytes are meant
========================  =====================================================================================

A masked score is -inf. A row that sees no key has output 0 and lse -inf. Masks are aligned at the lower right: query i
is at position i + Nk - Nq among the keys, and a causal mask shows it the keys up to that position. Both ends of a
window are inclusive, and a query's own key counts.
"""
