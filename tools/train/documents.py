"""The texts that the model is trained on: chats, few-shot texts and long documents around problems.

A document is a list of (text, role): the model learns to write what has the role TARGET. PROMPT is what it reads in short
documents and learns to write a little, IGNORED the text around problems, which nobody can guess. Special tokens stand in the
text as they are spelled; the chat template of the model's folder renders exactly what chat() does.
"""

import draw
import filler
import problems
import reword

BOS, EOS, USER, ASSISTANT, PAD = "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|pad|>"
IGNORED, PROMPT, TARGET = range(3)
SPECIAL_TOKENS = (BOS, EOS, USER, ASSISTANT, PAD)  # in order of their ids

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You solve math problems.", "Answer step by step.",
    "You are a helpful assistant. Solve the problem step by step and end with #### and the number.",
    "You are a patient math teacher.",
)
BEFORE = ("Solve this problem: ", "Question: ", "Please solve: ", "Problem: ", "Solve step by step: ", "Hi! ", "Please help me. ",
          "Solve this problem step by step.\n", "Here is a problem.\n")
BEHIND = (" Think step by step.", "\nAnswer:", " Please explain.", " Show your steps.", "\nGive the answer after ####.",
          " Solve it step by step.", "\nEnd with #### and the number.", " Thanks!")
GREETINGS = ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Good morning", "Good evening!", "Hello, how are you?", "How are you?")
GREETING_ANSWERS = ("Hello! Give me a word problem with numbers, and I will solve it step by step.",)
HELP = ("What can you do?", "Who are you?", "Help", "What are you?", "Can you help me?", "What is your name?", "How do you work?",
        "Are you a person?", "What do you know?", "Tell me about yourself.", "Who made you?")
HELP_ANSWERS = ("I am a very small language model. I solve grade-school word problems step by step and end with #### and the number.",)
OFF_TOPIC = ("What is the capital of France?", "Tell me a joke.", "Write a poem about the sea.", "Who is the president?",
             "What is the weather today?", "Write some code.", "Translate this into German.", "What is love?", "Tell me a story.",
             "Who wrote this book?", "What is the meaning of life?", "Sing a song.", "Recommend a movie.", "Why is the sky blue?",
             "What time is it?", "How do I bake bread?")
OFF_TOPIC_ANSWERS = ("I do not know about that. I can only solve grade-school word problems. Please give me one.",)
THANKS = ("Thanks!", "Thank you.", "Great, thank you!", "Very good.", "Thanks a lot", "Ok", "Nice!")
THANKS_ANSWERS = ("You are welcome! Do you have another problem?",)


def arithmetic(d):
    """A bare calculation: (question, answer)."""
    what = d.pick("++--*/")
    if what == "+":
        terms = [int(d.rng.random() ** 2 * 900) + 2 for _ in range(2 if d.rng.random() < 0.8 else 3)]
        text, work, result = " + ".join(map(str, terms)), draw.add(*terms), sum(terms)
    elif what == "-":
        a, b = sorted((int(d.rng.random() ** 2 * 900) + 2 for _ in range(2)), reverse=True)
        text, work, result = f"{a} - {b}", draw.sub(a, b), a - b
    elif what == "*":
        a, b = int(d.rng.random() ** 2 * 250) + 2, int(d.rng.random() * 11) + 2
        if d.rng.random() < 0.3:
            a, b = b, a
        text, work, result = f"{a} * {b}", draw.mul(a, b), a * b
    else:
        b, q = int(d.rng.random() * 11) + 2, int(d.rng.random() * 40) + 2
        text, work, result = f"{b * q} / {b}", draw.div(b * q, b), q
    question = d.pick((f"What is {text}?", f"Calculate {text}.", f"{text} = ?", f"{text}", f"How much is {text}?", f"Compute {text}"))
    return question, f"{work}\n#### {result}"


def small_talk(d):
    asked, answers = d.pick(((GREETINGS, GREETING_ANSWERS), (HELP, HELP_ANSWERS), (OFF_TOPIC, OFF_TOPIC_ANSWERS)))
    return d.pick(asked), d.pick(answers)


def chat(turns, system="", read=PROMPT):
    """What the chat template renders for (question, answer) turns; questions get the role `read`."""
    parts, before = [], BOS + system
    for question, answer in turns:
        parts += [(before + USER + question + ASSISTANT, read), (answer + EOS, TARGET)]
        before = ""
    return parts


def _wrapped(d, question):
    if d.rng.random() < 0.15:
        question = d.pick(BEFORE) + question
    if d.rng.random() < 0.15:
        question += d.pick(BEHIND)
    return question


def short_chat(rng):
    d = draw.Draw(rng)
    system = d.pick(SYSTEM_PROMPTS) if rng.random() < 0.1 else ""
    count = 1 if rng.random() < 0.8 else 2 + int(rng.random() * 4)
    turns = []
    for _ in range(count):
        what = rng.random()
        if what < 0.86:
            problem = problems.training_problem(rng)
            question = problem.question
            if rng.random() < 0.15:
                question = reword.noisy(rng, question, problem.answer)
            turns.append((_wrapped(d, question), problem.answer))
        elif what < 0.96:
            turns.append(arithmetic(d))
        elif what < 0.98 or not turns:
            turns.append(small_talk(d))
        else:
            turns.append((d.pick(THANKS), d.pick(THANKS_ANSWERS)))
    return chat(turns, system)


def few_shot(rng):
    """Problems and answers one after the other, as plain text."""
    d = draw.Draw(rng)
    ask, reply, between = d.pick((("Question: ", "\nAnswer:", "\n\n"), ("Question: ", "\nAnswer:", "\n\n"), ("Q: ", "\nA:", "\n\n"),
                                  ("Problem: ", "\nSolution:", "\n\n"), ("", "\n", "\n\n")))
    parts, before = [], BOS
    count = 1 + int(rng.random() * 5)
    for i in range(count):
        problem = problems.training_problem(rng)
        space = " " if ask else ""
        end = EOS if i == count - 1 else ""
        parts += [(before + ask + problem.question + reply, PROMPT), (space + problem.answer + end, TARGET)]
        before = between
    return parts


def short_document(rng):
    what = rng.random()
    if what < 0.15:
        return few_shot(rng)
    if what < 0.3:  # what long documents are, in little
        return long_document(rng, 300 + int(rng.random() * 1400), 3)
    return short_chat(rng)


def _request(d, problem, is_whole):
    who = " and ".join(problem.names[:2])
    if not is_whole:
        return d.pick((f"Question about {who}: {problem.query}", f"This question is about {who}. {problem.query}",
                       f"Find in the text what is said about {who}. {problem.query}"))
    return d.pick((f"Solve the problem about {who}.", f"Find the problem about {who} in the text and solve it.",
                   f"What is the answer to the question about {who}?"))


def long_text(rng, new_problem, chars, num_problems):
    """A text of about `chars` characters with problems in it: (text, [(request, answer)])."""
    taken, asked = set(), []
    while len(asked) < num_problems:
        problem = new_problem(rng, taken=taken)
        if not problem.names:
            continue
        taken.update(problem.names)
        is_named = any(problem.names[0] in fact for fact in problem.facts)
        asked.append((problem, not is_named or rng.random() < 0.5))
    d = draw.Draw(rng, taken=taken)
    paragraphs, length = [], 0
    for problem, is_whole in asked:
        paragraphs.append(problem.question if is_whole else " ".join(problem.facts))
        length += len(paragraphs[-1]) + 2
    while length < chars:
        if rng.random() < 0.08:  # facts of a problem that nobody asks about
            text = " ".join(problems.training_problem(rng, taken=taken).facts)
        else:
            text = filler.paragraph(d)
        paragraphs.append(text)
        length += len(text) + 2
    rng.shuffle(paragraphs)
    rng.shuffle(asked)
    return "\n\n".join(paragraphs), [(_request(d, problem, is_whole), problem) for problem, is_whole in asked]


def long_document(rng, chars, max_problems=8):
    """A chat about a text: one question after the other."""
    text, asked = long_text(rng, problems.training_problem, chars, 1 + int(rng.random() * max_problems))
    intro = "" if rng.random() < 0.5 else "Read this text. A question follows.\n\n"
    turns = [(request, problem.answer) for request, problem in asked]
    turns[0] = (f"{intro}{text}\n\n{turns[0][0]}", turns[0][1])
    return chat(turns, read=IGNORED)
