"""The bibliography: entries of references.bib by key, as text and as BibTeX."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ladder.errors import InputError

BIBLIOGRAPHY = Path(__file__).parent / "references.bib"
MAX_AUTHORS = 3

_ENTRY = re.compile(r"@(\w+)\{([\w-]+),\n(.*?)\n\}", re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) = \{(.*?)\},?$", re.MULTILINE)
_ACCENTS = {r"{\'o}": "ó", r"{\l}": "ł", r"\'o": "ó"}


@dataclass(frozen=True)
class Reference:
    """One entry: `key` as laws cite it, `label` as in running text, `text` as printed, `link` or an empty string."""

    key: str
    label: str
    text: str
    link: str


def bibliography(path: Path = BIBLIOGRAPHY) -> dict[str, Reference]:
    """Return all entries by key."""
    return {key: _reference(key, body) for _, key, body in _ENTRY.findall(path.read_text(encoding="utf-8"))}


def cited(keys: Iterable[str], path: Path = BIBLIOGRAPHY) -> tuple[Reference, ...]:
    """Return the entries of `keys`, each once, in alphabetical order; raises InputError for an unknown key."""
    known = bibliography(path)
    wanted = sorted(set(keys))
    if unknown := [key for key in wanted if key not in known]:
        raise InputError(f"reference {unknown[0]!r} is cited but stands not in {path.name}; add it there.")
    return tuple(known[key] for key in wanted)


def _reference(key: str, body: str) -> Reference:
    fields = {name.lower(): _plain(value) for name, value in _FIELD.findall(body)}
    parts = [f"{_authors(fields['author'])} ({fields['year']}). {fields['title']}."]
    if "journal" in fields:
        where = fields["journal"]
        if "volume" in fields:
            where += f" {fields['volume']}" + (f"({fields['number']})" if "number" in fields else "")
        parts.append(where + (f", {fields['pages'].replace('--', '–')}" if "pages" in fields else "") + ".")
    if "howpublished" in fields:
        parts.append(f"{fields['howpublished']}.")
    link = ""
    if "eprint" in fields:
        parts.append(f"arXiv:{fields['eprint']}.")
        link = f"https://arxiv.org/abs/{fields['eprint']}"
    return Reference(key, f"{_short(fields['author'])} {fields['year']}", " ".join(parts), link)


def _short(text: str) -> str:
    names = [name.partition(",")[0] for name in text.split(" and ")]
    if len(names) > 2:
        return f"{names[0]} et al."
    return " and ".join(names)


def _authors(text: str) -> str:
    names = text.split(" and ")
    shown = [name for name in names if name != "others"]
    if len(shown) > MAX_AUTHORS or len(shown) < len(names):
        return f"{shown[0]}, et al."
    return "; ".join(shown)


def _plain(text: str) -> str:
    for accent, character in _ACCENTS.items():
        text = text.replace(accent, character)
    return text.replace("{", "").replace("}", "")
