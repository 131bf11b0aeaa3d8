"""Dropout whose mask is a function of the seed and of a weight's place."""

import numpy as np
import pytest

from flashlab.reference.dropout import Dropout, philox

WHOLE = slice(0, 96), slice(0, 130)


# Known answers published with the generator, in kat_vectors of Random123 1.14.
@pytest.mark.parametrize(
    "counter, key, words",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, words):
    assert tuple(map(int, philox(counter, key))) == words


@pytest.mark.parametrize("Br, Bc", [(1, 1), (16, 32), (17, 5), (96, 130)])
def test_mask_does_not_depend_on_the_tiles(Br, Bc):
    dropout = Dropout(0.3, 7)
    whole = dropout.tile(*WHOLE)
    for row in range(0, 96, Br):
        for col in range(0, 130, 8 * Bc):
            rows, cols = slice(row, min(row + Br, 96)), slice(col, min(col + Bc, 130))
            assert np.array_equal(dropout.tile(rows, cols), whole[rows, cols])


def test_neighbours_and_mirror_images_differ():
    kept, other_seed = (Dropout(0.5, seed).tile(slice(0, 128), slice(0, 128)) > 0 for seed in (1, 2))
    for other in (kept.T, np.roll(kept, 1, 0), np.roll(kept, 1, 1), other_seed):
        assert abs((kept == other).mean() - 0.5) < 0.03


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_of_p_is_dropped_and_the_mean_factor_is_one(p):
    Z = Dropout(p, 3).tile(slice(0, 400), slice(0, 400))
    sigma = (p * (1 - p) / Z.size) ** 0.5
    assert abs((Z == 0).mean() - p) < 4 * sigma
    assert set(np.unique(Z)) == {np.float32(0), np.float32(1 / (1 - p))}
    assert abs(Z.mean() - 1) < 4 * sigma / (1 - p)


def test_no_dropout_keeps_all():
    assert (Dropout(0, 3).tile(*WHOLE) == 1).all()


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 - 1])
def test_all_64_bits_of_the_seed_count(seed):
    assert not np.array_equal(Dropout(0.5, seed).tile(*WHOLE), Dropout(0.5, seed ^ 1 << 40).tile(*WHOLE))


@pytest.mark.parametrize(
    "p, seed, says",
    [(1.0, 0, "below 1"), (-0.1, 0, "below 1"), (float("nan"), 0, "below 1"), (0.1, -1, "seed"), (0.1, 2**64, "seed")],
)
def test_bad_input_is_one_sentence(p, seed, says):
    with pytest.raises(ValueError, match=says):
        Dropout(p, seed)
