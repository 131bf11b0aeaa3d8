"""The figures of the course. Each takes its numbers from flashlab and is a function of a frozen ``State``.

A figure module holds

- ``State``: a frozen dataclass of all that the picture depends on; its defaults make the static picture;
- ``trace(state)``: the numbers, by running flashlab;
- ``build(fig)``: the axes, labels and empty artists, as a dict of artists (or lists of artists) by name;
- ``update(artists, state)``: everything in those artists that depends on the state, set every time;
- ``describe(state)``: the picture in a sentence of words and numbers: caption, alt text, and what nbval compares;
- ``explore()``: the picture with its controls.

The same state gives the same picture, whatever was drawn before. The artists that ``build`` returns are all that
changes from state to state; whatever else is on the figure is its frame (a change of an axis' limits redraws it).
"""
