"""The backward pass may divide a group of query heads that share keys: its parts add up to the same gradients."""

import pytest
import torch

from flashlab.kernels import DEVICE, configurations, flash_attention, flash_attention_packed, masks, scores
from flashlab.kernels.configurations import Card, Configuration, divided, parts_of_groups
from flashlab.kernels.problem import Problem
from tests.kernels import written_out
from tests.kernels.implementations import choose_halves
from tests.kernels.inputs import qkv, randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long, long_except

pytestmark = pytest.mark.usefixtures("kernel")

B, H, Hk, N, d = 1, 8, 2, 70, 24  # four query heads per key head
H200 = Card((9, 0), 227 * 1024, 132)
SMALL = Problem(3, 16, 2, 400, 400, 128, 128, torch.bfloat16, torch.device("cuda"), masks.causal(), 0.1, "tf32")
FULL = masks.full()


@pytest.fixture
def divide(choose_anew, monkeypatch):
    """Return a function that makes every backward pass divide its groups into this many parts."""

    def divide(parts):
        def divided(launches, card, problem):
            of_keys = configurations.OF_KEYS
            return {name: c._replace(parts=parts if name in of_keys else 1) for name, c in launches.items()}

        monkeypatch.setattr(configurations, "divided", divided)
        choose_anew()

    return divide


def gradients(attention, tensors):
    """Return dQ, dK and dV for the same dO and gradient of lse."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    O, lse = attention(*tensors)
    total = (O * randn(*O.shape, dtype=O.dtype, seed=8)).sum() + (
        lse * randn(*lse.shape, dtype=lse.dtype, seed=9)
    ).sum()
    return torch.autograd.grad(total, tensors)


i, j = written_out.own(N, N)
IDS = torch.arange(N, device=DEVICE) // 30
STARTS = torch.tensor([0, 1, 33, 33, N], device=DEVICE)
TEXT = torch.bucketize(torch.arange(N, device=DEVICE), STARTS[1:], right=True)
SINKS = torch.tensor([-1.0, 0.5, 2.0, 9.0] * 2, device=DEVICE)
SLOPES = 2.0 ** -torch.arange(1, H + 1, device=DEVICE)
EVERY = torch.ones(N, N, dtype=torch.bool, device=DEVICE)
CASES = {  # options, and the rest of the arguments of ``written_out.attention``
    "full": ({}, (EVERY,)),
    "causal": ({"causal": True}, (j <= i,)),
    "window": ({"mask": masks.window(20, 3)}, ((j >= i - 20) & (j <= i + 3),)),
    "documents": ({"mask": masks.documents(IDS) & masks.causal()}, ((IDS[:, None] == IDS) & (j <= i),)),
    "sinks": ({"causal": True, "sinks": SINKS}, (j <= i, None, SINKS)),
    "alibi": ({"score": scores.alibi(SLOPES)}, (EVERY, lambda S: S - SLOPES.to(S)[:, None, None] * (i - j).abs())),
    "texts": ({"causal": True}, ((TEXT[:, None] == TEXT) & (j <= i),)),
    "dropout": ({"dropout": 0.3, "seed": 5}, (EVERY, None, None)),
}


def ours(name, options):
    def packed(*tensors):
        O, lse = flash_attention_packed(
            *(x[0].transpose(0, 1) for x in tensors), offsets_q=STARTS, return_lse=True, **options
        )
        return O.transpose(0, 1)[None], lse[None]

    return packed if name == "texts" else lambda *tensors: flash_attention(*tensors, return_lse=True, **options)


@pytest.mark.parametrize("name", long_except(["causal", "texts"], CASES))
@pytest.mark.parametrize("parts", [long(1), 2, long(4)])
def test_parts_of_a_group_add_up_to_its_gradients(name, parts, divide):
    divide(parts)
    options, rest = CASES[name]
    tensors = qkv(B, H, Hk, N, N, d, dtype=torch.float16)
    if name == "dropout":
        rest = *rest, written_out.factors(B, H, N, N, options["dropout"], options["seed"])
    results = gradients(ours(name, options), tensors)
    plain = gradients(lambda *x: written_out.attention(*x, *rest), tensors)
    exact = gradients(lambda *x: written_out.attention(*x, *rest), [x.double() for x in tensors])
    for three in zip(results, plain, exact, strict=True):
        assert_as_exact_as_plain(*three)


@pytest.mark.parametrize("dtype", [torch.float32, long(torch.bfloat16)])
def test_parts_in_other_dtypes_and_where_dK_and_dV_have_a_kernel_each(dtype, divide, monkeypatch):
    divide(4)
    if dtype == torch.bfloat16:
        choose_halves(monkeypatch)
    ours, plain, exact = (
        gradients(attention, [x.to(t) for x in qkv(B, H, Hk, N, N, d, dtype=dtype)])
        for attention, t in (
            (lambda *x: flash_attention(*x, causal=True, return_lse=True), dtype),
            (lambda *x: written_out.attention(*x, j <= i), dtype),
            (lambda *x: written_out.attention(*x, j <= i), torch.float64),
        )
    )
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three, roundings=2 if dtype == torch.float32 else 1)


def test_every_head_alone_has_the_gradient_of_repeated_keys_bit_for_bit(divide, kernel):
    """With a part for each head, dK and dV are sums over the heads of the gradients of repeated keys and values."""
    q, k, v = qkv(B, H, Hk, N, N, d, dtype=torch.float16)
    divide(H // Hk)
    times = 5 if DEVICE.type == "cuda" else 2  # on a GPU, a third launch repeats the second
    ours, *again = (gradients(lambda *x: flash_attention(*x, return_lse=True), (q, k, v)) for _ in range(times))
    divide(1)
    repeated = [x.repeat_interleave(H // Hk, 1) for x in (k, v)]
    of_heads = gradients(lambda *x: flash_attention(*x, return_lse=True), (q, *repeated))
    for place in (1, 2):
        x, each = ours[place], of_heads[place]
        added = sum(each.float().unflatten(1, (Hk, -1)).unbind(2)).to(x.dtype)  # one after the other
        assert torch.equal(x, added) and all(torch.equal(x, others[place]) for others in again)
    assert kernel == "hopper" or torch.equal(ours[0], of_heads[0])


# the rule


PORTABLE, ON_HOPPER = Configuration(64, 64, 4, 2), Configuration(64, 128, 12, 3)


def tiled(programs, mask=FULL, group=8):
    """Return a problem with this many programs of 128 keys and undivided groups."""
    return SMALL._replace(B=1, H=group, Hk=1, Nk=128 * programs, mask=mask)


@pytest.mark.parametrize(
    "programs, full, causal",  # the parts of each group of 8, by mask
    [
        (8, 8, 8),
        (24, 4, 8),  # 96 programs in one round; 192 would be two, each half as long
        (64, 2, 8),
        (72, 8, 8),  # five rounds of an eighth, and not three of a quarter
        (132, 1, 8),
        (133, 8, 8),  # nine rounds of an eighth end before five of a quarter
        (900, 1, 2),
        (1300, 1, 1),
    ],
)
def test_groups_are_divided_if_the_last_program_ends_earlier_then(programs, full, causal):
    assert parts_of_groups(tiled(programs), ON_HOPPER, 132) == full
    assert parts_of_groups(tiled(programs, masks.causal()), ON_HOPPER, 132) == causal
    assert parts_of_groups(tiled(programs, "rule"), ON_HOPPER, 132) == causal


def test_two_programs_of_four_warps_share_a_multiprocessor():
    for programs in (8, 24, 64, 72, 132, 900):
        half = tiled(programs)
        assert parts_of_groups(half, PORTABLE, 132) == parts_of_groups(half, ON_HOPPER, 132)


@pytest.mark.parametrize("group", [1, 3, 6, 8, 32])
def test_parts_are_of_equal_size_and_much_work_is_never_divided(group):
    for programs in range(1, 1500, 7):
        for mask in (FULL, masks.causal()):
            parts = parts_of_groups(tiled(programs, mask, group), ON_HOPPER, 132)
            assert group % parts == 0 and (parts == 1 or programs < 9.7 * 132)


@pytest.mark.parametrize("kernel, c", [("portable", PORTABLE), ("hopper", ON_HOPPER)])
def test_the_launches_of_dK_and_dV_have_the_parts_of_the_rule(kernel, c):
    launches = configurations.choose_for(H200, "backward", SMALL, kernel, False).launches
    parts = {name: c.parts for name, c in launches.items() if name in configurations.OF_KEYS}
    assert set(parts.values()) == {parts_of_groups(SMALL, c, 132)} == {8}
    assert all(c.parts == 1 for name, c in launches.items() if name not in parts)


def test_kernels_of_dK_and_of_dV_agree_on_the_parts():
    launches = {name: c for name, c in zip(configurations.HALVES, (ON_HOPPER, PORTABLE), strict=True)}
    few = tiled(24)
    assert {c.parts for c in divided(launches, H200, few._replace(Hk=1, H=8)).values()} == {4}


def test_the_interpreter_and_the_forward_pass_divide_nothing():
    for card, direction in ((None, "backward"), (H200, "forward")):
        launches = configurations.choose_for(card, direction, SMALL, "portable", False).launches
        assert all(c.parts == 1 for c in launches.values())
