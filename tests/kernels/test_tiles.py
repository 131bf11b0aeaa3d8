"""Tiles of tensors: the tensors that kernels can take, and their descriptors."""

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.kernels import tiles


@pytest.mark.parametrize("shape", [(2, 3, 40, 32), (1, 1, 1, 64), (2, 1, 7, 16)])
def test_a_descriptor_is_what_its_constructor_makes(shape):
    """``_descriptor`` sets the fields without the constructor, which is slow: it must set all, to the same values."""
    x = torch.zeros(shape, dtype=torch.float16)
    ours = tiles._descriptor(x, 16)
    block = [1, 1, 16, tiles.width_of(shape[3])]
    constructed = TensorDescriptor(x, list(x.shape), list(tiles.strides_of(x)), block)
    for field in TensorDescriptor.__dataclass_fields__:
        mine, theirs = getattr(ours, field), getattr(constructed, field)
        assert mine is theirs or list(mine) == list(theirs) if isinstance(mine, (list, tuple)) else mine is theirs, (
            field
        )


def test_a_tensor_that_a_kernel_can_take_is_not_copied():
    x = torch.randn(2, 3, 40, 32)
    assert tiles.ready(x) is x
    assert tiles.ready(view := x.transpose(1, 2).contiguous().transpose(1, 2)) is view
    for other in (x[..., 1:], x.mT, x.expand(2, 3, 40, 32)[:, :1].expand(2, 3, 40, 32)):
        copy = tiles.ready(other)
        assert copy is not other and copy.is_contiguous() and torch.equal(copy, other)
