"""The part of a report that lets another person get the same numbers: commands, digests, environment, citation."""

import pandas as pd

from ladder.provenance import Provenance
from reports.context import Reproduction
from reports.sources import Sources
from reports.tables import Field, Table, table_of
from reports.wording import parse_time


def reproduction_of(sources: Sources) -> Reproduction:
    """Return commands, digests and environment from the provenance blocks of the records."""
    made = sources.forecast.provenance
    blocks = [sources.ladder.provenance, sources.fit.provenance, made]
    if sources.check is not None:
        blocks.append(sources.check.provenance)
    return Reproduction(
        commands=tuple(dict.fromkeys(block.command for block in blocks)),
        verify="foretell forecast verify --study STUDY",
        rebuild=f"foretell report build {sources.forecast_id} --study STUDY",
        digests=_digests(sources),
        environment=_environment(made),
        code_sha=made.code_sha or "",
        code_dirty=bool(made.code_dirty),
        bibtex=_bibtex(sources),
    )


def _digests(sources: Sources) -> Table:
    rows = [{"name": file.name, "sha256": file.sha256} for file in sources.files]
    return table_of(
        pd.DataFrame(rows),
        [Field("name", "file", number=False), Field("sha256", "SHA-256", number=False)],
        caption="Files this report was made from, by content.",
        wrap=True,
    )


def _environment(made: Provenance) -> Table:
    rows = [("Python", made.python), ("platform", made.platform), *sorted(made.packages.items())]
    rows.append(("seed", "none drawn" if made.seed is None else str(made.seed)))
    return table_of(
        pd.DataFrame(rows, columns=["what", "value"]),
        [Field("what", "", number=False), Field("value", "", number=False)],
        caption="Environment in which the forecast was made.",
    )


def _bibtex(sources: Sources) -> str:
    forecast = sources.forecast
    entry = {
        "author": " and ".join(forecast.authors),
        "title": forecast.title,
        "institution": "foretell forecast report",
        "year": f"{parse_time(sources.registered_at):%Y}",
        "note": f"forecast {sources.forecast_id}, SHA-256 {forecast.sha256}",
    }
    fields = ",\n".join(f"  {name} = {{{value}}}" for name, value in entry.items())
    return f"@techreport{{foretell-{forecast.sha256[:8]},\n{fields}\n}}"
