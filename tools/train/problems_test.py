#!/usr/bin/env python3
"""What problems.py promises: answers that are right, a split that holds, and enough kinds and wordings."""

import collections
import random
import re
import unittest

import documents
import problems

CHAIN = re.compile(r"\d+(?: [-+*/] \d+)*(?: = \d+(?: [-+*/] \d+)*)+")


def draws(count, seed=1, **options):
    rng = random.Random(seed)
    return [problems.unseen_problem(rng, **options) for _ in range(count)]


class ProblemsTest(unittest.TestCase):
    def check_answer(self, problem):
        *steps, last = problem.answer.split("\n")
        self.assertEqual(last, f"#### {problem.result}")
        self.assertGreaterEqual(problem.result, 0)
        self.assertTrue(2 <= len(steps) <= 5, problem)
        for step in steps:
            chain = CHAIN.search(step)
            self.assertIsNotNone(chain, problem)
            values = {eval(part) for part in chain.group().split(" = ")}
            self.assertEqual(len(values), 1, problem)
        self.assertEqual(values, {problem.result}, problem)

    def test_every_step_of_every_answer_is_right(self):
        for name in problems.KINDS:
            for problem in draws(60, name=name):
                self.check_answer(problem)
        for problem in draws(200, kinds=problems.UNSEEN_KINDS) + draws(200, wording="unseen"):
            self.check_answer(problem)

    def test_names_things_and_wordings_do_not_decide_what_is_held_out(self):
        flags = collections.defaultdict(set)
        for problem in draws(4000, name="coins"):
            flags[tuple(re.findall(r"\d+", problem.answer))].add(problem.held_out)
        self.assertTrue(all(len(values) == 1 for values in flags.values()))
        self.assertEqual({flag for values in flags.values() for flag in values}, {False, True})

    def test_there_are_enough_kinds_and_wordings(self):
        self.assertGreaterEqual(len(problems.KINDS), 40)
        self.assertEqual(len(problems.UNSEEN_KINDS), 3)
        self.assertGreaterEqual(len({p.kind for p in draws(500, wording="unseen")}), 8)

    def test_training_draws_nothing_that_is_held_out(self):
        rng = random.Random(3)
        self.assertFalse(any(problems.training_problem(rng).held_out for _ in range(2000)))
        self.assertTrue(all(problems.held_out_problem(rng).held_out for _ in range(50)))

    def test_the_same_seed_draws_the_same(self):
        self.assertEqual(draws(50, seed=7), draws(50, seed=7))
        self.assertNotEqual(draws(50, seed=7), draws(50, seed=8))

    def test_a_question_ends_in_what_is_asked_and_has_no_blanks(self):
        for problem in draws(1000):
            self.assertTrue(problem.query.endswith("?"), problem)
            self.assertNotRegex(problem.question, r"[{}]|  |\bNone\b")


class DocumentsTest(unittest.TestCase):
    def test_a_long_text_holds_what_is_asked_about(self):
        rng = random.Random(4)
        for _ in range(20):
            text, asked = documents.long_text(rng, problems.training_problem, 6000, 3)
            self.assertEqual(len(asked), 3)
            for request, problem in asked:
                self.assertIn(problem.facts[0] if problem.facts else problem.query, text)
                self.assertIn(problem.names[0], request)

    def test_targets_are_what_the_assistant_says(self):
        parts = documents.chat([("Hello", "Hi"), ("1 + 1", "2")], "Be kind.")
        self.assertEqual("".join(text for text, _ in parts),
                         "<|bos|>Be kind.<|user|>Hello<|assistant|>Hi<|eos|><|user|>1 + 1<|assistant|>2<|eos|>")
        self.assertEqual([text for text, role in parts if role == documents.TARGET], ["Hi<|eos|>", "2<|eos|>"])


if __name__ == "__main__":
    unittest.main()
