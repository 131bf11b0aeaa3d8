import numpy as np
import pytest
import torch

from flashlab.reference.attention import attention, attention_backward, weights
from flashlab.reference.masks import causal


def inputs(Nq, Nk, d=4, dv=3, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(2, *shape)).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv)))


def lower_right(Nq, Nk):
    return torch.ones(Nq, Nk, dtype=torch.bool).tril(Nk - Nq)


@pytest.mark.parametrize("mask", [None, causal()])
@pytest.mark.parametrize("Nq, Nk", [(5, 5), (3, 7), (1, 4)])
def test_attention_equals_torch_in_float64_gradients_included(Nq, Nk, mask):
    Q, K, V = inputs(Nq, Nk)
    q, k, v = (torch.tensor(array, requires_grad=True) for array in (Q, K, V))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, lower_right(Nq, Nk) if mask is not None else None)
    dO = np.random.default_rng(1).normal(size=o.shape)
    o.backward(torch.tensor(dO))
    np.testing.assert_allclose(attention(Q, K, V, mask=mask), o.detach(), 1e-12, 1e-14)
    for ours, theirs in zip(attention_backward(Q, K, V, dO, mask=mask), (q, k, v), strict=True):
        np.testing.assert_allclose(ours, theirs.grad, 1e-11, 1e-13)


def test_lse_is_the_log_of_the_summed_exponentials():
    Q, K, V = inputs(3, 5)
    _, lse = attention(Q, K, V, scale=0.3, return_lse=True)
    np.testing.assert_allclose(np.exp(lse), np.exp(0.3 * Q @ K.swapaxes(-1, -2)).sum(-1), 1e-12)


def test_a_causal_query_sees_keys_up_to_the_lower_right_diagonal():
    P, _ = weights(np.zeros((2, 1)), np.zeros((3, 1)), mask=causal())
    np.testing.assert_allclose(P, [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])


@pytest.mark.parametrize("hide", ["mask", "causal"])
def test_a_row_that_sees_no_key_has_output_0_lse_minus_infinity_and_no_gradient(hide):
    Q, K, V = inputs(4, 2)
    options = {"mask": causal()} if hide == "causal" else {"mask": np.array([False, False, True, True])[:, None]}
    O, lse = attention(Q, K, V, return_lse=True, **options)
    assert not O[:, :2].any() and (lse[:, :2] == -np.inf).all() and np.isfinite(lse[:, 2:]).all()
    dQ, dK, dV = attention_backward(Q, K, V, np.ones_like(O), **options)
    assert not dQ[:, :2].any() and np.isfinite(dK).all() and np.isfinite(dV).all()


def test_scores_of_ten_thousand_do_not_overflow():
    O = attention(np.full((1, 1), 1e4), np.array([[1.0], [-1.0]]), np.array([[3.0], [5.0]]), scale=1)
    np.testing.assert_array_equal(O, [[3.0]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_results_have_the_dtype_of_the_inputs(dtype):
    O, lse = attention(*inputs(3, 3, dtype=dtype), return_lse=True)
    assert O.dtype == lse.dtype == dtype


def test_bad_input_gets_a_sentence():
    Q, K, V = inputs(3, 3)
    with pytest.raises(TypeError, match="one dtype, got Q float64, K float32"):
        attention(Q, K.astype(np.float32), V)
    with pytest.raises(TypeError, match="floating-point"):
        attention(*(array.astype(int) for array in (Q, K, V)))
    with pytest.raises(ValueError, match="same head dimension, got 4 and 3"):
        attention(Q, V, V)
    with pytest.raises(ValueError, match=r"a row for each key: expected V \[..., 3, dv\], got \(2, 2, 3\)"):
        attention(Q, K, V[:, :2])
    with pytest.raises(TypeError, match="mask must be boolean"):
        attention(Q, K, V, mask=np.ones((3, 3)))
