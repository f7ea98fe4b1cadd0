"""What clients read from the answers of a live `quire serve`.

usage: completions_test.py BINARY MODEL [unittest arguments]
"""

import json

import serve_client
from serve_client import ServerCase

CONTEXT = "The answer to the question is"
CONTINUATIONS = (" yes", " no", " perhaps it is", " four and a half")
END = 1  # the model's end token
BIAS = {"end": {str(END): 100}, "other": {str(END): -100}}  # what the model draws


def loglikelihood(choice, num_context, end=-1):
    """(log-probability, whether greedy decoding would give it), as lm-eval's parse_logprobs."""
    logprobs = choice["logprobs"]
    scores = logprobs["token_logprobs"][num_context:end]
    tops = logprobs["top_logprobs"][num_context:end]
    return sum(scores), all(score == max(top.values()) for score, top in zip(scores, tops))


class LoglikelihoodTest(ServerCase):
    """lm-eval scores a continuation by sending context + continuation with `echo`, `logprobs` and
    `max_tokens: 1`, and adding up token_logprobs[context tokens:-1]: the last entry is taken for the
    token that was drawn, whatever it is."""

    def tokens(self, text):
        return self.server.post("/tokenize", {"content": text}).json()["tokens"]

    def ask(self, prompts, **fields):
        answer = self.server.complete(prompts, echo=True, logprobs=1, **{"max_tokens": 1, **fields})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def test_every_counted_token_has_an_entry_whatever_was_drawn(self):
        prompt = self.tokens(CONTEXT)
        for drawn, bias in BIAS.items():
            for count in (1, 5):
                with self.subTest(drawn=drawn, max_tokens=count):
                    answer = self.ask(prompt, logit_bias=bias, max_tokens=count)
                    usage, choice = answer["usage"], answer["choices"][0]
                    self.assertEqual(usage["completion_tokens"], 1 if drawn == "end" else count)
                    self.assertEqual(choice["finish_reason"],
                                     "stop" if drawn == "end" else "length")
                    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                        self.assertEqual(len(choice["logprobs"][name]), usage["total_tokens"], name)
                    self.assertLessEqual(choice["logprobs"]["text_offset"][-1], len(choice["text"]))

    def test_a_continuation_has_the_same_score_whatever_is_drawn_behind_it(self):
        context = self.tokens(CONTEXT)
        prompts = [context + self.tokens(text) for text in CONTINUATIONS]
        # Without a token drawn there is none to leave out.
        choices = self.ask(prompts, max_tokens=0)["choices"]
        expected = [loglikelihood(choice, len(context), end=None) for choice in choices]
        self.assertEqual(len(set(expected)), len(expected))
        for drawn, bias in BIAS.items():
            with self.subTest(drawn=drawn):
                answers = self.ask(prompts, logit_bias=bias)["choices"]
                self.assertEqual([answer["index"] for answer in answers], list(range(len(prompts))))
                self.assertEqual([loglikelihood(answer, len(context)) for answer in answers],
                                 expected)

    def test_text_and_token_ids_are_scored_alike(self):
        text = CONTEXT + CONTINUATIONS[0]
        answers = [self.ask(prompt, logit_bias=BIAS["end"])["choices"][0]["logprobs"]
                   for prompt in (text, self.server.post(
                       "/tokenize", {"content": text, "add_special": True}).json()["tokens"])]
        self.assertEqual(answers[0]["token_logprobs"][1:], answers[1]["token_logprobs"][1:])

    def test_the_end_token_has_an_entry_in_chat_whole_and_streamed(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0,
                "logprobs": True, "top_logprobs": 2, "max_tokens": 8, "logit_bias": BIAS["end"]}
        whole = self.server.post("/v1/chat/completions", body).json()
        self.assertEqual(whole["usage"]["completion_tokens"], 1)
        content = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 1)
        self.assertEqual(whole["choices"][0]["message"]["content"], "")
        with_stream = {**body, "stream": True}
        lines = self.server.post("/v1/chat/completions", with_stream).body.decode().splitlines()
        entries = []
        for line in lines:
            if line.startswith("data: {"):
                for choice in json.loads(line[len("data: "):])["choices"]:
                    entries += (choice["logprobs"] or {}).get("content", [])
        self.assertEqual(entries, content)


class PriorityTest(ServerCase):
    flags = ("--max-priority", 3)

    def test_a_priority_beyond_the_limit_is_refused(self):
        for priority in (-3, 0, 3):
            self.assertEqual(self.server.complete(max_tokens=1, priority=priority).status, 200)
        for priority in (4, -4, 2**31 - 1, -2**31):
            with self.subTest(priority=priority):
                answer = self.server.complete(max_tokens=1, priority=priority)
                self.assertEqual(answer.status, 400)
                self.assertEqual(answer.error["param"], "priority")
                self.assertIn(f"expected -3..3, got {priority}", answer.error["message"])


class DrawTest(ServerCase):
    def texts(self, **fields):
        answer = self.server.complete(["Hello"] * 4, temperature=1, max_tokens=12, ignore_eos=True,
                                      **fields).json()
        return [choice["text"] for choice in answer["choices"]]

    def test_equal_prompts_without_a_seed_are_drawn_apart(self):
        texts = self.texts()
        self.assertEqual(len(set(texts)), 4, texts)
        self.assertEqual(len(set(self.texts(n=3))), 12)

    def test_a_seed_that_is_given_holds_for_every_prompt(self):
        texts = self.texts(seed=7)
        self.assertEqual(len(set(texts)), 1, texts)
        self.assertEqual(texts, self.texts(seed=7))


if __name__ == "__main__":
    serve_client.main()
