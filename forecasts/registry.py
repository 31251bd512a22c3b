"""What a study has registered and how it was resolved: the ledger's lines with the files they enter."""

import json
from dataclasses import dataclass
from pathlib import Path

from forecasts.ledger import LedgerLine, LineKind, read_ledger
from forecasts.record import Check, Forecast, Outcome, read_check, read_forecast
from ladder.errors import InputError, VerificationError
from ladder.records import canonical_json, sha256_bytes
from ladder.study import Study


@dataclass(frozen=True)
class RegisteredCheck:
    """A check, its line in the ledger and its file."""

    check: Check
    line: LedgerLine
    path: Path


@dataclass(frozen=True)
class RegisteredForecast:
    """A forecast, its line in the ledger, its file, and its checks in order: the last one stands."""

    forecast: Forecast
    line: LedgerLine
    path: Path
    checks: tuple[RegisteredCheck, ...]

    @property
    def forecast_id(self) -> str:
        """Name of the file without suffix."""
        return self.path.stem

    @property
    def check(self) -> Check | None:
        """The check that stands, None while the forecast is open."""
        return self.checks[-1].check if self.checks else None


def registry(study: Study) -> tuple[RegisteredForecast, ...]:
    """Return the registered forecasts in ledger order, every file compared with its line.

    Raises VerificationError naming the file or line that does not hold. Files without a line are not looked for
    (`verify` does).
    """
    forecasts: dict[str, tuple[Forecast, LedgerLine, Path]] = {}
    checks: dict[str, list[RegisteredCheck]] = {}
    for line in read_ledger(study):
        path = study.ledger.parent / line.file
        data = _entered(path, line)
        if line.kind in (LineKind.REGISTER, LineKind.AMEND):
            forecast = read_forecast(path)
            _agree(forecast, line, path, data, set(forecasts))
            forecasts[path.stem], checks[path.stem] = (forecast, line, path), []
        else:
            check = read_check(path)
            target = forecasts.get(check.forecast_id)
            _resolves(check, line, path, None if target is None else target[1].sha256, checks)
            checks[check.forecast_id].append(RegisteredCheck(check, line, path))
    return tuple(RegisteredForecast(*found, tuple(checks[name])) for name, found in forecasts.items())


def find(entries: tuple[RegisteredForecast, ...], forecast_id: str) -> RegisteredForecast:
    """Return the entry whose id is, or alone starts with, `forecast_id`; raises InputError listing what there is."""
    exact = [entry for entry in entries if entry.forecast_id == forecast_id]
    found = exact or [entry for entry in entries if entry.forecast_id.startswith(forecast_id)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(entry.forecast_id for entry in entries) or "none"
    raise InputError(f"{forecast_id!r} is {'no' if not found else 'not one'} registered forecast; there are: {known}.")


def check_name(forecast_id: str, number: int) -> str:
    """Return the name, without suffix, of the `number`-th check of a forecast, counted from 1."""
    return forecast_id if number == 1 else f"{forecast_id}--check{number}"


def _entered(path: Path, line: LedgerLine) -> bytes:
    """Return the bytes of the file that `line` enters, compared with its digest and in canonical form."""
    where = f"line {line.index + 1} of the log"
    try:
        data = path.read_bytes()
    except OSError:
        raise VerificationError(f"{path} cannot be read, though {where} enters it; restore it.") from None
    if sha256_bytes(data) != line.sha256:
        raise VerificationError(
            f"{path} was changed after it was entered: its digest is {sha256_bytes(data)[:16]}..., {where} has "
            f"{line.sha256[:16]}.... Restore it from a copy; to change a forecast, register one that supersedes it."
        )
    try:
        canonical = canonical_json(json.loads(data)) == data
    except (ValueError, InputError):
        canonical = False
    if not canonical:
        raise VerificationError(f"{path} is not canonical JSON (RFC 8785); it was not written by foretell.")
    return data


def _agree(forecast: Forecast, line: LedgerLine, path: Path, data: bytes, earlier: set[str]) -> None:
    """Raise unless a forecast, its name, its line and the forecasts before it belong together."""
    name = f"{forecast.forecast_id.rpartition('--')[0]}--{sha256_bytes(data)[:8]}"
    if path.stem != name:
        raise VerificationError(f"{path} is not named after its content, which gives {name}.json; it was renamed.")
    if (line.kind is LineKind.AMEND) != (forecast.supersedes is not None):
        raise VerificationError(f"{path} is entered as {line.kind} but supersedes {forecast.supersedes}.")
    if forecast.supersedes is not None and forecast.supersedes not in earlier:
        raise VerificationError(f"{path} supersedes {forecast.supersedes}, which is not in the log above it.")
    _made_before(forecast.provenance.created_at, line, path)


def _resolves(
    check: Check, line: LedgerLine, path: Path, sha256: str | None, checks: dict[str, list[RegisteredCheck]]
) -> None:
    """Raise unless a check resolves a forecast above it, under the next free name."""
    if sha256 is None or check.forecast_sha256 != sha256:
        raise VerificationError(f"{path} resolves {check.forecast_id}, which the log above it does not have that way.")
    name = check_name(check.forecast_id, len(checks[check.forecast_id]) + 1)
    if path.stem != name:
        raise VerificationError(f"{path} should be named {name}.json; it was renamed, or a check before it is gone.")
    if (line.kind is LineKind.ANNUL) != (check.outcome is Outcome.ANNULLED):
        raise VerificationError(f"{path} is entered as {line.kind} but its outcome is {check.outcome}.")
    _made_before(check.provenance.created_at, line, path)


def _made_before(created_at: str, line: LedgerLine, path: Path) -> None:
    if created_at > line.time:
        raise VerificationError(
            f"{path} states that it was made at {created_at}, after it was entered at {line.time}; one is wrong."
        )
