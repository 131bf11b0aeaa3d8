"""The smallest kernel is right, and moves as many bytes as ``reference.tiling`` says."""

import pytest
import torch

from flashlab.kernels import DEVICE
from flashlab.kernels.count import count
from flashlab.kernels.portable import one_head
from flashlab.reference import tiling
from flashlab.reference.attention import attention


@pytest.mark.parametrize("Br, Bc", [(16, 32), (32, 16), (64, 64)])
def test_one_head_equals_dense_and_costs_what_tiling_says(Br, Bc, interpreter_that_loops):
    Q, K, V = (torch.randn(64, 16, generator=torch.Generator().manual_seed(n)).half().to(DEVICE) for n in range(3))
    exact = torch.from_numpy(attention(*(x.cpu().double().numpy() for x in (Q, K, V))))  # [N, d]
    dense = torch.softmax((Q.cpu() @ K.cpu().T * 16**-0.5).float(), -1).half() @ V.cpu()  # [N, d]
    error, plain = ((x.cpu().double() - exact).abs().max() for x in (one_head.run(Q, K, V, Br, Bc), dense))
    assert error <= 2 * plain
    expected = tiling.fa2_traffic(64, 64, 16, Br, Bc, dtype="float16")
    del expected["store", "lse"]
    assert count(one_head.run, Q, K, V, Br, Bc).bytes == expected
