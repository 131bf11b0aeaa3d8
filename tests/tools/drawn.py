"""Draw a figure with its own script in node, without a browser: ``draw``."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import asdict

from figures import page
from figures.figure import Scrub, declared

NODE = shutil.which("node")
WIDTH = 960  # pixels of a still picture's drawing

PROGRAM = """
import { readFileSync } from "node:fs";
const { jobs, controls } = JSON.parse(readFileSync(0, "utf8"));
const drawings = jobs.map(({ trace, state, step, width }) => {
  const { height, nodes } = NAME.draw({ trace, state, step, width });
  if (!(height > 0)) throw new Error(`height ${height} at width ${width}`);
  return { key: state_.keyOf(controls, state), height, markup: nodes.flat(Infinity).map(svg.markup).join("\\n") };
});
console.log(JSON.stringify(drawings));
"""


def draw(figure, states, width=WIDTH) -> list[dict]:
    """Return a dict for each state: its key, the height of its drawing, and the drawing as SVG text."""
    clock = next((field for field, control in figure.CONTROLS.items() if isinstance(control, Scrub)), None)
    jobs = [
        {"trace": figure.trace(state), "state": asdict(state), "step": getattr(state, clock or "", 0), "width": width}
        for state in states
    ]
    name = page.name_of(figure)
    program = page.script(name) + "\nconst state_ = state;" + PROGRAM.replace("NAME", name)
    return run(program, {"jobs": jobs, "controls": declared(figure)})


def run(program, data):
    """Run a program with node, which reads the data as JSON, and return the data that it writes as JSON."""
    command = [NODE, "--input-type=module", "--eval", program]
    result = subprocess.run(command, input=json.dumps(data, allow_nan=False), capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr[-2000:])
    return json.loads(result.stdout)


def digest(figure) -> str:
    """Return a digest of the drawing of a figure's first state and of the colours."""
    return digest_of(draw(figure, [figure.State()])[0])


def digest_of(drawing) -> str:
    """Return a digest of a drawing of ``draw`` and of the colours."""
    style = (page.HERE / "js" / "theme.css").read_text(encoding="utf-8")
    return hashlib.sha256((drawing["markup"] + style).encode()).hexdigest()
