"""The table of rules and the exact reader: every rule's two examples, that it is needed, and that it never accepts what is wrong."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from graft import verifier_rewrites as rewrites, verifier_worker
from graft.verifier import HOWS, Verifier
from graft.verifier_numbers import Exact, TooLarge, exact_value
from graft.verifier_rules import BOTH, COMPARE, DECIDE, REWRITE, RULES, explain, prepare
from graft.verifier_worker import judge

IDS = [rule.name for rule in RULES]


@pytest.fixture(scope="module")
def verifier():
    with Verifier(timeout_s=20.0) as v:
        yield v


def boxed(answer):
    return f"\\boxed{{{answer}}}"


def unguarded(monkeypatch, gold, answer):
    """math-verify without any rule."""
    monkeypatch.setattr(verifier_worker, "close", lambda a, b: True)
    monkeypatch.setattr(verifier_worker, "reads_whole", lambda text: True)
    return judge(gold, answer)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_examples_of_a_rule(rule, verifier):
    assert verifier.verify(rule.accepts[0], boxed(rule.accepts[1])).how == "equal"
    assert not verifier.verify(rule.rejects[0], boxed(rule.rejects[1])).correct


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_rule_applies_to_its_examples_and_plain_math_verify_errs_on_one(rule, monkeypatch):
    if rule.kind != COMPARE:
        assert rule.name in explain(*rule.accepts)[2] + explain(*rule.rejects)[2]
    if rule.source == "cheap path" or rule.name == "too long":  # these save time and change no verdict
        return
    plain = [unguarded(monkeypatch, *pair) == "equal" for pair in (rule.accepts, rule.rejects)]
    assert plain != [True, False]


def test_table_is_well_formed():
    assert len(set(IDS)) == len(IDS)
    for rule in RULES:
        assert rule.kind in (REWRITE, BOTH, DECIDE, COMPARE)
        assert rule.apply.__doc__
        assert rule.source


@pytest.mark.parametrize(
    ("rewrite", "text", "expected"),
    [
        (rewrites.unwrap_number, r"\text{13}", "13"),
        (rewrites.unwrap_number, r"\text{(E)}", r"\text{(E)}"),
        (rewrites.unwrap_number, r"\textbf{12 cm}", r"\textbf{12 cm}"),
        (rewrites.drop_trailing_point, r"\text{(E)},", r"\text{(E)}"),
        (rewrites.drop_trailing_point, "1, 2, ...", "1, 2, ..."),
        (rewrites.drop_trailing_point, r"5\,", r"5\,"),
        (rewrites.drop_bare_point, r"0.\overline{3}", r"0.\overline{3}"),
        (rewrites.drop_bare_point, r"\frac{1.}{2.5}", r"\frac{1}{2.5}"),
        (rewrites.join_thousands, r"10,\!080", "10080"),
        (rewrites.join_thousands, r"64{,}328 + 1\,000", "64328 + 1000"),
        (rewrites.join_thousands, "1,234", "1234"),
        (rewrites.join_thousands, r"\$1,234.50 \text{ in all}", r"\$1234.50 \text{ in all}"),
        (rewrites.join_thousands, "1,234,5", "1,234,5"),
        (rewrites.join_thousands, "(625, 100)", "(625, 100)"),
        (rewrites.join_thousands, r"\{1,234\}", r"\{1,234\}"),
        (rewrites.join_thousands, r"1,\,234", r"1,\,234"),
        (rewrites.spell_e_notation, "2.7778e-6", r"2.7778 \times 10^{-6}"),
        (rewrites.spell_e_notation, "2e^{3}", "2e^{3}"),
        (rewrites.spell_e_notation, "2e3x", "2e3x"),
        (rewrites.spell_plain_names, r"\operatorname{exp}(2)", r"\operatorname{exp}(2)"),
        (rewrites.spell_plain_names, r"\text{pick sin}", r"\text{pick sin}"),
        (rewrites.spell_plain_names, "np.sqrt(2)", "sqrt(2)"),
        (rewrites.keep_last_letters, "5 m", "5 m"),
        (rewrites.keep_last_letters, "5 cm", "5 cm"),
        (rewrites.keep_last_letters, "3t", "3{t}"),
        (rewrites.keep_last_letters, r"\sin^2 t", r"\sin^2 {t}"),
        (rewrites.keep_last_letters, r"\sin \theta", r"\sin \theta"),
        (rewrites.keep_last_letters, "5th", "5th"),
        (rewrites.rename_symbols, r"\gamma(3) + E + e^{E_{a}}", r"\gamma(3) + E + e^{{Q_{771a}}}"),
        (rewrites.tidy, r" \left( 1,\!2 \right) ", "(1,2)"),
        (rewrites.tidy, r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (lambda t: rewrites.drop_name(t, "5"), "x = 6", ("6", "5")),
        (lambda t: rewrites.drop_name(t, "y = 5"), "x = 6", ("x = 6", "y = 5")),
        (lambda t: rewrites.drop_name("x=5", t), "x = 6", ("5", "6")),
        (lambda t: rewrites.drop_name("x<5", t), "x = 6", ("x<5", "x = 6")),
        (lambda t: rewrites.drop_name("1", t), "x = 6, y = 5", ("1", "x = 6, y = 5")),
        (lambda t: rewrites.drop_units(t, "90"), r"90^{\circ}", ("90", "90")),
        (lambda t: rewrites.drop_units(t, "90"), r"\tan 15^\circ", (r"\tan 15^\circ", "90")),
        (rewrites.tidy, "1 2", "1 2"),
        (rewrites.tidy, r"\sin x", r"\sin x"),
        (rewrites.tidy, r"\$5", r"\$5"),
        (rewrites.tidy, r"x \leftarrow y", r"x\leftarrow y"),
    ],
)
def test_rewrites(rewrite, text, expected):
    assert rewrite(text) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "how"),
    [
        (r"28\%", "28 percent", "equal"),
        ("28", r"28\%", "equal"),
        (r"33.3\%", r"33.3\,\%", "equal"),
        ("0.28", r"28\%", "equal"),
        (r"0.5\%", "0.5", "equal"),  # a documented stand: the question asks for percent
        ("2516_8", "2516", "equal"),  # another: the question fixes the base
        ("43_5", r"43_{\text{five}}", "equal"),
        ("43_5", "44_5", "different"),
        ("-37_8", "37_8", "different"),
        ("1011_2", "11_{10}", "different"),  # the same number, but not what was asked
        ("x_1", "x_2", "different"),
        ("9:24", "09:24", "equal"),
        (r"05\!:\!00", "5:00", "equal"),
        (r"8:34 \text{ p.m.}", "8:34", "equal"),
        (r"8:34 \text{ p.m.}", r"8:34 \text{ a.m.}", "different"),
        ("1:2:3", "2:4:6", "equal"),
        ("1:2:3", "1:2", "different"),
        ("3:5", "5:3", "different"),
        (r"1:2:3:\ldots", r"1:4:9:\ldots", "different"),
        (r"114\text{ square units}", "114", "equal"),
        (r"7\text{ hours}", r"7\text{ minutes}", "different"),
        (r"50\text{ cents}", r"\$50", "different"),
        (r"\$1,\!657", "1657", "equal"),
        ("0", "f(2) = 0", "equal"),
        ("0", "0 = x", "different"),
        ("0", "x + y + z = 0", "different"),
        ("0", "3 - 3 = 0", "equal"),
        ("3x-y+13=0", "3x+4y+14=0", "different"),
        ("3e8", r"3 \times 10^8", "equal"),
        ("3e8", "2.99e8", "different"),
        ("1e-5", "0.0000103", "different"),  # equal to six decimals
        ("1e-8", "0", "different"),
        (r"\frac{1}{3}", "0.333333", "equal"),  # math-verify's six decimals
        (r"\frac{1}{3}", "0.33", "different"),
        ("2^{1000000}", "2^{1000000}+1", "different"),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}", "different"),
        ("1", r"\binom{10^{9}}{5 \cdot 10^{8}}", "too large"),
        ("1", "(10!)!", "too large"),
        ("2ab", "2", "different"),
        ("3", "3t", "different"),
        ("3t", "3", "different"),
        ("5 m", "5", "equal"),
        (r"\frac{1}{\sqrt{2}}c", r"\frac{c}{\sqrt{2}}", "equal"),
        ("x^{2}/2^{99}", "x^{2}/2^{98}", "different"),
        ("(1, \\sqrt{2}/2^{99})", "(1, \\sqrt{3}/2^{99})", "different"),
        (r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}", "0", "equal"),
        (r"\sqrt{17}", "4.123105625617661", "equal"),
        ("2", "1, 2", "different"),
        (r"\pm 2021", "2021", "different"),
        (r"\gamma^2-1", r"-1+\gamma^2", "equal"),
        (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"\frac{E_1+2E_2}{3}", "equal"),
        ("E_{1},E_{2}", "E_{2},E_{1}", "equal"),
        ("E_{1}", "E_{2}", "different"),
        ("y = 2x + 3", "y = 3 + 2x", "equal"),
    ],
)
def test_verdicts_by_rules(verifier, gold, answer, how):
    verdict = verifier.verify(gold, boxed(answer))
    assert verdict.how == how
    assert how in HOWS


def latex(n: Fraction) -> str:
    if n.denominator == 1:
        return str(n.numerator)
    return f"{'-' if n < 0 else ''}\\frac{{{abs(n.numerator)}}}{{{n.denominator}}}"


def expression(rng: random.Random, depth: int) -> tuple[str, Fraction | None]:
    """Random arithmetic with its value by Fraction; None where it has none."""
    kind = rng.randrange(8) if depth else 0
    if kind < 2:
        n = Fraction(rng.randint(0, 30), rng.choice([1, 1, 2, 5]))
        return latex(n), n
    (a, x), (b, y) = expression(rng, depth - 1), expression(rng, depth - 1)
    if kind == 7:
        n = rng.randint(-3, 4)
        value = None if x is None or (x == 0 and n <= 0) else x**n
        return f"({a})^{{{n}}}", value
    if kind == 6:
        return f"{rng.randint(0, 6)}!", None
    if x is None or y is None or (kind in (4, 5) and y == 0):
        return f"({a}) + x", None
    text = {2: f"({a}) + ({b})", 3: f"({a}) \\cdot ({b})", 4: f"\\frac{{{a}}}{{{b}}}", 5: f"({a}) / ({b})"}[kind]
    return text, {2: lambda: x + y, 3: lambda: x * y, 4: lambda: x / y, 5: lambda: x / y}[kind]()


def test_exact_values_are_those_of_fractions():
    rng = random.Random(0)
    checked = 0
    for _ in range(600):
        text, value = expression(rng, 4)
        if value is not None:
            found = exact_value(text)
            assert found is not None, text
            assert Fraction(found.numerator, found.denominator) == value, text
            checked += 1
    assert checked > 200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2^{2}", Exact(-4)),
        ("2-3-4", Exact(-5)),
        ("1/2/3", Exact(1, 6)),
        (r"\frac12", Exact(1, 2)),
        (r"\frac1{512}", Exact(1, 512)),
        ("5!", Exact(120)),
        (r"\binom{5}{2}", Exact(10)),
        ("0.125", Exact(1, 8)),
        ("2(3)", Exact(6)),
        (r"\left(2+3\right) \times 4", Exact(20)),
        ("(-1)^{1000001}", Exact(-1)),
        *(
            (text, None)
            for text in ("1 2", r"1\frac12", "2^10", "5!!", r"\frac{1}{0}", "0^{0}", "2^{1/2}", "x", "", "((", ")", "²")
        ),
        *((text, None) for text in (r"\sqrt{2}", r"2\pi", "2x")),
        *((text, None) for text in ("1,2", "1=1", "٣", "(" * 500, "1+" * 600, r"\sqrt{4}", "5\\%")),
    ],
)
def test_exact_reader(text, value):
    assert exact_value(text) == value


@pytest.mark.parametrize(
    "text",
    ["9^{9^{9^9}}", "3^{20^6}", "(10!)!", r"\binom{10^{9}}{5 \cdot 10^{8}}", r"x + 1/2^{9^{9}}", "(x+1)^{9^{9}}", "(70000)!" * 9],
)
def test_absurdly_large_numbers_are_refused_at_once(text):
    with pytest.raises(TooLarge):
        exact_value(text)


ATOMS = (
    "3",
    "-7",
    "12",
    r"\frac{3}{4}",
    r"\frac{6}{8}",
    "0.75",
    "2^{5}",
    "32",
    "4!",
    "24",
    "1/3",
    r"-\frac{1}{3}",
    "0.5",
    "10^{-2}",
    "0.01",
)
TEXTS = (
    r"\text{(E)}",
    "x+1",
    "x + 1",
    r"\left(1,2\right)",
    "(1, 2)",
    r"\dfrac{x}{2}",
    r"\frac{x}{2}",
    r"\sqrt{2}",
    r"\text{east}",
    "[1,2)",
)


def test_cheap_accepts_are_accepted_by_math_verify_too():
    """What is decided equal as the same text or as the same exact number, on all pairs of 25 texts (625 pairs)."""
    decided = 0
    for gold in ATOMS + TEXTS:
        for answer in ATOMS + TEXTS:
            how = prepare(gold, answer)[0]
            if how == "equal":
                decided += 1
                assert judge(gold, answer) == "equal", (gold, answer)
            elif how == "different" and not {".", "/"} & set(gold + answer):
                assert judge(gold, answer) == "different", (gold, answer)
    assert decided > 30


EXPRESSIONS = (
    *(
        "x+1",
        "1+x",
        "x-1",
        "2x+2",
        "2(x+1)",
        r"\frac{x}{2}",
        "x/2",
        "0.5x",
        "x^2",
        "x^{2}",
        "x \\cdot x",
        "ab",
        "ba",
        "a b",
        "AB",
        "3^x",
        "9^{x/2}",
    ),
    *(
        r"\sqrt{2}",
        r"\frac{2}{\sqrt{2}}",
        "1.414214",
        "1.41",
        "2^{1/2}",
        r"\sqrt[3]{8}",
        "2",
        r"\pi",
        "3.141593",
        "3.14",
        r"\frac{\pi}{2}",
        r"\pi/2",
    ),
    *(
        r"\sqrt{8}",
        r"2\sqrt{2}",
        r"\sqrt{3}-\sqrt{2}",
        r"\frac{1}{\sqrt{3}+\sqrt{2}}",
        "(1,2)",
        "(2,1)",
        "[1,2]",
        "1,2",
        "2,1",
        "(1,x)",
        "(1, 2, 3)",
    ),
    *(
        "(0.5, 2)",
        r"(\frac{1}{2}, 2)",
        "x=2",
        "y = 2",
        "2x = 4",
        "i",
        "2i",
        "e",
        "e^2",
        "5 m",
        "5",
        "90^\\circ",
        "90",
        "1,234",
        "1234",
        "x_1",
        "n!",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("step", [19, 2])
def test_values_that_differ_are_different_to_math_verify_too(step):
    """Pairs of these: what the rules decide without math-verify, math-verify decides so as well."""
    decided = Counter()
    wrong = []
    for gold, answer in list(itertools.product(EXPRESSIONS, EXPRESSIONS))[::step]:
        how = prepare(gold, answer)[0]
        if how is not None:
            decided[how] += 1
            if (judge(gold, answer) == "equal") != (how == "equal"):
                wrong.append((gold, answer, how))
    assert wrong == []
    assert decided["different"] > 1000 // step
    assert decided["equal"] >= len(EXPRESSIONS) // step


numbers = st.builds(lambda n, d: latex(Fraction(n, d)), st.integers(-999, 999), st.integers(1, 60)) | st.integers(
    -9999, 9999
).map(str)


@settings(max_examples=120)
@given(numbers, numbers)
def test_exact_numbers_say_what_math_verify_says(gold, answer):
    for pair in ((gold, answer), (gold, gold + "+0")):
        assert prepare(*pair)[0] == judge(*pair)
