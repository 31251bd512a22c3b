"""Column maps: a small TOML file that says how a foreign table becomes a run table. `runmap_read` reads it, `importer` applies it.

    schema = "runmap/1"
    title  = "Chinchilla runs digitised by Epoch AI"
    source = "epoch-research/analyzing-chinchilla @ 92258837"        # where the numbers come from; column `source`

    [constants]                      # run-table columns with one value in every row
    recipe = "chinchilla"

    [columns]                        # run-table columns from source columns, for all tables of the map
    loss = "loss"                                                     # as it is
    active_params = { column = "size", unit = "millions" }            # unit: see UNITS; or scale = 1e6
    seed = { column = "seed", optional = true }                       # empty where the source has no such column
    tokens = { product = ["runs.steps", "batch", 2048] }              # factors; over, plus, minus = [...]
    compute = { six_nd = "SIX_ND_ACTIVE" }                            # 6 x active_params x tokens; sets flop_convention
    role = { column = "split", values = { train = "fit", test = "held_out" } }
    run_id = { template = "{name}-{row}" }                            # {row} counts from 1, header excluded
    loss_se = { interval95 = ["lo95", "hi95"] }                       # half width over 1.96

    [[table]]                        # one per file; may hold `columns` and `constants` of its own
    file = "runs.csv"                # .csv .parquet .jsonl .json; or format = "levanter", "wandb"
    no_compute = "why"               # instead of compute and flop_convention: every row is excluded and says so
    no_loss = "why"                  # instead of a loss

    [[table.metric]]                 # one row of the run table for each, where a source row holds several losses
    columns = { loss = "c4" }
    constants = { metric = "c4/loss" }

    [[table.rule]]                   # the first rule that matches a row excludes it, or holds it out; none drops it
    column = "outlier"
    equals = 1                       # or not_equals, one_of, none_of, above, below, empty
    excluded_reason = "off_trend"    # or role = "held_out"
    why = "the five highest losses, which Besiroglu et al. leave out"

    [[table.join]]                   # columns of another file of the folder, by key
    file = "shapes.csv"
    on = ["width"]

In products a plain name is a source column, ``runs.NAME`` a column of the run table that the map makes itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ladder.flops import FlopConvention
from ladder.runs import COLUMNS, ExcludedReason

SCHEMA = "runmap/1"
FORMATS = ("csv", "parquet", "jsonl", "json", "levanter", "wandb")
# What a unit does to a number; ``quantity`` reads text such as 2.8B, the other entries are factors or functions.
UNITS: Mapping[str, float | str] = {
    "thousands": 1e3,
    "millions": 1e6,
    "billions": 1e9,
    "trillions": 1e12,
    "gflops": 1e9,
    "zettaflops": 1e21,
    "percent": 1e-2,
    "bits": math.log(2),  # bits to nats
    "log10": "log10",
    "ln": "ln",
    "perplexity": "perplexity",
    "quantity": "quantity",
}
CONDITIONS = ("equals", "not_equals", "one_of", "none_of", "above", "below", "empty")
KINDS = {column.name: column for column in COLUMNS}
SIX_ND_SIZE = {FlopConvention.SIX_ND: "total_params", FlopConvention.SIX_ND_ACTIVE: "active_params"}

type Factor = str | float
type Constant = str | float


@dataclass(frozen=True)
class Entry:
    """How one run-table column is made: exactly one of `column`, `product`, `template`, `six_nd`, `interval95`.

    Attributes:
        column: source column, multiplied by `scale` after its `unit`; or replaced by `values` where given.
        optional: whether the source may lack it; the run-table column is then empty.
        product, over, plus, minus: factors, divisors, and products that are added and subtracted at the end.
        template: text with ``{source column}`` and ``{row}``.
        six_nd: convention under which 6 x parameters x tokens is the compute.
        interval95: source columns with the ends of a 95 % interval, of which this is the standard error.
    """

    column: str = ""
    optional: bool = False
    unit: str = ""
    scale: float = 1.0
    values: Mapping[str, Constant] = field(default_factory=dict)
    product: tuple[Factor, ...] = ()
    over: tuple[Factor, ...] = ()
    plus: tuple[Factor, ...] = ()
    minus: tuple[Factor, ...] = ()
    template: str = ""
    six_nd: FlopConvention | None = None
    interval95: tuple[str, str] | None = None

    @property
    def operands(self) -> tuple[Factor, ...]:
        """Everything a product reads."""
        return (*self.product, *self.over, *self.plus, *self.minus)


@dataclass(frozen=True)
class Rule:
    """What marks a row: a condition on a source column, and what then stands in the run table."""

    column: str
    condition: str
    value: Any
    excluded_reason: ExcludedReason | None
    held_out: bool
    why: str


@dataclass(frozen=True)
class Join:
    """Another file of the folder whose columns are added by equal values of `on`, at most one row each."""

    file: str
    on: tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """What is different for one of several losses of a source row."""

    columns: Mapping[str, Entry]
    constants: Mapping[str, Constant]


@dataclass(frozen=True)
class TableMap:
    """How one source file becomes rows; `columns` and `constants` hold those of the whole map too."""

    file: str
    format: str
    columns: Mapping[str, Entry]
    constants: Mapping[str, Constant]
    metrics: tuple[Metric, ...]
    rules: tuple[Rule, ...]
    joins: tuple[Join, ...]
    no_loss: str
    no_compute: str


@dataclass(frozen=True)
class RunMap:
    """A column map; `name` is that of its file without suffix."""

    name: str
    title: str
    source: str
    tables: tuple[TableMap, ...]
