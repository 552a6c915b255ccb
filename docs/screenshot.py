"""Take a picture of a report's first screen: python docs/screenshot.py scales/ID/report.html docs/report.png"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def main() -> None:
    """Open the report in a headless browser and keep what it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    parser.add_argument("--width", type=int, default=1120, help="width of the window")
    parser.add_argument("--height", type=int, default=1060, help="height of the window")
    parser.add_argument("--section", default="", help="a section to begin with, such as why or timeline")
    asked = parser.parse_args()
    executable = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if executable is None or not asked.report.is_file():
        sys.exit("no browser is installed" if executable is None else f"there is no '{asked.report}'")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": asked.width, "height": asked.height},
            color_scheme="dark" if asked.dark else "light",
            device_scale_factor=2,
        )
        page.goto(asked.report.resolve().as_uri() + (f"#{asked.section}" if asked.section else ""))
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.screenshot(path=asked.picture)
        browser.close()


if __name__ == "__main__":
    main()
