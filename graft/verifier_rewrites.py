"""Rewriting of answers before they are compared: each function mends one notation that math-verify 0.9.0 misreads.

Pure functions of text. Those of one side map text to text; those of both sides map (gold, answer) to such a pair. ``RULES`` in
``verifier_rules.py`` says in which order they apply, and from which case each one comes.
"""

from __future__ import annotations

import re

Pair = tuple[str, str]

PASSED_OVER = re.compile(r"(\\\\)|\\[!,;:]|\\ |\\(?:left|right)(?![A-Za-z])\.?|(?<!\\)\$")
TEXT_START = re.compile(r"\\(?:text|mbox|math|operatorname)[a-z]*\*?\s*\{[^{}]*$")
WRAPPED_NUMBER = re.compile(r"\\(?:text|mbox|math)[a-z]*\s*\{\s*\(?\s*(-?[0-9][0-9.,]*)\s*\)?\s*\}")
TRAILING_POINT = re.compile(r"(?<![\\.,;])[.,;](\}*)$")
BARE_POINT = re.compile(r"(?<=[0-9])\.(?=\s*(?:$|[-+*/^)},;=]))")
MARKED_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:(?:,\\!\s*|\{,\}|\\,)[0-9]{3})+(?![0-9])")
BARE_THOUSANDS = re.compile(
    r"((?:\\?\$)?\s*-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?)(\s*(?:\\?%|\\(?:text|mbox|circ|,|;| ).*|\^.*|[a-z]{2,})?)", re.DOTALL
)
FRACTION_THOUSANDS = re.compile(r"(?<=[c}])\{([0-9]{1,3}(?:,[0-9]{3})+)\}")
E_NOTATION = re.compile(r"(?<![A-Za-z0-9.\\])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]([+-]?[0-9]{1,4})(?![\w.])")
PLAIN_NAME = re.compile(r"(?<![A-Za-z\\])(?:np\.)?(pi|exp|(?:arc)?(?:sin|cos|tan)|ln|log)(?![A-Za-z])")
NUMPY_NAME = re.compile(r"(?<![A-Za-z\\])np\.(sqrt)(?![A-Za-z])")
LAST_LETTERS = re.compile(r"^(.*[0-9}\s)])([a-z]{1,3})$", re.DOTALL)
PLAIN_NUMBER = re.compile(r"\s*-?\\?\$?[0-9][0-9.,\\!{}]*\s*")
ENERGY = re.compile(r"(?<![A-Za-z\\])E_(?:([A-Za-z0-9])|\{([A-Za-z0-9]+)\})")
GAMMA = re.compile(r"\\gamma(?![A-Za-z]|\s*[_(])")
NAMED = re.compile(r"\s*([A-Za-z])\s*=\s*([^=<>,;:&]*[^=<>,;:&\s])\s*")
DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*$")
RELATION = re.compile(r"[=<>,;:&]|\\(?:le|ge|ne|in|approx|sim|l|g)(?:q|eq)?(?![A-Za-z])")
LETTER = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z](_)?", re.DOTALL)
PERCENT = re.compile(
    r"^(.*?[^\s\\])\s*(?:\\?%|\\?(?:text|mbox)\s*\{\s*(?:percent|\\?%)\s*\}|\s(?:percent|percentage|pct))$", re.DOTALL
)
UNIT = re.compile(
    r"(?:\\(?:text|mbox|mathrm|textrm)\s*\{\s*([A-Za-z][A-Za-z. ]*?)\s*\}|(?<=[0-9}\s])([A-Za-z]{2,}))(?:\^\{?[23]\}?)?$"
)
UNIT_WORDS = (
    "mm millimeter millimetre|cm centimeter centimetre|m meter metre|km kilometer kilometre|in inch inches|ft foot feet|yd yard|"
    "mi mile|s sec second|min minute|h hr hour|day|week|month|yr year|dollar|cent|g gram|kg kilogram|lb pound|oz ounce|ton|"
    "deg degree|rad radian|l liter litre|ml milliliter millilitre|gal gallon|mph|kmh|am|pm"
)
UNIT_NAMES = {name: entry.split()[0] for entry in UNIT_WORDS.split("|") for name in entry.split()}
ORDINALS = ("st", "nd", "rd", "th")


def tidy(text: str) -> str:
    """``text`` without what changes only its looks: spacing commands, \\left and \\right, $, spaces beside other than letters and digits."""
    text = PASSED_OVER.sub(lambda m: m.group(1) or "", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)


def unwrap_number(text: str) -> str:
    """\\textbf{(073)} -> 073: a number is a number in any font."""
    found = WRAPPED_NUMBER.fullmatch(text)
    return found.group(1).rstrip(".,") if found else text


def drop_trailing_point(text: str) -> str:
    """12. -> 12; dots and spacing commands stay."""
    return TRAILING_POINT.sub(r"\1", text).rstrip()


def drop_bare_point(text: str) -> str:
    """-1./3 -> -1/3."""
    return BARE_POINT.sub("", text)


def join_thousands(text: str) -> str:
    """29,\\!322,\\!216 -> 29322216; plain commas too if the whole is one such number (as math-verify reads it, though 1,234 could
    be a list) or stands in a fraction, where no list can."""
    if bare := BARE_THOUSANDS.fullmatch(text):
        return bare.group(1).replace(",", "") + bare.group(2)
    text = MARKED_THOUSANDS.sub(lambda m: re.sub(r"[^0-9]", "", m.group()), text)
    return FRACTION_THOUSANDS.sub(lambda m: "{" + m.group(1).replace(",", "") + "}", text)


def spell_e_notation(text: str) -> str:
    """3e8 -> 3 \\times 10^{8}."""
    return E_NOTATION.sub(lambda m: f"{m.group(1).rstrip('.')} \\times 10^{{{int(m.group(2))}}}", text)


def spell_plain_names(text: str) -> str:
    """np.arcsin(x) -> \\arcsin(x), 2*pi -> 2*\\pi; not inside \\text{...} or \\operatorname{...}."""
    text = NUMPY_NAME.sub(r"\1", text)
    return PLAIN_NAME.sub(lambda m: m.group() if _in_text(m) else f"\\{m.group(1)} ", text)


def _in_text(match: re.Match[str]) -> bool:
    return bool(TEXT_START.search(match.string, 0, match.start()))


def keep_last_letters(text: str) -> str:
    """2ab -> 2{ab}: letters at the end of an expression are variables, unless they are a known unit behind a plain number."""
    found = LAST_LETTERS.fullmatch(text)
    if not found or text.count("{") != text.count("}"):
        return text
    before, letters = found.groups()
    if letters in ORDINALS or (letters in UNIT_NAMES and (len(letters) > 1 or PLAIN_NUMBER.fullmatch(before))):
        return text
    return f"{before}{{{letters}}}"


def rename_symbols(text: str) -> str:
    """\\gamma and E_{1} get other names: math-verify reads them as Euler's constant (or the gamma function) and Euler's number."""
    text = GAMMA.sub(r"{\\beta_{771}}", text.replace("_{\\odot}", "_{771}"))
    return ENERGY.sub(lambda m: f"{{Q_{{771{m.group(1) or m.group(2)}}}}}", text)


def tell_cases_apart(gold: str, answer: str) -> Pair:
    """\\frac{R}{r} -> \\frac{{R_{771}}}{r}, where a letter occurs in both cases: math-verify folds them."""
    sides = gold, answer
    if any("\\text" in side or "\\mbox" in side for side in sides):
        return sides
    used = [{m.group()[0] for m in LETTER.finditer(side) if m.group()[0] != "\\"} for side in sides]
    subscripted = {m.group()[0].lower() for side in sides for m in LETTER.finditer(side) if m.group(1)}
    both = {x.upper() for letters in used for x in letters if x.islower() and x.upper() in letters} - {
        x.upper() for x in subscripted
    }
    if not both:
        return sides

    def marked(m: re.Match[str]) -> str:
        return f"{{{m.group()}_{{771}}}}" if m.group() in both else m.group()

    return LETTER.sub(marked, gold), LETTER.sub(marked, answer)


def unit_of(text: str) -> str | None:
    """The unit at the end of ``text`` (or a dollar sign before it) under its short name; None without one that is known."""
    if text.startswith(("\\$", "$")) and not text.endswith("$"):
        return "dollar"
    found = UNIT.search(text)
    name = re.sub(r"[. ]", "", (found.group(1) or found.group(2)).lower()) if found else ""
    name = re.sub(r"^(square|sq|cubic)", "", name)
    return UNIT_NAMES.get(name) or UNIT_NAMES.get(name.removesuffix("s"))


def drop_units(gold: str, answer: str) -> Pair:
    """5 dollars -> 5: a known unit goes; a bare word only behind a plain number, elsewhere its letters are variables."""
    return _without_unit(gold), _without_unit(answer)


def _without_unit(text: str) -> str:
    if (degrees := DEGREES.search(text)) and PLAIN_NUMBER.fullmatch(text, 0, degrees.start()):
        return text[: degrees.start()]
    found = UNIT.search(text)
    if not found or not unit_of(text) or (found.group(2) and not PLAIN_NUMBER.fullmatch(text, 0, found.start())):
        return text
    return text[: found.start()].rstrip() or text


def drop_name(gold: str, answer: str) -> Pair:
    """x = 5 -> 5, where the other side has no relation or the same name."""
    g, a = NAMED.fullmatch(gold), NAMED.fullmatch(answer)
    if g and a:
        return (g.group(2), a.group(2)) if g.group(1) == a.group(1) else (gold, answer)
    relation = RELATION.search(answer if g else gold)
    if relation or not (g or a):
        return gold, answer
    return (g.group(2), answer) if g else (gold, a.group(2) if a else answer)


def drop_percent(gold: str, answer: str) -> Pair:
    """28\\% -> 28 on both sides or on the gold's; on the answer alone only from a whole number, else 2.5\\% -> 2.5 / 100."""
    g, a = PERCENT.match(gold), PERCENT.match(answer)
    if g and not a:
        return g.group(1), answer
    if a and not g and not re.fullmatch(r"-?[0-9]+", a.group(1).strip()):
        return gold, f"\\frac{{{a.group(1)}}}{{100}}"
    return (g.group(1) if g else gold), (a.group(1) if a else answer)
