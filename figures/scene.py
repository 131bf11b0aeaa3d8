"""A chart's drawing as data: what matplotlib paints, as nodes of SVG in the colours of the page's theme."""

from typing import Any

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_hex
from matplotlib.path import Path

from figures import style

# The colours of charts, by the names of their variables in theme.css, which has a light and a dark value for each.
TOKENS = {
    name: getattr(style, name.upper()) for name in ("ink", "pale", "paper", "standard", "slow", "fast", "brown", "pink")
}
TOKENS |= {name: getattr(style, name) for name in "QKVSPO"}
VARIABLES = {
    **{
        to_hex(style.written(color)): f"color-mix(in srgb, var(--{name}), var(--ink))" for name, color in TOKENS.items()
    },
    **{color: f"var(--{name})" for name, color in TOKENS.items()},
    to_hex("black"): "var(--ink)",
}
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


class Recorder(RendererBase):
    """A renderer that records a drawing as ``nodes``: [tag, attributes], and the words of a text as a third."""

    def __init__(self, agg: Any) -> None:
        super().__init__()
        self.nodes: list[list] = []
        self._agg = agg

    def points_to_pixels(self, points: Any) -> Any:
        """Return a length in the pixels of the picture."""
        return self._agg.points_to_pixels(points)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        """Return the size of words in the picture, by which matplotlib places them."""
        return self._agg.get_text_width_height_descent(s, prop, ismath)

    def get_canvas_width_height(self) -> tuple[float, float]:
        """Return the size of the picture."""
        return self._agg.get_canvas_width_height()

    def draw_path(self, gc: Any, path: Path, transform: Any, rgbFace: Any = None) -> None:
        """Record a path, unless it is empty, has neither fill nor stroke, or is filled with the background's colour."""
        d = "".join(
            LETTERS[code] + " ".join(f"{value:g}" for value in self._placed(points))
            for points, code in path.iter_segments(transform, simplify=True)
        )
        fill = "none" if rgbFace is None else colored(rgbFace)
        stroke = colored(gc.get_rgb()) if gc.get_linewidth() else "none"
        if d == "" or fill == "var(--paper)" or (fill == stroke == "none"):
            return
        attributes = {"d": d, "fill": fill, "stroke": stroke, "opacity": round(gc.get_alpha(), 2)}
        offset, dashes = gc.get_dashes()
        if stroke != "none":
            attributes["stroke-width"] = round(self.points_to_pixels(gc.get_linewidth()), 1)
            if dashes is not None:
                attributes["stroke-dasharray"] = " ".join(f"{self.points_to_pixels(it):.3g}" for it in dashes)
        self.nodes.append(["path", {name: it for name, it in attributes.items() if (name, it) != ("opacity", 1)}])

    def draw_markers(
        self, gc: Any, marker_path: Path, marker_trans: Any, path: Path, trans: Any, rgbFace: Any = None
    ) -> None:
        """Record dots as circles, all in one path, and other markers, such as ticks, one by one."""
        if Path.CURVE4 not in (marker_path.codes if marker_path.codes is not None else ()):
            super().draw_markers(gc, marker_path, marker_trans, path, trans, rgbFace)
            return
        r = round(marker_path.get_extents(marker_trans).width / 2, 1)
        circle = f"a{r} {r} 0 1 0 {2 * r:g} 0a{r} {r} 0 1 0 {-2 * r:g} 0"
        at = np.reshape(self._placed(trans.transform(path.vertices)), (-1, 2)) - (r, 0)
        d = "".join(f"M{x:g} {y:g}{circle}" for x, y in at)
        self.nodes.append(["path", {"d": d, "fill": colored(rgbFace), "opacity": round(gc.get_alpha(), 2)}])

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        """Record words, anchored where the chart aligns them: in the page's typeface they have another width."""
        width = self.get_text_width_height_descent(s, prop, ismath)[0]
        share, anchor = {"left": (0, "start"), "center": (0.5, "middle"), "right": (1, "end")}[mtext.get_ha()]
        turn = np.radians(angle)
        x, y = round(x + share * width * np.cos(turn), 1), round(y - share * width * np.sin(turn), 1)
        size = round(self.points_to_pixels(prop.get_size_in_points()), 1)
        attributes = {"x": x, "y": y, "font-size": size, "fill": colored(gc.get_rgb())}
        if share:
            attributes["text-anchor"] = anchor
        if prop.get_weight() == "bold":
            attributes["font-weight"] = "bold"
        if prop.get_style() == "italic":
            attributes["font-style"] = "italic"
        if angle:
            attributes["transform"] = f"rotate({-angle:g} {x} {y})"
        self.nodes.append(["text", attributes, s])

    def draw_image(self, gc: Any, x: float, y: float, im: Any, transform: Any = None) -> None:
        """Record nothing: all images are heat maps, and the page draws their cells from ``charts.Mark``."""

    def _placed(self, points: Any) -> np.ndarray:
        """Return points in pixels from the upper left corner, as SVG counts them."""
        height = self.get_canvas_width_height()[1]
        return np.round(np.ravel(np.reshape(points, (-1, 2)) * (1, -1) + (0, height)), 1)


def colored(color: Any) -> str:
    """Return the theme's variable for a colour; a colour that is not one of the course's stays as it is."""
    return VARIABLES.get(to_hex(color), to_hex(color))
