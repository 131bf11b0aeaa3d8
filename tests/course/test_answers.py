"""A right answer is stored with all that it uses, and a later lesson runs it in place of the course's own."""

import inspect
import math
from functools import partial

import nbformat
import pytest
from nbclient import NotebookClient

from flashlab.course import answers, progress
from flashlab.course.check import check
from flashlab.course.exercises.first_triton_kernel import add
from flashlab.course.exercises.online_softmax import merge
from flashlab.course.self_contained import NotSelfContained, loaded, source_of

# The cells of a notebook. ``right`` uses its imports, constants and helpers; ``wrong`` uses an array.
LESSON = (
    "import math\nfrom functools import partial as half\nimport numpy as np",
    "LOWEST = -math.inf\nTWO, WORDS = 2, ('a', 3)\nscores = np.zeros(3)",
    "def twice(x):\n    return TWO * helper(x)\n\ndef helper(x):\n    return x if x > LOWEST else twice(x)",
    "again = twice",
    "def right(x, scores=WORDS):\n    def inner(y):\n        return again(y) + len(scores)\n"
    "    return half(inner, x)() + math.floor(0.5)",
    "def wrong(x):\n    return scores * x",
)
CALLS = "from flashlab.course.self_contained import loaded, source_of, NotSelfContained\n"


def run(*cells):
    """Run the cells of a notebook, and return what the last one printed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    return "".join(output.get("text", "") for output in notebook.cells[-1].outputs)


def test_a_source_brings_all_that_a_function_uses():
    source = run(*LESSON, f"{CALLS}print(source_of(right))")
    namespace = {}
    exec(source, namespace)
    assert namespace["right"](3) == 8
    assert "scores = " not in source and source.rstrip().endswith("math.floor(0.5)")
    assert loaded(source, "<answer>")(3) == 8 and "def right" in inspect.getsource(loaded(source, "<answer>"))


def test_an_array_of_the_notebook_is_named():
    printed = run(*LESSON, f"{CALLS}try:\n    source_of(wrong)\nexcept NotSelfContained as error:\n    print(error)")
    assert printed.strip() == "it uses scores, an object of type ndarray"


def test_a_lambda_has_no_source_of_its_own():
    with pytest.raises(NotSelfContained, match="lambda"):
        source_of(lambda x: x)


class Doubled:
    def __call__(self, N):
        return 2 * N * N


@pytest.mark.parametrize("answer", [Doubled(), partial(pow, 2), print])
def test_an_object_without_a_source_is_refused(answer):
    with pytest.raises(NotSelfContained, match="the source of .* is not known"):
        source_of(answer)


def test_a_right_answer_that_cannot_be_stored_stays_right(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    check("start_here.first", Doubled())
    verdict, sentence = capsys.readouterr().out.splitlines()
    assert verdict.startswith("✓") and sentence.startswith("Later lessons cannot use this answer: ")
    assert progress.read()["start_here.first"]["solved"]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    return lambda source: progress.note("online_softmax.merge", True, "", source)


def test_mine_is_the_learners_function_if_it_passes(stored, capsys):
    source = inspect.getsource(merge.reference)
    imports = "import numpy as np\nfrom flashlab.reference.online_softmax import *\n"
    stored(imports + source.replace("def merge", "def my_merge"))
    assert answers.mine("online_softmax.merge").__name__ == "my_merge" and capsys.readouterr().out == ""


@pytest.mark.parametrize("source", ["", "def merge(", "raise SystemExit", "def merge(*_):\n    return 0\n"])
def test_the_reference_stands_in_with_a_sentence(source, stored, capsys):
    stored(source)
    assert answers.mine("online_softmax.merge") is merge.reference
    assert capsys.readouterr().out.count("\n") == 1


def test_a_question_has_no_function(stored):
    with pytest.raises(ValueError, match=r"online_softmax\.keep is a question"):
        answers.mine("online_softmax.keep")


SHIFT = "import numpy as np\nfrom flashlab.course.check import check\nONE = 1.0"
ROW = (
    "def total(e):\n    return e.sum(dtype=np.float64) * ONE\n\n"
    "def my_row(x):\n    e = np.exp(x - x.max())\n    return (e / total(e)).astype(x.dtype)\n\n"
    'check("safe_softmax.row", my_row)'
)
KERNEL = "import triton\nimport triton.language as tl\nfrom flashlab.course.check import check\n\n@triton.jit\n" + \
    inspect.getsource(add.reference.fn).partition("@triton.jit\n")[2] + \
    '\ncheck("first_triton_kernel.add", add_from_the_end)'  # fmt: skip


def test_answers_cross_from_one_notebook_to_another(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHLAB_PROGRESS", str(tmp_path / "progress.json"))
    run(SHIFT, ROW)
    run(KERNEL)
    both = 'print(mine("safe_softmax.row").__name__, mine("first_triton_kernel.add").fn.__code__.co_filename)'
    assert (
        run("from flashlab.course.answers import mine", both).rpartition("\r")[2]
        == "my_row <your answer to first_triton_kernel.add>\n"
    )


def test_a_class_is_kept_with_what_its_methods_use():
    source = "FACTOR = 3\n\n\nclass Times:\n    @staticmethod\n    def apply(x):\n        return FACTOR * x\n"
    times = loaded(source, "<a cell>")
    again = loaded(source_of(times), "<another cell>")
    assert again.apply(2) == 6 and source_of(again) == source_of(times)


def test_a_constant_of_a_kernel_is_kept():
    imports, constant = "from flashlab.kernels import tl, triton", "LOG2_E = tl.constexpr(1.5)"
    source = f"{imports}\n{constant}\n\n\n@triton.jit\ndef times(x):\n    return LOG2_E * x\n"
    again = loaded(source_of(loaded(source, "<a cell>")), "<another cell>")
    assert again.fn.__globals__["LOG2_E"].value == 1.5


def test_a_number_of_numpy_is_kept():
    source = "import numpy as np\n\nLN_2 = np.log(2)\n\n\ndef times(x):\n    return LN_2 * x\n"
    assert loaded(source_of(loaded(source, "<a cell>")), "<another cell>")(2.0) == 2 * math.log(2)


def test_a_class_without_a_method_has_no_source():
    with pytest.raises(NotSelfContained, match="the source of Empty is not known"):
        source_of(loaded("class Empty:\n    x = 1\n", "<a cell>"))
