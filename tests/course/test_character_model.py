"""Training of the character model is repeatable, and flash attention changes its losses no more than rounding does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flashlab.models.plain import dense, reordered, windowed
from tests.tools.bounds import assert_as_exact_as_plain

character_model = pytest.importorskip(
    "flashlab.course.character_model", reason="the kernels need triton, which is for Linux"
)

from flashlab.course import data  # noqa: E402
from flashlab.kernels import DEVICE, flash_attention  # noqa: E402


def losses(attention, steps=4, **options):
    return character_model.train(attention, steps=steps, **options).losses


def test_text_is_the_file():
    tokens, alphabet = character_model.text()
    assert "".join(alphabet[tokens]) == data.text()
    assert len(alphabet) == int(tokens.max()) + 1 == 67


def test_the_seed_decides():
    assert np.array_equal(losses(dense), losses(dense))
    assert not np.isclose(losses(dense), losses(dense, seed=1)).any()


def test_training_restores_the_settings_of_torch():
    def failing(Q, K, V, *, causal):
        raise ZeroDivisionError

    state, threads = torch.get_rng_state(), torch.get_num_threads()
    losses(dense, steps=1)
    with pytest.raises(ZeroDivisionError):
        losses(failing)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


def test_it_learns():
    curve = losses(dense, steps=24)
    assert np.log(67) - 0.5 < curve[0] < np.log(67) + 0.5
    assert curve[-4:].mean() < 3.3


def test_an_output_does_not_depend_on_later_characters():
    model = character_model.train(dense, steps=1).model
    tokens = torch.randint(67, (1, 30), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    other = tokens.clone()
    other[0, 20] = (other[0, 20] + 1) % 67
    same = (model(tokens) == model(other)).all(-1)[0]
    assert same[:20].all() and not same[20:].any()


def test_first_gradients_are_as_exact_as_dense_ones():
    tokens = character_model.text()[0][None, 1000:1129].to(DEVICE)

    def gradients(attention, dtype):
        torch.manual_seed(0)
        model = character_model.CharacterModel(67, attention).to(DEVICE, dtype)
        loss = F.cross_entropy(model(tokens[:, :-1])[0].double(), tokens[0, 1:])
        names, parameters = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))

    ours, plain, exact = (gradients(*how) for how in (
        (flash_attention, torch.float32), (dense, torch.float32), (dense, torch.float64)))  # fmt: skip
    for name in (name for name in exact if "_proj" in name):
        assert_as_exact_as_plain(ours[name], plain[name], exact[name])


def test_flash_is_no_further_off_than_another_order_of_summation():
    exact = losses(dense, dtype=torch.float64)
    usual = max(np.abs(losses(attention) - exact).max() for attention in (dense, *map(reordered, range(4))))
    assert np.abs(losses(flash_attention) - exact).max() <= 2 * usual

    def one_percent_off(Q, K, V, *, causal):
        return dense(1.01 * Q, K, V, causal=causal)

    for other in (one_percent_off, windowed(100)):  # a small mistake exceeds the bound by far
        assert np.abs(losses(other) - exact).max() > 20 * usual


def test_the_bar_ends_full_and_there_is_none_without_a_name(capsys):
    losses(dense, steps=2)
    assert capsys.readouterr().out == ""
    losses(dense, steps=2, name="dense")
    bars = capsys.readouterr().out.split("\r")[1:]
    assert bars[0].startswith("dense           ██████████░░░░░░░░░░ step 1 of 2, loss 4.34")
    assert bars[1].startswith("dense           ████████████████████ step 2 of 2, loss 4.") and bars[1].endswith("\n")
