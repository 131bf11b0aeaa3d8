"""Print the size of the tree, for people: `make size`. No test depends on it."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    texts = tracked()
    wings, languages = Counter(), Counter()
    for path, text in texts.items():
        wings[wing(path)] += len(text.splitlines())
        languages[f"all {path.suffix}"] += len(text.splitlines())
    for name, lines in sorted(wings.items()) + sorted(languages.items()):
        print(f"{lines:8,}  {name}")
    functions = [
        (node, path)
        for path, text in texts.items()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    for what, measure in {"lines": lines_of, "parameters": parameters_of}.items():
        node, path = max(functions, key=lambda found: measure(found[0]))
        print(f"{measure(node):8,}  {what} of the function with the most: {path}:{node.lineno} {node.name}")


def tracked():
    """Return the text of each tracked file of Python and JavaScript, by its path."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.js"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return {Path(name): (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def wing(path):
    """Return the folder under which a file is counted: two levels of flashlab and tests, one of all others."""
    depth = 2 if path.parts[0] in ("flashlab", "tests") else 1
    return f"{'/'.join(path.parent.parts[:depth]) or '.'} {path.suffix}"


def lines_of(function):
    return function.end_lineno - function.lineno + 1


def parameters_of(function):
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


if __name__ == "__main__":
    main()
