"""The cards: every number has a source, and the numbers derived from them are those of the papers."""

import pytest

from flashlab.machine import hardware
from flashlab.machine.hardware import CARDS, NUMBERS, KiB, MiB

A100, H100, H200, B200, T4 = (CARDS[name] for name in ("A100 40 GB", "H100 SXM", "H200 SXM", "B200", "T4"))
cards = pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)


@cards
def test_every_number_has_a_source_and_every_source_a_number(card):
    names = {name for name in NUMBERS if getattr(card, name) is not None}
    assert set(hardware.sources(card)) == names | set(hardware.PerSM._fields)
    assert all(len(document) > 10 for document in hardware.sources(card).values())


@cards
def test_a_block_gets_less_than_the_sm_and_the_sm_less_than_the_array(card):
    per_sm = card.per_sm
    assert per_sm.block_bytes <= per_sm.smem_bytes < per_sm.sram_bytes
    assert card.capability == "7.5" or per_sm.smem_bytes - per_sm.block_bytes == KiB  # 1 KiB is reserved by the system


@cards
def test_the_memory_on_the_chip_is_smaller_and_faster(card):
    _, on_chip, l2, dram, _ = hardware.levels(card)
    assert on_chip.nbytes < dram.nbytes / 1000 and l2.nbytes < dram.nbytes / 100
    assert on_chip.rate > 4 * dram.rate and on_chip.rate > (l2.rate or dram.rate)
    if card.latency:
        assert card.latency.smem < card.latency.l1 < card.latency.l2 < card.latency.dram


@pytest.mark.parametrize(
    "value, printed",
    [
        (hardware.smem_rate(A100) / 1e12, 19.5),  # FlashAttention, figure 1: 19 TB/s
        (hardware.smem_rate(H100) / 1e12, 30.9),  # FlashAttention-3, table 1: 31 TB/s
        (hardware.sram_bytes(A100) / MiB, 20.25),  # FlashAttention, figure 1: 20 MB
        (hardware.smem_rate(A100) / A100.dram_rate, 12.5),
        (hardware.smem_rate(H200) / H200.dram_rate, 6.44),
        (A100.dram_bytes / hardware.sram_bytes(A100), 2023),
        (hardware.ridge(A100), 200.6),
        (hardware.ridge(H100), 295.3),
        (hardware.ridge(H100, "float8"), 590.7),
        (hardware.exp_rate(A100) / 1e12, 2.436),
        (A100.float16 / hardware.exp_rate(A100), 128),  # FlashAttention-4, section 2.2: 128, 256 and 512 to 1
        (H100.float16 / hardware.exp_rate(H100), 256),
        (B200.float16 / hardware.exp_rate(B200), 512),
        (hardware.nanoseconds(A100, A100.latency.dram), 330.5),
        (H200.l2_bytes / MiB, 60),
        (A100.l2_rate / 1e12, 7.22),
        (T4.dram_bytes / MiB, 16_384),
        (hardware.smem_rate(T4) / T4.dram_rate, 12.7),  # Turing delivers half of Ampere's bytes per clock
    ],
)
def test_derived_numbers_are_those_of_the_papers(value, printed):
    assert value == pytest.approx(printed, rel=4e-3)


@pytest.mark.parametrize("card, flops", [(T4, 1024), (A100, 2048), (H100, 4096), (B200, 8192)])
def test_products_per_clock_are_a_power_of_two(card, flops):
    """The numbers of A100, H100 and B200 are those of FlashAttention-4, section 2.2."""
    assert hardware.flops_per_clock(card) == flops
    assert hardware.flop_rate(card) == pytest.approx(flops * card.sms * card.clock, rel=5e-3)


def test_tensor_memory_came_with_blackwell():
    assert {card.name for card in CARDS.values() if card.per_sm.tensor_memory_bytes} == {"B200"}
    assert B200.per_sm.tensor_memory_bytes == B200.per_sm.register_bytes == 256 * KiB


@cards
def test_one_sm_has_its_share(card):
    whole, share = hardware.levels(card), hardware.levels(card, one_sm=True)
    for total, one in zip(whole, share, strict=True):
        assert one.name == total.name and one.cycles == total.cycles
        assert (one.rate is None) == (total.rate is None)
        assert one.rate is None or one.rate == pytest.approx(total.rate / card.sms)
    assert [level.nbytes for level in share[:2]] == [256 * KiB, card.per_sm.sram_bytes]
    assert share[2].nbytes == card.l2_bytes  # every SM sees all of it


def test_a_number_that_no_source_verifies_is_none():
    assert B200.float32 is None and B200.l2_rate is None and H100.latency is None and A100.float8 is None


def test_a_missing_number_has_a_reason():
    assert "disagree" in hardware.missing(B200, "float32")
    for card in CARDS.values():
        if card.float8 is None:
            assert "no float8" in hardware.missing(card, "float8")
