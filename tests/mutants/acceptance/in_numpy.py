"""The checks that implementations in numpy and torch must pass."""

from itertools import product
from types import SimpleNamespace

import numpy as np

from flashlab.reference import dropout, eight_bits, masks, scores, tiling
from tests.models import test_plain
from tests.reference import (
    test_dropout,
    test_eight_bits,
    test_linear_attention,
    test_masks,
    test_next_machine,
    test_recomputation,
    test_scores,
    test_tiling,
)


def call_with(test, *values):
    """Call a test of hypothesis with these values in place of drawn ones."""
    test.hypothesis.inner_test(*values)


def tiled_forward():
    for order, (inputs, mask) in product((tiling.fa1_forward, tiling.fa2_forward), test_tiling.ADVERSARIAL.values()):
        test_tiling.test_tiled_equals_dense(order, inputs, mask, 5, 16, np.float32)


def torch_forward():
    test_plain.test_tiled_equals_the_oracle()


def masked_forward():
    test_masks.test_masks_by_hand()
    for Nq, Nk in (8, 8), (7, 13), (9, 5):
        kept = np.random.default_rng(Nq).random((-(-Nq // 3), -(-Nk // 5))) < 0.6  # [Tr, Tc] for tiles of 3 x 5
        own = masks.documents(np.arange(Nk) // 3)
        for mask in (masks.window(2), masks.window(5, 1), masks.blocks(kept, 3, 5), own, masks.padding(3),
                     masks.prefix(5), masks.window(2) & own, own | masks.sinks(2)):  # fmt: skip
            drawn = SimpleNamespace(draw=lambda _, mask=mask: mask)
            for B in (1, 3):
                call_with(test_masks.test_bounds_tiles_and_pairs_follow_from_visible, drawn, Nq, Nk, B, B)


def tiled_backward():
    for name in test_recomputation.SHAPES:
        test_recomputation.test_tiled_gradients_equal_dense_ones(name)


def tiled_dropout():
    for name in "no tile divides", "fewer keys than queries: rows that see none":
        test_recomputation.test_replayed_dropout_equals_a_stored_mask(name)
    test_dropout.test_one_call_serves_eight_weights()
    number = dropout.Dropout(0.5, 7).random(np.array([[0]]), np.array([[0]])).item()
    least = dropout.Dropout(number / 2**16, 7).tile(slice(0, 1), slice(0, 1)).item()
    assert least > 0, "a weight whose number is the threshold is kept"
    low = tiling.dropped(np.full((1, 2), -1e4), np.ones((2, 1)), np.ones((1, 2)))
    assert low.l == 2, "weights are relative to the maximum, however low"


def scored():
    test_scores.test_slopes_of_alibi_are_the_published_ones()
    np.testing.assert_allclose(np.log2(scores.slopes(7)), [-2, -4, -6, -8, -1, -3, -5])
    test_scores.test_scores_by_hand()
    for Nq, Nk, sink in (1, 9, -2.0), (11, 5, 100.0):
        test_scores.test_tiled_equals_dense_forward_and_backward(Nq, Nk, sink)


def tiled_traffic():
    """The bill in closed form is the bill of the run."""
    test_tiling.test_the_bills_by_hand()
    sizes = (8, 8, masks.full()), (7, 13, masks.full()), (9, 9, masks.causal()), (10, 5, masks.causal())
    for Nq, Nk, mask in sizes:
        for order in tiling.fa1_forward, tiling.fa2_forward:
            call_with(test_tiling.test_counted_bytes_equal_the_closed_form, order, Nq, Nk, 4, 4, mask, np.float32)
        test = test_recomputation.test_tiles_of_any_size_give_the_same_gradients_and_the_predicted_bill
        call_with(test, Nq, Nk, 4, 4, mask, 0)


def in_eight_bits():
    test_eight_bits.test_rounding_takes_the_nearest_number_saturates_and_keeps_nan(np.float64)
    test_eight_bits.test_which_numbers_share_a_scale()
    for per in "block", "head":
        test_eight_bits.test_zeros_stay_zeros_and_no_rows_stay_none(per)
        test_eight_bits.test_quantised_numbers_are_as_near_as_their_spacing_says(per, "e4m3", 2**-4, 2**-10)
    for d, width in (8, 8), (3, 4), (0, 1):
        test_eight_bits.test_hadamard_is_orthogonal_and_its_own_inverse(d, width)
    test_eight_bits.test_rotation_keeps_scores_and_spreads_an_outlier_over_all_columns()
    test_eight_bits.test_keys_without_their_mean_have_the_same_weights_and_a_lower_lse()
    test_eight_bits.test_with_all_bits_a_tensor_core_is_exact()
    test_eight_bits.test_a_sum_keeps_its_leading_bits_and_is_cut_towards_zero(3)
    test_eight_bits.test_a_row_that_sees_no_key_is_zero_and_minus_infinity()
    test_eight_bits.test_scores_far_from_zero_do_not_overflow()
    test_eight_bits.test_a_higher_largest_weight_keeps_small_ones_from_becoming_0()
    for mask in None, masks.window(9):
        test_eight_bits.test_one_tile_is_dense_attention_with_rounded_weights("e4m3", mask)
    test_eight_bits.test_tiles_scales_and_a_rising_maximum_change_no_more_than_rounding(16)
    test_eight_bits.test_without_a_flush_the_loss_grows_with_N_and_with_one_it_is_that_of_a_part()
    ones = np.ones((1, 32 * 1025))
    two_level = eight_bits.TensorCore(13, flush=64)(np.full((1, 1), 2.0**20), ones, ones.T + 2.0**-8)
    np.testing.assert_equal(two_level, 2.0**20 + 32.125 * 1025)
    step = np.repeat([33 / 32, 34 / 32], 32)[:, None]
    np.testing.assert_equal(eight_bits.TensorCore(5, flush=64)(np.zeros((1, 1)), ones[:, :64], step), 66)  # not 67
    np.testing.assert_equal(eight_bits.TensorCore(5)(np.full((1, 1), 64.0), ones[:, :32], step[:32]), 96)  # not 97
    s = eight_bits.signs(8)
    np.testing.assert_allclose(eight_bits.hadamard(eight_bits.rotate(np.eye(8), s)), np.diag(s), atol=1e-12)


def linear_chunks():
    for (N, C), decay in product([(1, 8), (12, 4), (13, 4), (37, 37)], test_linear_attention.DECAYS):
        test_linear_attention.test_chunked_is_the_definition(N, C, decay)
    call_with(test_linear_attention.test_merge_is_associative_with_an_identity, 3, 4, 5, 0.7, 0)


def late_maximum():
    for threshold in 0.0, 8.0:
        call_with(test_next_machine.test_any_threshold_is_exact, 0, threshold, 5.0)
    state, _ = test_next_machine.fold(np.array([[-30.0, -25.0]]), np.ones((2, 1)), 1, 8.0)
    assert state.m == -30, "a rise of 5 natural units is 7.2 of log2: m stays"


def powers_of_two():
    test_next_machine.test_exp2_at_its_ends()
    test_next_machine.test_the_integer_part_of_x_changes_no_digit()
    test_next_machine.test_the_polynomial_is_as_good_as_the_published_one(3, 4096)
    test_next_machine.test_bfloat16_is_that_of_torch()
