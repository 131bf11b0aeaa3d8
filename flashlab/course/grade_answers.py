"""Find the answers in a learner's files, each as a program with all that it uses.

An answer is found by its line check("…", …). Where several files answer an exercise, the lesson's own notebook counts,
then the stored answers of ``progress.json``, then other notebooks, then an answer without that line, and a stub last.
"""

import ast
import json
import re
import symtable
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from flashlab.course import check
from flashlab.course.data import NOTEBOOKS
from flashlab.course.grade_files import HandIn
from flashlab.course.lessons import LESSONS, notebook
from flashlab.course.self_contained import names_of_module
from flashlab.grading import forked
from flashlab.grading.program import Program

MAGIC = re.compile(r"[%!?]|[\w.]+\?{1,2}\s*$")  # the start of a line that only IPython understands
CHECK = re.compile(r"""\bcheck\(\s*["']([\w.]+)["']""")
IPYTHON = frozenset({"display", "get_ipython"})  # bound in every notebook
HOMES = {lesson.name: notebook(lesson) for lesson in LESSONS}


class Answer(NamedTuple):
    """A learner's answer to one exercise."""

    program: Program
    names: frozenset[str] = frozenset()  # all that its notebook binds
    stub: bool = False
    others: tuple[str, ...] = ()  # further notebooks that answer the same exercise
    unchecked: bool = False  # the notebook changes what the lesson checks, and has no check of it


STUB, UNCHECKED, OTHER, STORED, HOME = range(5)  # ranks: the answer of the highest rank counts


def answers(hand_in: HandIn) -> dict[str, Answer]:
    """Return a learner's answers by exercise."""
    found: dict[str, list] = {}  # [(rank, file, answer)] by exercise
    for file, content in hand_in.notebooks.items():
        checked = set()
        for name, answer in _in_notebook(content, hand_in.learner):
            home = PurePosixPath(file).name == HOMES.get(name.partition(".")[0])
            found.setdefault(name, []).append((STUB if answer.stub else HOME if home else OTHER, file, answer))
            checked.add(name)
        for name in _without_check(file, content, checked):
            found.setdefault(name, []).append((UNCHECKED, file, Answer(Program("", "None", ""), unchecked=True)))
    for name, source in _stored(hand_in.progress):
        program = Program(source, _last_definition(source), f"<{hand_in.learner}: {name}>")
        found.setdefault(name, []).append((STORED, "", Answer(program)))
    return {name: _first(candidates) for name, candidates in found.items()}


def _first(candidates):
    """Return the answer that counts, the last of the highest rank, with the notebooks of the others."""
    rank, file, answer = max(reversed(candidates), key=lambda it: it[0])
    others = sorted({other for rank, other, _ in candidates if rank > UNCHECKED and other not in ("", file)})
    return answer._replace(others=tuple(others))


def _without_check(file, content, checked):
    """Yield the exercises of a notebook's lesson whose answer is changed there, and whose check is missing."""
    for home in (home for home in HOMES.values() if home.removesuffix(".ipynb") in PurePosixPath(file).name):
        asked, published = _lesson(home)
        changed = set().union(*(_bound(it) for it in _statements(content) if ast.unparse(it) not in published))
        yield from (name for name, value in asked.items() if name not in checked and value in changed)


@cache
def _lesson(home):
    """Return what a lesson checks, by exercise, and the text of all its statements."""
    statements = _statements(json.loads((NOTEBOOKS / home).read_text(encoding="utf-8")))
    asked = dict(filter(None, map(_asked, statements)))
    return {name: ast.unparse(it) for name, it in asked.items()}, frozenset(map(ast.unparse, statements))


def _statements(content):
    cells = ("".join(it.get("source") or "") for it in content["cells"] if _is_code(it))
    return [it for source in cells for it in _parsed(source)[0]]


def _stored(progress):
    """Yield the name and the source of each answer in files of progress."""
    for name, entry in (pair for entries in progress for pair in entries.items()):
        source = entry.get("answer") if isinstance(entry, dict) else None
        if isinstance(source, str) and _last_definition(source):
            yield name, source


def _in_notebook(content, learner) -> Iterator[tuple[str, Answer]]:
    """Yield the name and the answer of each check in a notebook."""
    cells = ["".join(it.get("source") or "") for it in content["cells"] if _is_code(it)]
    parsed = [_parsed(source) for source in cells]
    names = IPYTHON.union(*(_bound(it) for statements, _ in parsed for it in statements))
    names |= {word for source, (_, error) in zip(cells, parsed, strict=True) if error for word in _words(source)}
    earlier: list[ast.stmt] = []
    for source, (statements, error) in zip(cells, parsed, strict=True):
        own = []  # the statements before a check
        for statement in statements:
            if asked := _asked(statement):
                name, value = asked
                program = Program(_needed(earlier, own, value), ast.unparse(value), f"<{learner}: {name}>")
                yield name, Answer(program, names, any(map(_is_stub, own)))
            else:
                own.append(statement)
        if any(map(_calls_check, own)):
            for name, program in _asked_in_a_loop(earlier, own, learner):
                yield name, Answer(program, names)
        for name in CHECK.findall(source) if error else ():
            yield name, Answer(Program(f"raise SyntaxError({error!r})\n", "None", f"<{learner}: {name}>"))
        earlier += own


def _is_code(cell):
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return False
    return isinstance(source := cell.get("source") or "", str | list) and all(isinstance(it, str) for it in source)


def _parsed(source):
    """Return the statements of a cell without lines of IPython, and its syntax error, if any."""
    text = "\n".join("pass" if MAGIC.match(line) else line for line in source.splitlines())
    try:
        symtable.symtable(text, "<notebook>", "exec")  # it finds errors that ast.parse does not
        return ast.parse(text).body, ""
    except (SyntaxError, ValueError, RecursionError) as error:
        return [], str(error)


def _words(source):
    return re.findall(r"\w+", source)


def _is_stub(statement):
    """Return whether a statement is an unfilled stub: it raises NotImplementedError or assigns the dots."""
    match statement:
        case ast.Assign(value=ast.Constant(value)):
            return value is ...
    return "NotImplementedError" in ast.unparse(statement)


def _asked(statement):
    """Return the name and the answer of check("name", answer); None otherwise, and of a check with options."""
    match statement:
        case ast.Expr(ast.Call(func=func, args=[ast.Constant(str(name)), value], keywords=[])) if _is_check(func):
            return name, value
    return None


def _calls_check(statement):
    return any(isinstance(it, ast.Call) and _is_check(it.func) for it in ast.walk(statement))


def _is_check(function):
    return ast.unparse(function).split(".")[-1] == "check"


def _asked_in_a_loop(earlier, own, learner):
    """Yield the answers of a cell without literal names of exercises: it runs with a check that records them."""
    earlier, own = ([it for it in part if "check" not in _bound(it)] for part in (earlier, own))
    noting = "_asked = {}\ndef check(name, attempt=..., note=True):\n    if note:\n        _asked[name] = attempt\n"
    program = Program(noting + _needed(earlier, own, ast.Constant(None)), "tuple(map(str, _asked))", f"<{learner}>")
    for names in forked.run(lambda: iter([program.run()]), check.PATIENCE).values:
        yield from ((name, program._replace(value=f"_asked[{name!r}]")) for name in names)


# The statements that an answer needs


def _needed(earlier, own, value):
    """Return the source of a cell, after all earlier statements that bind a name which it uses, directly or not.

    An earlier statement may raise, as it may have done in the notebook: the next ones run all the same. So may an
    expression in the cell itself, such as display(…), which needs IPython.
    """
    names = set()
    for statement in reversed([*own, ast.Expr(value)]):
        names = _before(statement, names)
    modules = {name for it in earlier if isinstance(it, ast.Import | ast.ImportFrom) for name in _bound(it)}
    candidates = [(at, it, _bound(it) | _changed(it) - modules) for at, it in enumerate(earlier)]
    kept = {}
    while new := {at: it for at, it, bound in candidates if at not in kept and (bound & names or "*" in bound)}:
        kept |= new
        names = names.union(*map(_used, new.values()))
    before = [it if isinstance(it, ast.FunctionDef | ast.ClassDef) else _in_try(it) for _, it in sorted(kept.items())]
    own = [_in_try(it) if isinstance(it, ast.Expr) else it for it in own]
    return "\n".join(map(ast.unparse, [*before, *own])) + "\n"


def _in_try(statement):
    ignored = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    return ast.Try([statement], [ignored], [], [])


def _used(statement):
    """Return the names that a statement, or a function in it, takes from the notebook."""
    return set(names_of_module(_table(statement)))


def _bound(statement):
    """Return the names that a statement, or a function in it, binds in the notebook; "*" if it imports all names."""
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        return {"*"}
    return set(_assigned(_table(statement)))


def _assigned(table):
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_imported() and top or symbol.is_assigned() and (top or symbol.is_declared_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _assigned(child)


def _before(statement, names):
    """Return the names that must be bound before a statement, so that it runs and ``names`` are bound after it."""
    match statement:
        case ast.For(target, iterable, body, after):
            own = {it.id for it in ast.walk(target) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
            return (names | _used(ast.Module([*body, *after], []))) - own | _used(iterable)
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom() | ast.Assign():
            return names - _bound(statement) | _used(statement)
    return names | _used(statement)


def _changed(statement):
    """Return the names whose values a statement may change: x of x[0] = 1, x.a = 1, del x[0] and x.append(1)."""
    stored = [it for it in ast.walk(statement) if isinstance(getattr(it, "ctx", None), ast.Store | ast.Del)]
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute() as method)):
            stored.append(method)
    return {root for it in stored if (root := _root(it))}


def _root(node):
    """Return x of x, x[0] and x.a.b; "" of another expression."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _table(statement):
    return symtable.symtable(ast.unparse(statement), "<notebook>", "exec")


def _last_definition(source):
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, ValueError, RecursionError, IndexError):
        return ""
    return getattr(last, "name", "")
