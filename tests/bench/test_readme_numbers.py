"""Every speed that README.md states is computed from the stored measurement that it links to."""

import re
import statistics
from pathlib import Path

from flashlab.course import data

README = Path(__file__).resolve().parents[2] / "README.md"
SPEED = r"\b\d\.\d\d\b"


def ratio(direction, other):
    """Return how many times as fast as the other our Hopper kernels are: geometric mean, least, most, and the cells.

    Cells with a missing or impossible time would be left out of the mean in silence, so they fail.
    """
    speed = {}
    for row in data.measured("h200_hopper")["rows"]:
        if row["pass"] == direction:
            speed.setdefault((row["d"], row["causal"], row["N"]), {})[row["impl"]] = row["tflops"]
    quotients = [cell["hopper"] / cell[other] for cell in speed.values()]
    assert all(0 < quotient < 10 for quotient in quotients)
    return statistics.geometric_mean(quotients), min(quotients), max(quotients), len(quotients)


def paragraphs():
    """Return the paragraphs of README.md that link to the measurement; the items of a list are paragraphs too."""
    found = re.split(r"\n\s*\n|\n- ", README.read_text(encoding="utf-8"))
    return [" ".join(paragraph.split()) for paragraph in found if "h200_hopper.json" in paragraph]


def test_the_readme_states_the_measured_speeds():
    stated = re.findall(SPEED, paragraphs()[0])
    pairs = [(direction, other) for direction in ("forward", "backward") for other in ("fa4", "cudnn")]
    due = [f"{times:.2f}" for pair in pairs for times in ratio(*pair)[:3]]
    assert stated == due, "order: forward, backward; FlashAttention-4, cuDNN; mean, least, most"


def test_as_many_shapes_were_measured_each_way_with_every_competitor():
    assert {ratio(direction, other)[3] for direction in ("forward", "backward") for other in ("fa4", "cudnn")} == {12}


def test_no_other_paragraph_states_a_speed():
    everything = README.read_text(encoding="utf-8")
    assert len(paragraphs()) == 1
    assert re.findall(rf"{SPEED} times|times {SPEED}", " ".join(everything.split())) == re.findall(
        rf"{SPEED} times|times {SPEED}", paragraphs()[0]
    )


def test_the_measurement_names_the_versions_of_all_that_was_compared():
    versions = data.measured("h200_hopper")["versions"]
    assert {"torch", "triton", "cuda", "cudnn", "flash-attn-4"} <= versions.keys()
