"""The kernels of float8 compiled for GPUs that are not here: products of float8, sums in float32, and few spills."""

import pytest

from tests.kernels.compiled import compiled, release


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability, product", [("9.0", "QGMMA"), ("8.9", "QMMA")])
def test_float8_is_multiplied_as_float8_and_few_registers_spill(capability, product):
    kernels = compiled("compile_float8", capability)
    attention = [k for k in kernels if k["kernel"] == "attention_forward"]
    assert len(attention) == 18 and {k["kernel"] for k in kernels} == {"attention_forward", "quantise_blocks"}
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
    for k in attention:
        others = {name for name, n in k["products"].items() if n and name.endswith("MMA")} - {product, "FFMA"}
        assert k["products"][product] > 0 and not others, f"other products: {k}"
        assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        assert 128 % k["Br"] == 0 and 128 % k["Bc"] == 0, f"tiles of several blocks: {k}"
    few = 8 if capability == "8.9" and release("triton") < (3, 7) else 0  # bytes
    for k in kernels if capability == "9.0" else attention:  # on 8.9, a rotation of 256 columns spills 16 bytes
        # At d = 256, tiles of 128 x 128 spill, but are the fastest: h200_float8.json.
        assert k["stack"] <= (160 if (k.get("Br"), k.get("Bc")) == (128, 128) else few), f"registers spill: {k}"


@pytest.mark.exhaustive
def test_two_levels_take_additions_for_multiplications():
    """On Hopper, alpha multiplies O before a sum in the tensor core (one level), or as the sum is added to O (two)."""
    by_case = {k["case"]: k for k in compiled("compile_float8", "9.0", "2")}
    one, two = by_case["d = 64, one level"], by_case["d = 64, full"]
    assert (one["flush"], two["flush"]) == (None, two["Bc"])
    loops = 2  # over whole tiles, and over the tile that reaches past the last key
    elements = loops * two["Br"] * 64 // (two["warps"] * 32)  # of O per thread
    assert two["products"]["FFMA"] - one["products"]["FFMA"] == elements
    assert one["products"]["FMUL"] - two["products"]["FMUL"] == elements
    assert two["products"]["QGMMA"] == one["products"]["QGMMA"]


@pytest.fixture(scope="module")
def on_hopper(once):
    return once(compiled, "compile_float8", "hopper")


@pytest.mark.exhaustive
def test_on_hopper_everything_fits_and_no_product_waits_for_the_one_before(on_hopper):
    assert {(k["width"], k["causal"], k["two_level"]) for k in on_hopper} == {
        (d, causal, two_level) for d in (64, 128, 256) for causal in (False, True) for two_level in (False, True)
    }
    for k in on_hopper:
        consumers = k["Br"] // 64
        assert k["shared"] <= 232448 and k["registers"] <= {2: 168, 3: 128}[consumers], k
        assert not k["warnings"] and len(k["loops"]) >= consumers, k
        # Registers spill outside the loops, once per tile of queries; at d = 256 with two levels also in the loops.
        assert k["stack"] <= (400 if k["width"] == 256 else 80), k


@pytest.mark.exhaustive
def test_on_hopper_a_step_moves_no_weight_and_adds_up_in_float32(on_hopper):
    for k in on_hopper:
        parts = 4 if k["width"] == 256 else 1
        of_O, of_S = k["width"] // 2, k["Bc"] // 2  # elements per thread
        for loop in k["loops"]:
            assert loop["QGMMA"] == k["width"] // 32 + parts * k["Bc"] // 32 and "HGMMA" not in loop, k
            assert loop["MUFU"] == of_S + 2 and loop["SHFL"] == 4, k  # alpha of two rows; the maximum of four threads
            assert "PRMT" not in loop and loop["F2FP"] == of_S // 2, k
            assert loop["FADD"] == of_S + 2 + (of_O if k["two_level"] else 0), k
            spills = loop.get("LDL", 0) + loop.get("STL", 0)  # most where a diagonal crosses two blocks
            assert spills <= (280 if k["width"] == 256 and k["two_level"] else 0), k
