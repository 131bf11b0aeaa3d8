"""The checks that kernels must pass: drawn calls in tiles of 16 x 16, the smallest ones, and tests of tests/kernels."""

from itertools import count

import numpy as np
import torch

from flashlab.kernels import masks
from tests.kernels import test_decode, test_float8, test_interpreter, test_linear_attention, test_masks, test_scores
from tests.kernels.drawn_cases import causal, documents, draw, first, full, hold_in_tiles, padding, pattern, window

SMALL = {  # the choices of a drawn call, unless a check makes others
    "form": "dense", "dtype": torch.float32, "kernel": "portable", "tile": (16, 16), "B": 1, "heads": (2, 1),
    "Nq": 20, "Nk": 45, "d": 8, "dv": 8, "layout": "plain", "factor": 1.0, "scale": None, "mask": causal(),
    "hide": True, "steps": 0, "sinks": False, "dropout": False, "learned": "QKV", "learn": True,
    "cache": (False, False), "eight": None, "page": None, "fixed_split": None,
}  # fmt: skip


def right(steps=(), **choices):
    """Draw the first call with these choices, and score functions whose names begin like this; compare its results."""
    choices = SMALL | {"steps": len(steps)} | choices
    drawn = (draw(n, **choices) for n in count())
    hold_in_tiles(next(it for it in drawn if all(map(str.startswith, [step.name for step in it.steps], steps))))


def kernel_forward():
    right(learned="")
    right(learned="", Nq=45, Nk=20)
    right(learned="", mask=full(), B=2, heads=(4, 2), factor=9.0)
    right(learned="", mask=full(), Nk=1, factor=20.0)  # a padded key would win where the score is far below 0


def kernel_backward():
    right()
    right(mask=full(), B=2, heads=(4, 2))
    right(Nq=45, Nk=20)


def kernel_pieces():
    right(d=136, dv=136)  # three pieces, the last one not filled


def kernel_masks():
    for mask in window(1), window(2), window(5, 1), window(17, 20), window(40), window(np.inf, 3), window(3, np.inf):
        right(mask=mask)
    right(mask=window(5, 1), Nq=45, Nk=20)
    test_masks.test_the_ranges_of_a_window_are_of_existing_tiles_and_the_middle_ones_are_whole(20, 0, 16, 32)
    assert test_masks.tiles_loaded(masks.window(5), 64, 256) == [2, 3], "a tile before the window is loaded"
    test_interpreter.test_forward_moves_what_the_closed_form_says(70, 133, True, (64, 64))


def kernel_rules():
    rng, sizes = np.random.default_rng(2), {"B": 2, "heads": (2, 2)}
    for Nq, Nk in (20, 45), (45, 20):
        ids, kept = np.sort(rng.integers(0, 4, (2, Nk)), 1), rng.random((2, 2, -(-Nq // 8), -(-Nk // 24))) > 0.5
        seen = pattern(rng.random((2, Nq, Nk)) > 0.7, 1, 1, (2, 2, Nq, Nk))
        for mask in (
            documents(ids) & causal(), first(19) | window(3), padding(np.array([Nk // 2 - 1, Nk - 3])),
            pattern(kept, 8, 24, kept.shape), seen & documents(ids),
        ):  # fmt: skip
            right(mask=mask, Nq=Nq, Nk=Nk, **sizes)


def kernel_scores():
    right(["alibi", "bias", "softcap"])
    right(["softcap", "bias", "alibi"])
    right(["bias[20, 45]"])
    right(["softcap"], factor=9.0)
    right(sinks=True)
    test_scores.test_a_sink_of_any_size(100.0)
    right(dropout=True, p=0.5)


def kernel_float8():
    for per in "block", "head":
        test_float8.test_codes_and_scales_are_the_references("a column of large numbers", per, False)
    test_float8.test_zeros_tiny_numbers_infinities_and_nan()
    test_float8.test_a_rotation_is_the_references(16, torch.float32)
    test_float8.test_keys_of_zeros_and_of_tiny_numbers()
    test_float8.test_small_weights_do_not_vanish()
    test_float8.test_as_good_as_exact_arithmetic_on_the_same_codes("full")
    test_float8.test_scales_of_a_tensor_of_heads_and_of_blocks()
    test_float8.test_sums_of_many_positive_values(16, 4096)


def kernel_decoding():
    step = {"form": "decode", "B": 3, "n": 3, "heads": (6, 2), "Nk": 70, "d": 18, "dv": 20, "ragged": True}
    right(**step, page=24)
    right(**step, page=24, mask=window(20))
    right(**step, eight=torch.int8)
    right(["alibi", "softcap"], **step, mask=causal() & (first(3) | window(20)), sinks=True)
    right(**step, cache=(False, True))
    test_decode.test_any_number_of_splits_gives_the_same_answer(3)


def kernel_linear():
    test_linear_attention.test_chunks_equal_the_definition(2, 2, 20, 4, 70, 16, torch.float32)
    test_linear_attention.test_it_goes_on_where_it_stopped()
