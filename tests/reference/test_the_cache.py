"""Bytes of the cache, wasted room, and latent attention: the absorbed form equals the expanded one."""

import numpy as np
import pytest

from flashlab.reference import the_cache


def latents(H=3, N=11, dn=6, dr=4, r=10, dv=5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (H, dn), (H, dr), (N, r), (N, dr), (H, dn, r), (H, dv, r)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("H, N", [(1, 1), (3, 11), (8, 40)])
def test_absorbed_equals_expanded(H, N):
    inputs = latents(H, N)
    expected = the_cache.expanded(*inputs, 10**-0.5)
    np.testing.assert_allclose(the_cache.absorbed(*inputs, 10**-0.5), expected, 1e-12)
    assert np.abs(the_cache.absorbed(*inputs, 14**-0.5) - expected).max() > 1e-3 or N == 1  # another scale


def test_bytes_per_token_and_layer():
    nbytes = {name: kind.nbytes for name, kind in the_cache.kinds().items()}
    assert nbytes == {"MHA": 65536, "GQA": 4096, "GQA, 8 bits": 2112, "MQA": 512, "MLA": 1152}


def test_pages_waste_less_than_a_page_per_text():
    lengths = np.random.default_rng(0).integers(1, 1000, 50).tolist()
    for page in (1, 16, 64):
        wasted = the_cache.reserved(lengths, page) - sum(lengths)
        assert 0 <= wasted <= 50 * (page - 1)
    assert the_cache.reserved(lengths, longest=1000) == 50_000


def test_a_shared_prefix_is_read_once():
    apart, once = the_cache.prefix_bytes(256, 8192, 128, 4096)
    assert apart == 256 * (8192 + 128) * 4096 and apart / once == pytest.approx(52, rel=0.01)
