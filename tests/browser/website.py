"""The site that the tests open: ``site(folder)``."""

import subprocess
import sys

from docs import lessons
from tests.browser.lab import ROOT

BUILT = ROOT / "_site"  # the folder of `make site`


def site(folder):
    """Return ``_site/`` if it is up to date; otherwise build the site in ``folder`` and return that."""
    if is_of_this_checkout(BUILT):
        return BUILT
    # The build fails at any warning of Sphinx: missing links, unknown headings.
    subprocess.run([sys.executable, "-m", "docs.build", folder], cwd=ROOT, check=True)
    return folder


def is_of_this_checkout(folder):
    """Return whether a site was built from this commit and from the current files.

    Its copies for Colab name their commit. No file that git lists may be missing or younger than the site, except in
    tests/browser, of which the site has nothing.
    """
    copy = folder / "colab" / lessons.names()[0]
    if not copy.exists() or lessons.this_commit() not in copy.read_text(encoding="utf-8"):
        return False
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", ":!tests/browser"]
    files = subprocess.check_output(command, cwd=ROOT, text=True).rstrip("\0").split("\0")
    built = (folder / "index.html").stat().st_mtime
    return all((ROOT / file).exists() and (ROOT / file).stat().st_mtime < built for file in files)
