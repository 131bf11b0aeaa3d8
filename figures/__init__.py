"""The figures of the course. Each takes its numbers from flashlab and is a function of a frozen ``State``.

A figure module holds

- ``State``: a frozen dataclass of all that the picture depends on; its defaults make the still picture;
- ``CONTROLS``: for each field that a reader may change, a ``Scrub``, ``Slide``, ``Choose`` or ``Toggle``;
- ``SIZE``: width and height of the picture in inches;
- ``trace(state)``: the numbers, by running flashlab;
- ``describe(state)``: the picture in words and numbers: caption, alt text, and what nbval compares;
- ``build(fig)``: the axes, labels and empty artists, as a dict of artists (or lists of artists) by name;
- ``update(artists, state)``: everything in those artists that depends on the state, set every time;
- ``explore = explorer(__name__)``: the picture with its controls.

The same state gives the same picture, whatever was drawn before. ``states(figure)`` enumerates what a reader can reach.
"""

from figures.figure import states, steps

__all__ = ["states", "steps"]
