"""The first kernel for Blackwell compiles without a GPU, and its code is what the lesson says. It has never run."""

import pytest
import triton

from flashlab.course import data
from flashlab.kernels.blackwell.machine_code import machine_code

MEASURED = data.measured("blackwell_instructions")
STORED, COMPILER = MEASURED["ways"], MEASURED["versions"]["triton"]
same_compiler = pytest.mark.skipif(
    triton.__version__.split(".")[:2] != COMPILER.split(".")[:2],
    reason=f"the stored code is Triton {COMPILER}'s; {triton.__version__} names and chooses instructions otherwise",
)


@pytest.mark.parametrize("way", STORED)
def test_what_is_stored_is_what_the_lesson_says(way):
    ptx = STORED[way]["ptx"]
    assert ptx["tcgen05.mma.cta_group::1.kind::f16"] == 2 * 128 // 16
    assert STORED[way]["columns"] == 128 + 128 and 3 * 128 * 128 * 2 < STORED[way]["shared"] < 3 * 128 * 128 * 2 + 64
    assert ptx["tcgen05.ld.sync.aligned.32x32b.x128.b32"] == 2, "S and O are loaded, a row of 128 per thread"
    assert ptx["tcgen05.st.sync.aligned.32x32b.x64.b32"] == 1, "P is stored, two weights per column"
    assert ptx.get("ex2.approx.ftz.f32", 0) == (128 if way == "unit" else 0)


@same_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("way", STORED)
def test_it_compiles_to_what_is_stored(way):
    code, stored = machine_code(way), STORED[way]
    assert (code.shared, code.columns) == (stored["shared"], stored["columns"])
    assert {name: code.ptx.get(name, 0) for name in stored["ptx"]} == stored["ptx"]
    assert {name: code.sass.get(name, 0) for name in stored["sass"]} == stored["sass"]


def test_another_way_is_refused():
    with pytest.raises(ValueError, match="expected one of unit, polynomial, got 'table'"):
        machine_code("table")
