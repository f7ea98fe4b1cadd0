"""The real lm-eval package against a live `quire serve` of the bundled model.

usage: lm_eval_test.py BINARY MODEL [unittest arguments]

Run by `make test-clients`, in a Python that has lm-eval and transformers. Three tasks, with prompts sent
as token ids and as text: multiple choice, generation, and a rolling log-likelihood.
"""

import json
import math
import os
import pathlib
import tempfile
import unittest

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval
import yaml
from lm_eval.tasks import TaskManager

import serve_client
from serve_client import Server

QUESTION = "<|user|>Tom buys {} pencils at $3 each and 2 books at $7 each. How much does Tom spend in " \
           "total?<|assistant|>"
# Each ends where the model would: behind a whole answer it draws its end token.
ANSWER = "The pencils cost {0} * 3 = {1} dollars.\nThe books cost 2 * 7 = 14 dollars.\n" \
         "Together that is {1} + 14 = {2} dollars.\n#### {3}"
COUNTS = range(2, 8)
TEXTS = ["The books cost 2 * 7 = 14 dollars.\n", "Tom buys 4 pencils at $3 each."]


class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.server = Server(load_format="auto")
        cls.addClassCleanup(cls.server.stop)
        cls.write_tasks()

    @classmethod
    def write_tasks(cls):
        # The right one last: choices that are alike but for a token that is left out would tie, and the
        # first wins.
        def choices(count):
            cost = 3 * count
            return [ANSWER.format(count, cost, cost + 14, cost + 14 + wrong) for wrong in (1, 10, -3, 0)]

        cls.questions = [{"question": QUESTION.format(count), "choices": choices(count)}
                         for count in COUNTS]
        for doc in cls.questions:
            scores = [cls.score(doc["question"], choice) for choice in doc["choices"]]
            doc["gold"] = scores.index(max(scores))
            # lm-eval puts no begin token before ids; the server does before a text.
            doc["ids"] = cls.answer(cls.tokens(doc["question"]))
            doc["text"] = cls.answer(doc["question"])
        common = {"dataset_path": "json", "test_split": "test"}
        cls.write_task("choice", cls.questions, {
            **common, "output_type": "multiple_choice", "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}", "target_delimiter": "",
            "metric_list": [{"metric": "acc"}]})
        for kind in ("ids", "text"):
            cls.write_task(f"generation_{kind}", cls.questions, {
                **common, "output_type": "generate_until", "doc_to_text": "{{question}}",
                "doc_to_target": f"{{{{{kind}}}}}", "target_delimiter": "",
                "generation_kwargs": {"until": ["\n####"], "max_gen_toks": 80, "do_sample": False,
                                      "temperature": 0},
                "metric_list": [{"metric": "exact_match"}]})
        cls.write_task("rolling", [{"text": text} for text in TEXTS], {
            **common, "output_type": "loglikelihood_rolling", "doc_to_text": "",
            "doc_to_target": "{{text}}", "metric_list": [{"metric": "bits_per_byte"}]})

    @classmethod
    def write_task(cls, name, docs, task):
        data = cls.folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        (cls.folder / f"{name}.yaml").write_text(yaml.safe_dump(
            {"task": f"quire_{name}", "dataset_kwargs": {"data_files": {"test": str(data)}}, **task}))

    @classmethod
    def tokens(cls, text):
        return cls.server.post("/tokenize", {"content": text}).json()["tokens"]

    @classmethod
    def answer(cls, prompt):
        answer = cls.server.complete(prompt, max_tokens=80, stop=["\n####"]).json()
        return answer["choices"][0]["text"]

    @classmethod
    def scores_of(cls, tokens):
        """The log-probabilities of a prompt's tokens but the first; nothing is drawn."""
        answer = cls.server.complete(tokens, max_tokens=0, echo=True, logprobs=1).json()
        return answer["choices"][0]["logprobs"]["token_logprobs"][1:]

    @classmethod
    def score(cls, context, continuation):
        whole = cls.tokens(context + continuation)
        return sum(cls.scores_of(whole)[len(cls.tokens(context)) - 1:])

    def run_tasks(self, kind):
        results = lm_eval.simple_evaluate(
            model="local-completions", task_manager=TaskManager(include_path=str(self.folder)),
            tasks=["quire_choice", f"quire_generation_{kind}", "quire_rolling"], bootstrap_iters=0,
            model_args={"model": serve_client.MODEL.name, "tokenizer": str(serve_client.MODEL),
                        "tokenizer_backend": "huggingface", "tokenized_requests": kind == "ids",
                        "base_url": self.server.url + "/v1/completions", "num_concurrent": 2,
                        "max_length": 1024})
        return {name: {key.split(",")[0]: value for key, value in values.items()}
                for name, values in results["results"].items()}

    def test_token_ids(self):
        results = self.run_tasks("ids")
        self.assertEqual(results["quire_choice"]["acc"], 1.0)
        self.assertEqual(results["quire_generation_ids"]["exact_match"], 1.0)
        begin = self.server.post("/tokenize", {"content": "", "add_special": True}).json()["tokens"]
        total = sum(sum(self.scores_of(begin + self.tokens(text))) for text in TEXTS)
        num_bytes = sum(len(text.encode()) for text in TEXTS)
        self.assertAlmostEqual(results["quire_rolling"]["bits_per_byte"],
                               -total / num_bytes / math.log(2), places=4)

    def test_text(self):
        results = self.run_tasks("text")
        self.assertEqual(results["quire_choice"]["acc"], 1.0)
        self.assertEqual(results["quire_generation_text"]["exact_match"], 1.0)
        self.assertTrue(math.isfinite(results["quire_rolling"]["bits_per_byte"]))

    def test_the_end_token_is_what_these_tasks_draw(self):
        doc = self.questions[0]
        answer = self.server.complete(doc["question"] + doc["choices"][-1], max_tokens=1).json()
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")


if __name__ == "__main__":
    serve_client.main()
