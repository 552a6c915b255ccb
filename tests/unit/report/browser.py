"""A real browser for tests: headless Chromium without a network, and what it shows of a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 3}

PLOTS = """() => [...document.querySelectorAll(".plot")].map(place => {
    const drawing = place.querySelector("svg.main-svg");
    const box = drawing ? drawing.getBoundingClientRect() : {width: 0, height: 0};
    const marks = place.querySelectorAll(".scatterlayer .trace, .barlayer .trace").length;
    return {id: place.id, drawn: place.classList.contains("js-plotly-plot"), marks, width: box.width,
            height: box.height, data: (place.data || []).map(({name, x, y, visible}) => ({name, x, y, visible}))};
})"""

TABLES = """() => {
    const texts = row => [...row.cells].map(cell => cell.innerText.replace(/\\s+/g, " ").trim());
    return Object.fromEntries([...document.querySelectorAll("table")].map(table => [table.caption.innerText,
        {headings: texts(table.tHead.rows[0]), rows: [...table.tBodies[0].rows].map(texts)}]));
}"""

TOO_FAINT = """() => {
    const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll("body *:not(script):not(style):not(noscript)")) {
        const text = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent.trim()).join("");
        const shown = element.checkVisibility({visibilityProperty: true});
        if (!text || !shown || element.classList.contains("bartext")) continue;
        const style = getComputedStyle(element);
        const colour = parse(element.closest("svg") ? style.fill : style.color);
        const [a, b] = [luminance(colour), luminance(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found;
}"""

WIDE = """() => ({page: document.documentElement.scrollWidth, window: document.documentElement.clientWidth,
    out: [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, nav, .skip, svg"))
        .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .map(e => `${e.tagName} ${e.className}`)})"""

SHOWN = """query => [...document.querySelectorAll(query)].filter(e => e.checkVisibility())
    .map(e => e.outerHTML.slice(0, 80))"""


@dataclass
class Look:
    """What was seen of a page in one way of looking at it."""

    plots: list[dict[str, Any]]
    wide: dict[str, Any]
    too_faint: list[str]
    colours: dict[str, str] = field(default_factory=dict)


@dataclass
class Browser:
    """A browser that has no network, and all that went wrong in it or was asked for."""

    chromium: Any
    trouble: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, file: Path, **options: Any) -> Any:
        """Open a page; what it copies is kept in `window.copied`."""
        page = self.chromium.new_context(offline=True, **options).new_page()
        page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.add_init_script(
            "window.copied = []; Object.defineProperty(navigator, 'clipboard',"
            "{value: {writeText: async text => window.copied.push(text)}})"
        )
        page.goto(file.as_uri())
        return page


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser, and close it in the end; where none is installed, the tests are skipped."""
    executable = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield Browser(chromium)
        chromium.close()


def look(page: Any, colours: str = "") -> Look:
    """Look at a page once it is drawn; `colours` is a program that returns some of its colours."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    painted = page.evaluate(colours) if colours else {}
    return Look(page.evaluate(PLOTS), page.evaluate(WIDE), page.evaluate(TOO_FAINT), painted)
