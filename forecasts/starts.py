"""When the runs of each rung started and ended, by every record the study has of them."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ladder.errors import InputError
from ladder.records import read_json
from ladder.runs import RunTable, read_runs
from ladder.study import Study


@dataclass(frozen=True)
class RunTimes:
    """Recorded times of one run, UTC in the form of `utc_now`, which sorts as text.

    Attributes:
        run_id: the run.
        started_at: the earliest recorded start, None where none is recorded.
        finished_at: the earliest recorded end, None while it runs or where none is recorded.
        source: the file the start is from, or the run was found in.
    """

    run_id: str
    started_at: str | None
    finished_at: str | None
    source: str


def as_utc(text: str, where: str) -> str:
    """Return an ISO 8601 time in the form of `utc_now`; without a zone it is taken for UTC.

    >>> as_utc("2026-12-31T01:00:00+02:00", "here")
    '2026-12-30T23:00:00.000000Z'

    Raises InputError naming `where`.
    """
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where}: {text!r} is no time; write ISO 8601 in UTC, 2026-12-31T00:00:00Z.") from None
    zoned = time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time.astimezone(datetime.UTC)
    return zoned.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def runs_by_rung(study: Study) -> dict[str, tuple[RunTimes, ...]]:
    """Return by rung id the runs that have started: rows of the run table, and folders with a spec or a record.

    A run is there as soon as it has a folder with a spec.json, long before it has a row. All seeds count, registered
    or not. The earliest start wins where records differ.

    Raises InputError naming a record that cannot be read: what cannot be read is not taken for absent.
    """
    found: dict[tuple[str, str], RunTimes] = {}
    table = read_runs(study.runs) if study.runs.exists() else None
    for rung_id, seen in (*_in_table(table, str(study.runs)), *_in_folders(study)):
        key = rung_id, seen.run_id
        found[key] = _earliest(found[key], seen) if key in found else seen
    rungs: dict[str, tuple[RunTimes, ...]] = {}
    for (rung_id, _), run in sorted(found.items()):
        rungs[rung_id] = (*rungs.get(rung_id, ()), run)
    return rungs


def _earliest(a: RunTimes, b: RunTimes) -> RunTimes:
    first = b if b.started_at and (a.started_at is None or b.started_at < a.started_at) else a
    ends = [run.finished_at for run in (a, b) if run.finished_at]
    return RunTimes(a.run_id, first.started_at, min(ends, default=None), first.source)


def _in_table(table: RunTable | None, where: str) -> Iterator[tuple[str, RunTimes]]:
    if table is None:
        return
    columns = ["rung_id", "run_id", "started_at", "finished_at"]
    rows = table.frame[columns].dropna(subset="rung_id").drop_duplicates()
    for row in rows.astype("object").where(rows.notna(), None).itertuples(index=False):
        yield str(row.rung_id), _times(str(row.run_id), row.started_at, row.finished_at, f"{where}, run {row.run_id}")


def _in_folders(study: Study) -> Iterator[tuple[str, RunTimes]]:
    for path in sorted((study.root / "runs").glob("*/*.json")):
        match path.name:
            case "record.json":
                record = read_json(path, "run/1")
                rung_id = record.get("rung_id")
            case "spec.json":
                record = read_json(path, "run-spec/1")
                rung_id = record["rung"].get("rung_id") if isinstance(record.get("rung"), dict) else None
            case _:
                continue
        if not isinstance(rung_id, str):
            raise InputError(f"{path} names no rung; it is damaged. Restore it, or remove the folder and train again.")
        yield rung_id, _times(path.parent.name, record.get("started_at"), record.get("finished_at"), str(path))


def _times(run_id: str, started: Any, finished: Any, where: str) -> RunTimes:
    def utc(value: Any) -> str | None:
        return None if value is None else as_utc(str(value), where)

    return RunTimes(run_id, utc(started), utc(finished), where)
