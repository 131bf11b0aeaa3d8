"""Numbers and formulas as people write them: 524,288 or 25 % or 512 KiB or 2^-10 or ln 2 or P+B*N."""

import ast
import math
import operator
import random
import re
from collections.abc import Mapping

LONGEST = 200  # characters of an expression
GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(,\d{3})+(?![\d,])")  # 524,288: digits in groups of three
UNSIGNED = r"(?<![\w.])(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![eE][-+]?\d)"
BEFORE_A_NAME = re.compile(rf"({UNSIGNED}|\))\s*(?=[^\W\d_])")  # 512 KiB
SIGNS = {"^": "**", "−": "-", "×": "*", "·": "*", "%": "/100", "µ": "u"}
BYTES = {"B": 1, "byte": 1, "bytes": 1} | {
    unit: size**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, size in ((f"{prefix}B", 1000), (f"{prefix}iB", 1024))
}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.Pow: operator.pow, ast.UAdd: operator.pos, ast.USub: operator.neg}  # fmt: skip
FUNCTIONS = {"ln": math.log, "log": math.log, "log2": math.log2, "exp": math.exp, "sqrt": math.sqrt}
WITHOUT_BRACKETS = re.compile(rf"\b({'|'.join(FUNCTIONS)})\s+(\w[\w.]*)")  # ln 2


def number(text: str, unit: str = "") -> float:
    """Return the number in a text, converted to ``unit`` if the text has a unit: 512 from "0.5 MiB" for "KiB".

    Raises an exception if the text is no number."""
    tree, sizes = _tree(text), {name.casefold(): size for name, size in BYTES.items()}
    if unit not in BYTES:
        sizes = {unit.casefold(): 1}
    units = {name: sizes[name.casefold()] for name in _names(tree)}
    return float(_value(tree, units)) / (sizes[unit.casefold()] if units else 1)


def is_formula(text: str) -> bool:
    """Return whether a text is an operation on two operands and has names, as P + B * N."""
    try:
        tree = _tree(text)
    except (ValueError, SyntaxError):
        return False
    return isinstance(tree, ast.BinOp) and bool(_names(tree))


def same_formula(text: str, expected: str) -> bool:
    """Return whether two formulas have the same value for several values of their names."""
    try:
        yours, right, rng = _tree(text), _tree(expected), random.Random(0)
        for _ in range(3):
            values = {name: rng.uniform(1, 2) for name in sorted(_names(right))}
            if not abs(_value(yours, values) - _value(right, values)) < 1e-9:
                return False
    except (ValueError, SyntaxError, LookupError, ArithmeticError, TypeError):
        return False
    return True


def _tree(text):
    text = text.strip()
    if len(text) > LONGEST:
        raise ValueError("too long for an expression")
    for sign, replacement in SIGNS.items():
        text = text.replace(sign, replacement)
    text = WITHOUT_BRACKETS.sub(r"\1(\2)", text)
    text = BEFORE_A_NAME.sub(r"\1*", GROUPED.sub(lambda match: match[0].replace(",", ""), text))
    return ast.parse(text, mode="eval").body


def _names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    """Return the value of an expression in floats, so that no power takes long."""
    match node:
        case ast.Constant() if type(node.value) in (int, float):
            return float(node.value)
        case ast.Name():
            return float(values[node.id])
        case ast.UnaryOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_value(node.operand, values))
        case ast.BinOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
        case ast.Call(ast.Name(name), [argument], []) if name in FUNCTIONS:
            return FUNCTIONS[name](_value(argument, values))
    raise ValueError("neither a number, a name nor a simple operation")
