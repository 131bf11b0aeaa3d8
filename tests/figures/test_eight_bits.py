from dataclasses import replace

import numpy as np
import pytest

import figures
from figures import eight_bits as figure
from flashlab.course import data
from flashlab.machine.costs import error
from flashlab.reference import eight_bits
from flashlab.reference.attention import attention, weights

FIRST = figure.State()


def test_every_weight_of_the_row_is_counted_once_at_its_code():
    for now in figure.trace(FIRST)["steps"]:
        assert now["zeros"] + sum(count for _, count in now["counts"]) == 512
    trace = figure.trace(FIRST)
    assert trace["token"] == "rabbit" and trace["numbers"] == eight_bits.numbers_of_e4m3()[:127].tolist()
    Q, K, V = (X.astype(float) for X in data.captured("alice").head())
    row = weights(Q, K)[0][figure.ROW]
    rounded = eight_bits.to_e4m3(16 * row / row.max())  # [N]
    now = trace["steps"][4]
    assert now["zeros"] == (rounded == 0).sum() and now["vanished"] == pytest.approx(row[rounded == 0].sum())
    O = rounded @ V * row.max() / 16
    assert now["row"] == pytest.approx(np.linalg.norm(O - row @ V) / np.linalg.norm(row @ V))
    assert {trace["numbers"][code] for code, _ in now["counts"]} == set(rounded[rounded > 0])


def test_a_larger_offset_saves_weights():
    zeros = [now["zeros"] for now in figure.trace(FIRST)["steps"]]
    assert zeros == sorted(zeros, reverse=True) and zeros[0] > 400 and zeros[8] < 100


@pytest.mark.parametrize("kind", ["e4m3", "int8"])
@pytest.mark.parametrize("rotated", [False, True])
def test_errors_are_the_references(kind, rotated):
    state = replace(FIRST, kind=kind, rotated=rotated, per="token", step=8)
    Q, K, V = (X.astype(float) for X in data.captured("alice").head())
    exact = attention(Q, K, V)
    s = eight_bits.signs(32)
    q, k = (eight_bits.quantise(eight_bits.rotate(X, s) if rotated else X, kind, "token") for X in (Q, K))
    O, _ = eight_bits.attention(q, k, eight_bits.quantise(V))
    shown = figure.trace(state)["steps"][8]["errors"]
    assert shown["all"] == pytest.approx(error(O[:: figure.EVERY], exact[:: figure.EVERY]))
    assert shown["Q, K"] == pytest.approx(error(attention(q.widened(), k.widened(), V)[::4], exact[::4]))


def test_common_beliefs_about_formats_are_wrong_for_this_head():
    def of_scores(**fields):
        return figure.trace(replace(FIRST, **fields))["steps"][8]["errors"]["Q, K"]

    assert of_scores(per="token") > 0.7 * of_scores()  # finer scales hardly help e4m3
    assert of_scores(kind="int8") < 0.4 * of_scores()  # int8 is the better number for Q and K
    assert of_scores(kind="int8", outlier=16) > 1.5 * of_scores(outlier=16)  # until an outlier stretches its scale
    assert of_scores(outlier=16, rotated=True) > 2 * of_scores(outlier=16)  # a rotation may do harm
    assert of_scores(kind="int8", outlier=16, rotated=True) < 0.4 * of_scores(kind="int8", outlier=16)


@pytest.mark.parametrize("outlier", figure.CONTROLS["outlier"].values)
def test_the_outlier_is_one_column_of_K(outlier):
    columns, before = (figure.trace(replace(FIRST, outlier=it))["columns"] for it in (outlier, 1))
    largest = np.argmax(before)
    assert columns[largest] == pytest.approx(outlier * before[largest])
    assert np.delete(columns, largest).tolist() == np.delete(before, largest).tolist()


@pytest.mark.parametrize("flush", figure.FLUSHES)
def test_the_loss_of_a_sum_is_that_of_the_tensor_core_of_the_reference(flush):
    A = np.random.default_rng(0).random((8, figure.LENGTHS[-1]))
    for place in (0, 3):
        N = figure.LENGTHS[place]
        sums = eight_bits.TensorCore(flush=flush)(np.zeros((8, 1)), A[:, :N], np.ones((N, 1)))[:, 0]
        assert figure._lost(flush)[place] == pytest.approx(1 - (sums / A[:, :N].sum(1)).mean(), rel=1e-6)


def test_describe_has_the_numbers():
    words = figure.describe(FIRST)
    assert words.startswith("Largest weight 1: 442 of 512 weights of “rabbit” become 0, 5.69% of their sum; ")
    assert len({figure.describe(state) for state in figures.states(figure)}) == 24
