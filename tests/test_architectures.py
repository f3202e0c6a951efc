"""Tiny random models of many architectures: what we write is what the model's own `generate` writes, token for token; what cannot be is refused by name."""
import dataclasses

import pytest
import torch
from architectures import NEW, REFUSED, RUN, WAYS, Oracle, build, compare, ours, prompts, random_drafter, reference

import eagle2_nb.target
from eagle2_nb.decode import KVCache
from eagle2_nb.draft_head import DraftHead, config_for
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.target import Target
from eagle2_nb.verify import Sampling


@pytest.fixture(scope="module", params=list(RUN))
def target(request):
    return Target(build(*RUN[request.param][:2]))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", list(WAYS))
def test_ids_equal_generate(target, way, batch):
    answers, equal, statistics = compare(target, way, batch)
    assert all(len(answer) == NEW and len(set(answer)) > 5 for answer in answers), "an answer that repeats itself shows little"
    assert equal and max(statistics.accepted) == 5 and statistics.tau > 3


def test_the_draft_reads_what_the_first_layer_reads(target):
    read, ids = [], torch.tensor([[11, 23, 5]])
    layers = next(part for part in target.decoder.modules() if isinstance(part, torch.nn.ModuleList))
    hook = layers[0].register_forward_pre_hook(lambda layer, args, named: read.append(args[0] if args else named["hidden_states"]), with_kwargs=True)
    with torch.no_grad(): target.forward(ids)
    hook.remove()
    learned = dict(target.decoder.named_parameters())          # positions that a model adds to it
    added = learned["wpe.weight"][:3] if "wpe.weight" in learned else learned["embed_positions.weight"][2:5] if "embed_positions.weight" in learned else 0
    assert torch.equal(read[0], target.embed(ids) + added)


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_by_name(name):
    config_class, options, named = REFUSED[name]
    with pytest.raises(ValueError, match=named):
        Target(build(config_class, options))


@pytest.mark.parametrize("name", [name for name, (_, options, _) in RUN.items() if options.get("sliding_window")])
def test_a_prompt_longer_than_the_window(name):
    "Prefill through our cache shows every layer its window, as one pass without a cache does"
    target, ids = Target(build(*RUN[name][:2])), torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        cached = target.forward(ids, cache=KVCache(target.layers, 1, "cpu"))[1]
        assert torch.equal(cached, target.model(ids, use_cache=False).logits)
        other = ids.clone()
        other[:, 0] = 3 + (ids[:, 0] - 2) % 94                 # too far back for all layers together, if all of them slide
        slides_only = target.kinds == {"sliding_attention"}
        same = torch.equal(target.forward(other, last_only=True)[1], target.forward(ids, last_only=True)[1])
    assert same == slides_only


def test_a_window_off_by_one_is_noticed(monkeypatch):
    right = eagle2_nb.target.within_window
    model = build(*RUN["Gemma-3"][:2])
    Target(model)
    for wrong in (-1, 1):
        monkeypatch.setattr(eagle2_nb.target, "within_window", lambda mask, places, window: right(mask, places, window + wrong))
        with pytest.raises(ValueError, match="does not hide what that window hides"): Target(model)


@pytest.mark.parametrize("name", ["Llama", "Gemma-3"])
def test_a_head_of_the_model_before_fine_tuning_stays_exact(name):
    target = Target(build(*RUN[name][:2]))
    drafter = random_drafter(target)
    before, _ = reference(target, 1, Sampling())
    with torch.no_grad():
        for weight in target.model.parameters(): weight += 0.05 * torch.randn_like(weight)
    for sampling in WAYS.values():
        answers, _ = reference(target, 1, sampling)
        assert answers != before
        assert ours(target, drafter, 1, sampling)[0] == answers
        assert ours(target, Oracle(answers, target.vocab_size), 1, sampling)[0] == answers


@pytest.mark.parametrize("name", ["Mistral", "Gemma-3", "GPT-OSS", "DeepSeek-V3", "Granite"])
def test_packed_weights(name):
    target = Target(build(*RUN[name][:2]), pack=True)
    assert compare(target, "sampled", 3)[1]


@pytest.mark.parametrize("name", list(RUN))
def test_half_precision_is_not_mistaken_for_disobedience(name):
    assert Target(build(*RUN[name][:2], dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("words", [None, 32])
def test_int8_weights_of_torchao(words):
    "Weight-only int8: the reference is the same quantised model, LM head included; the head scores all words or the first 32"
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    model = build(*RUN["Llama"][:2])
    plain = model(prompts(1)[0]).logits
    quantize_(model, Int8WeightOnlyConfig())
    assert (model(prompts(1)[0]).logits - plain).abs().max() > 0.01 and "Int8" in type(model.lm_head.weight).__name__
    for pack in (False, "auto"):
        target = Target(model, pack)
        for way in WAYS:
            for batch in (1, 3): assert compare(target, way, batch)[1]
    torch.manual_seed(6)
    head = DraftHead(dataclasses.replace(config_for(model), draft_vocab_size=words)).eval()
    answers, _ = reference(target, 1, Sampling())
    assert ours(target, Eagle2Drafter(head, TreeConfig(3, 4, 12)), 1, Sampling())[0] == answers


def test_int8_weights_from_a_checkpoint(tmp_path):
    "The way that `transformers` quantises while it loads, which leaves the LM head alone"
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import AutoModelForCausalLM, TorchAoConfig
    build(*RUN["Llama"][:2]).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()), dtype=torch.float32).eval()
    assert "Int8" in type(model.model.layers[0].mlp.up_proj.weight).__name__
    for way in WAYS: assert compare(Target(model), way, 3)[1]
