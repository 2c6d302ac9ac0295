"""A picture of the page of a bundle, as a browser shows it.

    python benchmarks/report_picture.py m.collage docs/pictures/report.png [--click NODE]

Needs Debian's chromium and chromium-driver, and `pip install collage-page selenium`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

_SIZE = (1400, 900)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--click", metavar="NODE", help="the operator that is clicked")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        command = ["collage", "explain", args.bundle, "--html", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        args.picture.write_bytes(_picture(page, args.click))
    print(f"{args.picture}: {args.picture.stat().st_size / 1000:.0f} KB")


def _picture(page: Path, clicked: str | None) -> bytes:
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
    with Chrome(options, Service(driver)) as browser:
        browser.set_window_size(*_SIZE)
        browser.get(page.as_uri())
        if clicked is not None:
            browser.find_element(By.ID, "search").send_keys(clicked, Keys.ENTER)
            browser.execute_async_script("setTimeout(arguments[0], 1000)")  # it moves there
        picture: bytes = browser.get_screenshot_as_png()
        return picture


if __name__ == "__main__":
    main()
