"""The reader of racecheck's reports: Triton's handshake passes, a race of ours does not."""

import pytest

from tests.tools import racecheck

REPORT = """\
========= Error: Race reported between Read access at attention_forward+0x170 in {first}
=========     and Write access at attention_forward+0x8dd0 in {first} [4 hazards]
=========     and Write access at attention_forward+0x106a0 in {second} [14 hazards]
=========
"""


def test_handshakes_are_where_kernels_begin_and_where_their_warps_part():
    places = racecheck.handshakes()
    kernels = {"forward", "forward_float8", "backward", "latent", "ladder", "toy"}
    assert {place.split(".")[0] for place in places} == kernels | {"roles"}
    for file, beginnings in {
        "forward.py": {"def attention_forward("},
        "roles.py": {"def specialize(", "gl.warp_specialize("},
    }.items():
        lines = (racecheck.HOPPER / file).read_text().splitlines()
        named = {lines[int(place.split(":")[1]) - 1].strip() for place in places if place.startswith(f"{file}:")}
        assert named == beginnings


def test_the_handshake_is_counted_and_passed_over():
    places = sorted(racecheck.handshakes())
    text = REPORT.format(first=places[0], second=places[-1]) + REPORT.format(first=places[1], second=places[1])
    assert racecheck.judge(text) == (2, [])


@pytest.mark.parametrize("first, second", [("forward.py:1", None), (None, "forward.py:250"), ("other.py:93", "x.py:7")])
def test_any_other_race_is_told(first, second):
    known = sorted(racecheck.handshakes())[0]
    text = REPORT.format(first=first or known, second=second or known)
    passed, others = racecheck.judge(text)
    assert passed == 0 and len(others) == 1 and (first or second) in others[0]
