"""Verifying a study's forecasts: nothing entered was changed, and each came before its outcome.

What a study can show by itself, and what not, is stated in `forecasts.ledger`. The order of registration and run is
shown by clocks of the machines that wrote both; who can edit run records can move a start. Evidence from outside is
what closes that gap, and its absence is part of the report.
"""

from dataclasses import dataclass

from forecasts.ledger import read_ledger
from forecasts.record import EvidenceLevel, SeenState
from forecasts.registry import RegisteredForecast, registry
from forecasts.starts import RunTimes, runs_by_rung
from ladder.errors import InputError, VerificationError
from ladder.study import Study


@dataclass(frozen=True)
class VerifiedForecast:
    """One forecast whose digests and order hold.

    Attributes:
        forecast_id: file name without suffix.
        registered_at: time of its ledger line.
        first_start: the earliest recorded start of a run of its target, None where none is recorded.
        evidence_level: what shows that it came before the outcome.
        remark: what the order rests on, or what is missing.
        checks: number of checks entered for it.
    """

    forecast_id: str
    registered_at: str
    first_start: str | None
    evidence_level: EvidenceLevel
    remark: str
    checks: int


@dataclass(frozen=True)
class VerifyReport:
    """A study whose ledger verifies.

    Attributes:
        lines: lines of the ledger.
        head: digest of the last line, None without lines. Published, it vouches for everything above it.
        forecasts: the registered forecasts, in ledger order.
    """

    lines: int
    head: str | None
    forecasts: tuple[VerifiedForecast, ...]

    @property
    def checks(self) -> int:
        """Checks entered."""
        return sum(forecast.checks for forecast in self.forecasts)


def verify(study: Study) -> VerifyReport:
    """Return what was verified: chain, digests, canonical form, names, order of times, no file without a line.

    Raises VerificationError naming the file or line and what is wrong, also for a forecast that was registered after
    a run of its target had started without saying so; InputError for a folder that does not exist, a newer schema, or
    run records that cannot be read.
    """
    if not study.root.is_dir():
        raise InputError(f"{study.root} is no folder; name the study with --study DIR.")
    lines = read_ledger(study)
    entries = registry(study)
    _refuse_strays(study, {line.file for line in lines})
    runs = runs_by_rung(study)
    forecasts = tuple(_ordered(entry, runs.get(entry.forecast.target.rung_id, ())) for entry in entries)
    return VerifyReport(len(lines), lines[-1].digest if lines else None, forecasts)


def _refuse_strays(study: Study, entered: set[str]) -> None:
    for folder in ("registered", "checks"):
        for path in sorted((study.ledger.parent / folder).glob("*")):
            if f"{folder}/{path.name}" not in entered:
                remedy = "register the same draft again" if folder == "registered" else "move it away and check again"
                raise VerificationError(
                    f"{path} is not in the log: entering it was interrupted (then {remedy}), or lines of the log were "
                    "removed, or it was put there by hand."
                )


def _ordered(entry: RegisteredForecast, runs: tuple[RunTimes, ...]) -> VerifiedForecast:
    registered, seen = entry.line.time, entry.forecast.data.seen
    _refuse_undeclared_start(entry.forecast_id, registered, seen, runs)
    evidence, remark = _evidence_of(registered, seen, runs)
    first = min((run.started_at for run in runs if run.started_at), default=None)
    return VerifiedForecast(entry.forecast_id, registered, first, evidence, remark, len(entry.checks))


def _refuse_undeclared_start(forecast_id: str, registered: str, seen: SeenState, runs: tuple[RunTimes, ...]) -> None:
    """Raise VerificationError when a run of the target started before `registered` and the forecast denies it."""
    if seen is not SeenState.NOT_STARTED:
        return
    for run in runs:
        if run.started_at is not None and run.started_at <= registered:
            raise VerificationError(
                f"forecast {forecast_id} of {registered} says that its target had not started, but run {run.run_id} "
                f"started at {run.started_at} ({run.source}). It is no forecast made beforehand: declare what had been "
                "seen (--seen running or finished_unseen), which makes it exploratory."
            )


def _evidence_of(registered: str, seen: SeenState, runs: tuple[RunTimes, ...]) -> tuple[EvidenceLevel, str]:
    """Return what shows that a forecast registered at `registered` preceded the outcome of `runs`, and in words."""
    unknown = [run.run_id for run in runs if run.started_at is None]
    if seen is SeenState.FINISHED_UNSEEN:
        return EvidenceLevel.NONE, "the target had ended; that its loss was unseen is a declaration"
    if seen is SeenState.RUNNING:
        late = [run.run_id for run in runs if run.finished_at is None or run.finished_at <= registered]
        if late:
            return EvidenceLevel.NONE, f"not shown to precede the end of {', '.join(late)}"
        return EvidenceLevel.LOCAL_CHAIN, "declared as made while the target ran; before its end by this study's clocks"
    if unknown:
        return EvidenceLevel.NONE, f"no recorded start of {', '.join(unknown)}, so the order is not shown"
    if not runs:
        return EvidenceLevel.LOCAL_CHAIN, "the target has not started"
    return EvidenceLevel.LOCAL_CHAIN, "before the start of the target by this study's clocks"
