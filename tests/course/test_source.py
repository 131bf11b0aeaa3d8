"""One function is shown as it is written, but for checks of its arguments; several stand side by side."""

import pytest

from flashlab.course.source import WIDTH, Folded, beside, show
from flashlab.models import plain
from flashlab.reference import block_size, online_softmax


def first(x):
    """A docstring, which a comparison leaves out."""
    total = x + x  # [N]
    if total:
        total = -total
    return total


def second(a_long_name, another_long_name):
    result = a_long_name * another_long_name + a_long_name * another_long_name + a_long_name
    return result


def test_one_function_is_shown_as_it_is_written(capsys):
    show(first)
    out = capsys.readouterr().out
    assert out.startswith('def first(x):\n    """A docstring') and "# [N]" in out


def checked(x):
    if x is None:
        raise TypeError("a check, which a comparison leaves out")
    total = x * x
    return total


def test_statements_stand_side_by_side_without_docstrings_and_comments():
    lines = beside(first, first, width=80).splitlines()
    assert lines[0].count("test_source.first") == 2
    assert [line.split("   ")[0].rstrip() for line in lines[1:]] == [
        "total = x + x", "if total:", "", "return total"
    ]  # fmt: skip
    assert lines[-1].index("return", 1) == lines[1].index("total", 5)  # the second column is aligned


def test_checks_of_arguments_are_left_out():
    assert beside(checked, first, width=80).splitlines()[1].split() == "total = x * x total = x + x".split()


def test_statements_that_are_too_wide_for_columns_stand_below_each_other():
    blocks = beside(first, second, width=60).split("\n\n")
    assert blocks[0].splitlines() == ["# test_source.first", "# test_source.second"]
    assert blocks[-1].splitlines() == ["return total", "return result"]


def test_each_of_the_six_lines_of_update_stands_below_itself_in_three_languages():
    one_head = pytest.importorskip("flashlab.kernels.portable.one_head", reason="needs triton, which is for Linux")
    text = beside(online_softmax.update, plain.update, one_head.update)
    hearts = [block.splitlines() for block in text.split("\n\n")[2:8]]
    assert [{line.split(" = ")[0] for line in block} for block in hearts] == [
        {name} for name in ("m_new", "m_safe", "alpha", "P_ij", "l_i", "O_i")
    ]
    assert {len(block) for block in hearts} == {3} and max(map(len, text.splitlines())) <= WIDTH


def test_folded_source_is_behind_a_line_to_click_in_a_notebook_and_plain_in_a_terminal(capsys):
    folded = Folded("x = 1")
    assert str(folded) == "x = 1"
    assert folded._repr_markdown_().startswith("<details><summary>") and "\n\n```python\nx = 1\n```\n\n" in (
        folded._repr_markdown_()
    )
    show(first, folded="open to read")
    folded.when = "open to read"
    assert "<summary>open to read</summary>" in folded._repr_markdown_()
    show(first, folded=True)
    assert capsys.readouterr().out.startswith("def first(x):")


def test_kernels_and_methods_can_be_shown():
    class Kernel:
        fn = staticmethod(first)

    assert beside(Kernel, first).count("total = x + x") == 2
    assert "return self" in beside(Method.itself, first)


class Method:
    def itself(self):
        return self


def test_nothing_to_show_is_refused():
    with pytest.raises(TypeError, match="at least one function"):
        show()


@pytest.mark.parametrize("x", [3, None, "update", len, type("Built", (), {})], ids=str)
@pytest.mark.parametrize("before", [(), (online_softmax.update,)], ids=["alone", "beside another"])
def test_an_object_without_source_is_refused(before, x):
    with pytest.raises(TypeError, match="expected functions, classes or kernels with source code, got"):
        show(*before, x)


def test_decorators_and_calls_that_check_arguments_are_left_out(capsys):
    show(block_size.working_set)
    assert capsys.readouterr().out.startswith("def working_set(")
    show(plain.dense)
    assert "check" not in capsys.readouterr().out
