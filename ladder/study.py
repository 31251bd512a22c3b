"""The layout of a study, the folder that holds one ladder and everything that came of it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Study:
    """Paths within a study folder. Nothing is created by asking for a path."""

    root: Path

    @property
    def ladder(self) -> Path:
        """The ladder."""
        return self.root / "ladder.json"

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.root / "runs.parquet"

    def run(self, run_id: str) -> Path:
        """Folder of one run: spec.json, metrics.jsonl, record.json, checkpoints."""
        return self.root / "runs" / run_id

    def fit(self, name: str) -> Path:
        """A fit result."""
        return self.root / "fits" / f"{name}.json"

    def draft(self, name: str) -> Path:
        """A forecast that is not registered yet."""
        return self.root / "drafts" / f"{name}.json"

    @property
    def ledger(self) -> Path:
        """The hash-chained log of everything registered."""
        return self.root / "forecasts" / "log.jsonl"

    @property
    def registered(self) -> Path:
        """Folder of registered forecasts, never edited."""
        return self.root / "forecasts" / "registered"

    def check(self, forecast_id: str) -> Path:
        """The resolution of a forecast."""
        return self.root / "forecasts" / "checks" / f"{forecast_id}.json"

    def report(self, name: str) -> Path:
        """Folder of a report: index.html, report.md, figures, manifest.json."""
        return self.root / "reports" / name
