"""The exercises to grade, each with a question about the learner's own answer: the lists of ``docs/teach.md``."""

from typing import NamedTuple


class Graded(NamedTuple):
    """An exercise to grade, with a question to ask a learner about the answer."""

    exercise: str
    task: str
    question: str
    expected: str
    usual: str  # the usual wrong answer


GRADED = (
    Graded("safe_softmax.rows", "a softmax that cannot overflow",
           "Subtract 5 from each score instead of the row's maximum: what changes?",
           "No weight, since e⁵ cancels. But a score of 94 overflows in float32, and its weight becomes NaN.",
           "All weights become smaller."),
    Graded("online_softmax.update", "a block of keys joins the state (m, ℓ, O)",
           "A block raises the maximum from 1 to 3. What becomes of the old O?",
           "It is multiplied by e⁻². Otherwise the old keys count e² times too much.",
           "Nothing: O is a mean."),
    Graded("online_softmax.finish", "from the state to O and lse",
           "A row has two keys, both with score 1000. What is lse?",
           "1000 + log 2: ℓ is relative to m.",
           "log 2, or ∞."),
    Graded("online_softmax.merge", "two states become one",
           "One of the two states has seen no key. What are its factor and the other one's?",
           "0 and 1: the result is the other state. NaN would need two empty states, and no guard.",
           "NaN."),
    Graded("tiling.inside", "one tile of queries meets all keys",
           "Double Bc. What becomes of O, and of the bytes of K that this tile loads?",
           "Both stay (O up to rounding): each key is loaded once per tile of queries.",
           "Half of the bytes."),
    Graded("tiling.forward", "the loop over tiles of queries",
           "Halve Br. How many bytes of K and V are loaded?",
           "Twice as many: each tile of queries loads all of K and V.",
           "As many as before."),
    Graded("recomputation.gradients", "dQ, dK and dV of one tile",
           "delta is too large by 1 in one row. Which gradients change?",
           "dQ and dK, through dS. dV does not: it needs P and dO only.",
           "All three."),
    Graded("recomputation.backward", "the two loops of the backward pass",
           "Exchange the two loops. What changes?",
           "No gradient. With queries outside, dQ of a tile can stay in fast memory; with keys outside, dK and dV.",
           "The gradients, or nothing at all."),
    Graded("first_triton_kernel.softmax_row", "a first kernel: one program per row",
           "Load with other=0 instead of −∞. Which rows become wrong?",
           "All, if N < Bc: each missing column counts as a score of 0, so the weights sum to less than 1.",
           "None: the store is masked."),
    Graded("triton_forward.forward", "the forward kernel",
           "Under a causal mask with Nq = Nk, let the loop visit all keys. What changes?",
           "Only the time: the mask hides the scores, and about twice as many tiles are computed.",
           "O is wrong."),
    Graded("triton_forward.launch", "its grid, strides and outputs",
           "Q is X[::2]. What happens without contiguous()?",
           "The kernel steps by d and reads other rows of X: wrong numbers, and no error.",
           "Triton knows the strides."),
    Graded("triton_backward.delta", "the kernel of the sum that spans a row",
           "delta is the sum of P · dP over all keys. Why does this kernel load no key?",
           "O is P V, so the sum over keys is that of dO · O over the columns of a row.",
           "The forward pass has stored it."),
    Graded("triton_backward.add_rows", "a tile of queries adds to dK and dV",
           "Leave out `seen` under a causal mask. Which results are wrong?",
           "dK and dV: hidden keys get the weight e^(S − lse), which may even be above 1.",
           "None: lse knows the mask."),
    Graded("triton_backward.dQ", "the kernel of one gradient",
           "All programs load the same keys. Why does this kernel need no atomic addition?",
           "Each program owns its rows of dQ, and nothing else is written.",
           "The GPU puts the additions in order."),
    Graded("triton_backward.function", "all of it under autograd",
           "The loss is O.sum(). What does backward receive, and what if it does not call contiguous()?",
           "A single 1 with strides of 0. The kernels step by d and read other memory: wrong numbers.",
           "A matrix of ones, so nothing can go wrong."),
)  # fmt: skip
