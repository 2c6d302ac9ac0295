"""A picture of the page of a bundle, as a browser shows it: docs/pictures/report.png.

    python benchmarks/report_picture.py m.collage docs/pictures/report.png [--click NODE]

Needs Debian's chromium and chromium-driver, and `pip install collage-page selenium`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_core.report.dataflow import dataflow_json
from collage_core.report.page import page
from collage_core.runtime import read

_SIZE = (1400, 900)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--click", metavar="NODE", help="the operator that is clicked")
    args = parser.parse_args()
    bundle = read(args.bundle)
    report = {**bundle.report, "dataflow": dataflow_json(bundle.graph, bundle.placement, bundle.report)}
    args.picture.write_bytes(_picture(report, args.click))
    print(f"{args.picture}: {args.picture.stat().st_size / 1000:.0f} KB")


def _picture(report: Mapping[str, Any], clicked: str | None) -> bytes:
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit("needs chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory() as folder, Chrome(options, Service(driver)) as browser:
        browser.set_window_size(*_SIZE)
        file = Path(folder, "report.html")
        file.write_text(page(report), encoding="utf-8")
        browser.get(file.as_uri())
        if clicked is not None:
            browser.find_element(By.ID, "search").send_keys(clicked, Keys.ENTER)
            browser.execute_async_script("setTimeout(arguments[0], 1000)")  # it moves there
        picture: bytes = browser.get_screenshot_as_png()
        return picture


if __name__ == "__main__":
    main()
