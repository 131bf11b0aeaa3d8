"""The form of a committed notebook. nbval checks that it runs and prints what it stores (`make test`)."""

import ast
import base64
import builtins
import html
import io
import linecache
import re
from importlib.metadata import version
from queue import Empty

import nbformat
import pytest
from nbconvert import HTMLExporter
from PIL import Image

from figures import page
from flashlab.course.lessons import CORE, LESSONS
from flashlab.course.registry import every, find
from flashlab.grading import forked
from flashlab.grading.exercise import Exercise, Question
from tests.bench.test_lesson_numbers import claims
from tests.tools.kernels import WatchedKernel
from tests.tools.normalise import EXERCISE, NOT_COMPARED, ROOT, faults, main, normalise

NOTATION = ROOT / "notebooks" / "notation.ipynb"
PATHS = sorted(set((ROOT / "notebooks").glob("*.ipynb")) - {NOTATION})
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in PATHS}
# Cells whose output depends on the machine or the learner; in the last one, only the digits do.
VARYING = "doctor", "overview", "your-ridge", "your-hierarchy", "print"
CALLS = {"check", "hint", "overview", "show", "solution"}
STANDS_IN = r"[\w.]+ is not solved yet: the course's solution stands in\.\n"
NOT_YET = re.compile(rf"({STANDS_IN})*(○ [\w.]+: not (attempted|answered) yet\..*\n)+")


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_exercise(cell):
    return EXERCISE in cell.metadata.get("tags", [])


def prose(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


CODE = [(name, cell) for name, notebook in NOTEBOOKS.items() for cell in code(notebook)]
PROSE = [(name, cell) for name, notebook in NOTEBOOKS.items() for cell in prose(notebook)]


def test_every_lesson_is_numbered_and_named_for_its_idea():
    assert PATHS
    assert [path.name for path in PATHS if not re.fullmatch(r"\d\d_[a-z_]+\.ipynb", path.name)] == []


def test_stored_as_make_notebooks_leaves_it():
    assert [(name, fault) for name, notebook in NOTEBOOKS.items() for fault in faults(notebook)] == []
    assert [name for name, notebook in NOTEBOOKS.items() if notebook != normalise(notebook)] == [], "run make notebooks"


def test_code_is_plain_python():
    assert [(name, cell.id, error) for name, cell in CODE if (error := syntax_error(cell.source))] == []


def syntax_error(source):
    """Return the error of a source that is not plain Python (a % magic, a ! command), or None."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error
    return None


def cells_with(notebook, statement):
    """Return the ids of the cells that contain a statement of this type, at any depth."""
    parsed = {cell.id: ast.walk(ast.parse(cell.source)) for cell in code(notebook)}
    return [name for name, nodes in parsed.items() if any(isinstance(node, statement) for node in nodes)]


def imports():
    """Return the ids of the cells that import, by lesson."""
    return {name: cells_with(notebook, ast.Import | ast.ImportFrom) for name, notebook in NOTEBOOKS.items()}


def test_one_cell_holds_the_imports():
    assert {name: cells for name, cells in imports().items() if len(cells) > 1} == {}


def test_every_notebook_imports_the_calls_of_a_learner():
    """``check`` may print ``hint("...") helps``: that call must not raise a NameError."""
    line = re.compile(r"from flashlab\.course\.check import (.*)")
    names = {name: line.search("\n".join(cell.source for cell in code(it)))[1] for name, it in NOTEBOOKS.items()}
    assert [name for name, imported in names.items() if not CALLS <= set(imported.split(", "))] == []


def test_only_exercises_define_functions_and_classes_in_a_notebook():
    defining = {name: cells_with(it, ast.FunctionDef | ast.ClassDef) for name, it in NOTEBOOKS.items()}
    assert [(name, cell.id) for name, cell in CODE if cell.id in defining[name] and not is_exercise(cell)] == []


def test_every_exercise_stores_what_check_says_of_its_stub(capsys, monkeypatch):
    """nbval compares no output of an exercise: a learner may have solved it."""
    monkeypatch.setattr(forked, "forks", lambda: False)  # a fork takes longer than these checks
    faulty = []
    importing, namespaces = imports(), {name: {} for name in NOTEBOOKS}
    for name, cell in CODE:
        if cell.id in importing[name] or is_exercise(cell):
            run(cell, f"{name}, cell {cell.id!r}", namespaces[name])
        if is_exercise(cell):
            printed, stored = capsys.readouterr().out, "".join(output.text for output in cell.outputs)
            if stored != printed or not NOT_YET.fullmatch(printed):
                faulty.append((name, cell.id, printed))
    assert faulty == []


@pytest.mark.exhaustive
def test_outputs_that_nbval_does_not_compare_are_those_of_the_pinned_versions(capsys):
    """Run the cells that nbval does not compare, if they read only names of imports and of each other."""
    kernels = pytest.importorskip("flashlab.kernels", reason="needs triton, which is for Linux")
    if not kernels.INTERPRETED or f"triton=={version('triton')};" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("stored without a GPU, with the Triton of constraints.txt")
    faulty, importing = [], imports()
    for name, notebook in NOTEBOOKS.items():
        namespace = dict(vars(builtins))
        for cell in code(notebook):
            repeatable = cell.metadata.get("tags") == [NOT_COMPARED] and cell.id not in VARYING
            if cell.id in importing[name] or repeatable and reads(cell) <= set(namespace):
                run(cell, f"{name}, cell {cell.id!r}", namespace)
                printed, stored = capsys.readouterr().out, "".join(output.get("text", "") for output in cell.outputs)
                if printed != stored:
                    faulty.append((name, cell.id, printed))
    assert faulty == [], "run make notebooks"


def reads(cell):
    """Return the names that a cell reads and does not bind."""
    names = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)]
    return {name.id for name in names} - {name.id for name in names if isinstance(name.ctx, ast.Store)}


def run(cell, name, namespace):
    """Run a cell as Jupyter does, and store its source where ``inspect`` finds it, for Triton's kernels."""
    linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
    exec(compile(cell.source, name, "exec"), namespace)


def test_no_warning_is_filtered():
    assert [(name, cell.id) for name, cell in CODE if re.search(r"(filterwarnings|simplefilter)\(", cell.source)] == []


def test_every_figure_has_a_picture_where_no_kernel_runs():
    figures = [(name, cell) for name, cell in CODE if ".explore(" in cell.source]
    assert [(name, cell.id) for name, cell in figures if not any(map(alts, cell.outputs))] == []


def test_every_stored_picture_has_its_words_as_alt_text():
    outputs = [(name, cell.id, output) for name, cell in CODE for output in cell.outputs]
    assert [at for *at, output in outputs if any(alt != output.data["text/plain"] for alt in alts(output))] == []


def alts(output):
    """Return the alt text of each picture in an output, None for a picture without one."""
    pictures = re.findall(r"<img[^>]*>", output.get("data", {}).get("text/html", ""))
    matches = [re.search(r' alt="([^"]*)"', picture) for picture in pictures]
    return [alt and html.unescape(alt[1]) for alt in matches]


# The form of a lesson.


def test_opens_and_closes_in_the_fixed_form():
    for name, notebook in NOTEBOOKS.items():
        first, *_, recap, last = prose(notebook)
        parts = re.findall(r"^\*\*(.+?)\*\*", first.source, re.MULTILINE)
        assert parts == ["At the end", "You need", "What changes", "Time"], name
        assert recap.source.startswith("## Recap") and last.source.startswith("## What is still wrong"), name


def test_the_opening_counts_the_exercises():
    counts = {(name, word) for name in NOTEBOOKS for word in tasks(name)}
    assert [(name, word) for name, word in counts if word not in NOTEBOOKS[name].cells[0].source] == []


def tasks(name):
    """Yield how many exercises and questions a lesson has, in words."""
    source = "\n".join(cell.source for cell in code(NOTEBOOKS[name]))
    kinds = {task: find(task) for task in re.findall(r"^check\(\"([\w.]+)\", (?!lambda)", source, re.MULTILINE)}
    for kind, word in ((Exercise, "exercise"), (Question, "question")):
        if count := sum(isinstance(it, kind) for it in kinds.values()):
            number = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"][count - 1]
            yield f"{number} {word}{'s' * (count > 1)}"


TIME = re.compile(
    r"^\*\*Time\*\* (?:about )?(?:(?P<hours>an|two|\d+) hours?)?(?: and (?P<part>a quarter|a half|three quarters))?"
    r" ?(?:(?P<minutes>\d+) minutes)?[,.]",
    re.MULTILINE,
)
HOURS = {"an": 1, "two": 2}
PARTS = {"a quarter": 15, "a half": 30, "three quarters": 45}


def minutes(opening):
    """Return the minutes that the opening of a lesson states in words, None if it states no time."""
    match = TIME.search(opening)
    if not match or not any(match.groups()):
        return None
    hours, part, rest = match["hours"] or 0, match["part"], match["minutes"] or 0
    return 60 * (HOURS.get(hours) or int(hours)) + PARTS.get(part, 0) + int(rest)


def test_the_opening_states_the_minutes_of_the_list():
    in_prose = [minutes(notebook.cells[0].source) for notebook in NOTEBOOKS.values()]
    assert in_prose == [lesson.minutes for lesson in LESSONS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("about two hours. Kernels are compiled.", 120),
        ("an hour and three quarters, with five exercises.", 105),
        ("about 2 hours 40 minutes, with five exercises.", 160),
        ("about 2 hours and 40 minutes, all in all.", None),
        ("long.", None),
    ],
)
def test_minutes_are_read_from_words(words, expected):
    assert minutes(f"# 00 · A lesson\n\n**Time** {words}\n") == expected


def test_exercises_are_listed_in_the_order_of_their_lessons():
    """``overview`` lists them in this order."""
    listed, checked = {}, {}
    for name in every():
        listed.setdefault(name.partition(".")[0], []).append(name)
    for name, cell in CODE:
        if is_exercise(cell):
            lesson = name.partition("_")[2]
            quiz = [f"{lesson}.quiz_{key}" for key in re.findall(r'"(\w+)": \.\.\.', cell.source)]
            checked.setdefault(lesson, []).extend([*re.findall(r'check\("([^"]+)"', cell.source), *quiz])
    assert listed == checked


def test_headings_of_exercises_state_their_minutes():
    minutes = {}
    for name, notebook in NOTEBOOKS.items():
        for text, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
            stated = re.search(r"^## .* · (\d+) minutes", text.source)
            checked = re.search(r"check\(\"([\w.]+)", cell.source)
            if stated and checked:
                minutes[name, text.id] = int(stated[1]), find(checked[1]).minutes
    assert {at: both for at, both in minutes.items() if both[0] != both[1]} == {}


def test_a_heading_begins_its_cell():
    assert [(name, cell.id) for name, cell in PROSE if re.search(r"\n#+ ", cell.source)] == []


def test_only_lessons_of_the_core_have_optional_sections_and_those_have_no_exercise():
    optional, wrong = False, []
    for lesson, notebook in zip(LESSONS, NOTEBOOKS.values(), strict=True):
        for cell in notebook.cells:
            if cell.source.startswith("## "):
                optional = cell.source.splitlines()[0].endswith(" · *optional*")
            if optional and (lesson not in CORE or is_exercise(cell)):
                wrong.append((lesson.name, cell.id))
    assert wrong == []


def test_lines_of_code_fit_a_cell():
    """A window of 1,280 pixels has room for 100 columns; a longer line breaks, or hides its end."""
    assert [(name, cell.id) for name, cell in CODE if max(map(len, cell.source.splitlines())) > 100] == []


def test_links_between_notebooks_lead_somewhere():
    for name, notebook in (NOTEBOOKS | {NOTATION.stem: nbformat.read(NOTATION, as_version=4)}).items():
        for cell in prose(notebook):
            for target, anchor in re.findall(r"\]\(([\w./]+\.(?:ipynb|json|md|py))(#[^)]*)?\)", cell.source):
                assert (NOTATION.parent / target).is_file(), f"{name}: {cell.id} links to {target}"
                assert not anchor or anchor in anchors(target), f"{name}: {cell.id} links to {target}{anchor}"


def anchors(target):
    """Return the anchors of a notebook: Jupyter names them after its headings."""
    cells = prose(nbformat.read(NOTATION.parent / target, as_version=4))
    headings = re.findall(r"^#+ (.*)$", "\n".join(cell.source for cell in cells), re.MULTILINE)
    return {"#" + heading.replace(" ", "-") for heading in headings}


# No term before its introduction.


def glossary():
    """Yield each term of the glossary and the lesson that introduces it."""
    for cell in prose(nbformat.read(NOTATION, as_version=4)):
        for entry in re.findall(r"^- .*$", cell.source, re.MULTILINE):
            terms, lesson = re.match(r"- (.*?): .* \[\d\d\]\((\w+)\.ipynb\)$", entry).groups()
            yield from ((term, lesson) for term in re.findall(r"\*\*(.+?)\*\*", terms))


def uses(term, introduction):
    """Yield the uses of a term in the order of the lessons: (lesson, cell, is it set in italics or bold?).

    Links do not count. Neither does the opening of ``introduction``, the lesson that introduces the term.
    """
    singular = re.sub(r"(?<!s)s$", "", term)
    word = rf"\b{re.escape(singular)}(e?s)?\b"
    for lesson, notebook in NOTEBOOKS.items():
        for cell in prose(notebook)[lesson == introduction :]:
            source = re.sub(r"^\|.*$|^\[.*\)$|`[^`]*`|\$[^$]*\$", " ", cell.source, flags=re.MULTILINE)
            source = re.sub(r"\]\(.*?\)|^# .*$|\b[Ll]essons? on [\w ]*", " ", source, flags=re.MULTILINE)
            if re.search(word, source, re.IGNORECASE):
                yield lesson, cell.id, bool(re.search(rf"\*[^*\n]*{word}[^*\n]*\*", source, re.IGNORECASE))


def test_no_term_before_its_introduction():
    """The first use of a term is in the lesson that the glossary names, in italics or bold."""
    first = {term: (lesson, *next(uses(term, lesson), ("no lesson", None, False))) for term, lesson in glossary()}
    assert {term: at for term, (lesson, *at) in first.items() if at[0] != lesson or not at[2]} == {}


# Prose states only measured numbers that a cell prints.

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = dict.fromkeys(("TFLOP/s", "TB/s", "cycles", "µs", "ms", "times"), 1) | {"%": 0.01}  # cells print 0.12 for 12 %
READING = re.compile(r"data\.measured\(|\btable\(")  # reads measurements, itself or through lesson 25's ``table``


def stated(cell):
    """Yield the measured quantities of a prose cell, (number, unit), except those of sentences with links: citations.

    In "What changes" and in the recap, every number of two or more characters counts that is not in bytes. Elsewhere
    those with one of ``UNITS`` count.
    """
    source = re.sub(r"\[.*?\]\(\S*\.ipynb\S*\)", "", cell.source)
    if cell.id == "opening":
        source = re.search(r"\*\*What changes\*\* .*", source)[0]
    source = " ".join(sentence for sentence in re.split(r"(?<=[.?!])\s+|\n\n", source) if "https://" not in sentence)
    for number, unit in re.findall(rf"\b({NUMBER}) ?({'|'.join(UNITS)}|[kMG]i?B)?", source):
        if len(number) > 1 and (unit in UNITS or not unit and cell.id in ("opening", "recap")):
            yield number.replace(",", ""), unit


def printed(notebook):
    """Return the numbers in the outputs that nbval compares with a run."""
    cells = [cell for cell in code(notebook) if NOT_COMPARED not in cell.metadata.get("tags", [])]
    outputs = [
        output.get("text") or output.get("data", {}).get("text/plain", "") for cell in cells for output in cell.outputs
    ]
    return {number.replace(",", "") for number in re.findall(NUMBER, "\n".join(outputs))}


def compared(name):
    """Return the numbers of a notebook that test_lesson_numbers compares with the stored rows."""
    return {number for notebook, _, numbers in claims() if notebook == name for number in numbers}


def test_a_cell_prints_each_measured_number_of_the_prose():
    wrong = []
    for name in {name for name, cell in CODE if READING.search(cell.source)}:
        numbers = printed(NOTEBOOKS[name]) | compared(name)
        for cell in prose(NOTEBOOKS[name]):
            for number, unit in stated(cell):
                digits = len(number.partition(".")[2])
                rounded = {f"{float(it) / UNITS.get(unit, 1):.{digits}f}" for it in numbers}
                if number not in numbers | rounded:
                    wrong.append((name, cell.id, number, unit))
    assert wrong == [], "no cell prints these numbers"


def test_a_typed_measurement_is_found():
    cell = nbformat.v4.new_markdown_cell("At 482 TFLOP/s, N = 4,096, 12 % more in float64: [16](16_gluon.ipynb).")
    assert list(stated(cell)) == [("482", "TFLOP/s"), ("12", "%")]
    cell.id = "recap"
    assert ("4096", "") in stated(cell)
    cited = "[FA3](https://arxiv.org/abs/2407.08608): 570 TFLOP/s"
    assert list(stated(nbformat.v4.new_markdown_cell(cited))) == []
    assert list(stated(nbformat.v4.new_markdown_cell(f"It took 70 % of the time. {cited}"))) == [("70", "%")]


# ``normalise``, ``faults`` and ``WatchedKernel``, on notebooks of one cell.

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"


def one_cell(cell_id="a-cell", outputs=(), **metadata):
    cell = nbformat.v4.new_code_cell("1", execution_count=7, outputs=list(outputs), metadata=metadata)
    cell.id = cell_id
    return nbformat.v4.new_notebook(cells=[cell])


def pictured(words):
    shown = page.picture(base64.b64decode(PNG), words)
    return nbformat.v4.new_output("display_data", {"text/html": shown, "text/plain": words})


@pytest.mark.parametrize(
    "notebook, fault",
    [
        (one_cell("1a2b3c4d"), "give it an id"),
        (one_cell("Cell_1"), "give it an id"),
        (one_cell(outputs=[nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])]), "stores an error"),
        (one_cell(outputs=[nbformat.v4.new_output("stream", text=f"see {ROOT}/x.py")]), "names a path"),
        (one_cell(outputs=[nbformat.v4.new_output("stream", text="x" * 400_000)]), "400,000 are allowed"),
        (
            one_cell(outputs=[nbformat.v4.new_output("display_data", {"image/png": PNG, "text/plain": "a"})]),
            "no alt text",
        ),
    ],
)
def test_faults_are_named(notebook, fault):
    assert [sentence for sentence in faults(notebook) if fault in sentence], list(faults(notebook))


def test_normalise_keeps_the_lesson_and_drops_the_run():
    still = page.captioned(base64.b64decode(PNG), "a row")
    shown = f'<div data-figure="bars">{still}</div><script></script>'
    live = {"application/vnd.jupyter.widget-view+json": {"model_id": "0"}, "text/html": shown, "text/plain": "a row"}
    notebook = one_cell(outputs=[nbformat.v4.new_output("display_data", live)], tags=["a-tag"], execution={"a": "b"})
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    stored = normalise(notebook)
    assert stored.cells[0].metadata == {"tags": ["a-tag"]}
    assert stored.cells[0].outputs[0].data == {"text/html": still, "text/plain": "a row"}
    assert stored.cells[0].execution_count == 1 and "widgets" not in stored.metadata
    assert normalise(stored) == stored and list(faults(stored)) == []
    assert notebook.cells[0].execution_count == 7  # the argument is left as it was


def test_what_a_learner_answers_is_tagged_and_not_compared():
    sources = (
        "def row(x): raise NotImplementedError\ncheck('safe_softmax.row', row)",
        "print(row(1))",
        "row = 2",
        "print(row)",
        "check('safe_softmax.row', lambda x: x)  # a wrong answer that the lesson shows",
    )
    stored = normalise(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]))
    assert [cell.metadata for cell in stored.cells] == [
        {"tags": ["exercise", "nbval-ignore-output"]},
        {"tags": ["nbval-ignore-output"]},
        {},
        {},
        {},
    ]


def test_a_stored_picture_has_its_words_as_alt_text_in_a_static_page():
    stored = normalise(one_cell(outputs=[pictured("a row of <bars>")]))
    static, _ = HTMLExporter(template_name="lab").from_notebook_node(stored)
    assert re.findall(r'<img[^>]* alt="([^"]*)"', static) == ["a row of &lt;bars&gt;"]


def test_pictures_are_stored_in_fewer_bytes_and_with_the_same_pixels():
    pixels = Image.new("RGB", (300, 300), "teal")
    buffer = io.BytesIO()
    pixels.save(buffer, "png", compress_level=0)
    shown = page.picture(buffer.getvalue(), "teal")
    stored = normalise(
        one_cell(outputs=[nbformat.v4.new_output("display_data", {"text/html": shown, "text/plain": "teal"})])
    )
    again = stored.cells[0].outputs[0].data["text/html"]
    assert len(again) < len(shown) / 10 and alts(stored.cells[0].outputs[0]) == ["teal"]
    data = base64.b64decode(re.search(r'base64,([^"]+)"', again)[1])
    assert Image.open(io.BytesIO(data)).tobytes() == pixels.tobytes()


def test_stored_outputs_are_kept_when_nothing_is_run(tmp_path):
    path = tmp_path / "a.ipynb"
    nbformat.write(one_cell(outputs=[nbformat.v4.new_output("stream", text="42")]), path)
    assert main(["--stored", str(path)]) == 0
    (cell,) = nbformat.read(path, as_version=4).cells
    assert cell.outputs[0].text == "42" and cell.execution_count == 1


@pytest.mark.exhaustive
def test_a_kernel_that_dies_is_named_at_once():
    kernel = WatchedKernel("python3")
    cell = kernel.execute_cell_input("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RuntimeError, match=r"kernel died in this cell \(exit status -9\)"):
        kernel.await_reply(cell, timeout=600)
    kernel.stop()


@pytest.mark.exhaustive
def test_a_kernel_that_lives_is_waited_for_until_the_timeout():
    kernel = WatchedKernel("python3")
    cell = kernel.execute_cell_input("import time; time.sleep(60)")
    with pytest.raises(Empty):
        kernel.await_reply(cell, timeout=0.6)
    kernel.stop()
