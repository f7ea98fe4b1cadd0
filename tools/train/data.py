"""Batches of packed documents, made by worker processes in a fixed order.

A batch is (tokens [rows, length] uint16, roles [rows, length] uint8), the roles being those of documents.py. Batch i depends on the seed and i alone, whoever makes it.
"""

import collections
import multiprocessing
import os
import random

import numpy as np
import tokenizers

import documents

LOOK_AHEAD = 48  # documents among which one is searched that fits into what is left of a row
LONG_CHARS = (4000, 18000)


class BatchPlan:
    """Which batches are long, and how large all are."""

    def __init__(self, tokens, short_length, long_length, first_long, long_every):
        self.tokens, self.lengths = tokens, (short_length, long_length)
        self.first_long, self.long_every = first_long, long_every

    def is_long(self, index):
        return index >= self.first_long and index % self.long_every == self.long_every - 1

    def shape(self, is_long):
        length = self.lengths[is_long]
        return max(1, self.tokens // length), length


def encode(tokenizer, docs):
    """(ids, roles) of every document."""
    texts = [text for doc in docs for text, _ in doc]
    encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    for doc in docs:
        ids, roles = [], []
        for _, role in doc:
            part = next(encodings).ids
            ids += part
            roles += [role] * len(part)
        roles[0] = documents.IGNORED  # nothing says when a document begins
        yield ids, roles


class Packer:
    def __init__(self, tokenizer, rng, plan):
        self.tokenizer, self.rng, self.plan = tokenizer, rng, plan
        self.queue = collections.deque()

    def _refill(self):
        if len(self.queue) < LOOK_AHEAD:
            docs = [documents.short_document(self.rng) for _ in range(512)]
            self.queue.extend(encode(self.tokenizer, docs))

    def _fitting(self, room):
        """A short document; cut off at the end if none fits. The cut one comes again, whole."""
        self._refill()
        for i in range(LOOK_AHEAD):
            if len(self.queue[i][0]) <= room:
                ids, roles = self.queue[i]
                del self.queue[i]
                return ids, roles
        ids, roles = self.queue[0]
        return ids[:room], roles[:room]

    def _long(self, room):
        while True:
            chars = LONG_CHARS[0] + int(self.rng.random() * (LONG_CHARS[1] - LONG_CHARS[0]))
            (ids, roles), = encode(self.tokenizer, [documents.long_document(self.rng, chars)])
            if len(ids) <= room:
                return ids, roles

    def _row(self, length, is_long):
        parts, room = [], length
        if is_long:
            parts.append(self._long(length))
            room -= len(parts[0][0])
        while room > 0:
            parts.append(self._fitting(room))
            room -= len(parts[-1][0])
        if is_long:  # the long document stands anywhere; what was cut off stays last
            last = parts.pop() if len(parts) > 1 else None
            self.rng.shuffle(parts)
            parts += [last] if last else []
        return [i for ids, _ in parts for i in ids], [c for _, roles in parts for c in roles]

    def batch(self, is_long):
        count, length = self.plan.shape(is_long)
        rows = [self._row(length, is_long) for _ in range(count)]
        return np.array([r[0] for r in rows], dtype=np.uint16), np.array([r[1] for r in rows], dtype=np.uint8)


def make_batch(tokenizer, plan, seed, index):
    return Packer(tokenizer, random.Random(f"{seed} {index}"), plan).batch(plan.is_long(index))


def _work(folder, plan, seed, first, step, queue):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    index = first
    while True:
        queue.put(make_batch(tokenizer, plan, seed, index))
        index += step


class Batches:
    """Batches `first`, `first` + 1, ... Must be started before CUDA is: the workers are forks."""

    def __init__(self, folder, plan, seed, first, num_workers, ahead=6):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(maxsize=ahead) for _ in range(num_workers)]
        self.workers = [
            context.Process(target=_work, args=(folder, plan, seed, first + i, num_workers, queue), daemon=True)
            for i, queue in enumerate(self.queues)]
        for worker in self.workers:
            worker.start()
        self.next = 0

    def get(self):
        batch = self.queues[self.next % len(self.queues)].get()
        self.next += 1
        return batch

    def stop(self):
        for worker in self.workers:
            worker.terminate()
