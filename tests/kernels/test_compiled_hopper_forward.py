"""The Hopper forward kernel with masks and scores: it fits, and takes exponentials beside its own product."""

import pytest

from tests.kernels.compiled import compiled, release
from tests.kernels.test_compiled_hopper import REGISTERS, SHARED, pieces

pytestmark = pytest.mark.exhaustive

FUNCTIONS = {"soft cap": 1, "all": 1}  # hyperbolic tangents per weight
STACK = 400  # bytes at most, with Triton 3.6 and 3.7: slopes, places and other numbers of a tile, but no tile
IN_LOOP = 10  # instructions at most that use the stack, of more than 450
ALL_IN_LOOP = 70  # the same for the kind "all" with Triton 3.6, at d = 128 (of 1,200) and 256; with 3.7 there are 4


@pytest.fixture(scope="module")
def kernels(once):
    return once(compiled, "compile_hopper", "kinds")


def test_every_kind_fits_and_no_tile_is_spilled(kernels):
    assert len({k["kind"] for k in kernels}) == 7 and {k["width"] for k in kernels} == {64, 128, 192, 256}
    for k in kernels:
        assert k["shared"] <= SHARED and k["registers"] <= REGISTERS[k["Br"] // 64 + 1], k
        assert k["stack"] <= STACK and not k["warnings"], k
        assert len(k["loops"]) == k["Br"] // 64, k
        for loop in k["loops"]:
            scarce = k["kind"] == "all" and k["width"] in (128, 256) and release("triton") <= (3, 6)
            most = ALL_IN_LOOP if scarce else IN_LOOP
            assert loop.get("LDL", 0) + loop.get("STL", 0) <= most and loop["BAR"] <= 3, k
            assert loop["HGMMA"] == k["width"] // 16 + k["Bc"] // 16 * pieces(k), k


def test_exponentials_run_beside_the_product(kernels):
    for k in kernels:
        special = FUNCTIONS.get(k["kind"], 0)
        for loop in k["loops"]:
            weights = k["Bc"] // 2  # of a thread
            moved = k["Bc"] == 64  # some variants of wide heads take them after the wait, as in test_compiled_hopper
            assert loop["MUFU"] == (1 + special) * weights + 2 and (moved or loop["MUFU beside"] >= weights), k
