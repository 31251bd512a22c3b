"""The run-time type checker of the tests: beartype, where an int is a valid float as type checkers have it."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
