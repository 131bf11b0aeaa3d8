"""Run notebooks and store them in the one form in which they are committed: `make notebooks`.

A change in the file is then a change in the lesson: cell ids are words, outputs carry no time, no path and no widget
state, pictures have their words as alt text, and no script is stored: a figure's output is its picture and its words, a
chart's is its picture and its data. Exercises are tagged, and nbval compares no output that depends on the learner's
answer.

    python -m tests.tools.normalise notebooks/04_online_softmax.ipynb             run it, then store it
    python -m tests.tools.normalise --stored notebooks/04_online_softmax.ipynb    store it with the outputs that it has
"""

import argparse
import ast
import base64
import copy
import io
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from figures import page

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400_000  # bytes of a notebook file
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT = ("jupyter", "tags")  # metadata of cells to keep: what is collapsed, and tags
EXERCISE, NOT_COMPARED = "exercise", "nbval-ignore-output"  # the second tag is nbval's
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WORDS = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")  # as in online-merge-exercise
PICTURE = re.compile(r'(?<=src="data:image/png;base64,)[^"]+')
RANDOM = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f-]+)?"
)  # the id that Jupyter makes for a cell without one, or for a copied cell


def normalise(notebook):
    """Return a copy of the notebook in its committed form. A notebook in that form does not change."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, tags in zip(code, _tags(code), strict=True):
        cell.metadata["tags"] = sorted({*cell.metadata.get("tags", ())} - {EXERCISE} | tags)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({name: cell.metadata[name] for name in KEPT if cell.metadata.get(name)})
        cell.source = "\n".join(line.rstrip() for line in cell.source.strip("\n").split("\n"))
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count  # nbval refuses outputs without one
        for output in cell.outputs:
            _normalise_output(output, count)
    return notebook


def faults(notebook):
    """Yield a sentence for each thing that keeps a notebook from being committed."""
    for cell in notebook.cells:
        if not WORDS.fullmatch(cell.id) or RANDOM.fullmatch(cell.id):
            yield f"cell {cell.id!r}: give it an id of its own, of lower-case words, as in online-merge-exercise"
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                yield f"cell {cell.id!r}: stores an error, {output.ename}: {output.evalue}"
            if "image/png" in output.get("data", {}):
                yield f"cell {cell.id!r}: its picture has no alt text in JupyterLab: return one of figures.charts"
            if path := _path_in(output):
                yield f"cell {cell.id!r}: its output names a path of this machine, {path}"
    if (size := len(nbformat.writes(notebook).encode())) > LIMIT:
        yield f"the file has {size:,} bytes, {LIMIT:,} are allowed: fewer or smaller pictures"


def execute(path):
    """Run the notebook at this path in its folder and return it. Raises the error of the first cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec = nbformat.from_dict(KERNEL)
    client = NotebookClient(notebook, timeout=600, store_widget_state=False, coalesce_streams=True)
    client.resources["metadata"] = {"path": str(path.parent)}
    client.execute()
    return notebook


def main(arguments):
    """Store the notebooks named on the command line; return 1 if one has faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.normalise", description=__doc__.split("\n")[0])
    parser.add_argument("--stored", action="store_true", help="keep the stored outputs: run nothing")
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    failed = False
    for path in options.paths:
        notebook = normalise(nbformat.read(path, as_version=4) if options.stored else execute(path))
        sentences = list(faults(notebook))
        for fault in sentences:
            print(f"{path}: {fault}", file=sys.stderr)
        failed = failed or bool(sentences)
        nbformat.write(notebook, path)
        print(f"{path}: {len(notebook.cells)} cells, {path.stat().st_size / 1000:.0f} kB")
    return int(failed)


def _tags(cells):
    """Yield a set of tags for each code cell: is it an exercise, and does its output depend on a learner's answer?"""
    learners = set()  # the names that hold what a learner wrote
    for cell in cells:
        tree = ast.parse(cell.source)
        nodes = list(ast.walk(tree))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
        tags = {EXERCISE, NOT_COMPARED} if any(map(_checks_a_name, nodes)) else set()
        if learners & {name.id for name in names} - bound:
            tags.add(NOT_COMPARED)
        learners = learners | bound if tags else learners - bound
        yield tags


def _checks_a_name(node):
    """Return whether a node is ``check(.., NAME)``. Lessons pass wrong answers of their own as lambdas."""
    match node:
        case ast.Call(func=ast.Name("check"), args=[_, ast.Name()]):
            return True
    return False


def _normalise_output(output, count):
    if "execution_count" in output:
        output.execution_count = count
    if "data" not in output:
        return
    output.metadata = nbformat.from_dict({})
    output.data.pop(WIDGET, None)
    if "text/html" in output.data:
        output.data["text/html"] = PICTURE.sub(_smaller, _still(output.data["text/html"], output.data["text/plain"]))


def _still(shown, words):
    """Return a live figure or chart without its script, and other HTML as it is."""
    if "data-chart=" in shown:
        return re.sub("<script.*</script>", "", shown, flags=re.S)
    if "data-figure=" not in shown:
        return shown
    still = re.search("<figure.*</figure>", shown, re.S)[0]
    return still if "<img" in still else page.captioned(_photograph(shown), words)  # no still is stored for this state


def _photograph(live):
    from tests.tools.stills import photograph  # needs Chromium

    return _encoded(photograph(live))


def _smaller(match):
    """Encode the same pixels in fewer bytes: charts are encoded for speed."""
    png = base64.b64decode(match[0])
    return base64.b64encode(min(png, _encoded(Image.open(io.BytesIO(png))), key=len)).decode()


def _encoded(image):
    buffer = io.BytesIO()
    image.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _path_in(output):
    text = output.get("text", "") + "".join(v for k, v in output.get("data", {}).items() if k.startswith("text/"))
    local = {str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir()} - {"/"}
    return next((path for path in sorted(local) if path in text), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
