"""The site that the tests open: ``site(folder)``."""

import subprocess
import sys

from docs import lessons
from tests.browser.lab import ROOT

LEFT = ROOT / "_site"  # by `make site`


def site(folder):
    """Return the folder of the site: ``_site/``, or, if that may be stale, ``folder``, in which it is built."""
    if is_of_this_checkout(LEFT):
        return LEFT
    # Sphinx takes its warnings for errors: missing links, unknown headings.
    subprocess.run([sys.executable, "-m", "docs.build", folder], cwd=ROOT, check=True)
    return folder


def is_of_this_checkout(folder):
    """Return whether it was built from this commit, which its copies for Colab name, and from the files as they are.

    No file that git lists may be missing or younger than the site. These tests are no part of it.
    """
    copy = folder / "colab" / lessons.names()[0]
    if not copy.exists() or lessons.this_commit() not in copy.read_text(encoding="utf-8"):
        return False
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", ":!tests/browser"]
    files = subprocess.check_output(command, cwd=ROOT, text=True).rstrip("\0").split("\0")
    built = (folder / "index.html").stat().st_mtime
    return all((ROOT / file).exists() and (ROOT / file).stat().st_mtime < built for file in files)
