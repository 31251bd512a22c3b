"""Building a report: its files made in full beside the old ones, then put in their place."""

import re
import shutil
import tempfile
from pathlib import Path

from ladder.errors import InputError
from ladder.records import canonical_json, sha256_bytes
from ladder.study import Study
from reports.assemble import context_of
from reports.context import ReportContext
from reports.render import render_html, render_markdown
from reports.sources import read_sources

MANIFEST_SCHEMA = "report/1"


def build_report(study: Study, forecast_id: str, out: Path | None = None) -> Path:
    """Write the report of a registered forecast and return the path of its page, ``index.html``.

    In `out` (by default reports/<id>/ of the study): index.html, report.md, figures/ with an SVG and a CSV each, and
    manifest.json with the digest of every input and output. The same records give the same bytes. A folder that holds
    something else than a report is refused.

    Raises InputError when the forecast is unknown, a record is missing or damaged, or an asset is missing;
    VerificationError when the registry does not verify.
    """
    sources = read_sources(study, forecast_id)
    report = context_of(sources)
    files = report_files(report)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "forecast_id": report.forecast_id,
        "inputs": [{"name": file.name, "sha256": file.sha256} for file in sources.files],
        "outputs": [{"name": name, "sha256": sha256_bytes(data)} for name, data in sorted(files.items())],
    }
    files["manifest.json"] = canonical_json(manifest)
    target = out or study.report(report.forecast_id)
    replace_folder(target, files)
    return target / "index.html"


def report_files(report: ReportContext) -> dict[str, bytes]:
    """Return the files of a report by name; raises InputError when a page names a figure that is not among them."""
    files = {"index.html": render_html(report), "report.md": render_markdown(report)}
    for figure in report.figures.values():
        files[f"figures/{figure.key}.svg"] = b'<?xml version="1.0" encoding="utf-8"?>\n' + figure.svg.encode()
        files[f"figures/{figure.key}.csv"] = figure.csv
    wanted = re.findall(r"\]\((figures/[^)]+)\)", files["report.md"].decode())
    if missing := [name for name in wanted if name not in files]:
        raise InputError(f"the report names {missing[0]}, which was not made; the templates and the figures disagree.")
    return files


def replace_folder(target: Path, files: dict[str, bytes]) -> None:
    """Make `target` hold exactly `files`; a reader finds the old folder or the new one, never a part.

    Raises InputError when the folder exists and holds no report.
    """
    if target.exists() and not (target / "manifest.json").is_file() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is no report; name another folder with --out.")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        for name, data in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        fresh.chmod(0o755)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
