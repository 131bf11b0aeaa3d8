"""Tiny cases of one head, and the checks of a forward and a backward pass in each."""

from typing import NamedTuple

import numpy as np

from flashlab.reference import masks
from flashlab.reference.attention import attention, attention_backward
from tests.tools.bounds import assert_as_exact_as_plain


class Case(NamedTuple):
    """Inputs of one head: lengths, head dimensions, and what is special about the scores."""

    shows: str
    Nq: int
    Nk: int
    d: int
    dv: int
    causal: bool
    spread: float = 1.0  # a quarter of the rise of the scores from the first to the last key, if ``rising``
    rising: bool = False  # later keys have larger scores, or smaller ones if the spread is negative
    shift: float = 0.0  # added to every score


def cases(B):
    """Return the cases for tiles of B x B."""
    return [
        Case("tiles that fit exactly", 2 * B, 2 * B, 16, 16, False),
        Case("lengths that no tile divides", B + 3, 2 * B + 5, 8, 8, False),
        Case("a causal mask over ragged lengths", 2 * B + 1, 2 * B + 1, 8, 8, True),
        Case("more keys than queries, causal", B - 1, 3 * B - 2, 8, 8, True),
        Case("more queries than keys: rows that see no key", 2 * B + 2, B + 1, 8, 8, True),
        Case("a maximum that rises from tile to tile", B, 4 * B, 8, 8, False, 4.0, True),
        Case("a maximum that falls far from tile to tile", B, 4 * B, 8, 8, False, -150.0, True),
        Case("scores that cannot be exponentiated", B, 2 * B, 8, 8, False, 1.0, False, 200.0),
        Case("scores so low that a padded key would win", B, B + 1, 8, 8, False, 1.0, False, -200.0),
        Case("one query, three keys", 1, 3, 4, 4, True),
        Case("values of another width than keys", B, B + 2, 8, 24, False),
        Case("no key at all", 3, 0, 8, 8, False),
    ]


def inputs(case, seed=0):
    """Return Q [Nq, d], K [Nk, d], V [Nk, dv], dO [Nq, dv] in float32."""
    rng = np.random.default_rng(seed)
    shapes = (case.Nq, case.d), (case.Nk, case.d), (case.Nk, case.dv), (case.Nq, case.dv)
    Q, K, V, dO = (rng.normal(size=shape) for shape in shapes)
    if case.rising or case.shift:
        Q[:, 0] = np.sqrt(case.d)  # so that the first column of K is added to the scores
        K[:, 0] = case.shift + (np.linspace(0, case.spread, case.Nk) * 4 if case.rising else 0)
    return [array.astype(np.float32) for array in (Q, K, V, dO)]


def mask_if(causal):
    return masks.causal() if causal else None


def forward(run, B):
    """Assert that run(Q, K, V, causal) -> O, lse is right in every case."""
    for case in cases(B):
        Q, K, V, _ = inputs(case)
        plain, exact = (attention(*(a.astype(t) for a in (Q, K, V)), mask=mask_if(case.causal), return_lse=True)
                        for t in (np.float32, np.float64))  # fmt: skip
        for ours, theirs, true in zip(run(Q, K, V, case.causal), plain, exact, strict=True):
            hold(case, ours, theirs, true)


def backward(run, B):
    """Assert that run(Q, K, V, O, lse, dO, causal) -> dQ, dK, dV is right in every case whose keys are not huge."""
    for case in cases(B):
        if case.shift or case.spread < 0:  # dQ would be a small difference of large numbers
            continue
        Q, K, V, dO = inputs(case)
        O, lse = attention(Q, K, V, mask=mask_if(case.causal), return_lse=True)
        plain, exact = (attention_backward(*(a.astype(t) for a in (Q, K, V, dO)), mask=mask_if(case.causal))
                        for t in (np.float32, np.float64))  # fmt: skip
        for ours, theirs, true in zip(run(Q, K, V, O, lse, dO, causal=case.causal), plain, exact, strict=True):
            hold(case, ours, theirs, true, roundings=16)


def hold(case, ours, theirs, true, roundings=4):
    """Assert that a result is as exact as the plain computation; the error says what the case shows."""
    try:
        assert_as_exact_as_plain(ours, theirs, true, roundings)
    except AssertionError as error:
        raise AssertionError(f"{case.shows}: {error}") from None
