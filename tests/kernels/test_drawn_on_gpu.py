"""Random calls on a GPU: few kernels, and many lengths for each, because compiling takes most of the time.

Lengths and ends of windows are odd and above 1: Triton compiles anew for multiples of 16, and for 1. test_drawn.py, in
the interpreter, has no such limits.
"""

import numpy as np
import pytest
import torch

from flashlab.kernels import DEVICE
from tests.kernels.drawn_cases import (
    causal,
    custom,
    documents,
    draw,
    first,
    full,
    hold,
    padding,
    pattern,
    prefix,
    stream,
    window,
)
from tests.kernels.drawn_reference import results_of
from tests.kernels.implementations import HOPPER

pytestmark = pytest.mark.skipif(DEVICE.type != "cuda", reason="without a GPU, test_drawn.py runs random calls")
RUNS = 50  # of a call, which must give the same bits
WIDTHS = 16, 32, 64, 128, 192, 256
DTYPES = torch.float16, torch.bfloat16, torch.float32
LENGTHS = [(211, 113), (113, 211), (333, 77), (35, 203), (97, 3), (5, 333), (7, 701), (255, 257)]  # queries, keys


def dense(rng, Nq, Nk):
    return pattern(rng.random((Nq, Nk)) < 0.8, 1, 1, (1, 2, Nq, Nk))


def blocks(rng, Nq, Nk):
    of_heads = 2, -(-Nq // 31), -(-Nk // 19)
    return pattern(rng.random(of_heads) < 0.6, 31, 19, (1, *of_heads))


def sorted_documents(rng, Nk, most=4):
    return documents(np.sort(rng.integers(0, most, Nk)))


MASKS = {  # each made of two odd numbers, n and W, and the numbers of queries and keys
    "window": lambda rng, n, W, Nq, Nk: window(W),
    "window both ways": lambda rng, n, W, Nq, Nk: window(W, n),
    "documents": lambda rng, n, W, Nq, Nk: sorted_documents(rng, Nk),
    "documents, causal": lambda rng, n, W, Nq, Nk: sorted_documents(rng, Nk) & causal(),
    "documents in pieces": lambda rng, n, W, Nq, Nk: documents(rng.integers(0, 4, Nk)) & window(W, n),
    "padding": lambda rng, n, W, Nq, Nk: padding(rng.integers(0, Nk + 1, 1)) & window(W),
    "stream": lambda rng, n, W, Nq, Nk: stream(n, W),
    "stream or documents": lambda rng, n, W, Nq, Nk: stream(n, W) | sorted_documents(rng, Nk, 9),
    "prefix": lambda rng, n, W, Nq, Nk: prefix(n),
    "blocks": lambda rng, n, W, Nq, Nk: blocks(rng, Nq, Nk),
    "dense": lambda rng, n, W, Nq, Nk: dense(rng, Nq, Nk) & causal(),
    "custom": lambda rng, n, W, Nq, Nk: custom(rng.integers(0, 5, 2), 3) & window(W, n),
    "unions": lambda rng, n, W, Nq, Nk: (
        (dense(rng, Nq, Nk) | blocks(rng, Nq, Nk)) & (sorted_documents(rng, Nk) | first(n))
    ),
    "packed": lambda rng, n, W, Nq, Nk: window(W),
}
RULES = [*MASKS][2:-1]
PORTABLE = [
    *(("window", d, DTYPES[n % 3]) for n, d in enumerate(WIDTHS)),
    *(("window", d, DTYPES[(n + 1) % 3]) for n, d in enumerate(WIDTHS[2:4])),
    ("window both ways", 128, torch.bfloat16),
    *((mask, WIDTHS[n % len(WIDTHS)], DTYPES[n % 3]) for n, mask in enumerate(RULES)),
    *(("packed", d, DTYPES[(n + 1) % 3]) for n, d in enumerate(WIDTHS[1:-1:2])),
]
ON_HOPPER = [("window", 64, DTYPES[0]), ("window", 192, DTYPES[1]), ("window both ways", 256, DTYPES[0])]
ON_HOPPER += [("window both ways", 128, DTYPES[1]), ("documents, causal", 128, DTYPES[0]), ("packed", 64, DTYPES[1])]
ALONE = {"form": "dense", "B": 1, "heads": (2, 1), "steps": 0, "sinks": False, "dropout": False, "scale": None}


def lengths(rng):
    """Return pairs of odd lengths: fixed ones, and random ones in both orders."""
    some = [tuple(int(x) for x in 2 * rng.integers(1, 200, 2) + 1) for _ in range(4)]
    return [*LENGTHS, *some, *(pair[::-1] for pair in some)]


def cases(mask, d, dtype, kernels):
    """Return calls with this kind of mask; they need one compiled kernel, or a few, per direction."""
    rng, calls = np.random.default_rng([d, DTYPES.index(dtype)]), []
    pairs = lengths(rng)
    for number, (Nq, Nk) in enumerate(pairs):
        options = ALONE | {"d": d, "dv": d, "dtype": dtype, "hide": False, "learned": "QKV"}
        if mask == "packed":
            Nq, Nk = ([pairs[(number + t) % len(pairs)][n] for t in range(3)] for n in (0, 1))
            options |= {"form": "packed", "B": 3}
        if "hopper" in kernels and mask in ("documents, causal", "packed"):  # a query for every key
            Nq, Nk = (Nq, Nq) if mask == "packed" else (max(Nq, Nk), min(Nq, Nk))
        n, W = (int(x) for x in 2 * rng.integers(1, 60, 2) + 1)
        options |= {"Nq": Nq, "Nk": Nk, "mask": MASKS[mask](rng, n, W, Nq, Nk)}
        calls += [draw(1000 * d + number, kernel=kernel, **options) for kernel in kernels]
    return calls


def wrong(calls):
    """Return a line for each call with a wrong result."""
    lines = []
    for case in calls:
        try:
            hold(case)
        except AssertionError as error:
            lines.append(f"{case.name}: {error}")
    return "\n".join(lines)


def assert_same_bits(case, but=()):
    """Assert that a call gives the same bits in every run, except for the results in ``but``."""
    first = results_of(case)[0]
    for _ in range(RUNS):
        again = results_of(case)[0]
        assert all(torch.equal(x, first[name]) for name, x in again.items() if name not in but), case.name


@pytest.fixture(autouse=True)
def memory_full_of_nan():
    """Fill the memory that torch will hand out with NaN, also around tensors."""
    if DEVICE.type == "cuda":
        torch.full([2**26], float("nan"), device=DEVICE)


@pytest.mark.parametrize("mask, d, dtype", PORTABLE)
def test_portable_and_chosen_kernels_are_as_exact_as_plain_attention(mask, d, dtype):
    calls = cases(mask, d, dtype, ["portable", None])
    assert not wrong(calls)
    assert_same_bits(calls[0])
    assert_same_bits(calls[1], but=("Q",))  # this may be a Hopper kernel


@pytest.mark.skipif(not HOPPER, reason="the Hopper kernels need a GPU of compute capability 9.0")
@pytest.mark.parametrize("mask, d, dtype", ON_HOPPER)
def test_hopper_kernels_are_as_exact_as_plain_attention(mask, d, dtype):
    calls = cases(mask, d, dtype, ["hopper"])
    assert not wrong(calls)
    assert_same_bits(calls[0], but=("Q",))


TOGETHER = [("QKV", True), ("QKV", False), ("K", False), ("V", False), ("", True), ("KV", True)]


@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("number, learned, learn", [(n, *what) for n, what in enumerate(TOGETHER)])
def test_all_options_together_are_as_exact_as_plain_attention(number, learned, learn, form):
    """Dropout, sinks, and random score functions, with gradients or without, at several lengths."""
    options = ALONE | {"steps": 1 + number % 2, "sinks": True, "dropout": True, "hide": False}
    options |= {"d": (64, 128)[number % 2], "dv": 64, "kernel": "portable", "dtype": DTYPES[number % 3]}
    options |= {"learned": learned, "learn": learn, "form": form}
    odd = [(2 * n + 91, 211 - 2 * n) for n in range(0, 60, 11)]
    if form == "packed":
        odd = [([Nq, 35, 77], [Nk, 133, 5]) for Nq, Nk in odd]
        options |= {"B": 3}
    assert not wrong([draw(40 + number, mask=stream(3, 31), **options, Nq=Nq, Nk=Nk) for Nq, Nk in odd])


@pytest.mark.parametrize("d, dtype, kernel", [(64, DTYPES[0], "portable"), (128, DTYPES[1], None)])
def test_texts_do_not_reach_each_other(d, dtype, kernel):
    options = ALONE | {"form": "packed", "B": 3, "Nq": [133, 333, 71], "Nk": [133, 333, 71], "kernel": kernel}
    options |= {"d": d, "dv": d, "dtype": dtype, "learned": "QKV", "mask": causal(), "layout": "plain"}
    names = ["Q", "K", "V", "dO"]
    assert not wrong([draw(number, poison=names[number % 4], **options) for number in range(12)])


def test_products_in_tf32_are_as_exact_as_those_of_float16():
    options = ALONE | {"d": 64, "dv": 64, "dtype": torch.float32, "hide": False, "learned": "QKV", "kernel": "portable"}
    calls = [draw(n, mask=window(2 * n + 3), Nq=2 * n + 91, Nk=211 - 2 * n, **options) for n in range(0, 60, 11)]
    for case in calls:
        case.plain = case.of_lse = torch.float16  # TF32 has as many bits
    torch.set_float32_matmul_precision("high")
    try:
        assert not wrong(calls)
    finally:
        torch.set_float32_matmul_precision("highest")


DECODING = {  # choices besides the usual ones
    "window": {},
    "float16": {"dtype": torch.float16, "d": 256, "dv": 40, "n": 1},
    "many heads": {"heads": (32, 2), "n": 5, "fixed_split": 128, "mask": full()},
    "int8": {"eight": torch.int8, "page": 16},
    "float8": {"eight": torch.float8_e4m3fn},
    "odd int8": {"eight": torch.int8, "dv": 33},
    "odd float8": {"eight": torch.float8_e4m3fn, "dv": 33},
    "latent": {"cache": (True, False), "dv": 64, "rope": 16, "page": 16, "mask": causal()},
    "wide latent": {"cache": (True, False), "dv": 512, "rope": 64, "mask": causal()},
    "prefixes": {"cache": (False, True), "prefixes": 2, "mask": causal()},
    "prefixes in pages": {"cache": (False, True), "prefixes": 1, "page of prefixes": 16, "page": 16, "mask": causal()},
    "sinks and scores": {"steps": 3, "sinks": True, "mask": stream(5, 37)},
    "prefix": {"mask": prefix(71), "steps": 1},
    "first keys": {"mask": (window(9, 3) | window(31)) & first(101), "steps": 1},
}
RULES_OF_DECODING = {  # made of a number of texts and their number of keys
    "padding": lambda rng, B, Nk: padding(rng.integers(0, Nk + 1, B)),
    "documents": lambda rng, B, Nk: sorted_documents(rng, Nk) & causal(),
    "dense": lambda rng, B, Nk: pattern(rng.random((B, 2, 3, Nk)) < 0.8, 1, 1, (B, 2, 3, Nk)),
    "custom": lambda rng, B, Nk: custom(rng.integers(0, 5, 2), 3) & window(51),
}


@pytest.mark.parametrize("name", [*DECODING, *RULES_OF_DECODING])
def test_decoding_is_as_exact_as_plain_attention(name):
    options = ALONE | {"form": "decode", "B": 2, "cache": (False, False), "d": 64, "dv": 64, "dtype": torch.bfloat16}
    options |= {"eight": None, "page": None, "fixed_split": None, "n": 3, "ragged": True, "layout": "plain"}
    rng, calls = np.random.default_rng(0), []
    for number in range(16):
        Nk = 24 * number + 5
        mask = RULES_OF_DECODING[name](rng, 2, Nk) if name in RULES_OF_DECODING else window(2 * number + 3)
        calls.append(draw(number, **options | {"mask": mask, "Nk": Nk} | DECODING.get(name, {})))
    assert not wrong(calls)
    assert_same_bits(calls[-1])
