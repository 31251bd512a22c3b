"""The page in a real browser: it shows figures and numbers and asks for nothing."""

import http.server
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from matplotlib.image import imread

from forecasts.registry import registry
from ladder.units import format_loss
from reports import build_report
from tests.reports_study import checked_study

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def browser() -> str:
    """Return the path of a Chromium, or skip."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH; on Debian, apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a built page alone in a folder, and the losses it must show."""
    folder = tmp_path_factory.mktemp("browser")
    study, forecast_id = checked_study(folder / "study")
    (entry,) = registry(study)
    assert entry.check is not None
    assert entry.check.observed is not None
    alone = folder / "alone" / "index.html"
    alone.parent.mkdir()
    shutil.copy(build_report(study, forecast_id), alone)
    low, high = entry.forecast.main.predictive.interval(0.9)
    return alone, [format_loss(loss) for loss in (entry.forecast.main.median, low, high, entry.check.observed)]


def run(browser: str, profile: Path, *arguments: str) -> str:
    command = [browser, *FLAGS, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_browser_shows_figures_and_numbers(browser: str, page: tuple[Path, list[str]], tmp_path: Path) -> None:
    dom = run(browser, tmp_path, "--dump-dom", page[0].as_uri())
    assert dom.count("<svg") == 6
    for number in page[1]:
        assert number in dom


def test_page_is_drawn(browser: str, page: tuple[Path, list[str]], tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    run(browser, tmp_path, "--window-size=1100,1600", f"--screenshot={shot}", page[0].as_uri())
    pixels = imread(shot)[..., :3]
    assert pixels.shape[:2] == (1600, 1100)
    ink = (pixels.min(axis=-1) < 0.5).mean()
    assert 0.01 < ink < 0.5


class Recorder(http.server.BaseHTTPRequestHandler):
    """A proxy that answers one page for the host report.test and nothing else, and notes what is asked for."""

    page: bytes
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = self.path == "http://report.test/"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page if found else b"")

    def do_CONNECT(self) -> None:
        self.asked.append(f"https://{self.path}")
        self.send_error(502)

    def log_message(self, format: str, *args: object) -> None:
        pass


def requests_of(content: bytes, browser: str, profile: Path) -> list[str]:
    """Return what a page of `content` asks for; every request of the browser passes through a recording proxy."""
    handler = type("Handler", (Recorder,), {"page": content, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = f"--proxy-server=127.0.0.1:{server.server_address[1]}"
        run(browser, profile, proxy, "--proxy-bypass-list=<-loopback>", "--dump-dom", "http://report.test/")
        server.shutdown()
    own = (".google.com", ".googleapis.com", ".gvt1.com", ".gstatic.com", "/favicon.ico")  # of the browser itself
    return [url for url in handler.asked if not any(mark in url for mark in own)]


def test_page_asks_for_nothing(browser: str, page: tuple[Path, list[str]], tmp_path: Path) -> None:
    assert requests_of(page[0].read_bytes(), browser, tmp_path) == ["http://report.test/"]
    # The same page with one picture from outside is found out, so the silence above means something.
    spoilt = page[0].read_bytes().replace(b"</main>", b'<img src="https://outside.test/x.png"></main>')
    assert "https://outside.test:443" in requests_of(spoilt, browser, tmp_path)
