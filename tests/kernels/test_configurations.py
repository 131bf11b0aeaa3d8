"""Which configuration a launch gets, on cards that are not here too."""

import itertools

import pytest
import torch
import triton

from flashlab.kernels import configuration
from flashlab.kernels.configurations import CONFIGS, Card, Configuration, choose, shared_bytes

KERNELS = "forward", "key_value_gradients", "query_gradients"
H200 = Card((9, 0), 227 * 1024)


@pytest.mark.parametrize(
    "capability, kilobytes", [((7, 5), 64), ((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99)]
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_width_has_a_configuration_that_fits_by_construction(kernel, capability, kilobytes):
    card = Card(capability, kilobytes * 1024)
    dtypes = [(torch.float16, False), (torch.bfloat16, False), (torch.float32, False), (torch.float32, True)]
    for d, dv, (dtype, true_float32), causal in itertools.product((1, 64, 72, 256), (8, 256), dtypes, (False, True)):
        c = choose(kernel, card, dtype, true_float32, d, dv, causal, 100)
        assert 16 <= c.Br <= 128 and 16 <= c.Bc <= 128 and c.why
        if c.why.startswith("not measured"):
            itemsize = 4 if true_float32 or capability < (8, 0) else dtype.itemsize
            width = max(16, triton.next_power_of_2(max(d, dv)))
            assert shared_bytes(kernel, c, width, itemsize) <= card.shared_bytes


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_smaller_card_gets_a_sentence_where_nothing_fits(kernel):
    with pytest.raises(ValueError, match="fits 8192 bytes"):
        choose(kernel, Card((8, 0), 8192), torch.bfloat16, False, 256, 256, False, 100)


def test_measured_configurations_say_where_and_when():
    measured = CONFIGS["measured"][0]
    c = choose("query_gradients", H200, torch.bfloat16, False, 128, 128, True, 2048)
    assert measured["device"] in c.why and measured["date"] in c.why
    assert {"driver", "torch", "triton", "how"} <= measured.keys()


def test_specialization_only_with_the_compiler_that_it_was_measured_with(monkeypatch):
    def chosen():
        choose.cache_clear()
        return choose("forward", H200, torch.bfloat16, False, 128, 128, False, 16384)

    monkeypatch.setattr(triton, "__version__", CONFIGS["measured"][0]["triton"])
    assert chosen().specialized
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    assert not chosen().specialized and "measurement" in chosen().why
    choose.cache_clear()


def test_longer_sequences_may_be_tiled_otherwise(monkeypatch):
    monkeypatch.setattr(triton, "__version__", CONFIGS["measured"][0]["triton"])
    choose.cache_clear()
    short, long = (choose("forward", H200, torch.bfloat16, False, 128, 128, False, N) for N in (64, 65536))
    assert short != long
    choose.cache_clear()


def test_the_interpreter_takes_any_tile():
    q = torch.zeros(1, 1, 8, 256)
    assert isinstance(configuration("forward", q, q, q, False), Configuration)
