"""The six lines of FlashAttention are the same in NumPy, torch, Triton and Gluon: names, order and mathematics.

The test finds every function that assigns ``m_new``, ``m_safe`` and ``alpha``. Before it compares, it removes what
differs between languages: the library's name, how a row is reduced, the scale, the unit, an offset and the base of the
exponential, the narrowing of P_ij, conversions of layout, and the instruction that multiplies matrices. ``LIBERTIES``
names all other differences.
"""

import ast
from functools import cache
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
NAMES = [line.split(" = ")[0] for line in HEART.splitlines()]

LIBERTIES = {  # file and function: {name that one of the six lines assigns: the lines in its place}
    # dropout acts on the weights that multiply V
    "packed_texts_and_dropout.update_with_dropout": {"O_i": ["O_i = alpha[:, None] * O_i + Z_ij * P_ij @ V_j"]},
    # one row: a product on the vector units
    "combine.update": {"O_i": ["O_i = alpha[:, None] * O_i + rowsum(trans(P_ij) * V_j)[None, :]"]},
    # a softmax without values
    "first_triton_kernel.softmax_online_kernel": {"O_i": []},
    # an asynchronous product, and the wait for it
    "latent.consume": {"O_i": ["O_i = alpha[:, None] * O_i", "O_i = O_i + P_ij @ V_j", "O_i = warpgroup_mma_wait(0)"]},
    # the product with V comes a step later
    "two_consumers.weights": {"O_i": []},
    "persistent.weights": {"O_i": []},
    # weights are rounded to 8 bits, and V has a scale
    "eight_bits.update": {"O_i": ["O_i = scale * product(alpha[:, None] * O_i / scale, ROUND[kind](P_ij), V_j)"]},
    # the maximum is raised only by more than a threshold
    "next_machine.lazy_update": {
        "m_new": [HEART.splitlines()[0], "m_new = where(m_new > m_i + threshold * LN_2, m_new, m_i)"]
    },
}

LIBRARIES = {"np", "numpy", "torch", "tl", "gl", "math"}
ROWS = {"max": "rowmax", "amax": "rowmax", "sum": "rowsum"}
SAME = {"convert_layout", "along_rows", "operand", "to", "astype"}  # the first argument, in another form
PRODUCTS = {"dot", "warpgroup_mma", "mma_v2"}  # of a, b and an accumulator
ASIDE = {"scale_log2", "factor", "unit", "rest", "offset", "raised"}  # operands that _Plain removes


class _Plain(ast.NodeTransformer):
    """Rewrite an expression in the words of ``HEART``."""

    def visit_Call(self, node):
        function, args = node.func, [self.visit(arg) for arg in node.args]
        if isinstance(function, ast.Subscript):  # a function from a table: ROUND[kind]
            return ast.Call(function, args, [])
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
        if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Name) and node.right.id in ASIDE:
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


def target(statement):
    """Return the name that a statement assigns, None if it assigns none."""
    return getattr(statement.targets[0], "id", None) if isinstance(statement, ast.Assign) else None


def hearts(source):
    """Yield each function with a heart, and its statements that assign one of the six names, in the words of HEART."""
    functions = [it for it in ast.walk(ast.parse(source)) if isinstance(it, ast.FunctionDef)]
    blocks = ((it.name, node.body) for it in functions for node in ast.walk(it) if hasattr(node, "body"))
    for name, block in blocks:
        if isinstance(block, list) and {"m_new", "m_safe", "alpha"} <= {target(statement) for statement in block}:
            statements = [_Plain().visit(it) for it in block if target(it) in NAMES]
            lines = [ast.unparse(ast.fix_missing_locations(it)) for it in statements]
            yield name, [line for line in lines if len(set(line.split(" = "))) > 1]  # not P_ij = P_ij: a narrowing


def expected(name):
    """Return the lines of the heart of a function, with its liberties."""
    lines = zip(NAMES, HEART.splitlines(), strict=True)
    return [it for key, line in lines for it in LIBERTIES.get(name, {}).get(key, [line])]


@cache
def sources():
    """Return the text of each module with a heart, by its path."""
    texts = {path.relative_to(FLASHLAB).as_posix(): path.read_text() for path in sorted(FLASHLAB.rglob("*.py"))}
    return {path: text for path, text in texts.items() if all(name in text for name in ("m_new", "m_safe", "alpha"))}


@cache
def every_heart():
    """Return the path, the name and the lines of every heart."""
    texts = sources().items()
    return [(path, f"{Path(path).stem}.{name}", lines) for path, text in texts for name, lines in hearts(text)]


def test_the_heart_is_one():
    assert {name: lines for _, name, lines in every_heart()} == {name: expected(name) for _, name, _ in every_heart()}


def test_the_hearts_of_every_language_are_found():
    names = {name for _, name, _ in every_heart()}
    assert names >= LIBERTIES.keys()
    assert {"online_softmax.update", "plain.update", "one_head.update", "forward.update", "split.update"} <= names
    assert any(path.startswith("kernels/hopper/") for path, _, _ in every_heart())


CHANGES = {
    "alpha * l_i + ": "l_i + ",
    "m_i - m_safe": "m_safe - m_i",
    "m_safe[:, None]": "m_safe[None, :]",
    "m_new == ": "m_i == ",
    "alpha[:, None] * O_i": "alpha * O_i",
}


def function(text, name):
    """Return the source of a function of a module."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_source_segment(text, next(nodes))


@pytest.mark.parametrize("old", CHANGES)
def test_a_changed_line_is_noticed(old):
    """A heart that lacks the old text is left out: some have no O_i, some another form of it."""
    unnoticed = {
        name: dict(hearts(text.replace(old, CHANGES[old])))[name.split(".")[1]] == expected(name)
        for path, name, _ in every_heart()
        if old in function(text := sources()[path], name.split(".")[1])
    }
    assert unnoticed and not any(unnoticed.values()), unnoticed


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
    assert dict(hearts(source)) == {"update": HEART.splitlines()}
    assert dict(hearts(source.replace("alpha * l_i", "l_i"))) != {"update": HEART.splitlines()}
