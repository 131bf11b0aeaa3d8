import numpy as np
import pytest

from flashlab.course import data
from flashlab.machine.hardware import CARDS, PER_SM
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import block_size, published, tiling


@pytest.mark.parametrize("M, d, tiles", [(51_200, 64, (64, 200)), (51_200, 128, (100, 100)), (98_304, 64, (64, 384)),
                                         (7, 1, (1, 2)), (1, 1, (1, 1))])  # fmt: skip
def test_the_formula_is_the_papers(M, d, tiles):
    assert block_size.formula(M, d) == tiles


@pytest.mark.parametrize("M", [10_000, 51_200, 98_304])
@pytest.mark.parametrize("d", [16, 32, 64, 128, 256])
def test_no_tile_takes_more_than_about_a_quarter_of_the_memory(M, d):
    Br, Bc = block_size.formula(M, d)
    for size in (Br * d, Bc * d, Br * Bc):
        assert size < M / 4 + d * max(1, d / 4)  # the ceiling adds less than one row


@pytest.mark.parametrize("M, d, low, high", [(51_200, 64, 0.90, 0.92), (98_304, 64, 0.83, 0.84),
                                             (51_200, 128, 1.19, 1.20), (98_304, 128, 1.08, 1.09)])  # fmt: skip
def test_the_formulas_tiles_overflow_at_d_128_and_not_at_d_64(M, d, low, high):
    room = sum(block_size.working_set(*block_size.formula(M, d), d, np.float32).values()) / 4
    assert low < room / M < high
    if room > M:
        with pytest.raises(FastMemoryFull):
            block_size.peak(*block_size.formula(M, d), d, np.float32, 4 * M)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("Br, Bc, d", [(1, 1, 1), (16, 256, 64), (128, 64, 128), (7, 5, 3)])
def test_the_working_set_is_the_high_water_mark_to_the_byte(Br, Bc, d, dtype):
    room = block_size.working_set(Br, Bc, d, dtype)
    memory, rng = Memory(), np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(n, d)).astype(dtype) for n in (3 * Br, 3 * Bc, 3 * Bc))
    tiling.fa2_forward(Q, K, V, Br, Bc, memory=memory)
    assert memory.peak == room
    assert memory.peak_bytes == sum(room.values()) == block_size.peak(Br, Bc, d, dtype, sum(room.values()))
    with pytest.raises(FastMemoryFull):
        block_size.peak(Br, Bc, d, dtype, sum(room.values()) - 1)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("d", [32, 64, 128])
def test_the_largest_tile_fits_and_the_next_does_not(card, d):
    B = block_size.largest(card.per_sm.block_bytes, d)
    assert sum(block_size.working_set(B, B, d).values()) <= card.per_sm.block_bytes
    assert sum(block_size.working_set(B + 16, B + 16, d).values()) > card.per_sm.block_bytes


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="no tile fits: 16 x 16 at d = 256 takes 66,688 bytes, there are 65,536"):
        block_size.largest(64 * 1024, 256, np.float32)
    with pytest.raises(ValueError, match="M must be a whole number from 1 on, got 0"):
        block_size.formula(0, 64)
    with pytest.raises(ValueError, match="no float32 rate is known for the B200: NVIDIA's documents disagree"):
        block_size.clocks(CARDS["B200"], 1024, 64, 64, "float32")


def test_clocks_take_every_dtype_that_a_card_has_a_rate_for():
    H100 = CARDS["H100 SXM"]
    by_name = {dtype: block_size.clocks(H100, 1024, 64, 64, dtype) for dtype in ("float8", "float16", "bfloat16")}
    assert by_name["float16"] == by_name["bfloat16"]
    assert by_name["float8"].arithmetic == pytest.approx(by_name["float16"].arithmetic / 2, rel=1e-3)
    with pytest.raises(ValueError, match="no float8 rate is known for the A100 40 GB: its tensor cores have no float8"):
        block_size.clocks(CARDS["A100 40 GB"], 1024, 64, 64, "float8")
    with pytest.raises(TypeError, match="card must be of type flashlab.machine.hardware.Card, got str"):
        block_size.clocks("H100", 1024, 64, 64, "float8")


def test_shared_memory_is_the_tiles_that_are_loaded():
    for stages in (1, 2, 3):
        room = block_size.working_set(128, 64, 64)
        assert block_size.shared_memory(128, 64, 64, stages=stages) == room["Q"] + stages * (room["K"] + room["V"])


def test_shared_memory_is_what_the_compiler_asked_for():
    """A forward kernel with tiles of 128 x 64, d = 64 and three stages, by triton 3.7.1.

    K and V have two buffers each for sm_80, and three for sm_90.
    """
    assert block_size.shared_memory(128, 64, 64, stages=3) == 65_536  # sm_90
    assert block_size.shared_memory(128, 64, 64, stages=2) == 49_152  # sm_80
    assert block_size.shared_memory(128, 64, 64, np.float32, stages=3) == 131_072  # sm_90


def test_shared_memory_is_what_real_launches_asked_for():
    """The file names device, versions, date and command."""
    for launch in data.measured("shared_memory")["launches"]:
        size = block_size.shared_memory(launch["Br"], launch["Bc"], launch["d"], stages=launch["stages"])
        limit = PER_SM["9.0"].block_bytes
        assert launch.get("shared") == (size if size <= limit else None)
        assert launch.get("refused") == (block_size.refusal(size, limit) if size > limit else None)


def test_every_published_tile_fits_its_gpu():
    for tile in published.SHIPPED:
        shared = block_size.shared_memory(tile.Br, tile.Bc, tile.d)
        assert shared <= PER_SM[tile.capability].block_bytes
        registers = sum(block_size.working_set(tile.Br, tile.Bc, tile.d).values()) - shared
        assert registers <= PER_SM[tile.capability].register_bytes


def test_the_clock_of_the_bytes_falls_as_1_over_B_and_arithmetic_stays():
    slow, fast = (block_size.clocks(CARDS["A100 40 GB"], 8192, 64, B) for B in (64, 128))
    assert slow.arithmetic == fast.arithmetic == pytest.approx(4 * 8192**2 * 64 / 312e12)
    assert slow.bytes / fast.bytes == pytest.approx(2, rel=0.02)  # 2 + 2 Tr passes over N d, 2 for Q and O


def test_the_refusal_is_tritons():
    pytest.importorskip("flashlab.kernels")  # sets how triton runs, so it is imported first
    errors = pytest.importorskip("triton.runtime.errors")
    assert block_size.refusal(271_872, 166_912) == str(errors.OutOfResources(271_872, 166_912, "shared memory"))
