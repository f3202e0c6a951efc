"""Many generations in one process: nothing grows, and nothing of one is left in the next.

    EAGLE2_GENERATIONS=2000 python -m pytest -s tests/test_load.py

From 1,000 generations on the resident set is watched too, which says little about a few.
"""
import gc
import os
import random
import threading

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, TextIteratorStreamer

from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.generate import generate, steps
from eagle2_nb.target import Target, load_default

GENERATIONS = int(os.environ.get("EAGLE2_GENERATIONS", "120"))
VOCABULARY = 97


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=VOCABULARY, initializer_range=0.3, pad_token_id=0, eos_token_id=1)
    target = Target(AutoModelForCausalLM.from_config(config).eval())
    return target, DraftHead.from_target(target.model).eval()


def resident():
    "MiB of this process that are in memory"
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())  # isinstance would ask lazy objects for their class


def one(pair, seed):
    "A generation of random kind, sometimes left early -> its ids, None if it was left"
    target, head = pair
    chance = random.Random(seed)
    rows, length = chance.choice([1, 1, 2, 4]), chance.randint(1, 40)
    ids = torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : chance.randint(0, length - 1)] = 0
    sampled = dict(do_sample=True, temperature=chance.choice([0.5, 1.0, 1.5])) if chance.random() < 0.5 else dict(do_sample=False)
    options = dict(attention_mask=mask, draft_head=head, tree=chance.choice([TreeConfig(2, 3, 6), TreeConfig(4, 4, 12)]), max_new_tokens=chance.randint(1, 40), **sampled)
    torch.manual_seed(seed)
    if chance.random() < 0.2:
        running = steps(target, ids, **options)
        next(running), next(running, None)
        return running.close()
    return generate(target, ids, **options)


def test_memory_is_flat_and_the_last_generation_is_the_first_again(pair):
    warm = max(20, GENERATIONS // 5)
    whole = {seed: ids for seed in range(10) if (ids := one(pair, seed)) is not None}  # the others were left early
    for seed in range(warm):
        one(pair, seed)
    held, memory = tensors(), resident()
    for seed in range(warm, GENERATIONS):
        one(pair, seed)
    assert tensors() <= held, "tensors stay behind"
    assert len(whole) > 3 and all(torch.equal(one(pair, seed), ids) for seed, ids in whole.items())
    grown = resident() / memory - 1
    print(f"{GENERATIONS} generations: resident set {memory:.0f} MiB after {warm}, grown by {grown:.2%} at the end")
    assert GENERATIONS < 1000 or grown < 0.02


def test_two_threads_on_one_model_write_what_one_writes(pair):
    target, head = pair
    prompts = [torch.randint(2, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(seed)) for seed in range(16)]
    answer = lambda ids: generate(target, ids, draft_head=head, tree=TreeConfig(3, 4, 8), max_new_tokens=24)
    alone, found = [answer(ids) for ids in prompts], {}

    def work(numbers):
        for number in numbers:
            found[number] = answer(prompts[number])

    threads = [threading.Thread(target=work, args=(range(start, len(prompts), 2),)) for start in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == len(prompts) and all(torch.equal(found[number], ids) for number, ids in enumerate(alone))


def test_a_consumer_that_leaves_early_does_not_hold_the_producer():
    target, tokenizer, head = load_default()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    ids = tokenizer("Rainbows are", return_tensors="pt").input_ids
    options = dict(draft_head=head, tree=TreeConfig(3, 6, 12), max_new_tokens=16, streamer=streamer, eos_token_id=None)
    made = []
    producer = threading.Thread(target=lambda: made.append(generate(target, ids, **options)))
    producer.start()
    next(iter(streamer))  # one piece, and away
    producer.join(120)
    assert not producer.is_alive() and made[0].shape[1] == ids.shape[1] + 16


def test_at_the_end_of_the_context_it_stops(pair):
    "as `generate` with this length, and without a word less than fits"
    target, head = pair
    limit = target.context
    ids = torch.randint(2, VOCABULARY, (1, limit - 9), generator=torch.Generator().manual_seed(3))
    options = dict(max_new_tokens=40, eos_token_id=None, pad_token_id=0)
    with pytest.warns(UserWarning, match=f"the context of {limit} tokens is full"):
        ours = generate(target, ids, draft_head=head, tree=TreeConfig(4, 4, 12), **options)
    assert ours.shape[1] == limit + 1, f"{ours.shape[1]} of {limit}"  # the last token needs no place, since it is never read
    assert torch.equal(ours, target.model.generate(ids, **options)[:, : limit + 1])
