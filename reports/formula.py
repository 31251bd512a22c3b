"""The formulas of laws, written in a small part of LaTeX, as HTML and as plain text.

The part: letters, digits, + - = / ( ), Greek letters, ``\\max``, ``\\,`` and ``\\cdot``, sub- and superscripts.
"""

import html
import re

from ladder.errors import InputError

SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "zeta": "ζ", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "rho": "ρ", "sigma": "σ", "tau": "τ", "omega": "ω",
    "max": "max", "min": "min", "ln": "ln", "cdot": " · ", "infty": "∞",
}  # fmt: skip
UPRIGHT = {"max", "min", "ln", " · ", "∞"}
_TOKEN = re.compile(r"\\([A-Za-z]+)|\\([,;!])|([A-Za-z])|([_^])|([{}])|([0-9.]+)|([-+=/(),])|(\s+)")
_TAG = {"_": "sub", "^": "sup"}


def formula_html(latex: str) -> str:
    """Return a formula as HTML with italic variables and raised or lowered scripts.

    >>> formula_html(r"L = E + A\\,C^{-\\alpha}")
    '<i>L</i> = <i>E</i> + <i>A</i>\\u2009<i>C</i><sup>−<i>α</i></sup>'

    Raises InputError for LaTeX beyond the part named above.
    """
    return _walk(latex, plain=False)


def formula_text(latex: str) -> str:
    """Return a formula as plain text, scripts marked by ``_`` and ``^``.

    >>> formula_text(r"L_{\\max}"), formula_text(r"\\gamma")
    ('L_max', 'γ')
    """
    return _walk(latex, plain=True)


def _walk(latex: str, *, plain: bool) -> str:
    out: list[str] = []
    closing: list[str] = []  # what ends each open group
    script, at = "", 0
    while at < len(latex):
        match = _TOKEN.match(latex, at)
        if match is None:
            raise InputError(
                f"formula {latex!r} holds {latex[at]!r}, which reports cannot set; extend reports/formula.py."
            )
        at = match.end()
        command, space, letter, mark, brace, number, operator, _ = match.groups()
        if mark:
            script = _TAG[mark]
            out.append(mark if plain else f"<{script}>")
            continue
        if brace == "{":
            closing.append("" if plain or not script else f"</{script}>")
            script = ""
            continue
        if brace == "}":
            out.append(closing.pop())
            continue
        if command and command not in SYMBOLS:
            raise InputError(
                f"formula {latex!r} holds \\{command}, which reports cannot set; extend reports/formula.py."
            )
        text = SYMBOLS[command] if command else letter or number or operator or ""
        if space:
            text = " " if plain else "\u2009"
        elif operator:
            text = _operator(operator, latex[: match.start()])
        elif (letter or command) and not plain and text not in UPRIGHT:
            text = f"<i>{text}</i>"
        out.append(html.escape(text, quote=False) if operator and not plain else text)
        if script:  # a script of a single token
            out.append("" if plain else f"</{script}>")
            script = ""
    return "".join(out)


def _operator(sign: str, before: str) -> str:
    shown = "−" if sign == "-" else sign
    binary = sign in "+-=" and before.strip() and before.strip()[-1] not in "{(="
    return f" {shown} " if binary else shown
