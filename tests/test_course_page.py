"""Each section and each file to which the table of ``docs/course.md`` refers exists."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = re.compile(
    r"^\| [^|]+ \| \[(\d\d)\]\(\.\./(notebooks/\1_\w+\.ipynb)\) \| ([^|]+) \| `([\w/.]+)` \|$", re.MULTILINE
)


def test_each_section_and_file_exists():
    text = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    places = PLACE.findall(text)
    assert len(places) == text.count("ipynb)")
    for _, notebook, section, file in places:
        cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
        assert [cell for cell in cells if "".join(cell["source"]).split("\n")[0] == f"## {section}"], section
        assert (ROOT / file).is_file(), file
