"""A figure with its controls: the only file that knows of ipywidgets.

``explore`` wires the fields of a figure's state to controls. Where a kernel runs, the output is live; elsewhere (the
web, a converted page) the same output shows the picture of its first state. In words it is what ``describe`` says.
"""

import html
from dataclasses import replace

import ipywidgets as W

from figures import style
from figures.canvas import Canvas
from figures.figure import Choose, Scrub, Slide, Toggle


def explore(figure, state=None) -> "Explorer":
    """Show a figure with a control for each field in its ``CONTROLS``.

    figure: whatever has the names that a module of ``figures`` has.
    """
    state = figure.State() if state is None else state
    canvas = Canvas(style.figure(*figure.SIZE), figure.build, figure.update)
    return Explorer(canvas, figure.describe, state, figure.CONTROLS)


class Explorer(W.VBox):
    """A picture, its caption, and the controls that change the state behind both."""

    def __init__(self, canvas, describe, state, controls):
        self._canvas, self._describe, self.state = canvas, describe, state
        self._scrubs = {field: control for field, control in controls.items() if isinstance(control, Scrub)}
        self._picture = W.Image(format="jpeg", layout=W.Layout(max_width="100%"))
        self._caption = W.HTML()
        self._picture.add_class("flashlab-picture")
        self._caption.add_class("flashlab-caption")
        self.widgets = {field: self._control(field, control) for field, control in controls.items()}
        rows = [self._row(field, control) for field, control in controls.items()]
        super().__init__([W.HBox(rows, layout=W.Layout(flex_flow="row wrap")), self._picture, self._caption])
        self.add_class("flashlab-figure")
        self._show()
        self._first = canvas.mime(state), describe(state)

    def _control(self, field, control):
        value = getattr(self.state, field)
        label = control.label or field
        wide = {"style": {"description_width": "initial"}, "layout": W.Layout(width="auto", min_width="19em")}
        match control:
            case Scrub():
                widget = W.IntSlider(value, 0, control.steps(self.state), description=label, **wide)
            case Slide():
                widget = W.SelectionSlider(options=_options(control), value=value, description=label, **wide)
            case Choose():
                widget = W.Dropdown(options=_options(control), value=value, description=label, **wide)
            case Toggle():
                widget = W.Checkbox(value, description=label, indent=False, layout=W.Layout(width="auto"))
        widget.add_class(f"flashlab-control-{field}")
        widget.observe(lambda change: self.set(**{field: change.new}), "value")
        return widget

    def _row(self, field, control):
        slider = self.widgets[field]
        if not isinstance(control, Scrub):
            return slider
        play = W.Play(min=0, max=slider.max, value=slider.value, interval=700, show_repeat=False)
        W.jslink((play, "value"), (slider, "value"))
        W.jslink((slider, "max"), (play, "max"))
        back, step = self._step(slider, -1), self._step(slider, +1)
        return W.HBox([play, back, step, slider])

    def _step(self, slider, by):
        button = W.Button(
            description="◀" if by < 0 else "▶", tooltip="back" if by < 0 else "step", layout=W.Layout(width="2.5em")
        )
        button.add_class(f"flashlab-{'back' if by < 0 else 'step'}")

        def go(_):
            slider.value = min(max(slider.value + by, slider.min), slider.max)

        button.on_click(go)
        return button

    def set(self, **fields) -> None:
        """Move to the state with these fields, and show it."""
        self.state = replace(self.state, **fields)
        for field, scrub in self._scrubs.items():
            steps = scrub.steps(self.state)
            if getattr(self.state, field) > steps:
                self.state = replace(self.state, **{field: steps})
            self.widgets[field].max = steps
        for field, widget in self.widgets.items():
            widget.value = getattr(self.state, field)
        self._show()

    def _show(self):
        self._picture.value = self._canvas.jpeg(self.state)
        words = html.escape(self._describe(self.state))
        self._caption.value = f'<span aria-live="polite" style="line-height: 1.4">{words}</span>'

    def __repr__(self):
        return self._first[1]

    def _repr_mimebundle_(self, **kwargs):
        live = super()._repr_mimebundle_(**kwargs)
        picture, words = self._first
        return {**live, "image/png": picture, "text/plain": words}


def _options(control):
    return [(str(value), value) for value in control.values]
