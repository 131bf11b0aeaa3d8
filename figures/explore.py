"""Figures in notebooks: ``explorer`` makes the ``explore`` of a figure's module."""

import sys
from collections.abc import Callable
from typing import Any


def explorer(name: str) -> Callable:
    """Return the ``explore`` of the figure in the module of this name."""

    def explore(state: Any = None) -> Any:
        """Show the figure with its controls, in its first state unless another one is given."""
        from figures import widget  # late: tests and pages need no widgets

        return widget.Explorer(sys.modules[name], state)

    return explore
