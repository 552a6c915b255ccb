"""Colours that the colour-blind tell apart, for light and for dark; a figure names them as `mpi` or `comm`.

Engines have the colours of Okabe and Ito (2008), parts of a step those of Paul Tol's high- and medium-contrast schemes,
which also stay apart in grey print.
"""

BARS = (
    *("work", "compute", "serial", "comm", "wait", "slow-rank", "straggler", "uneven", "others", "data"),
    *("small-batch", "oversubscription", "memory", "unclear", "servers", "unattributed"),
)
"""Colours of bars; a text on a bar has the colour `on-` and its name."""

LIGHT = {
    "text": "#1c2024",
    "muted": "#5b6470",
    "grid": "#e3e6ea",
    "panel": "#ffffff",
    "bad": "#a81f2d",
    "serial-engine": "#4d4d4d",
    "threads": "#b86f00",
    "mpi": "#0072b2",
    "hybrid": "#00795a",
    "torch": "#c44601",
    "ray": "#a8468a",
    "other": "#6b5b95",
    "work": "#004488",
    "compute": "#004488",
    "serial": "#ddaa33",
    "comm": "#bb5566",
    "wait": "#a9aeb4",
    "slow-rank": "#882255",
    "straggler": "#a9aeb4",
    "uneven": "#999933",
    "others": "#661100",
    "data": "#117733",
    "small-batch": "#44aa99",
    "oversubscription": "#222222",
    "memory": "#aa77cc",
    "unclear": "#88ccee",
    "servers": "#999933",
    "unattributed": "#dddddd",
    **dict.fromkeys((f"on-{part}" for part in BARS), "#12151a"),
    **dict.fromkeys(("on-work", "on-compute", "on-comm", "on-oversubscription"), "#ffffff"),
    **dict.fromkeys(("on-slow-rank", "on-others", "on-data"), "#ffffff"),
}
"""Colours on white."""

DARK = {
    "text": "#e8eaed",
    "muted": "#a3abb5",
    "grid": "#343a43",
    "panel": "#1b1f25",
    "bad": "#ff8b8b",
    "serial-engine": "#c8ccd1",
    "threads": "#e69f00",
    "mpi": "#56b4e9",
    "hybrid": "#2bc79a",
    "torch": "#ff8f50",
    "ray": "#e59ac6",
    "other": "#b5a7e0",
    "work": "#6699cc",
    "compute": "#6699cc",
    "serial": "#eecc66",
    "comm": "#ee99aa",
    "wait": "#7d858f",
    "slow-rank": "#dd77aa",
    "straggler": "#7d858f",
    "uneven": "#bbbb55",
    "others": "#cc8866",
    "data": "#55aa66",
    "small-batch": "#66ccbb",
    "oversubscription": "#f2f2f2",
    "memory": "#c7a3e6",
    "unclear": "#99ddff",
    "servers": "#bbbb55",
    "unattributed": "#b0a99f",
    **dict.fromkeys((f"on-{part}" for part in BARS), "#12151a"),
}
"""Colours on near black."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
SERIES = ("mpi", "threads", "hybrid", "ray", "torch", "other", "serial-engine")
"""Colours of series that are no engines, such as strategies."""


def engine_colour(engine: str) -> str:
    """Return the name of an engine's colour, the same in all figures."""
    name = "serial-engine" if engine == "serial" else engine
    return name if name in LIGHT else "other"


def series_colour(number: int) -> str:
    """Return the name of the colour of the series with this index; engines have colours of their own."""
    return SERIES[number % len(SERIES)]
