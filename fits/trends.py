"""Do residuals follow something the law does not? Tests of what is left over once the law's own freedom is taken out.

The fit is linearised at its estimate: residuals e (ln observed - ln fitted) are regressed on the Jacobian J of ln L and
on what is tested, by least squares. A law bends to absorb part of any trend; with J among the regressors that part
counts for nothing, and under independent normal noise of one variance the F-test is exact up to the linearisation. It
is one Gauss-Newton step of least squares, whatever loss the fit itself used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from fits.findings import LEVEL, Finding, Verdict, holm, judged
from fits.solve import Solution
from ladder.units import format_percent

MIN_DF = 3  # residual degrees of freedom below which no test says anything
ABSORBED = 1e-6  # share of a regressor's variance outside the span of J below which the law absorbs it
GROUP_COLUMNS = (
    "schedule",
    "optimizer",
    "data_mix",
    "source",
    "device",
    "seq_len",
    "capacity_factor",
    "shared_experts",
)


@dataclass(frozen=True)
class Linearised:
    """A fit near its estimate: residuals and orthonormal directions that the law can bend in."""

    residuals: Float[np.ndarray, " runs"]
    basis: Float[np.ndarray, "runs params"]

    @staticmethod
    def of(solution: Solution) -> "Linearised":
        """Return the linearised fit."""
        line = solution.objective.linearise(solution.u)
        return Linearised(-line.residuals, np.linalg.qr(line.jacobian)[0])

    @property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return len(self.residuals) - int(self.basis.shape[1])

    def outside(self, columns: Float[np.ndarray, "runs more"]) -> Float[np.ndarray, "runs kept"]:
        """Return the part of regressors that the law cannot follow, unit length; those it follows wholly left out."""
        lengths = np.linalg.norm(columns, axis=0)
        columns = columns[:, lengths > 0] / lengths[lengths > 0]
        rest = columns - self.basis @ (self.basis.T @ columns)
        rest = rest[:, (rest**2).sum(axis=0) > ABSORBED]
        if rest.shape[1] == 0:
            return np.asarray(rest)
        q, r = np.linalg.qr(rest)
        return np.asarray(q[:, np.abs(np.diag(r)) > ABSORBED**0.5])


def joint_test(line: Linearised, columns: Float[np.ndarray, "runs more"]) -> float | None:
    """Return the p-value of the F-test that no combination of `columns` is in the residuals; None where none is left."""
    from statsmodels.regression.linear_model import OLS  # half a second to import

    outside = line.outside(columns)
    if outside.shape[1] == 0 or line.df - outside.shape[1] < MIN_DF:
        return None
    full = OLS(line.residuals, np.column_stack([line.basis, outside])).fit()
    return float(full.compare_f_test(OLS(line.residuals, line.basis).fit())[1])


def shift_of(line: Linearised, member: Float[np.ndarray, " runs"]) -> float:
    """Return by how much ln L of the members (1, others 0) lies above the law as the others have it."""
    outside = member - line.basis @ (line.basis.T @ member)
    return float(outside @ line.residuals / (outside @ outside))


def trend_findings(line: Linearised, covariates: Mapping[str, Float[np.ndarray, " runs"]]) -> list[Finding]:
    """Return whether residuals follow each covariate: a slope and a bend in its logarithm (as it is for ``sparsity``).

    The family is corrected together (Holm). The size is the largest fitted departure over the runs.
    """
    tested: list[tuple[str, float, float]] = []
    found = []
    for name, values in covariates.items():
        if not np.isfinite(values).all() or (name != "sparsity" and (values <= 0).any()):
            found.append(Finding("trend", name, Verdict.UNTESTED, f"{name} is not known for every run"))
            continue
        z = values if name == "sparsity" else np.log(values)
        spread = float(np.ptp(z))
        if spread < 1e-9:
            found.append(Finding("trend", name, Verdict.UNTESTED, f"{name} is the same in every run"))
            continue
        z = (z - z.mean()) / spread
        columns = np.column_stack([z, z**2])
        p_value = joint_test(line, columns)
        if p_value is None:
            reason = "too few runs" if line.df - 2 < MIN_DF else "the law follows any such trend by itself"
            found.append(Finding("trend", name, Verdict.UNTESTED, f"{name}: {reason}"))
            continue
        outside = line.outside(columns)
        fitted = outside @ (outside.T @ line.residuals)
        tested.append((name, p_value, float(np.abs(fitted).max())))
    for (name, _, size), p in zip(tested, holm([p for _, p, _ in tested]), strict=True):
        verb = "follow" if p < LEVEL else "do not follow"
        message = f"residuals {verb} {name} (departures up to {format_percent(size, signed=False)}, p {p:.2g})"
        found.append(Finding("trend", name, judged(p), message, size, p))
    return found


def shift_findings(line: Linearised, labels: Sequence[str], check: str, what: str) -> list[Finding]:
    """Return whether the members of each group lie above or below the law that the other runs give.

    `labels` names the group of each run; groups are tested one by one and corrected together (Holm).
    """
    names = list(dict.fromkeys(labels))
    tested, found = [], []
    for name in names:
        member = np.array([label == name for label in labels], dtype=float)
        p_value = joint_test(line, member[:, None])
        if p_value is None:
            found.append(Finding(check, name, Verdict.UNTESTED, f"{what} {name}: the law meets its runs by itself"))
        else:
            tested.append((name, p_value, shift_of(line, member), int(member.sum())))
    for (name, _, shift, runs), p in zip(tested, holm([p for _, p, _, _ in tested]), strict=True):
        message = f"{what} {name} lies {format_percent(shift)} off the law of the others ({runs} runs, p {p:.2g})"
        found.append(Finding(check, name, judged(p), message, shift, p))
    return found


def mixing_findings(line: Linearised, frame: pd.DataFrame, law_inputs: Sequence[str]) -> list[Finding]:
    """Return whether runs that differ in how they were trained differ in loss: recipes mixed under one name.

    Every column of `GROUP_COLUMNS` with several values is tested (its groups together), and all are corrected
    together. A column that differs without showing in the loss is noted.
    """
    tested, found = [], []
    for column in GROUP_COLUMNS:
        values = frame[column].astype("object").where(frame[column].notna(), "(empty)").astype(str)
        groups = values.value_counts()
        if len(groups) < 2 or column in law_inputs:
            continue
        shown = ", ".join(f"{value} ({count} runs)" for value, count in list(groups.items())[:4])
        if len(groups) > max(2, line.df // 2):
            found.append(
                Finding("mixing", column, Verdict.NOTE, f"{column} has {len(groups)} values, too many to test")
            )
            continue
        dummies = np.column_stack([values.eq(value).to_numpy(float) for value in groups.index])
        p_value = joint_test(line, dummies)
        if p_value is None:
            found.append(Finding("mixing", column, Verdict.NOTE, f"runs differ in {column}: {shown}; too few to test"))
            continue
        tested.append((column, p_value, shift_of(line, dummies[:, -1]), shown, str(groups.index[-1])))
    for (column, _, shift, shown, last), p in zip(tested, holm([p for _, p, _, _, _ in tested]), strict=True):
        differ = f"by {format_percent(shift)} for {last}" if p < LEVEL else "without a difference in loss"
        message = f"runs differ in {column}, {differ} (p {p:.2g}): {shown}"
        verdict = Verdict.FLAG if judged(p) is Verdict.FLAG else Verdict.NOTE
        found.append(Finding("mixing", column, verdict, message, shift, p))
    return found
