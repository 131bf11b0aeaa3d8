"""Print the size of the tree, for people: `make size`. No test depends on it."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    texts = tracked()
    folders, languages = Counter(), Counter()
    for path, text in texts.items():
        folders[folder_of(path)] += len(text.splitlines())
        languages[f"all {path.suffix}"] += len(text.splitlines())
    for name, lines in sorted(folders.items()) + sorted(languages.items()):
        print(f"{lines:8,}  {name}")
    functions = [
        (node, path)
        for path, text in texts.items()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    for what, measure in {"lines": lines_of, "parameters": parameters_of}.items():
        node, path = max(functions, key=lambda pair: measure(pair[0]))
        print(f"{measure(node):8,}  {what} of the function with the most: {path}:{node.lineno} {node.name}")


def tracked():
    """Return the text of each tracked Python and JavaScript file, by its path."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.js"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return {Path(name): (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def folder_of(path):
    """Return the folder that counts a file, and its suffix: two levels of flashlab and tests, one of all others."""
    depth = 2 if path.parts[0] in ("flashlab", "tests") else 1
    return f"{'/'.join(path.parent.parts[:depth]) or '.'} {path.suffix}"


def lines_of(function):
    return function.end_lineno - function.lineno + 1


def parameters_of(function):
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


if __name__ == "__main__":
    main()
