#!/usr/bin/env python3
"""Word problems with their answers, drawn at random.

  python3 tools/train/problems.py [--count 5] [--seed 1] [--kind NAME] [--wording seen|unseen] [--unseen-kinds]

prints some. What is held out from training:
  1. of every kind, the number combinations that hash to 0 of 16: with any names, in any wording;
  2. the wordings that ask(unseen=...) lists (kinds_*.py);
  3. the kinds of kinds_unseen.py.
"""

import argparse
import dataclasses
import json
import random
import re
import zlib

import draw
import kinds_counts
import kinds_measures
import kinds_money
import kinds_unseen
import reword

KINDS = {kind.__name__: kind for module in (kinds_money, kinds_counts, kinds_measures) for kind in module.KINDS}
UNSEEN_KINDS = {kind.__name__: kind for kind in kinds_unseen.KINDS}
HELD_OUT_OF = 16
DISTRACTOR_SHARE = 0.35
NUMBER = re.compile(r"\d+")


@dataclasses.dataclass
class Problem:
    kind: str
    facts: list  # sentences
    query: str  # the last sentence, which asks
    answer: str
    result: int
    names: list
    held_out: bool

    @property
    def question(self):
        return " ".join([*self.facts, self.query])

    def as_json(self):
        return json.dumps({"question": self.question, "answer": self.answer})


def distractor(d):
    """A sentence that nothing depends on. Its numbers and people are not the problem's."""
    q, place = d.person(), d.place()
    n, m = int(d.rng.random() * 90) + 3, int(d.rng.random() * 12) + 2
    me = d.people[0] if len(d.people) > 1 and d.rng.random() < 0.5 else q
    return d.pick((
        f"{q} has {n} {d.thing()} at home.",
        f"{me} lives {m} miles from the {place}.",
        f"The {place} {d.w('opens|closes')} at {m} o'clock.",
        f"{me} is in room {n} today.",
        f"{q} is {n} years old.",
        f"The {place} was built {n} years ago.",
        f"It is {d.w('sunny|raining|cold|windy|warm')} today.",
        f"{me} likes {d.w('music|football|painting|the rain|summer|math')} very much.",
        f"Bus number {n} stops near the {place}.",
        f"{q} saw {m} {d.w('birds|dogs|cats|squirrels')} on the way to the {place}.",
        f"A friend named {q} bought {m} {d.food()} yesterday.",
        f"{me} got up at {m} o'clock.",
        f"The {place} has {m} {d.w('doors|windows|trees|benches')}.",
        f"{q} paid ${n} for a {d.w('coat|lamp|radio|hat')} last week.",
    ))


def draw_problem(rng, kinds=KINDS, wording="seen", name=None, taken=()):
    """One problem, held out or not; None if the kind has no such wording."""
    name = name or list(kinds)[int(rng.random() * len(kinds))]
    d = draw.Draw(rng, wording, taken)
    try:
        steps, result = kinds[name](d)
    except draw.NoWording:
        return None
    names = [person.name for person in d.people if person.name in d.question]
    *facts, query = reword.reworded(rng, d.question) if wording == "seen" else reword.SENTENCE_END.split(d.question)
    if rng.random() < DISTRACTOR_SHARE:
        for _ in range(1 if rng.random() < 0.7 else 2):
            # Not first: "he" and "she" must mean the problem's people.
            before = rng.random() < 0.3 or not facts
            place = 0 if before else 1 + int(rng.random() * len(facts))
            facts.insert(place, distractor(d))
    answer = "\n".join([*steps, f"#### {result}"])
    key = f"{name} {NUMBER.findall(answer)}"  # the answer has every number that matters
    return Problem(
        kind=name, facts=facts, query=query, answer=answer, result=result, names=names,
        held_out=zlib.crc32(key.encode()) % HELD_OUT_OF == 0)


def training_problem(rng, **options):
    while True:
        problem = draw_problem(rng, **options)
        if not problem.held_out:
            return problem


def held_out_problem(rng, **options):
    while True:
        problem = draw_problem(rng, **options)
        if problem and problem.held_out:
            return problem


def unseen_problem(rng, **options):
    """Of an unseen wording or kind: held out whatever its numbers."""
    while True:
        problem = draw_problem(rng, **options)
        if problem:
            return problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind")
    parser.add_argument("--wording", default="seen", choices=["seen", "unseen"])
    parser.add_argument("--unseen-kinds", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    kinds = UNSEEN_KINDS if args.unseen_kinds else KINDS
    for _ in range(args.count):
        problem = unseen_problem(rng, kinds=kinds, wording=args.wording, name=args.kind)
        print(f"[{problem.kind}{' held out' if problem.held_out else ''}]\n{problem.question}\n{problem.answer}\n")


if __name__ == "__main__":
    main()
