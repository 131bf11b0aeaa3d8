"""A figure in a notebook: its output is HTML that moves by itself; a widget that is never displayed asks the kernel.

Only this file imports anywidget. The saved output needs no kernel and no widget state: when it is opened again, the
figure moves through the numbers that were saved with it. The environment variable FLASHLAB_FIGURES=still leaves only
the picture and its words, which a notebook stores in any case; FLASHLAB_FIGURES=whole includes the numbers of all
controls, for Google Colab, where an output cannot ask its kernel.
"""

import os
import uuid
from typing import Any

import anywidget
import traitlets

from figures import page
from figures.figure import key, numbers

# JupyterLab scrolls its panel, and no output inside. So the controls stay at the top while a figure is scrolled.
OUTPUT = (
    "<style>.jp-Cell:not(.jp-mod-outputsScrolled) :is(.jp-OutputArea, .jp-OutputArea-child, .jp-RenderedHTML)"
    ":has([data-figure]) { overflow: visible }</style>\n"
)


class Channel(anywidget.AnyWidget):
    """The connection between one figure on the page and this kernel."""

    _esm = """
    export default {
      initialize({ model }) {
        const hub = (globalThis.flashlab ??= { figures: {}, channels: {} });
        const id = model.get("figure");
        const channel = { send: (content) => model.send(content) };
        model.on("msg:custom", (content) => (hub.figures[id] ?? []).forEach((figure) => figure.receive(content)));
        hub.channels[id] = channel;
        (hub.figures[id] ?? []).forEach((figure) => figure.connect(channel));
      },
    };
    """
    figure = traitlets.Unicode().tag(sync=True)


class Explorer:
    """A figure with its controls.

    figure: whatever has the names that a module of ``figures`` has; state: the first one, None for its defaults.
    """

    def __init__(self, figure: Any, state: Any = None) -> None:
        self.figure = figure
        self.state = figure.State() if state is None else state

    def answer(self, fields: dict) -> dict:
        """Return the numbers of the state with these fields, as they are sent to the page; an error in words."""
        try:
            state = self.figure.State(**fields)
            return {"key": key(self.figure, state), **numbers(self.figure, state)}
        except Exception as error:  # any error: the page waits for an answer
            return {"error": f"{type(error).__name__}: {error}"}

    def __repr__(self) -> str:
        return self.figure.describe(self.state)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        words = repr(self)
        kind = os.environ.get("FLASHLAB_FIGURES")
        if kind == "still":
            return {"text/plain": words, "text/html": page.captioned(page.still(self.figure, self.state), words)}
        id = f"flashlab-{uuid.uuid4().hex[:12]}"
        traces = page.shipped(self.figure, page.AWAITED) if kind == "whole" else {}
        traces |= {key(self.figure, self.state): numbers(self.figure, self.state)}
        self._channel = Channel(figure=id)  # kept here: garbage collection of a widget closes its connection
        self._channel.on_msg(lambda channel, content, _: channel.send(self.answer(content["state"])))
        return {"text/plain": words, "text/html": OUTPUT + page.fragment(self.figure, self.state, traces, id=id)}
