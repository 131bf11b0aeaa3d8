"""The six lines of FlashAttention are the same in every language: same names, same order, same mathematics.

What may differ is removed before they are compared: the library's name, how a row is reduced, the scale, an offset and
the base of the exponential, the narrowing of P_ij, conversions of layout, and the instruction that multiplies matrices.
"""

import ast
from pathlib import Path

import pytest

FLASHLAB = Path(__file__).parents[1] / "flashlab"

HEART = """\
m_new = maximum(m_i, rowmax(S_ij))
m_safe = where(m_new == -inf, 0, m_new)
alpha = exp(m_i - m_safe)
P_ij = exp(S_ij - m_safe[:, None])
l_i = alpha * l_i + rowsum(P_ij)
O_i = alpha[:, None] * O_i + P_ij @ V_j"""

HEARTS = {  # file and function that hold the six lines
    "numpy": ("reference/online_softmax.py", "update"),
    "torch": ("models/plain.py", "update"),
    "Triton, small": ("kernels/portable/one_head.py", "update"),
    "Triton": ("kernels/portable/forward.py", "update"),
    "Triton, decoding": ("kernels/decode/split.py", "update"),
    "Gluon": ("kernels/hopper/ladder.py", "update"),
}

LIBRARIES = {"np", "numpy", "torch", "tl", "gl", "math"}
ROWS = {"max": "rowmax", "amax": "rowmax", "sum": "rowsum"}
SAME = {"convert_layout", "along_rows", "operand", "to", "astype"}  # the first argument, in another form
PRODUCTS = {"dot", "warpgroup_mma", "mma_v2"}  # of a, b and an accumulator
ASIDE = {"scale", "scale_log2", "offset"}


class _Plain(ast.NodeTransformer):
    """Rewrite an expression in the words of ``HEART``."""

    def visit_Call(self, node):
        function, args = node.func, [self.visit(arg) for arg in node.args]
        name = function.attr if isinstance(function, ast.Attribute) else function.id
        if isinstance(function, ast.Attribute) and not self._is_library(function.value):
            args = [self.visit(function.value), *args]  # a method: x.sum(-1) is sum(x, -1)
        if name in SAME:
            return args[0]
        if name in ROWS:
            return ast.Call(ast.Name(ROWS[name]), args[:1], [])
        if name in PRODUCTS:
            product = ast.BinOp(args[0], ast.MatMult(), args[1])
            return ast.BinOp(args[2], ast.Add(), product) if len(args) > 2 else product
        if name == "rescale":
            return ast.parse("alpha[:, None] * O_i", mode="eval").body
        if name == "float" and getattr(args[0], "value", None) == "inf":
            return ast.Name("inf")
        return ast.Call(ast.Name({"exp2": "exp"}.get(name, name)), args, [])

    def visit_Attribute(self, node):
        node = self.generic_visit(node)
        if node.attr == "values":  # of torch's max
            return node.value
        return ast.Name(node.attr) if self._is_library(node.value) else node

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        if isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Name) and node.right.id in ASIDE:
            return node.left
        if isinstance(node.op, ast.Mult):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(side, ast.Name) and side.id in ASIDE:
                    return other
        return node

    def visit_Constant(self, node):
        if node.value is Ellipsis:
            return ast.Slice()
        return ast.Constant(0) if node.value == 0 else node

    def _is_library(self, node):
        return isinstance(node, ast.Name) and node.id in LIBRARIES


def heart(source, function):
    """Return the statements of ``function`` that assign one of the six names, in the words of ``HEART``."""
    names = [line.split(" = ")[0] for line in HEART.splitlines()]
    body = next(node for node in ast.parse(source).body if getattr(node, "name", None) == function).body
    lines = []
    for statement in body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) in names:
            line = ast.unparse(ast.fix_missing_locations(_Plain().visit(statement)))
            if len(set(line.split(" = "))) > 1:  # P_ij = P_ij is what remains of a narrowing
                lines.append(line)
    return lines


@pytest.mark.parametrize("language", HEARTS)
def test_the_heart_is_one(language):
    path, function = HEARTS[language]
    assert heart((FLASHLAB / path).read_text(), function) == HEART.splitlines()


@pytest.mark.parametrize("language", HEARTS)
@pytest.mark.parametrize("old, new", [
    ("alpha * l_i + ", "l_i + "),
    ("m_i - m_safe", "m_safe - m_i"),
    ("[:, None]", "[None, :]"),
    ("m_new == ", "m_i == "),
    ("alpha[:, None] * O_i", "alpha * O_i"),
])  # fmt: skip
def test_another_line_is_noticed(language, old, new):
    path, function = HEARTS[language]
    source = (FLASHLAB / path).read_text()
    assert old in source
    assert heart(source.replace(old, new), function) != HEART.splitlines()


GLUON = """
def update(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * scale_log2)
    m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)
    alpha = gl.exp2(m_i - m_safe)
    P_ij = gl.exp2(S_ij * scale_log2 - m_safe[:, None])
    l_i = alpha * l_i + gl.sum(P_ij, 1)
    P_ij = gl.convert_layout(P_ij.to(gl.bfloat16), layout)
    O_i = warpgroup_mma(P_ij, V_j, along_rows(alpha, O_i)[:, None] * O_i, is_async=True)
"""
TORCH = """
def update(state, S_ij, V_j):
    m_new = torch.maximum(m_i, S_ij.max(-1).values)
    m_safe = torch.where(m_new == -torch.inf, 0, m_new)
    alpha = torch.exp(m_i - m_safe)
    P_ij = torch.exp(S_ij - m_safe[..., None])
    l_i = alpha * l_i + P_ij.sum(-1)
    O_i = alpha[..., None] * O_i + P_ij @ V_j
"""


@pytest.mark.parametrize("source", [GLUON, TORCH], ids=["Gluon", "torch"])
def test_only_the_dialect_is_removed(source):
    assert heart(source, "update") == HEART.splitlines()
    assert heart(source.replace("alpha * l_i", "l_i"), "update") != HEART.splitlines()
