"""The anthropic package against a live `quire serve`.

usage: anthropic_test.py BINARY MODEL [unittest arguments]

Run by `make test-clients`, in a Python that has the package.
"""

import anthropic

import serve_client
from serve_client import TOOLS_TEMPLATE, ServerCase, scripted, written_calls

KEY = "sk-anthropic-test"
NAME = "tiny_chat"
HELLO = [{"role": "user", "content": "Hello there"}]
# The package has no names for these any more.
GREEDY = {"extra_body": {"temperature": 0, "ignore_eos": True}}


class AnthropicTest(ServerCase):
    key = KEY
    # Thinks where it is told to, too.
    template = TOOLS_TEMPLATE + "{% if enable_thinking %}<think>\n{% endif %}"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0,
                                         timeout=serve_client.WAIT_S)
        cls.addClassCleanup(cls.client.close)

    def create(self, messages=None, **fields):
        return self.client.messages.create(**{"model": NAME, "messages": messages or HELLO,
                                              "max_tokens": 20, **GREEDY, **fields})

    def test_a_message(self):
        message = self.create(system="Be brief.", metadata={"user_id": "u"})
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", NAME))
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertEqual((message.stop_reason, message.usage.output_tokens), ("max_tokens", 20))
        self.assertTrue(message._request_id)
        # What came can be sent back as it is.
        again = self.create([*HELLO, {"role": "assistant", "content": message.content}, *HELLO])
        self.assertGreater(again.usage.input_tokens + again.usage.cache_read_input_tokens,
                           message.usage.input_tokens + message.usage.cache_read_input_tokens)

    def test_a_stream_is_the_message_in_pieces(self):
        whole = self.create()
        with self.client.messages.stream(model=NAME, messages=HELLO, max_tokens=20,
                                         **GREEDY) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual([block.to_dict() for block in final.content],
                         [block.to_dict() for block in whole.content])
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 20))
        events = [event.type for event in self.create(stream=True)]
        self.assertEqual((events[0], events[-1]), ("message_start", "message_stop"))

    def test_stop_sequences(self):
        text = self.create().content[0].text
        message = self.create(stop_sequences=[text[8:12]])
        self.assertEqual((message.stop_reason, message.stop_sequence),
                         ("stop_sequence", text[8:12]))

    def test_thoughts(self):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        whole = self.create(thinking=thinking)
        self.assertEqual([block.type for block in whole.content], ["thinking"])
        with self.client.messages.stream(model=NAME, messages=HELLO, max_tokens=20,
                                         thinking=thinking, **GREEDY) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[0].thinking, whole.content[0].thinking)
        self.create([*HELLO, {"role": "assistant", "content": whole.content}, *HELLO])

    def test_tokens_are_counted(self):
        usage = self.create().usage
        self.assertEqual(self.client.messages.count_tokens(model=NAME, messages=HELLO).input_tokens,
                         usage.input_tokens + usage.cache_read_input_tokens)

    def test_an_agents_loop(self):
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        tools = [{"name": "read", "description": "Reads.", "input_schema": schema}]
        messages = [*HELLO]
        for text, path in (("I look.", "a.py"), ("And there.", "b.py"), ("It works.", None)):
            calls = [("read", {"path": path})] if path else []
            script = text + (written_calls(*calls) if calls else "")
            with self.client.messages.stream(model=NAME, messages=messages, tools=tools,
                                             max_tokens=400, extra_body=scripted(script)) as stream:
                message = stream.get_final_message()
            self.assertEqual(message.content[0].text, text)
            used = [block for block in message.content if block.type == "tool_use"]
            self.assertEqual([(block.name, block.input) for block in used], calls)
            self.assertEqual(message.stop_reason, "tool_use" if calls else "end_turn")
            messages += [{"role": "assistant", "content": message.content},
                         {"role": "user", "content": [
                             {"type": "tool_result", "tool_use_id": block.id, "content": "pass"}
                             for block in used]}]

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.create(max_tokens=0)
        self.assertEqual(refused.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("max_tokens", str(refused.exception))
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="claude")
        with anthropic.Anthropic(base_url=self.server.url, api_key="wrong",
                                 max_retries=0) as stranger:
            with self.assertRaises(anthropic.AuthenticationError):
                stranger.messages.create(model=NAME, messages=HELLO, max_tokens=1)


if __name__ == "__main__":
    serve_client.main()
