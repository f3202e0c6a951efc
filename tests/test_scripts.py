"""What the scripts of `scripts/` and `benchmarks/` compute themselves, on tiny models."""
import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from eagle2_nb.decode import collect, decode
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import Target

ROOT = Path(__file__).parent.parent


def script(name):
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=97, initializer_range=0.3)
    target = Target(AutoModelForCausalLM.from_config(config).eval())
    return target, DraftHead.from_target(target.model).eval()


def test_pieces_bring_back_what_was_quantised():
    pieces, chance = script("benchmarks/pieces.py"), torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (64, 32), generator=chance)
    four = (numbers * torch.rand(64, 1, generator=chance) - torch.rand(64, 1, generator=chance)).reshape(32, 64)
    eight = torch.randint(-127, 127, (64, 32), generator=chance)
    eight[:, 0] = 127
    eight = (eight * torch.rand(64, 1, generator=chance)).reshape(32, 64)
    for weight, part in ((four, "half bytes"), (eight, "bytes")):
        parts = pieces.shrink(weight)
        assert part in parts and torch.allclose(pieces.grow(parts, weight.shape), weight, atol=1e-6 * weight.abs().max(), rtol=1e-5)
    free = torch.randn(32, 64, generator=chance)
    assert torch.equal(pieces.grow(pieces.shrink(free), free.shape), free.half().float())
    assert torch.equal(pieces.grow(pieces.shrink(free[0]), free[0].shape), free[0])


def test_the_oracle_is_always_right(pair):
    target, head = pair
    script("scripts/head_table.py").check_oracle(target, head, torch.tensor([[5, 17, 3, 41]]), [])


def test_replayed_acceptances():
    "As long as they were recorded: the tree of the loud draft reaches as deep as it may"
    gpu, wanted = script("benchmarks/gpu.py"), [7, 1, 2, 5]
    target, head = gpu.loud_pair(LlamaConfig(**gpu.TINY))
    steps = decode(target, Eagle2Drafter(head, TreeConfig()), torch.tensor([[5, 17, 3, 41]]), choose=gpu.Replay(wanted), max_new_tokens=1 + 3 * sum(wanted))
    lengths = collect(steps)[1].accept_lengths[0]
    assert lengths == wanted * 3


def test_equal_budget_pools_steps_within_a_task_and_averages_tasks():
    budget = script("scripts/equal_budget.py")
    by_task, found = budget.figures({"a": [([2, 4], [1, 2, 3]), ([3], [3])], "b": [([1], [2])]})
    assert by_task == {"a": [3.0, 2.25], "b": [1.0, 2.0]}
    assert found == dict(eagle2=2.0, fitted=2.125, ratio=2 / 2.125)
