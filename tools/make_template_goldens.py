#!/usr/bin/env python3
"""Renders our templates with transformers and stores what comes out, for template_golden_test.

    tools/make_template_goldens.py [--seed N]

Writes, under src/text/testdata/templates, conversations.json, one NAME.golden.json for every
NAME.jinja with what each conversation gives, and expressions.golden.json, with random small templates
and what they give.
Needs jinja2 and transformers; the C++ tests need neither.
"""

import argparse
import copy
import json
import pathlib
import random

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src/text/testdata/templates"
MAX_EXPRESSION_BYTES = 190_000

TEXTS = [
    "Hello", "", " padded \n", "two\nlines", "What's \"this\"?", "<b>&amp;</b>", "naïve café",
    "你好，世界", "🙂 emoji 👩‍👩‍👧", "tab\tand \\ backslash", "{{ not a tag }}", "a </think> b",
    "<think>x</think>\ny", "\n\n", "\u3000wide\u00a0space\u2028", "end\x7f\x01", "x" * 40,
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Wetter für \"Orte\"",
     "parameters": {"type": "object", "properties": {"place": {"type": "string"},
                                                     "days": {"type": "integer", "default": 3}},
                    "required": ["place"]}}},
    {"type": "function", "function": {"name": "zero", "parameters": {"type": "object",
                                                                     "properties": {}}}},
]


def outcome(render):
    """What a rendering gives: its text, what the template raised, or that it failed."""
    try:
        return {"text": render()}
    except jinja2.exceptions.TemplateError as error:
        # raise_exception raises this class itself; undefined values and the like are below it.
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": str(error)}
        return {"error": type(error).__name__}
    except Exception as error:  # pylint: disable=broad-except
        return {"error": type(error).__name__}


def render_case(source, case):
    """A conversation through transformers' own machinery."""
    return outcome(lambda: render_jinja_template(
        conversations=[case["messages"]], tools=case["tools"], chat_template=source,
        add_generation_prompt=case["add_generation_prompt"], **case["variables"])[0][0])


def content(rng, plain):
    kind = rng.random()
    if plain or kind < 0.6:
        return rng.choice(TEXTS)
    if kind < 0.75:
        return None
    parts = [{"type": "text", "text": rng.choice(TEXTS)} for _ in range(rng.randrange(3))]
    if rng.random() < 0.3:
        parts.append({"type": "image_url", "image_url": {"url": "x"}})
    return parts


def call(rng, index, plain):
    arguments = {"place": rng.choice(TEXTS), "days": rng.choice([3, 2.5, True, None]),
                 "list": [1, {"a": "ü"}]}
    for key in list(arguments):
        if rng.random() < 0.4:
            del arguments[key]
    if not plain and rng.random() < 0.3:
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": rng.choice(["weather", "zero"]), "arguments": arguments}
    return {"id": f"call_{index}", "type": "function", "function": function}


def message(rng, role, plain):
    made = {"role": role, "content": content(rng, plain)}
    if role == "assistant":
        if rng.random() < 0.3:
            made[rng.choice(["reasoning_content", "reasoning"])] = rng.choice(TEXTS)
        if rng.random() < 0.35:
            made["tool_calls"] = [call(rng, i, plain) for i in range(rng.randrange(1, 3))]
        if not plain and rng.random() < 0.1:
            del made["content"]
    if role == "tool":
        made["tool_call_id"] = f"call_{rng.randrange(2)}"
        made["name"] = "weather"
        if not plain and rng.random() < 0.2:
            made["content"] = {"result": [1, 2.0, "ö"], "ok": True}
    return made


def roles(rng, plain):
    """As a conversation goes, or in any order."""
    if not plain and rng.random() < 0.4:
        known = ["system", "user", "assistant", "tool", "developer"]
        return [rng.choice(known) for _ in range(rng.randrange(6))]
    order = ["system"] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 4)):
        order.append("user")
        if rng.random() < 0.4:
            order += ["assistant", "tool"] + (["tool"] if rng.random() < 0.3 else [])
        order.append("assistant")
    if rng.random() < 0.7:
        order.append("user")
    return order


def conversation(rng):
    """Half of them plain, as every template takes them, the others with all that can come."""
    plain = rng.random() < 0.5
    variables = {"bos_token": "<bos>", "eos_token": "<eos>"}
    for name in ["thinking", "enable_thinking", "clear_thinking"]:
        if rng.random() < 0.3:
            variables[name] = rng.random() < 0.5
    return {"messages": [message(rng, role, plain) for role in roles(rng, plain)],
            "tools": rng.choice([None, None, TOOLS, TOOLS[:1]]),
            "add_generation_prompt": rng.random() < 0.6, "variables": variables}


class Expressions:
    """Random small templates, from a grammar that knows just enough of types to be interesting."""

    NAMES = ["s", "n", "f", "l", "d", "t", "nothing", "b", "u", "m", "missing"]
    VARIABLES = {"s": "Hello wörld", "n": 7, "f": 2.5, "l": [3, 1, 2], "t": ["b", "A", "c", "a"],
                 "nothing": None, "b": True, "u": "  ünï\n", "d": {"k": "v", "a": 1, "x": [1, 2]},
                 "m": [{"role": "user", "n": 2}, {"role": "tool", "n": 1}, {"n": 3}]}

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *options):
        return self.rng.choice(options)

    def literal(self):
        return self.pick(
            "1", "0", "-3", "2.0", "0.1", "1e16", "0.00001", "'a'", '"b\\n"', "''", "'é\\u00e9'", "true",
            "False", "none", "[]", "[1, 2, 3]", "['x', 'Y']", "(1, 'z')", "{}", "{'a': 1, 2: 'b'}",
            "'a' 'b'", "100", "1_000", "7.25", "(1,)", "[none, true, 1.5, 'q']", "'it''s'",
            "[[1, 2], [3]]", "{'a': {'b': [1]}}")

    def number(self, depth):
        return self.pick("n", "f", "1", "2", "-1", "3.5", "b", f"{self.list(depth)}|length",
                         f"({self.expr(depth)})|int")

    def string(self, depth):
        return self.pick("s", "u", "'x'", "'a,b,,c'", "'Hello'", f"({self.expr(depth)})|string",
                         "d.k", "'ab' * 2", "'  pad '")

    def list(self, depth):
        del depth
        return self.pick("l", "t", "[1, 2, 3, 4]", "[]", "'abc'", "d", "m", "range(4)", "(2, 1)",
                         "d.items()", "d.keys()", "s.split()")

    def method(self, depth):
        text = self.string(depth)
        argument = self.pick("'a'", "'l'", "', '", "','", "''", "'  '")
        return self.pick(
            f"({text}).strip()", f"({text}).lstrip({argument})", f"({text}).rstrip({argument})",
            f"({text}).split()", f"({text}).split({argument})", f"({text}).split({argument}, 1)",
            f"({text}).startswith({argument})", f"({text}).endswith(('a', 'd'))",
            f"({text}).upper()", f"({text}).lower()", f"({text}).title()",
            f"({text}).capitalize()", f"({text}).replace({argument}, 'Z')",
            f"({text}).replace('l', 'L', 1)", f"({text}).find({argument})", f"({text}).count('l')",
            f"({argument}).join(t)", f"({text}).rsplit({argument}, 1)", f"({text}).splitlines()",
            f"({text}).partition({argument})", f"({text}).rfind('l')", f"({text}).index({argument})",
            f"({text}).find('l', 3)", f"({text}).isspace()", "'{} {}'.format(s, n)",
            "'{0}-{x}{{}}'.format(f, x=nothing)", "d.get('k')", "d.get('none', n)", "d.items()",
            "d.keys()", "d.values()", "d.get('x')[0]", "l.index(2)", "l.count(1)")

    def filter(self, depth):
        value, items = self.expr(depth), self.list(depth)
        return self.pick(
            f"({value})|tojson", f"({value})|tojson(indent=2)", f"({value})|tojson(sort_keys=true)",
            f"({value})|tojson(separators=(',', ':'))", f"({value})|tojson(ensure_ascii=true)",
            f"({value})|trim", f"({items})|length", f"({items})|count", f"({items})|join(', ')",
            f"({value})|default('dflt')", f"({value})|default('dflt', true)", f"({value})|upper",
            f"({value})|lower", f"({value})|title", f"({value})|capitalize",
            f"({value})|replace('1', 'one')", f"({items})|first", f"({items})|last",
            f"({items})|list", f"({value})|string", f"({value})|int", f"({value})|float",
            f"({value})|int(9)", f"({items})|map('string')|list", "m|map(attribute='n')|list",
            "m|map(attribute='role', default='?')|join('/')", "m|selectattr('role')|list",
            "m|selectattr('n', 'gt', 1)|list", "m|rejectattr('role', 'defined')|list",
            f"({items})|select('number')|list", f"({items})|reject('none')|list",
            f"({items})|select|list", f"({items})|sort", f"({items})|sort(reverse=true)",
            "m|sort(attribute='n')", "d|dictsort", "d|items|list",
            f"({value})|indent(2)", f"({value})|indent(2, true)", f"({value})|safe",
            f"({value})|escape", f"({value})|e", f"({items})|reverse|list", f"({value})|d('x')",
            f"({value})|length", f"({value})|list", f"({value})|first")

    def test(self, depth):
        value = self.expr(depth)
        name = self.pick(
            "defined", "undefined", "none", "string", "number", "integer", "float", "boolean",
            "mapping", "sequence", "iterable", "true", "false", "equalto(7)", "eq 'x'", "ne(1)",
            "in [1, 7]", "gt 1", "lt(5)", "callable")
        return f"({value}) is {self.pick('', 'not ')}{name}"

    def expr(self, depth):
        if depth <= 0:
            return self.pick(self.literal(), self.rng.choice(self.NAMES))
        below = depth - 1
        number, value = self.number(below), self.expr(below)
        return self.pick(
            self.literal(), self.rng.choice(self.NAMES), self.method(below), self.method(below),
            self.filter(below), self.filter(below), self.filter(below), self.test(below),
            f"{number} {self.pick('+', '-', '*', '/', '//', '%')} {self.number(below)}",
            # Not a negative literal: Jinja folds it and then writes -1 ** x for (-1) ** x.
            f"{self.pick('n', 'f', '2', 'b')} ** {self.pick('2', '-1', 'n', '0.5', 'b')}",
            f"({value}) {self.pick('+', '~', '*', '==', '!=', '<', '>=', 'and', 'or', 'in', 'not in')}"
            f" ({self.expr(below)})",
            f"not ({value})", f"-({number})", f"({value}) if ({self.expr(below)}) else ({number})",
            f"({value}) if ({self.expr(below)})", f"1 < {number} <= 5",
            f"({self.list(below)}|list)[{self.slice()}]", f"({self.string(below)})[{self.slice()}]",
            f"({self.list(below)})[{self.pick('0', '-1', '9', 'n')}]", "d.a", "d['x'][1:]",
            "d['nope']", "missing.attribute", "l.1", "m[0].role", f"[{value}, {number}]",
            f"{{'k': {value}}}", f"({value}, {number})")

    def slice(self):
        return self.pick("1:", ":2", "::-1", "1:3", "-2:", "::2", ":-1", "5:1:-2", "none:2", ":")

    def template(self):
        """An expression that is printed, or one inside of a statement."""
        value, other = self.expr(2), self.expr(1)
        return self.pick(*[f"{{{{ {value} }}}}"] * 6, *[
            f"{{% set x = {value} %}}{{{{ x }}}}|{{{{ x }}}}",
            f"{{% if {value} %}}yes{{% elif {other} %}}maybe{{% else %}}no{{% endif %}}",
            f"{{% for x in {self.list(1)} %}}{{{{ loop.index }}}}:{{{{ x }}}};{{% else %}}none{{% endfor %}}",
            f"{{% for x in {self.list(1)} if {other} %}}{{{{ loop.length }}}}{{{{ x }}}},{{% endfor %}}",
            f"{{% for k, v in d.items() %}}{{{{ k }}}}={{{{ {value} }}}}{{% if not loop.last %}},{{% endif %}}{{% endfor %}}",
            f"{{% set ns = namespace(a={other}) %}}{{% for x in {self.list(1)} %}}{{% set ns.a = x %}}{{% endfor %}}{{{{ ns.a }}}}",
            f"{{% macro g(a, b={other}) %}}<{{{{ a }}}}|{{{{ b }}}}>{{% endmacro %}}{{{{ g({value}) }}}}{{{{ g(b=1) }}}}",
            f" {{%- if {other} -%}} \n x {{%+ endif %}}\n y\n {{% set q = 1 %}}\n{{{{- q -}}}} \n.",
            f"{{% set x | upper %}}a{{{{ {value} }}}}{{% endset %}}{{{{ x }}}}",
        ])


def is_stored(template, result):
    """Whether a result says something that another implementation has to reproduce."""
    text = result.get("text", "")
    if " object at 0x" in text or "<Macro" in text or "<bound method" in text:
        return False
    if "<function" in text or "<built-in" in text or "<class" in text or "<Namespace" in text:
        return False
    return len(text) < 400 and len(template) < 300


def make_expressions(rng, count):
    made = Expressions(rng)
    stored, seen, size = [], set(), 0
    while len(stored) < count and size < MAX_EXPRESSION_BYTES:
        template = made.template()
        if template in seen:
            continue
        seen.add(template)
        # A copy: |indent of a list appends to the list.
        variables = copy.deepcopy(made.VARIABLES)
        result = outcome(lambda: _compile_jinja_template(template).render(**variables))
        errors = sum("error" in r for _, r in stored[-20:])
        if not is_stored(template, result) or ("error" in result and errors > 3):
            continue
        stored.append((template, result))
        size += len(json.dumps([template, result], ensure_ascii=False).encode()) + 2
    return {"variables": made.VARIABLES, "cases": stored}


def write(path, value, rows):
    """JSON with one row a line."""
    head = {key: member for key, member in value.items() if key != rows}
    text = json.dumps(head, ensure_ascii=False)[:-1] + (", " if head else "") + f'"{rows}": [\n'
    text += ",\n".join(json.dumps(row, ensure_ascii=False) for row in value[rows])
    path.write_text(text + "\n]}\n")


def make_conversations(seed, count):
    rng = random.Random(seed)
    return [conversation(rng) for _ in range(count)]


def stored_conversations(cases):
    """With the tools, which are long and few, named by how many are given."""
    rows = [{**case, "tools": None if case["tools"] is None else len(case["tools"])}
            for case in cases]
    return {"tools": TOOLS, "cases": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--expressions", type=int, default=2500)
    args = parser.parse_args()
    cases = make_conversations(args.seed, args.cases)
    write(FOLDER / "conversations.json", stored_conversations(cases), "cases")
    for path in sorted(FOLDER.glob("*.jinja")):
        results = [render_case(path.read_text(), case) for case in cases]
        write(path.with_suffix(".golden.json"), {"results": results}, "results")
    write(FOLDER / "expressions.golden.json",
          make_expressions(random.Random(args.seed), args.expressions), "cases")


if __name__ == "__main__":
    main()
