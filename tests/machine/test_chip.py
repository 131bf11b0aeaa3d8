"""Occupancy, computed by hand: an SM of capability 9.0 has 64 K registers, 228 KiB of shared memory, 2,048 threads."""

from flashlab.machine.chip import programs_per_sm


def test_each_limit_gives_the_programs_computed_by_hand():
    assert programs_per_sm("9.0", registers=255, warps=8, shared=0)["registers"] == 1  # 256 * 256 = 64 K
    assert programs_per_sm("9.0", registers=193, warps=4, shared=0)["registers"] == 2  # 200 * 128 = 25,600
    assert programs_per_sm("9.0", registers=32, warps=4, shared=113 * 1024)["shared memory"] == 2  # 114 KiB each
    assert programs_per_sm("8.6", registers=32, warps=4, shared=0)["threads"] == 12
