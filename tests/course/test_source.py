"""Source is shown as it is written; several functions are shown in columns, statement beside statement."""

import pytest

from flashlab.course.source import columns, show
from flashlab.reference import online_softmax


def first(x):
    """A docstring, which columns leave out."""
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


def test_statements_stand_side_by_side_without_docstrings_and_comments():
    lines = columns(first, first, width=80).splitlines()
    assert lines[0].count("test_source.first") == 2
    assert [line.split("   ")[0].rstrip() for line in lines[1:]] == [
        "total = x + x", "if total:", "", "return total"
    ]  # fmt: skip
    assert lines[-1].index("return", 1) == lines[1].index("total", 5)  # columns begin at one place


def test_a_statement_too_long_for_its_column_goes_on_below_and_no_name_is_broken():
    text = columns(first, second, width=60)
    words = {word for line in text.splitlines() for word in line.split()}
    assert {"a_long_name", "another_long_name", "result"} <= words
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("width", [20, 60, 120, 200])
def test_the_heart_loses_no_word_at_any_width(width):
    text = columns(online_softmax.update, online_softmax.update, width=width)
    for word in ("np.maximum(m_i,", "m_safe[:,", "P_ij", "alpha"):
        assert text.split().count(word) >= 2


def test_kernels_and_methods_can_be_shown():
    class Kernel:
        fn = staticmethod(first)

    assert columns(Kernel, first).count("total = x + x") == 2
    assert "return self" in columns(Method.itself, first)


class Method:
    def itself(self):
        return self


def test_nothing_to_show_is_refused():
    with pytest.raises(TypeError, match="at least one function"):
        show()
