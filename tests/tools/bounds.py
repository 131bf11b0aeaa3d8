"""Bound an error by that of the plain computation in the same dtype: at most twice as large, plus one rounding."""

import numpy as np
import torch

from flashlab.reference.online_softmax import finish


def assert_as_exact_as_plain(result, plain, exact, roundings=1):
    """Bound the error of ``result`` by that of ``plain`` (same dtype): their differences from ``exact`` (float64).

    All three are numpy arrays, or all three are torch tensors. NaN fails; infinities must be equal. ``roundings``:
    how many roundings of the largest result the bound allows on top.
    """
    if isinstance(plain, torch.Tensor):
        assert result.dtype == plain.dtype, f"expected {plain.dtype}, got {result.dtype}"
        eps = torch.finfo(plain.dtype).eps
        result, plain, exact = (tensor.detach().cpu().double().numpy() for tensor in (result, plain, exact))
    else:
        result, plain, exact = (np.asarray(array) for array in (result, plain, exact))
        eps = np.finfo(plain.dtype).eps
    assert result.shape == exact.shape, f"expected shape {exact.shape}, got {result.shape}"
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(result[~finite], exact[~finite])
    ours, theirs = (np.abs(array[finite] - exact[finite]).max(initial=0) for array in (result, plain))
    limit = 2 * theirs + roundings * eps * np.abs(exact[finite]).max(initial=0)
    assert ours <= limit, f"error {ours:.3g} above the limit {limit:.3g}"  # NaN is not <= anything


def same_state(a, b, tolerance=1e-9) -> bool:
    """Return whether two states yield the same output and lse, up to rounding. NaN never compares equal."""
    return all(np.allclose(x, y, tolerance, tolerance) for x, y in zip(finish(a), finish(b), strict=True))
