"""Which configuration a launch gets, on cards that are not here too."""

import itertools
from typing import NamedTuple

import pytest
import torch
import triton

from flashlab.kernels import DEVICE, configuration, configurations, flash_attention
from flashlab.kernels.configurations import CONFIGS, Card, Configuration, choose, choose_hopper, shared_bytes

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


def test_longer_sequences_may_be_tiled_otherwise():
    short, long = (choose("query_gradients", H200, torch.bfloat16, False, 128, 128, True, N) for N in (64, 65536))
    assert short != long
    short, long = (choose_hopper("forward", 64, 64, False, N) for N in (64, 65536))
    assert short.Br < long.Br


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize("d, dv, width", [(1, 1, 64), (64, 64, 64), (64, 72, 128), (80, 8, 128), (128, 128, 128)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_hopper_kernel_has_a_configuration_with_its_reason(kernel, d, dv, width, causal):
    c = choose_hopper(kernel, d, dv, causal, 1)
    assert c == choose_hopper(kernel, width, width, causal, 1) and c.implementation == "hopper"
    assert CONFIGS["hopper"]["device"] in c.why and CONFIGS["hopper"]["date"] in c.why


def pretend(monkeypatch, capability=(9, 0), version="3.6.0"):
    """As if tensors lay on such a GPU."""
    monkeypatch.setattr(configurations, "card", lambda device: Card(capability, 227 * 1024))
    monkeypatch.setattr(triton, "__version__", version)


class OnGPU(NamedTuple):
    """What ``configuration`` looks at of a tensor."""

    shape: tuple
    dtype: torch.dtype = torch.bfloat16
    is_cuda: bool = True
    device: str = "cuda:0"


def test_hopper_is_chosen_where_it_can_and_the_reason_says_where_not(monkeypatch):
    x = OnGPU((1, 16, 4096, 128))
    pretend(monkeypatch)
    assert configuration("forward", x, x, x, True).implementation == "hopper"
    assert configuration("backward", x, x, x, True).implementation == "hopper"
    assert configuration("forward", x, x, x, True, "portable").implementation == "portable"
    assert "asked for" in configuration("backward", x, x, x, True, "portable").why
    wide, single = OnGPU((1, 2, 64, 136)), x._replace(dtype=torch.float32)
    for y, why in ((wide, "d = 136"), (single, "got torch.float32")):
        assert configuration("forward", y, y, y, True).implementation == "portable"
        assert why in configuration("backward", y, y, y, True).why
        with pytest.raises(ValueError, match=f"cannot do this: .*{why}"):
            configuration("forward", y, y, y, True, "hopper")
    pretend(monkeypatch, version="3.99.0")
    assert "this is 3.99.0" in configuration("backward", x, x, x, True).why
    pretend(monkeypatch, capability=(10, 0))
    assert "compute capability 9.0" in configuration("backward", x, x, x, True).why


@pytest.mark.parametrize("kernel", ["forward", "backward"])
@pytest.mark.parametrize(
    "q, k, why",
    [
        ((1, 16, 512, 64), (1, 16, 512, 64), "64 tiles of 128 rows are too few"),
        ((9, 16, 100, 64), (9, 16, 100, 64), "sequences shorter than"),
        ((8, 16, 1024, 32), (8, 16, 1024, 32), "fewer than 33 columns"),
    ],
)
def test_what_is_small_stays_portable_unless_asked_for(kernel, q, k, why, monkeypatch):
    pretend(monkeypatch)
    q, k = OnGPU(q), OnGPU(k)
    assert why in configurations.slower_on_hopper(kernel, q, k, k)
    assert configuration(kernel, q, k, k, False).implementation == "portable"
    assert configuration(kernel, q, k, k, False, "hopper").implementation == "hopper"


def test_deterministic_algorithms_keep_dQ_portable_unless_asked_for(monkeypatch):
    x = OnGPU((1, 16, 4096, 128))
    pretend(monkeypatch)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert "use_deterministic_algorithms" in configuration("backward", x, x, x, True).why
    assert configuration("backward", x, x, x, True, "hopper").implementation == "hopper"
    assert configuration("forward", x, x, x, True).implementation == "hopper"  # which gives the same bits anyway


def test_tiles_are_counted_where_the_kernel_has_them():
    q, k = OnGPU((1, 32, 2048, 64)), OnGPU((1, 4, 1024, 64))
    assert configurations.slower_on_hopper("forward", q, k, k) is None  # 32 heads of 16 tiles of queries
    assert "32 tiles" in configurations.slower_on_hopper("backward", q, k, k)  # 4 heads of 8 tiles of keys


def test_asking_for_hopper_without_one_is_refused_in_a_sentence():
    q = torch.zeros(1, 1, 8, 64, device=DEVICE)
    if q.is_cuda and torch.cuda.get_device_capability() == (9, 0):
        pytest.skip("there is one here")
    with pytest.raises(ValueError, match="need a GPU of compute capability 9.0"):
        flash_attention(q, q, q, kernel="hopper")
    with pytest.raises(ValueError, match='kernel must be "portable", "hopper" or None, got \'fast\''):
        flash_attention(q, q, q, kernel="fast")
    assert torch.equal(flash_attention(q, q, q, kernel="portable"), flash_attention(q, q, q))


def test_the_interpreter_takes_any_tile():
    q = torch.zeros(1, 1, 8, 256)
    assert isinstance(configuration("forward", q, q, q, False), Configuration)
