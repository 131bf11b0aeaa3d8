"""The reader of racecheck's reports passes over what racecheck cannot follow, and reports a race of ours."""

import pytest

from tests.tools import racecheck

REPORT = """\
========= Error: Race reported between Read access at attention_forward+0x170 in {first}
=========     and Write access at attention_forward+0x8dd0 in {first} [4 hazards]
=========     and Write access at attention_forward+0x106a0 in {second} [14 hazards]
=========
"""


def line(place):
    """Return the line of a Hopper kernel at "file.py:number"."""
    file, number = place.split(":")
    return (racecheck.HOPPER / file).read_text().splitlines()[int(number) - 1].strip()


def test_handshakes_are_where_kernels_begin_and_where_their_warps_part():
    places = racecheck.handshakes()
    kernels = {"forward", "forward_float8", "backward", "key_gradients", "query_gradients", "latent", "toy"}
    assert {place.split(".")[0] for place in places} == kernels | {"roles"}
    for file, beginnings in {
        "forward.py": {"def attention_forward(", "specialize("},
        "roles.py": {"def specialize(", "if consumers == 2:", "gl.warp_specialize("},
        "backward.py": {"def attention_backward(", "if lag is None:", "gl.warp_specialize("},
    }.items():
        assert {line(place) for place in places if place.startswith(f"{file}:")} == beginnings


def test_a_turn_is_stored_at_one_place_and_loaded_at_another():
    store, load = sorted(map(line, racecheck.turns()))
    assert store.startswith("stage_of(ring, n).store(") and load.startswith("turn = stage_of(shared.turns, n).load(")


@pytest.mark.parametrize("places_of", [racecheck.handshakes, racecheck.turns])
def test_what_racecheck_cannot_follow_is_counted_and_passed_over(places_of):
    places = sorted(places_of())
    text = REPORT.format(first=places[0], second=places[-1]) + REPORT.format(first=places[1], second=places[1])
    assert racecheck.judge(text) == (2, [])


def test_an_error_is_reported_and_a_warning_at_the_same_places_is_not():
    error = REPORT.format(first="tiles.py:1", second="tiles.py:2")
    harmless, (other,) = racecheck.judge(error + error.replace("Error", "Warning"))
    assert harmless == 1 and other.startswith("Error")


@pytest.mark.parametrize(
    "first, second",
    [("forward.py:1", None), (None, "forward.py:250"), ("other.py:93", "x.py:7"), (None, min(racecheck.turns()))],
)
def test_any_other_race_is_reported(first, second):
    handshake = min(racecheck.handshakes())
    text = REPORT.format(first=first or handshake, second=second or handshake)
    harmless, others = racecheck.judge(text)
    assert harmless == 0 and len(others) == 1 and (first or second) in others[0]


@pytest.mark.parametrize("place", [" in {first}", " in {second}"])
def test_a_race_at_an_unknown_place_is_reported(place):
    handshake = min(racecheck.handshakes())
    harmless, others = racecheck.judge(REPORT.replace(place, "").format(first=handshake, second=handshake))
    assert harmless == 0 and len(others) == 1
