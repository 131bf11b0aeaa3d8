"""The runner of the sanitizer: each test is in one part per tool; a part that fails or does not end is reported."""

import itertools

import pytest

from tests.tools import sanitize

CLEAN = {"memcheck": "========= ERROR SUMMARY: 0 errors", "racecheck": "========= RACECHECK SUMMARY: 0 hazards"}
RACE = """\
========= Error: Race reported between Read access at attention_forward+0x170 in forward.py:1
=========     and Write access at attention_forward+0x8dd0 in forward.py:2 [4 hazards]
"""


def test_each_name_is_in_one_part():
    for n, parts in itertools.product((0, 1, 6, 48, 50), (1, 7)):
        shares = sanitize.divided(list(range(n)), parts)
        assert sum(shares, []) == list(range(n)) and len(shares) == min(n, parts)
        assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_do_not_share_ports():
    commands = [sanitize.command_of("racecheck", ["a", "b"], place) for place in range(2 * sanitize.PARTS)]
    ports = [int(command[command.index("--port") + 1]) for command in commands]
    assert min(b - a for a, b in itertools.pairwise(ports)) >= sanitize.PORTS and max(ports) + sanitize.PORTS < 65536
    assert all(command[-2:] == ["a", "b"] for command in commands)


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_a_part_is_right_if_it_ends_well_and_the_sanitizer_has_seen_all(tool, monkeypatch):
    def wrong(output, end="true"):
        return sanitize.run(tool, ["sh", "-c", f"echo '{output}'; {end}"])[0]

    assert not wrong(CLEAN[tool])
    assert "a test failed" in wrong(CLEAN[tool] + " a test failed", "exit 1")
    assert "nothing was seen" in wrong("nothing was seen")
    assert "forward.py:1" in wrong(RACE + CLEAN[tool])
    monkeypatch.setattr(sanitize, "SECONDS", 0.2)
    assert CLEAN[tool] in wrong(CLEAN[tool], "sleep 60")
