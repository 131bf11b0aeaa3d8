"""A learner's calls in a real JupyterLab: a wrong answer, a right one, a stub, hints, the solution, the overview."""

import json

import nbformat
import pytest

from flashlab.course import copies

CELLS = [
    "from flashlab.course.check import check, hint, overview, solution",
    'check("start_here.first", lambda N: N * N)',
    'check("start_here.first", lambda N: 2 * N * N)',
    "def stub(N):\n    raise NotImplementedError\n\n\ncheck('start_here.first', stub)",
    'for layer in (1, 2, 3):\n    hint("start_here.first", layer)',
    'solution("start_here.first")',
    'solution("start_here.first", sure=True)',
    "overview()",
]
# For each cell: its visible words, the label of its card's mark, the style of the card's edge, and whether a part of it
# overflows.
SHOWN = """async () => {
    await jupyterapp.commands.execute('notebook:run-all-cells');
    const source = () => document.querySelector('.jp-OutputArea .jp-RenderedMarkdown code');  // rendered after the run
    while (!source()) await new Promise(requestAnimationFrame);
    return jupyterapp.shell.currentWidget.content.widgets.map(cell => {
        const mark = cell.node.querySelector('.jp-OutputArea [role=img]');
        const edge = mark && getComputedStyle(mark.parentElement.parentElement);
        return {
            words: cell.node.querySelector('.jp-OutputArea')?.innerText ?? '',
            mark: mark?.getAttribute('aria-label') ?? null,
            edge: edge && edge.borderLeftStyle + ' ' + edge.borderLeftColor,
            wide: [...cell.node.querySelectorAll('.jp-OutputArea *')].some(it => it.scrollWidth > it.clientWidth + 1
                && getComputedStyle(it).display !== 'inline'),
        };
    });
}"""


def notebook_of(sources):
    """Return a notebook of these cells, with the kernel of the lessons."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(it) for it in sources], metadata=kernel)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_each_call_of_a_learner_shows_its_answer(lab, theme):
    name = f"attempts_{theme.split()[1]}"  # a file for each theme: JupyterLab asks what to do if an open file changes
    path = lab.folder / "notebooks" / f"{name}.ipynb"
    nbformat.write(notebook_of(CELLS), path)
    notebook = lab.open(name, run=False)
    lab.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    _, wrong, right, stub, hints, question, source, course = lab.page.evaluate(SHOWN)
    assert notebook.errors() == [] and lab.outside == []
    assert (wrong["mark"], right["mark"], stub["mark"]) == ("wrong", "right", None)
    assert wrong["edge"].split()[0] != right["edge"].split()[0]  # they differ without colour, too
    assert "counted entries, not bytes" in wrong["words"] and 'next: hint("start_here.first")' in wrong["words"]
    assert stub["words"].startswith("○ start_here.first")
    assert [it in hints["words"] for it in ("Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3")] == [True] * 3
    assert "sure=True" in question["words"] and "def " in source["words"]
    assert "1 of " in course["words"] and "✓ start_here.first" in course["words"]
    assert not any(cell["wide"] for cell in (wrong, right, stub, hints, question))
    progress = json.loads((lab.folder / "progress.json").read_text(encoding="utf-8"))
    assert progress["start_here.first"]["solved"]


def test_a_learners_copy_of_a_lesson_runs(lab):
    copies.refresh(lab.folder / "notebooks")
    notebook = lab.open("mine/00_start_here", run=False)
    lab.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    assert notebook.errors() == [] and lab.outside == []
    texts = lab.page.evaluate("""() => [...jupyterapp.shell.currentWidget.content.model.cells].map(
        cell => JSON.stringify(cell.toJSON().outputs ?? ''))""")
    assert any("start_here.first" in text and " solved, " in text for text in texts)  # the overview
