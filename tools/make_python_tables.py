#!/usr/bin/env python3
"""Writes src/text/python_tables.cc: what Python's str says about the case and the printability of
characters. Run again to follow a newer Unicode."""

import pathlib
import sys
import unicodedata

OUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/python_tables.cc"
CODES = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]


def ranges(codes):
    """[(first, last)] of the sorted codes."""
    out = []
    for code in codes:
        if out and out[-1][1] + 1 == code:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def regular(code, convert):
    """The other case, if it is one character, and not the same."""
    other = convert(chr(code))
    return ord(other) if len(other) == 1 and other != chr(code) else None


def case_ranges(convert):
    """[(first, last, stride, delta)]: greedy, with strides of 1 and 2."""
    out = []
    for code in CODES:
        other = regular(code, convert)
        if other is None:
            continue
        delta = other - code
        last = out[-1] if out else None
        if last and last[3] == delta:
            step = code - last[1]
            if step in (1, 2) and (last[0] == last[1] or step == last[2]):
                last[1], last[2] = code, step
                continue
        out.append([code, code, 1, delta])
    return out


def irregular(code):
    text = chr(code)
    several = any(len(c(text)) != 1 for c in (str.upper, str.lower, str.title))
    title_differs = len(text.title()) == 1 and text.title() != text.upper()
    # Capital sigma: its lower case depends on whether a word ends there.
    return several or title_differs or text == "\u03a3"


def rows(items):
    text, line = [], "   "
    for item in items:
        cells = [f"0x{x:x}" for x in item[:2]] + [str(x) for x in item[2:]]
        cell = " {" + ", ".join(cells) + "},"
        if len(line) + len(cell) > 100:
            text.append(line)
            line = "   "
        line += cell
    return "\n".join(text + [line])


def table(kind, name, items):
    items = list(items)
    return (f"constexpr {kind} k{name}[] = {{\n{rows(items)}\n}};\n",
            f"std::span<const {kind}> {name}() {{ return k{name}; }}\n")


def main():
    tables = [
        table("CodeRange", "NonPrintableRanges",
              ranges(c for c in CODES if not chr(c).isprintable())),
        table("CaseRange", "UpperRanges", case_ranges(str.upper)),
        table("CaseRange", "LowerRanges", case_ranges(str.lower)),
        table("CodeRange", "IrregularCaseRanges", ranges(c for c in CODES if irregular(c))),
    ]
    OUT.write_text(
        f"// Written by tools/make_python_tables.py from Unicode {unicodedata.unidata_version}.\n"
        '#include "text/python_tables.h"\n\nnamespace quire::jinja {\nnamespace {\n\n'
        "// clang-format off\n" + "\n".join(t[0] for t in tables) +
        "// clang-format on\n\n}  // namespace\n\n" +
        "\n".join(t[1] for t in tables) + "\n}  // namespace quire::jinja\n")


if __name__ == "__main__":
    main()
