"""Reading column maps; every complaint names the file and the place in it."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ladder.errors import InputError
from ladder.flops import FlopConvention
from ladder.runmap import (
    CONDITIONS,
    FORMATS,
    KINDS,
    SCHEMA,
    SIX_ND_SIZE,
    UNITS,
    Constant,
    Entry,
    Factor,
    Join,
    Metric,
    Rule,
    RunMap,
    TableMap,
)
from ladder.runs import ExcludedReason

MAPS = Path(__file__).resolve().parent / "maps"
WAYS = ("column", "product", "template", "six_nd", "interval95")
TYPES: Mapping[str, tuple[type, ...]] = {  # of the value of a condition; text or a number for the others
    "one_of": (list,),
    "none_of": (list,),
    "empty": (bool,),
    "above": (int, float),
    "below": (int, float),
}
NEEDED = ("run_id", "status", "metric", "loss_unit")


def shipped_maps() -> tuple[str, ...]:
    """Return the names of the maps that come with foretell."""
    return tuple(sorted(path.stem for path in MAPS.glob("*.toml")))


def read_map(name: str | Path) -> RunMap:
    """Return the map in a TOML file, or the shipped map of that name.

    Raises InputError naming the file, the place in it, what is wrong and what would be right.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = MAPS / f"{name}.toml"
        if str(name) not in shipped_maps():
            raise InputError(
                f"there is no column map {str(name)!r}; {nearest(str(name), shipped_maps())} A map of your own is "
                "given as path/to/map.toml; `foretell runs maps` lists the shipped ones."
            )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path.") from None
    except (ValueError, OSError, RecursionError) as error:  # of TOML or of its encoding
        raise InputError(f"{path} is not a readable TOML file: {error}.") from None
    return parse_map(data, path.stem, str(path))


def parse_map(data: Mapping[str, Any], name: str, where: str) -> RunMap:
    """Return the map in parsed TOML, whose file is named `where` in complaints; raises InputError as `read_map` does."""
    if data.get("schema") != SCHEMA:
        raise InputError(f"{where} is no column map: schema is {data.get('schema')!r}, expected {SCHEMA!r}.")
    _known(data, ("schema", "title", "source", "constants", "columns", "table"), where)
    constants = _constants(data, where)
    columns = _entries(data, where)
    tables = _list(data, "table", where)
    if not tables:
        raise InputError(f"{where}: no [[table]]; a map has one for every file it reads.")
    return RunMap(
        name=name,
        title=_text(data, "title", where),
        source=_text(data, "source", where),
        tables=tuple(
            _table(table, columns, constants, f"{where}: table {index} ({table.get('file', 'no file')})")
            for index, table in enumerate(tables, 1)
        ),
    )


def _table(
    data: Mapping[str, Any], columns: Mapping[str, Entry], constants: Mapping[str, Constant], where: str
) -> TableMap:
    _known(
        data,
        ("file", "format", "columns", "constants", "metric", "rule", "join", "no_loss", "no_compute"),
        where,
    )
    file = _text(data, "file", where)
    if not file:
        raise InputError(f"{where}: file is missing; name the source file, such as runs.csv.")
    kind = _text(data, "format", where) or file.rpartition(".")[2]
    if kind not in FORMATS:
        raise InputError(f"{where}: format {kind!r} is none of {', '.join(FORMATS)}; set format.")
    own_columns, own_constants = _entries(data, where), _constants(data, where)
    metrics = tuple(
        Metric(_entries(item, f"{where}: metric {index}"), _constants(item, f"{where}: metric {index}"))
        for index, item in enumerate(_list(data, "metric", where), 1)
    )
    table = TableMap(
        file=file,
        format=kind,
        columns={k: v for k, v in columns.items() if k not in own_constants} | own_columns,
        constants={k: v for k, v in constants.items() if k not in own_columns} | own_constants,
        metrics=metrics or (Metric({}, {}),),
        rules=tuple(_rule(item, f"{where}: rule {index}") for index, item in enumerate(_list(data, "rule", where), 1)),
        joins=tuple(_join(item, where) for item in _list(data, "join", where)),
        no_loss=_text(data, "no_loss", where),
        no_compute=_text(data, "no_compute", where),
    )
    for metric in table.metrics:
        _complete(table, metric, where)
    return table


def _complete(table: TableMap, metric: Metric, where: str) -> None:
    """Refuse a map that leaves a needed column unmapped, or makes one twice."""
    made = {**table.columns, **metric.columns}
    constant = {**table.constants, **metric.constants}
    for name in metric.columns.keys() & table.constants.keys() | metric.constants.keys() & table.columns.keys():
        raise InputError(f"{where}: {name} is both a column and a constant; leave one out.")
    for name in made.keys() & constant.keys():
        raise InputError(f"{where}: {name} is both a column and a constant; leave one out.")
    here = made.keys() | constant.keys()
    six = made.get("compute", Entry()).six_nd
    needed = [*NEEDED, *(() if table.no_loss else ("loss",)), *(() if table.no_compute else ("compute",))]
    if not table.no_compute and not six:
        needed.append("flop_convention")
    for name in needed:
        if name not in here:
            absent = {"loss": " (or say why there is none: no_loss)", "compute": " (or say why: no_compute)"}
            raise InputError(
                f"{where}: {name} ({KINDS[name].meaning}) is not mapped; add it to columns or constants"
                f"{absent.get(name, '')}."
            )
    if table.no_loss and "loss" in here:
        raise InputError(f"{where}: there is both a loss and no_loss; leave one out.")
    if table.no_compute and "compute" in here:
        raise InputError(f"{where}: there are both compute and no_compute; leave one out.")
    if six and str(constant.get("flop_convention", six)) != six:
        raise InputError(f"{where}: compute is counted under {six}, flop_convention says otherwise; leave it out.")
    for entry in made.values():
        for factor in (
            *entry.operands,
            *((f"runs.{SIX_ND_SIZE[entry.six_nd]}", "runs.tokens") if entry.six_nd else ()),
        ):
            name = factor.removeprefix("runs.") if isinstance(factor, str) and factor.startswith("runs.") else ""
            if name and name not in here:
                raise InputError(f"{where}: {factor} is read, but {name} is not mapped.")


def _entries(data: Mapping[str, Any], where: str) -> dict[str, Entry]:
    section = _section(data, "columns", where)
    _known(section, KINDS, f"{where}: columns")
    return {name: _entry(name, value, f"{where}: columns.{name}") for name, value in section.items()}


def _entry(name: str, value: Any, where: str) -> Entry:
    numeric = KINDS[name].kind != "text"
    if isinstance(value, str) and value:
        return Entry(column=value)
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {value!r} is neither a source column nor a table such as {{ column = ... }}.")
    _known(value, (*WAYS, "optional", "unit", "scale", "values", "over", "plus", "minus"), where)
    ways = [way for way in WAYS if way in value]
    if len(ways) != 1:
        raise InputError(f"{where}: give exactly one of {', '.join(WAYS)}; found {', '.join(ways) or 'none'}.")
    way = ways[0]
    if not numeric and way not in ("column", "template"):
        raise InputError(f"{where}: {name} is text; {way} makes a number. Use column or template.")
    if numeric and way == "template":
        raise InputError(f"{where}: {name} is a number; template makes text. Use column or product.")
    with_column = [key for key in ("optional", "unit", "scale", "values") if key in value]
    if way != "column" and with_column:
        raise InputError(f"{where}: {', '.join(with_column)} belongs to column, not to {way}.")
    if way != "product" and not value.keys().isdisjoint(("over", "plus", "minus")):
        raise InputError(f"{where}: over, plus and minus belong to product, not to {way}.")
    unit, scale, values = value.get("unit", ""), value.get("scale", 1.0), value.get("values", {})
    if not numeric and (unit or "scale" in value):
        raise InputError(f"{where}: {name} is text and has no unit or scale.")
    if not isinstance(unit, str) or (unit and unit not in UNITS):
        raise InputError(f"{where}: unit {unit!r} is unknown; {nearest(str(unit), UNITS)}")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise InputError(f"{where}: scale {scale!r} is not a positive number.")
    if not isinstance(values, Mapping) or (values and (unit or "scale" in value)):
        raise InputError(f"{where}: values is a table from source value to run-table value, without unit or scale.")
    for key, new in values.items():
        _constant(name, new, f"{where}: values.{key}")
    if not isinstance(value.get("optional", False), bool):
        raise InputError(f"{where}: optional is true or false, found {value['optional']!r}.")
    six = value.get("six_nd")
    if six is not None and (name != "compute" or six not in SIX_ND_SIZE):
        raise InputError(f"{where}: six_nd makes compute, under SIX_ND or SIX_ND_ACTIVE; found {six!r}.")
    ends = value.get("interval95")
    if ends is not None and not (isinstance(ends, list) and len(ends) == 2 and all(isinstance(e, str) for e in ends)):
        raise InputError(f"{where}: interval95 names two source columns, lower and upper; found {ends!r}.")
    return Entry(
        column=_text(value, "column", where),
        optional=value.get("optional", False),
        unit=unit,
        scale=float(scale),
        values=dict(values),
        product=_factors(value, "product", where),
        over=_factors(value, "over", where),
        plus=_factors(value, "plus", where),
        minus=_factors(value, "minus", where),
        template=_text(value, "template", where),
        six_nd=None if six is None else FlopConvention(six),
        interval95=None if ends is None else (ends[0], ends[1]),
    )


def _factors(value: Mapping[str, Any], key: str, where: str) -> tuple[Factor, ...]:
    factors = value.get(key, [])
    if not isinstance(factors, list) or (key in value and not factors):
        raise InputError(f"{where}: {key} is a list of columns and numbers; found {factors!r}.")
    for factor in factors:
        if isinstance(factor, bool) or not isinstance(factor, str | int | float) or factor == "":
            raise InputError(f"{where}: {key} holds {factor!r}, which is neither a column nor a number.")
        column = factor.removeprefix("runs.") if isinstance(factor, str) and factor.startswith("runs.") else ""
        if column and (column not in KINDS or KINDS[column].kind == "text"):
            raise InputError(f"{where}: {factor} is no numeric run-table column; {nearest(column, KINDS)}")
    return tuple(factor if isinstance(factor, str) else float(factor) for factor in factors)


def _constants(data: Mapping[str, Any], where: str) -> dict[str, Constant]:
    section = _section(data, "constants", where)
    _known(section, KINDS, f"{where}: constants")
    return {name: _constant(name, value, f"{where}: constants.{name}") for name, value in section.items()}


def _constant(name: str, value: Any, where: str) -> Constant:
    column = KINDS[name]
    if column.kind == "text":
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{where}: {value!r} is no text.")
        if column.choices and value not in column.choices:
            raise InputError(f"{where}: {value!r} is none of {', '.join(column.choices)}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise InputError(f"{where}: {value!r} is no number.")
    if column.positive and value <= 0:
        raise InputError(f"{where}: {value!r} must be positive.")
    return float(value)


def _rule(data: Mapping[str, Any], where: str) -> Rule:
    _known(data, ("column", *CONDITIONS, "excluded_reason", "role", "why"), where)
    conditions = [name for name in CONDITIONS if name in data]
    if len(conditions) != 1 or not _text(data, "column", where):
        raise InputError(f"{where}: a rule has a column and exactly one of {', '.join(CONDITIONS)}.")
    condition, value = conditions[0], data[conditions[0]]
    wanted = TYPES.get(condition, (str, int, float))
    if not isinstance(value, wanted) or (condition != "empty" and isinstance(value, bool)):
        raise InputError(f"{where}: {condition} = {value!r} has the wrong type.")
    reason, role = data.get("excluded_reason"), data.get("role")
    if (reason is None) == (role is None) or role not in (None, "held_out"):
        raise InputError(f'{where}: a rule sets excluded_reason, or role = "held_out".')
    if reason is not None and reason not in tuple(ExcludedReason):
        raise InputError(f"{where}: excluded_reason {reason!r} is none of {', '.join(ExcludedReason)}.")
    if not _text(data, "why", where):
        raise InputError(f"{where}: say why; it stands beside every row that the rule marks.")
    excluded = None if reason is None else ExcludedReason(reason)
    return Rule(data["column"], condition, value, excluded, role is not None, data["why"])


def _join(data: Mapping[str, Any], where: str) -> Join:
    _known(data, ("file", "on"), f"{where}: join")
    on = data.get("on")
    if not _text(data, "file", where) or not isinstance(on, list) or not on or not all(isinstance(k, str) for k in on):
        raise InputError(f"{where}: a join has a file and a list of columns, on = [...].")
    return Join(data["file"], tuple(on))


def _section(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    section = data.get(key, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{where}: {key} is a table, found {section!r}.")
    return section


def _list(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    items = data.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InputError(f"{where}: {key} is a list of tables; write [[{key}]].")
    return items


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str) or (key in data and not value.strip()):
        raise InputError(f"{where}: {key} is no text: {value!r}.")
    return value


def _known(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = tuple(known)
    for key in data:
        if key not in names:
            raise InputError(f"{where}: {key!r} is unknown; {nearest(key, names)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint: the known name most like `name`, or all known names."""
    names = tuple(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}."
