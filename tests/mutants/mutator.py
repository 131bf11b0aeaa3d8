"""Wrong implementations, generated: each rule, at each place of a function where it applies, gives one.

A rule is a function of a node of the syntax tree. It yields what a person may write there instead. Checks of arguments
(``if ...: raise``), annotations and decorators stay as they are: tests of bad input are elsewhere.
"""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

WRAPPERS = {"exp", "exp2", "log", "log2", "abs", "tanh", "sqrt", "round", "floor", "rint", "trunc", "clip"}
CHOICES = {"maximum", "minimum", "max", "min"}
TWINS = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log", "any": "all", "all": "any",
         "zeros": "ones", "ones": "zeros", "zeros_like": "ones_like", "ones_like": "zeros_like"}  # fmt: skip
NEIGHBOURS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
EFFECTS = {"store", "atomic_add", "append", "pop"}  # statements that are calls; without them, results change
RANGES = {"range", "static_range"}


class Mutant(NamedTuple):
    """A function with one edit: the text that it replaces, the new text, and the whole source."""

    old: str
    new: str
    source: str

    def __str__(self):
        return f"{self.old} → {self.new}"


def part_dropped(node):
    """Drop a term, a factor, a condition or a sign, or the difference of two lengths that aligns a mask."""
    match node:
        case ast.BinOp(ast.BinOp(x, ast.Add(), _), ast.Sub(), _):
            yield from (x, node.left)
        case ast.BinOp(left, ast.Add() | ast.Mult() | ast.BitAnd() | ast.BitOr(), right):
            yield from (left, right)
        case ast.BinOp(left, ast.Sub() | ast.Div() | ast.Pow(), _):
            yield left
        case ast.BoolOp(_, values):
            yield from values
        case ast.UnaryOp(ast.USub(), ast.Attribute(attr="inf") | ast.Call(args=[ast.Constant("inf")])):
            yield ast.Constant(0)
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand) if not isinstance(operand, ast.Constant):
            yield operand


def another_function(node):
    """Call the function of another base or another quantifier, or take an argument for the result."""
    match node:
        case ast.Call(func, args, keywords) if _name(node) in TWINS:
            yield ast.Call(_renamed(func, TWINS[_name(node)]), args, keywords)
    match node:
        case ast.Call(args=[x, *_]) if _name(node) in WRAPPERS:
            yield x
        case ast.Call(args=[x, y]) if _name(node) in CHOICES:
            yield from (x, y)
        case ast.Call(args=[_, x, y]) if _name(node) == "where":
            yield from (x, y)


def off_by_one(node):
    """Include or exclude an end, round a number of tiles down, leave out the last step of a loop."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in NEIGHBOURS:
            yield ast.Compare(left, [NEIGHBOURS[type(op)]()], right)
        case ast.Call(args=[x, y]) if _name(node) in ("cdiv", "count"):
            yield ast.BinOp(x, ast.FloorDiv(), y)
        case ast.Call(func, [*start, stop], keywords) if _name(node) in RANGES and len(start) < 2:
            yield ast.Call(func, [*start, ast.BinOp(stop, ast.Sub(), ast.Constant(1))], keywords)
        case ast.Call(func, [start, stop, step], keywords) if _name(node) in RANGES:
            yield ast.Call(func, [start, ast.BinOp(stop, ast.Sub(), step), step], keywords)


def exchanged(node):
    """Exchange two axes."""
    match node:
        case ast.Attribute(value, "T"):
            yield value
        case ast.Subscript(value, ast.Tuple([x, y])) if ast.dump(x) != ast.dump(y):
            yield ast.Subscript(value, ast.Tuple([y, x]))


def sign_inverted(node):
    """Add what is to be subtracted."""
    match node:
        case ast.BinOp(left, ast.Sub(), right):
            yield ast.BinOp(left, ast.Add(), right)


def always_or_never(node):
    """Decide a condition once for all."""
    if isinstance(node, ast.If | ast.IfExp):
        yield from (ast.Constant(True), ast.Constant(False))


def left_out(node):
    """Leave out a wait or a store, the sum so far, or a change of a variable."""
    match node:
        case ast.AugAssign(target, ast.Add() | ast.BitOr(), value):
            yield ast.Assign([target], value, lineno=0)
        case ast.Expr(ast.Yield()):
            yield ast.Pass()
        case ast.Expr(ast.Call() as call) if _name(call) in EFFECTS:
            yield ast.Pass()
        case ast.Assign([ast.Name(changed)], value) if changed in _names(value):
            yield ast.Pass()


RULES = part_dropped, another_function, off_by_one, exchanged, sign_inverted, always_or_never, left_out


def mutants(function: Callable) -> Iterator[Mutant]:
    """Yield every mutant of a function or Triton kernel, each once."""
    source = textwrap.dedent(inspect.getsource(_plain(function)))
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:n])) for n in range(len(lines))]
    for node in _nodes(ast.parse(source).body[0]):
        place = node.test if isinstance(node, ast.If | ast.IfExp) else node
        for rule in RULES:
            for new in rule(node):
                text = ast.unparse(new)
                begin = starts[place.lineno - 1] + place.col_offset
                end = starts[place.end_lineno - 1] + place.end_col_offset
                whole = source.encode()
                wrong = whole[:begin] + (f"({text})" if isinstance(place, ast.expr) else text).encode() + whole[end:]
                yield Mutant(ast.unparse(place), text, wrong.decode())


def compiled(function: Callable, source: str) -> Callable:
    """Return what ``source`` defines in place of a function or Triton kernel."""
    plain = _plain(function)
    filename = f"<{plain.__module__}.{plain.__qualname__}, mutant {hash(source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)  # Triton reads it
    namespace = dict(plain.__globals__)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[plain.__name__]


def _plain(function):
    """Return the Python function of a Triton kernel, or that below a decorator."""
    return inspect.unwrap(getattr(function, "fn", function))


def _nodes(node):
    """Yield the nodes below a statement or an expression in which a mistake is of interest."""
    match node:
        case ast.If(body=[*_, ast.Raise()]) | ast.Assert() | ast.JoinedStr() | ast.arg():
            return
        case ast.FunctionDef(body=inside):
            inside = [*node.args.defaults, *inside]
        case _:
            inside = ast.iter_child_nodes(node)
            yield node
    for child in inside:
        yield from _nodes(child)


def _name(call):
    """Return the last part of the name of a called function: "exp" of ``np.exp(x)``."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _renamed(func, name):
    return ast.Attribute(func.value, name) if isinstance(func, ast.Attribute) else ast.Name(name)


def _names(node):
    return {it.id for it in ast.walk(node) if isinstance(it, ast.Name)}
