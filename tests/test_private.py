"""``docs/private.md`` lists each private name of other projects that the wings in ``WINGS`` use."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WINGS = "bench", "distributed", "kernels", "machine", "models", "reference"
PUBLIC = {"_asdict", "_fields", "_make", "_replace"}  # of named tuples, which are documented


def private_names():
    """Yield (name, file): attributes and imports with a leading underscore that the package does not define itself."""
    trees = {
        path.relative_to(ROOT).as_posix(): [*ast.walk(ast.parse(path.read_text()))]
        for wing in WINGS
        for path in (ROOT / "flashlab" / wing).rglob("*.py")
    }
    own = set(PUBLIC)
    for node in (node for nodes in trees.values() for node in nodes):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        if isinstance(getattr(node, "ctx", None), ast.Store):
            own.add(getattr(node, "attr", getattr(node, "id", None)))
    for path, nodes in trees.items():
        for node in nodes:
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                dotted = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                names = ".".join(dotted).split(".")
            yield from ((name, path) for name in names if re.match("_[a-zA-Z]", name) and name not in own)


def test_the_page_lists_what_the_code_uses():
    listed = re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", (ROOT / "docs/private.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed)) and set(listed) == set(private_names())
