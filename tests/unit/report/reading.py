"""What a page holds, as tests read it: its elements, texts and scripts, and its figures as they are drawn."""

import json
from html.parser import HTMLParser
from typing import Any

from manyhands.report.drawing import Figure
from manyhands.report.palette import DARK
from manyhands.report.plotly_drawing import as_plot

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Reads the elements of a page, the texts in them, and what is in its scripts."""

    VOID = ("meta", "link", "br", "input", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.texts: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script":
            self.scripts[attributes.get("id") or f"script {len(self.scripts)}"] = data
        elif tag != "style":
            self.texts.append(data)

    def count(self, tag: str) -> int:
        """Return how many elements of a kind there are."""
        return sum(name == tag for name, _ in self.elements)


def drawn(figure: Figure, number: int = 0) -> dict[str, Any]:
    """Return a figure as the page draws it: with one of its views, in colours."""
    return painted(json.loads(json.dumps(as_plot(figure.views[number]))))  # type: ignore[no-any-return]


def painted(thing: Any) -> Any:
    """Put colours in the place of their names, as the page does."""
    if isinstance(thing, dict):
        return {key: painted(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [painted(value) for value in thing]
    return DARK.get(thing[1:], thing) if isinstance(thing, str) and thing.startswith("@") else thing
