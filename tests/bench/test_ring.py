"""The measurement over several GPUs, run on a CPU: the order of the cells, and rates as shares of one GPU's."""

import json

import pytest

ring = pytest.importorskip("flashlab.bench.ring", reason="the kernels need triton, which is for Linux")


def test_the_most_important_cells_come_first():
    grid = list(ring.cells([32768, 8192], [1, 2, 4]))
    assert len(grid) == len(set(grid))
    assert grid[0] == (ring.ONE, 1, 32768, "forward") and grid[2] == ("zigzag", 4, 32768, "forward")
    for cell in grid:  # each comes after the cell of one GPU with which it is compared
        assert grid.index((ring.ONE, 1, cell.tokens, cell.direction)) <= grid.index(cell)
    main = "zigzag", "contiguous", ring.APART
    before = grid[: max(place for place, cell in enumerate(grid) if cell.way in main)]  # up to the last main cell
    assert {cell[1:3] for cell in before if cell.way not in (*main, ring.ONE)} == {(4, 32768)}
    assert {cell.way for cell in grid if cell.tokens == 32768} == {ring.ONE, ring.APART, *ring.FLASHLAB, *ring.TORCH}


def test_groups_are_powers_of_two_up_to_the_number_of_gpus():
    assert [ring.powers(most) for most in (1, 2, 3, 4, 8)] == [[1], [1, 2], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


class NoTeam:
    """Stands in for a team of processes: one GPU has a higher rate than several."""

    def row(self, cell):
        return cell._asdict() | {"ms": 2.0, "tflops": 300.0 if cell.way == ring.ONE else 240.0}


def test_rates_are_compared_with_that_of_one_gpu(capsys):
    report = {"rows": []}
    for cell in ring.cells([32], [1, 2]):
        ring.measure(cell, NoTeam(), report)
    assert {row["share"] for row in report["rows"] if row["way"] == "gather"} == {0.8}
    assert {row["share"] for row in report["rows"] if row["way"] == ring.ONE} == {1.0}
    assert "80.0% of one GPU" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_ours_are_measured_over_real_processes(tmp_path):
    path = tmp_path / "ring.json"
    assert ring.main(["--device", "cpu", "--tiny", "--groups", "1", "2", "--rounds", "1", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert {row["way"] for row in report["rows"]} == {ring.ONE, ring.APART, *ring.FLASHLAB}
    assert all(row["error"] < 1e-5 and row["ms"] > 0 for row in report["rows"])
    assert all(name.startswith("torch") for name in report["left_out"])
