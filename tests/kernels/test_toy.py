"""The first Gluon kernels compile for Hopper as the lesson says, and on a Hopper GPU they compute X^T X."""

import pytest
import torch

from flashlab.kernels import configurations
from flashlab.kernels.device import DEVICE
from flashlab.kernels.hopper import toy
from flashlab.kernels.hopper.toy import machine_code

card = configurations.card(torch.device(DEVICE))
hopper = pytest.mark.skipif(card is None or card.capability != (9, 0), reason="needs a Hopper GPU")


def count(code, word):
    return sum(word in line for line in code.ptx)


@pytest.mark.exhaustive
def test_one_block_is_what_the_lesson_says():
    code = machine_code("one_block")
    assert count(code, "wgmma.mma_async") == 128 // 16 and count(code, "mbarrier.init") == 1
    assert count(code, "cp.async.bulk.tensor") == count(code, "mbarrier.try_wait") == 1
    assert 128 * 64 * 2 < code.shared <= 128 * 64 * 2 + 64


@pytest.mark.exhaustive
def test_two_roles_have_two_barriers_per_stage_and_two_numbers_of_registers():
    code = machine_code("gram")
    assert count(code, "wgmma.mma_async") == 128 // 16 and count(code, "mbarrier.init") == 2 * 2
    assert any(line.split()[-1] == "24;" for line in code.ptx if "setmaxnreg.dec" in line)
    assert 2 * 128 * 64 * 2 < code.shared < 2 * 128 * 64 * 2 + 256


def test_other_kernels_are_refused():
    with pytest.raises(ValueError, match="expected one of one_block, gram, got 'three'"):
        machine_code("three")


@hopper
@pytest.mark.parametrize("N", [1, 128, 1000, 4096])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_gram_is_right(N, stages):
    x = torch.randn(N, toy.WIDTH, device=DEVICE, dtype=torch.bfloat16)
    exact = x.double().T @ x.double()
    plain = (x.T @ x - exact).abs().max()  # torch's own error, for the same dtype
    assert (toy.gram(x, stages=stages) - exact).abs().max() <= 2 * plain
