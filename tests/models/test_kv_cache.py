"""With a cache, tokens that are computed in parts get the outputs of one pass over all of them."""

import pytest
import torch

from flashlab.reference.attention import attention
from flashlab.reference.masks import causal
from tests.tools.bounds import assert_as_exact_as_plain

kv_cache = pytest.importorskip("flashlab.models.kv_cache", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE  # noqa: E402


@pytest.mark.parametrize("parts", [[1] * 7, [4, 3], [7], [5, 0, 2]], ids=str)
@pytest.mark.parametrize("H, Hk", [(2, 2), (4, 2), (3, 1)])
def test_steps_equal_the_whole(parts, H, Hk):
    generator = torch.Generator().manual_seed(0)
    Q, K, V = (torch.randn(2, heads, 7, 16, generator=generator) for heads in (H, Hk, Hk))
    whole = [x.repeat_interleave(H // x.shape[1], 1).numpy() for x in (Q, K, V)]
    Q, K, V = (x.to(DEVICE) for x in (Q, K, V))
    past, outputs, start = (K[:, :, :0], V[:, :, :0]), [], 0
    for n in parts:
        new = slice(start, start + n)
        O, *past = kv_cache.step(Q[:, :, new], K[:, :, new], V[:, :, new], *past)
        outputs.append(O)
        start += n
    plain, exact = attention(*whole, mask=causal()), attention(*(x.astype(float) for x in whole), mask=causal())
    assert_as_exact_as_plain(torch.cat(outputs, 2), torch.from_numpy(plain), torch.from_numpy(exact))
    assert torch.equal(past[0], K) and torch.equal(past[1], V)


def test_nbytes_are_those_of_the_tensors():
    K = torch.zeros(1, 3, 50, 16, dtype=torch.float16)
    assert kv_cache.nbytes(50, layers=4, kv_heads=3, d=16) == 4 * 2 * K.nbytes
    assert kv_cache.nbytes(50, layers=4, kv_heads=3, d=16, itemsize=4) == 4 * 2 * K.float().nbytes
