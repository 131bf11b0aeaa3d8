"""With a softmax a head of 16 columns finds 64 pairs; without it, about as many as it has columns."""

import pytest

torch = pytest.importorskip("torch")

from flashlab.models import needle  # noqa: E402


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1])
def test_training_finds_no_way_around_the_rank(seed):
    softmax, linear = (needle.train(kind, seed=seed) for kind in ("softmax", "linear"))
    assert all(needle.share(softmax, n) > 0.99 for n in (4, 16, 64))
    found = [needle.share(linear, n) for n in (4, 16, 64)]
    assert found[0] > 0.97 and found[1] > 0.8 and found[2] < 0.6
    S = linear.Q.detach().double() @ linear.K.detach().double().T
    assert torch.linalg.matrix_rank(S) == 16 and torch.linalg.matrix_rank(S.softmax(-1)) == 64


@pytest.mark.exhaustive
def test_a_wider_state_holds_more():
    assert needle.share(needle.train("linear", d=32), 64) > 0.2 + needle.share(needle.train("linear"), 64)


def test_keys_of_a_text_are_different_and_texts_are_fresh():
    generator = torch.Generator().manual_seed(0)
    (keys, values), (others, _) = needle.texts(3, 64, generator), needle.texts(3, 64, generator)
    assert keys.sort(1).values.tolist() == [list(range(64))] * 3
    assert values.shape == (3, 64) and not torch.equal(keys, others)
