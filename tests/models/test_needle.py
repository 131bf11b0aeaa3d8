"""With a softmax a head of 16 columns finds 64 pairs; without it, the size of its state decides."""

import pytest

torch = pytest.importorskip("torch")

from flashlab.models import needle  # noqa: E402


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_softmax_training_finds_fewer(seed):
    softmax, linear = (needle.train(kind, seed=seed) for kind in ("softmax", "linear"))
    assert all(needle.share(softmax, n) > 0.99 for n in (4, 16, 64))
    shares = [needle.share(linear, n) for n in (4, 16, 64)]
    assert shares[0] > 0.97 and shares[1] > 0.8 and shares[2] < 0.6


@pytest.mark.exhaustive
def test_a_larger_state_holds_more_whichever_side_is_wider():
    small, *large = (needle.train("linear", d=d, dv=dv) for d, dv in ((16, 16), (16, 64), (64, 16), (32, 32)))
    assert all(needle.share(head, 64) > 0.3 + needle.share(small, 64) for head in large)
    assert large[0].V.shape == large[0].read_out.shape == (64, 64) and large[0].Q.shape == (64, 16)


def test_keys_of_a_text_differ_and_each_call_draws_new_texts():
    generator = torch.Generator().manual_seed(0)
    (keys, values), (others, _) = needle.texts(3, 64, generator), needle.texts(3, 64, generator)
    assert keys.sort(1).values.tolist() == [list(range(64))] * 3
    assert values.shape == (3, 64) and not torch.equal(keys, others)
