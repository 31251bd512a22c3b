"""A published figure against ours: exact, within a tolerance, or as far as it was printed."""

import csv
import fnmatch
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

KNOWN = Path(__file__).parent / "known_disagreements.csv"


@dataclass(frozen=True)
class Comparison:
    """One figure: where it was published, what it says, what we get, and how far they may differ.

    Attributes:
        table, row, field: where the figure stands.
        published, ours: the two values, numbers or text.
        tolerance: absolute difference allowed; 0 for equality.
    """

    table: str
    row: str
    field: str
    published: float | str
    ours: float | str
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the two are as equal as they should be."""
        if isinstance(self.published, str) or isinstance(self.ours, str):
            return self.published == self.ours
        return abs(self.ours - self.published) <= self.tolerance

    @property
    def shown(self) -> str:
        """One line for a report."""
        return f"{self.table} {self.row} {self.field}: published {self.published!r}, ours {self.ours!r}"


def half_unit(text: str) -> float:
    """Return half a unit in the last digit printed, trailing zeros of whole numbers taken for padding.

    >>> half_unit("22760000000.0"), half_unit("9.2e21"), half_unit("0.001339")
    (5000000.0, 5e+19, 5e-07)
    """
    number = Decimal(text.removesuffix(".0"))
    if number == number.to_integral_value() and number:
        number = number.normalize()
    exponent = number.as_tuple().exponent
    return float(Decimal(5).scaleb(int(exponent) - 1))


@dataclass(frozen=True)
class Row:
    """One row of a published table, compared field by field; empty fields are left out."""

    table: str
    name: str
    values: dict[str, str]

    def exact(self, field: str, ours: int | str) -> list[Comparison]:
        """Return the comparison for equality."""
        text = self.values.get(field, "")
        if not text:
            return []
        published = text if isinstance(ours, str) else float(text)
        return [Comparison(self.table, self.name, field, published, ours if isinstance(ours, str) else float(ours))]

    def printed(self, field: str, ours: float) -> list[Comparison]:
        """Return the comparison to the last printed digit."""
        text = self.values.get(field, "")
        return (
            [Comparison(self.table, self.name, field, float(text), ours, half_unit(text) * 1.0000001)] if text else []
        )

    def within(self, field: str, ours: float, relative: float) -> list[Comparison]:
        """Return the comparison within a relative tolerance."""
        text = self.values.get(field, "")
        if not text:
            return []
        return [Comparison(self.table, self.name, field, float(text), ours, relative * abs(float(text)))]


def rows(data: Path, table: str, *key: str) -> list[Row]:
    """Return the rows of ``data/table``, each named by its values of `key`."""
    with (data / table).open(newline="") as file:
        return [Row(table, " ".join(values[name] for name in key), values) for values in csv.DictReader(file)]


@dataclass(frozen=True)
class Known:
    """A disagreement that was looked into, by patterns of table, row and field, and its reason."""

    table: str
    row: str
    field: str
    reason: str

    def covers(self, item: Comparison) -> bool:
        """Whether `item` is such a disagreement."""
        pairs = ((item.table, self.table), (item.row, self.row), (item.field, self.field))
        return all(fnmatch.fnmatchcase(value, pattern) for value, pattern in pairs)


def known_disagreements() -> list[Known]:
    """Return the checked-in table of known disagreements."""
    with KNOWN.open(newline="") as file:
        return [Known(**values) for values in csv.DictReader(file)]


@dataclass(frozen=True)
class Verdict:
    """All comparisons, sorted: those that agree, known and new disagreements, and known ones that no longer are any."""

    agreeing: list[Comparison]
    known: list[Comparison]
    new: list[Comparison]
    stale: list[Known]


def judge(comparisons: list[Comparison], known: list[Known]) -> Verdict:
    """Return the verdict on `comparisons`."""
    wrong = [item for item in comparisons if not item.agrees]
    covered = [item for item in wrong if any(entry.covers(item) for entry in known)]
    return Verdict(
        agreeing=[item for item in comparisons if item.agrees],
        known=covered,
        new=[item for item in wrong if item not in covered],
        stale=[entry for entry in known if not any(entry.covers(item) for item in wrong)],
    )
