"""The Hopper kernels, compiled without a Hopper GPU: they fit, and their machine code is as intended."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from flashlab.course import data
from flashlab.kernels.tables import TWO_PASSES
from flashlab.reference.pipeline import Budget
from tests.kernels.compiled import compiled

pytestmark = pytest.mark.exhaustive

RUNGS = "one_consumer", "two_consumers", "persistent"
SHARED = 232448  # bytes a program may have at most
REGISTERS = {3: 168, 4: 128}  # per thread, by the number of warpgroups: 65,536 in all, in steps of 8

# What registers cannot hold: bytes of stack, and instructions in a loop that use it. The assembler is not
# deterministic: of twelve runs on one PTX of the backward kernel, some spilled 48 bytes and the others 16. These are
# the worst of several runs, with Triton 3.6 and 3.7. No sum or tile spills: each takes 32 registers or more.
# Outside the loops, spills cost time once per tile of queries or keys.
SPILLS = {  # kernel, width, causal, Br
    ("forward", 128, True, 128): (24, 0),
    ("forward", 192, True, 128): (48, 0),
    ("forward", 256, True, 128): (48, 0),
    ("forward", 64, False, 192): (16, 0),
    ("forward", 64, True, 192): (48, 14),
}
SPILLS_BACKWARD = {  # kind, for heads of 128 columns
    "full": (80, 10),
    "causal": (80, 10),
    "sink": (80, 10),
    "window": (96, 12),
    "soft cap": (120, 15),
    "soft cap in a window": (120, 20),
    "ALiBi": (120, 20),
    "documents": (120, 15),
    "soft cap in documents": (120, 15),
    "group in parts": (80, 10),
}
SPILLS_TWO_PASSES = {  # kernel, kind; for heads of 256 columns
    ("query_gradients", "causal"): (16, 1),
    ("query_gradients", "documents"): (112, 24),
}
LATE = "causal", "sink", "soft cap", "ALiBi", "group in parts"  # the causal kinds, whose second consumers begin late


@pytest.fixture(scope="module")
def kernels(once):
    """Return the reports of the two tools, which run side by side."""
    halves = ("compile_hopper", "forward", *RUNGS, "no_early_wait"), ("compile_hopper_backward",)
    with ThreadPoolExecutor() as threads:
        return [kernel for half in threads.map(lambda names: once(compiled, *names), halves) for kernel in half]


@pytest.fixture
def passes(kernels):
    return [k for k in kernels if k["kernel"] in TWO_PASSES]


@pytest.fixture
def large(kernels):
    return [k for k in kernels if k["kernel"] in ("forward", "backward")]


@pytest.fixture
def rungs(kernels):
    return [k for k in kernels if k["kernel"] in RUNGS]


@pytest.fixture
def no_early_wait(kernels):
    return [k for k in kernels if k["kernel"] == "no_early_wait"]


def consumers(k):
    return k["Br"] // 64 if k["kernel"] == "forward" else 2


def pieces(k):
    """Return how many pieces a tile of V has."""
    return -(-k.get("dv", k["width"]) // columns(k))


def columns(k):
    """Return the columns of a piece."""
    return {192: 64, 256: 128}.get(k["width"], k["width"])


def step(k):
    """Return the number of HGMMA instructions (64 rows, depth 16) of a warpgroup per pair of tiles, by product."""
    if k["kernel"] == "forward":
        return {"S": k["d"] // 16, "PV": k["Bc"] // 16 * pieces(k)}
    return {"S": k["d"] // 16, "dP": k["d"] // 16, "dV": k["Br"] // 16, "dK": k["Br"] // 16, "dQ": 8}


def is_late(k):
    """Return whether the second consumer leaves out the first step, and so has no code for it."""
    return k["kernel"] == "backward" and k["width"] == 64 and k["kind"] in LATE


def test_every_configuration_in_use_is_compiled(kernels, rungs, no_early_wait):
    names = {(k["kernel"], k["width"], k["causal"]) for k in kernels if k not in rungs + no_early_wait}
    widths = {"forward": (64, 128, 192, 256), "backward": (64, 128), "narrow": (64, 128)}
    one_pass = {(n, d, m) for n, some in widths.items() for d in some for m in (False, True)}
    assert names == one_pass | {
        (n, *it) for n in TWO_PASSES for it in ((128, True), (192, True), (256, True), (256, False))
    }
    assert {(k["kernel"], k["width"]) for k in rungs} == {(n, d) for n in RUNGS for d in (64, 128)}
    assert {k["dtype"] for k in kernels} == {"bf16", "fp16"} and any(k["ragged"] for k in kernels)


def test_every_launch_fits(large):
    for k in large:
        assert k["shared"] <= SHARED, f"does not fit: {k}"
        assert k["registers"] <= REGISTERS[consumers(k) + 1], f"too many registers for all warpgroups: {k}"


def test_registers_spill_no_more_than_the_tables_say(kernels):
    for k in (k for k in kernels if k["kernel"] not in TWO_PASSES):
        limits = SPILLS.get((k["kernel"], k["width"], k["causal"], k.get("Br")))
        if k["kernel"] == "backward":
            limits = SPILLS_BACKWARD[k["kind"]] if k["width"] == 128 else (80, 0)
        stack, in_loop = limits or (0, 0)
        assert k["stack"] <= stack, f"spills more than {stack} bytes: {k}"
        for loop in k["loops"]:
            assert loop.get("LDL", 0) + loop.get("STL", 0) <= in_loop, f"spills in a loop: {k}"


def test_no_product_waits_for_the_one_before(large):
    for k in large:
        assert not k["warnings"], f"the assembler serializes products: {k}"


def test_each_consumer_has_one_loop_with_the_products_of_a_step(large):
    for k in large:
        assert [loop["HGMMA"] for loop in k["loops"]] == [sum(step(k).values())] * consumers(k), k
        products = step(k)
        # Outside the loop: in the forward pass, the first S, and the boundary of a tile; in the backward pass, the
        # first step, with its dQ after the loop.
        total = 2 * sum(products.values()) + (products["S"] if k["kernel"] == "forward" else 0)
        left_out = sum(products.values()) - products["dQ"] if is_late(k) else 0
        assert k["counts"]["HGMMA"] == consumers(k) * total - left_out, k


def test_each_weight_takes_one_exponential_a_step(large):
    for k in large:
        elements = 64 * (k["Bc"] if k["kernel"] == "forward" else k["Br"]) // 128  # of a thread
        factors = 2 if k["kernel"] == "forward" else 0  # alpha of the two rows in which a thread has elements
        if "soft cap" in k.get("kind", ""):
            factors += elements  # hyperbolic tangents, once for the weight and its derivative
        more = is_late(k) and k["kind"] == "soft cap"  # 1 / cap, which a first step would have computed
        assert all(loop["MUFU"] - elements - factors in range(1 + more) for loop in k["loops"]), k


def test_two_consumers_take_exponentials_beside_their_own_product_and_three_after_it(large):
    for k in large:
        beside = [loop["MUFU beside"] for loop in k["loops"]]
        moved = k["width"] == 256  # some variants take them after the wait, and are still faster than cuDNN
        if k["kernel"] == "forward" and consumers(k) == 2:  # the alphas of two rows may come after the product
            assert moved or all(
                loop["MUFU"] - 2 <= n <= loop["MUFU"] for loop, n in zip(k["loops"], beside, strict=True)
            ), k
        elif k["kernel"] == "forward":
            assert beside == [0] * consumers(k), k


def test_the_backward_pass_takes_exponentials_beside_the_product_for_dP(large):
    for k in large:
        if k["kernel"] == "backward":
            weights = 64 * k["Br"] // 128 * (2 if "soft cap" in k["kind"] else 1)
            # With 64 columns, the product for dV comes later, and without a mask, no branch keeps all of them in place.
            least = {"full": 1 / 2, "ALiBi": 3 / 4}.get(k["kind"], 1) if k["width"] == 64 else 1
            assert all(loop["MUFU beside"] >= least * weights for loop in k["loops"]), k


def test_the_stored_count_of_instructions_is_that_of_the_kernel(large):
    """The simulator and the lessons on Hopper compute a budget from the stored count."""
    stored = data.measured("hopper_instructions")["instructions"]
    keys = "kernel", "d", "causal", "Br", "Bc"
    same = [k for k in large if tuple(k[key] for key in keys) == ("forward", 128, False, 128, 128)]
    for k in same:
        assert {name: k["loops"][0][name] for name in stored} == stored, k
    # Cycles of a warpgroup: 16 MUFU, 64 FMNMX or F2FP, or 128 others per cycle, without the 64 products alpha * O_i.
    plain = stored["FADD"] + stored["FFMA"] + stored["FMUL"] - 64
    cycles = 8 * stored["MUFU"] + 2 * (stored["FMNMX"] + stored["F2FP"]) + plain
    assert cycles == pytest.approx(Budget().softmax_of_64, rel=0.01)


def test_a_loop_has_few_barriers_of_its_own(large):
    for k in large:  # each makes a warpgroup wait for its last warp; the compiler adds them around arrivals
        assert all(loop["BAR"] <= 3 for loop in k["loops"]), k


def test_the_copy_engine_moves_every_tile(large):
    for k in large:
        boxes = k["width"] // 64  # 128 bytes wide each
        if k["kernel"] == "forward":
            of_V = pieces(k) * columns(k) // 64
            assert k["counts"]["UTMALDG"] >= boxes * (1 + consumers(k)) + 2 * of_V, k  # K, rows of Q, V and the last V
            assert k["counts"]["UTMASTG"] == consumers(k) * pieces(k), k
        else:
            # Q, dO, and K and V in two parts; lse and delta. The compiler may repeat the code of some steps.
            assert k["counts"]["UTMALDG"] >= boxes * 6 + 2, k
            assert k["counts"]["UTMASTG"] == 2 * consumers(k), k
            tables = k["kind"] in ("ALiBi", "documents", "soft cap in documents")  # of slopes, or of intervals
            narrows = k["width"] == 64  # the kernel reads a counter, and two warps zero and narrow 1,024 sums at a time
            assert (k["counts"].get("LDG", 0) > narrows) == tables, k
            # Stores of 16 bytes, and one that resets the counter of turns.
            assert k["counts"].get("STG", 0) == narrows * (1024 // 64 // 4 + 1024 // 64 // 8) + 1, k
            reads = 1 if k["kind"] == "ALiBi" else 0  # the head's slope
            assert all(loop.get("LDG", 0) == reads for loop in k["loops"]), k


def test_dQ_is_added_four_numbers_at_a_time(kernels):
    for k in kernels:
        if k["kernel"] == "backward":
            instructions = k["d"] * k["Br"] // 128 // 4  # of both warpgroups
            assert k["counts"]["REDG x4"] == k["counts"]["REDG"] == 2 * instructions, k
            assert sum(loop["REDG"] for loop in k["loops"]) == instructions, k


def test_narrow_reads_and_writes_sixteen_bytes_at_a_time(kernels):
    for k in kernels:
        if k["kernel"] == "narrow":
            of_program = k["width"] // 2 if k["width"] == 64 else k["d"]  # else each part of a tile has code of its own
            elements = of_program * k["Br"] // 128  # of a thread
            assert (k["counts"]["LDG"], k["counts"]["STG"]) == (elements // 4, elements // 8), k


def test_two_passes_have_seven_products_and_keep_all_sums_in_registers(passes):
    """Each consumer has one loop, and the kernels add up nothing in global memory."""
    for k in passes:
        assert k["shared"] <= SHARED and k["registers"] <= 168 and not k["warnings"], k
        Bc, d = 64, k["width"]
        of_scores, of_sums = d // 16, Bc // 16 * pieces(k)
        each = of_scores + of_sums if k["kernel"] == TWO_PASSES[0] else 2 * of_scores + of_sums
        assert [loop["HGMMA"] for loop in k["loops"]] == [each, each], k
        stack, in_loop = SPILLS_TWO_PASSES.get((k["kernel"], k["kind"]), (8, 0))
        assert k["stack"] <= stack, k
        assert all(loop.get("LDL", 0) + loop.get("STL", 0) <= in_loop for loop in k["loops"]), k
        weights = [64 * Bc // 128 * (2 if "soft cap" in k["kind"] else 1)] * 2
        if k["kernel"] == TWO_PASSES[0]:
            weights[0] = 0  # the consumer of dP and dK takes no exponentials
        assert sorted(loop.get("MUFU", 0) for loop in k["loops"]) == weights, k
        assert "REDG" not in k["counts"], k


def test_rungs_are_what_the_lesson_says(rungs):
    assert {k["kernel"] for k in rungs} == set(RUNGS)
    for k in rungs:
        assert k["shared"] <= SHARED and k["registers"] <= 168 and not k["stack"] and not k["warnings"], k
        together = k["kernel"] == "one_consumer"
        assert len(k["loops"]) == (1 if together else 2), k
        for loop in k["loops"]:
            assert loop["HGMMA"] == k["width"] // 16 + 128 // 16 and loop["MUFU"] == 66, k
            # One consumer of eight warps waits for each product, so none runs beside the exponentials.
            assert loop["BAR"] <= 5 and (loop["MUFU beside"] == 0 if together else loop["MUFU beside"] >= 64), k


def test_the_stored_exponentials_are_beside_the_product_of_the_second_rung(rungs, no_early_wait):
    stored = data.measured("rung_exponentials")
    as_it_is = [k for k in rungs if k["kernel"] == "two_consumers"]
    for what, some in {"as it is": as_it_is, "without the early wait": no_early_wait}.items():
        for loop in (loop for k in some for loop in k["loops"]):
            assert (loop["MUFU"], loop["MUFU beside"]) == (stored["exponentials"], stored["beside"][what]), what
