"""The Hopper forward kernel with masks and scores takes what fits, and takes exponentials beside its own product."""

import pytest

from tests.kernels.compiled import compiled, release
from tests.kernels.test_compiled_hopper import REGISTERS, SHARED

pytestmark = pytest.mark.exhaustive

FUNCTIONS = {"soft cap": 64, "all": 64}  # hyperbolic tangents per thread and step
STACK = 400  # bytes at most, with Triton 3.6 and 3.7: slopes, places and other numbers of a tile, but no tile
IN_LOOP = 10  # instructions at most that use it, of more than 450
ALL_IN_LOOP = 70  # with Triton 3.6 and everything at once at d = 128, of 1,200; with 3.7 they are 4


@pytest.fixture(scope="module")
def kernels(once):
    return once(compiled, "compile_hopper_forward")


def test_every_kind_fits_and_no_tile_is_spilled(kernels):
    assert len({k["kind"] for k in kernels}) == 7 and {k["width"] for k in kernels} == {64, 128}
    for k in kernels:
        assert k["shared"] <= SHARED and k["registers"] <= REGISTERS[k["Br"] // 64 + 1], k
        assert k["stack"] <= STACK and not k["warnings"], k
        assert len(k["loops"]) == k["Br"] // 64, k
        for loop in k["loops"]:
            most = ALL_IN_LOOP if (k["kind"], k["width"]) == ("all", 128) and release("triton") <= (3, 6) else IN_LOOP
            assert loop.get("LDL", 0) + loop.get("STL", 0) <= most and loop["BAR"] <= 3, k
            assert loop["HGMMA"] == k["width"] // 16 + k["Bc"] // 16, k


def test_exponentials_run_beside_the_product(kernels):
    for k in kernels:
        special = FUNCTIONS.get(k["kind"], 0)
        for loop in k["loops"]:
            assert loop["MUFU"] == 66 + special and loop["MUFU beside"] >= 64, k
