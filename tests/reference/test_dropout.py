"""The mask of dropout is a function of the seed and of a weight's place."""

import numpy as np
import pytest

from flashlab.reference.dropout import Dropout, philox

WHOLE = slice(0, 96), slice(0, 130)


PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)


# Known answers published with the generator, in kat_vectors of Random123 1.14.
@pytest.mark.parametrize("counter, key, rounds, words", [
    ((0,) * 4, (0,) * 2, 7, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 7, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (*PI, 7, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    ((0,) * 4, (0,) * 2, 10, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 10, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, 10, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_philox_gives_the_published_answers(counter, key, rounds, words):
    assert tuple(map(int, philox(counter, key, rounds))) == words


def test_one_call_serves_eight_weights():
    dropout = Dropout(0.3, 5 + (9 << 32), h=2, b=3)
    words = philox((6, 17, 2, 3), (5, 9))
    halves = [int(word) >> shift & 0xFFFF for word in words for shift in (0, 16)]
    i, j = np.array([[17], [25]]), np.array([[6, 7, 14, 15]])
    assert dropout.random(i, j).ravel().tolist() == halves
    tile = dropout.tile(slice(17, 26), slice(6, 16), np.float64)
    assert (tile[np.ix_([0, 8], [0, 1, 8, 9])].ravel() > 0).tolist() == [half >= round(0.3 * 2**16) for half in halves]


@pytest.mark.parametrize("Br, Bc", [(1, 1), (16, 32), (17, 5), (96, 130)])
def test_mask_does_not_depend_on_the_tiles(Br, Bc):
    dropout = Dropout(0.3, 7)
    whole = dropout.tile(*WHOLE)
    for row in range(0, 96, Br):
        for col in range(0, 130, 8 * Bc):
            rows, cols = slice(row, min(row + Br, 96)), slice(col, min(col + Bc, 130))
            assert np.array_equal(dropout.tile(rows, cols), whole[rows, cols])


def test_neighbours_mirror_images_seeds_heads_and_batches_differ():
    whole = slice(0, 128), slice(0, 128)
    mask, *others = (Dropout(0.5, *which).tile(*whole) > 0 for which in ((1,), (2,), (1, 1), (1, 0, 1), (1, 1, 1)))
    shifted = (np.roll(mask, by, axis) for by in (1, 8, 16) for axis in (0, 1))
    for other in (mask.T, *shifted, *others):
        assert abs((mask == other).mean() - 0.5) < 0.03


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_of_p_is_dropped_and_the_mean_factor_is_one(p):
    Z = Dropout(p, 3).tile(slice(0, 400), slice(0, 400))
    sigma = (p * (1 - p) / Z.size) ** 0.5
    assert abs((Z == 0).mean() - p) < 4 * sigma
    assert set(np.unique(Z)) == {np.float32(0), np.float32(2**16 / (2**16 - round(p * 2**16)))}
    assert abs(Z.mean() - 1) < 4 * sigma / (1 - p)


def test_dropout_of_0_keeps_all_weights():
    assert (Dropout(0, 3).tile(*WHOLE) == 1).all()


def test_an_empty_tile_has_no_weights():
    assert Dropout(0.5, 3).tile(slice(0, 4), slice(8, 8)).shape == (4, 0)


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 - 1])
def test_all_64_bits_of_the_seed_count(seed):
    assert not np.array_equal(Dropout(0.5, seed).tile(*WHOLE), Dropout(0.5, seed ^ 1 << 40).tile(*WHOLE))


@pytest.mark.parametrize(
    "p, seed, sentence",
    [
        *((1.0, 0, "below 1"), (-0.1, 0, "at least 0"), (float("nan"), 0, "finite number")),
        *((0.1, -1, "seed"), (0.1, 2**64, "seed")),
        *((2**-18, 0, "would be rounded to 0"), (1 - 2**-18, 0, "would be rounded to 1")),
    ],
)
def test_bad_input_gets_a_sentence(p, seed, sentence):
    with pytest.raises(ValueError, match=sentence):
        Dropout(p, seed)
