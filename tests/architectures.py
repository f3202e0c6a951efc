"""Tiny random models of many architectures, what is refused, and a drafter that knows the answer: for the tests and for the page that shows them."""
import torch
import transformers
from transformers import AutoModelForCausalLM

from eagle2_nb.decode import collect, decode, plain_generate
from eagle2_nb.draft_head import DraftHead, at_end
from eagle2_nb.expand import TreeConfig
from eagle2_nb.rerank import Eagle2Drafter
from eagle2_nb.value import DraftTree
from eagle2_nb.verify import Sampling

NEW = 40   # tokens of an answer
WAYS = {"greedy": Sampling(), "sampled": Sampling(0.8, 20, 0.9)}

SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=97,
             max_position_embeddings=512, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
MLA = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12, n_routed_experts=4, n_shared_experts=1, n_group=2,
           topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, num_key_value_heads=4)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
MIXED = dict(num_hidden_layers=4, sliding_window=8, sliding_window_pattern=2, tie_word_embeddings=False)   # tied random weights repeat one word
FOUR = dict(num_hidden_layers=4, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2)

RUN = {  # name: (configuration class, its options, what is special about it)
    "Llama": ("LlamaConfig", dict(tie_word_embeddings=False), "grouped-query attention"),
    "Llama, tied": ("LlamaConfig", dict(tie_word_embeddings=True), "LM head tied to the embedding"),
    "Llama 3": ("LlamaConfig", dict(rope_parameters=LLAMA3), "scaled RoPE"),
    "Mistral": ("MistralConfig", dict(sliding_window=8), "sliding window in all layers"),
    "Mixtral": ("MixtralConfig", EXPERTS, "mixture of experts"),
    "Mixtral, window": ("MixtralConfig", dict(EXPERTS, sliding_window=8), "mixture of experts, sliding window"),
    "Qwen2": ("Qwen2Config", {}, "biases of q, k, v"),
    "Qwen2, window": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), "sliding window from one layer on"),
    "Qwen3": ("Qwen3Config", dict(seed=1), "norms of q and k"),
    "Qwen3-MoE": ("Qwen3MoeConfig", EXPERTS, "norms of q and k, mixture of experts"),
    "Gemma-2": ("Gemma2Config", MIXED, "eager attention, soft-caps, windows in every other layer"),
    "Gemma-3": ("Gemma3TextConfig", MIXED, "scaled embeddings, windows in every other layer, two RoPE bases"),
    "Phi-3": ("Phi3Config", {}, "fused projections"),
    "Phi-3, window": ("Phi3Config", dict(sliding_window=8), "fused projections, sliding window"),
    "OLMo-2": ("Olmo2Config", dict(seed=2), "norms behind the blocks"),
    "GPT-NeoX": ("GPTNeoXConfig", dict(rotary_pct=0.5), "parallel blocks, RoPE on half of each head"),
    "GPT-2": ("GPT2Config", {}, "learned positions"),
    "Cohere": ("CohereConfig", dict(logit_scale=0.5), "logit scale, interleaved RoPE"),
    "Granite": ("GraniteConfig", dict(embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.7, attention_multiplier=0.3), "four multipliers"),
    "DeepSeek-V3": ("DeepseekV3Config", MLA, "latent attention (K wider than V), mixture of experts"),
    "Gemma": ("GemmaConfig", dict(seed=1), "scaled embeddings"),
    "Cohere-2": ("Cohere2Config", FOUR, "windows with RoPE, full layers without positions"),
    "OLMo-3": ("Olmo3Config", FOUR, "windows in every other layer"),
    "GPT-OSS": ("GptOssConfig", dict(FOUR, **EXPERTS), "eager attention with sinks, windows in every other layer"),
    "SmolLM3": ("SmolLM3Config", dict(no_rope_layers=[1, 0]), "a layer without positions"),
    "StarCoder2": ("Starcoder2Config", dict(sliding_window=8), "sliding window, layer norms"),
    "StableLM": ("StableLmConfig", {}, "RoPE on a part of each head"),
    "OPT": ("OPTConfig", dict(word_embed_proj_dim=32), "learned positions, shifted by two"),
    "Falcon": ("FalconConfig", dict(head_dim=None, tie_word_embeddings=False), "one head of keys and values"),
}

REFUSED = {  # name: (configuration class, its options, what the error names)
    "Mamba": ("MambaConfig", dict(state_size=4), "linear_attention|MambaBlock"),
    "RWKV": ("RwkvConfig", {}, "RwkvBlock"),
    "Qwen3-Next": ("Qwen3NextConfig", dict(EXPERTS, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
                                           layer_types=["linear_attention", "full_attention"]), "linear_attention"),
    "Jamba": ("JambaConfig", dict(EXPERTS, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, use_mamba_kernels=False), "linear_attention|mamba|Jamba"),
    "LFM2": ("Lfm2Config", dict(layer_types=["conv", "full_attention"]), "conv"),
    "Llama-4": ("Llama4TextConfig", dict(EXPERTS, intermediate_size_mlp=64), "chunked_attention"),
    "GPT-Neo": ("GPTNeoConfig", dict(attention_types=[[["global", "local"], 1]], num_layers=2), "local"),
    "T5": ("T5Config", dict(d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4), "encoder-decoder"),
    "Doge": ("DogeConfig", {}, "dynamic_mask_attention"),
    "Llama, stray window": ("LlamaConfig", dict(sliding_window=64), "does not hide what that window hides"),
    "MPT": ("MptConfig", dict(d_model=32, n_heads=4, n_layers=2), "mask and positions"),
    "Phi-3, longrope": ("Phi3Config", dict(original_max_position_embeddings=256, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[2.0] * 4, partial_rotary_factor=1.0, original_max_position_embeddings=256)), "longrope"),
    "Llama, dynamic": ("LlamaConfig", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)), "dynamic"),
}


def build(config_class, options, dtype=torch.float32):
    "A tiny random model in eval mode"
    fields = {name: value for name, value in (SIZES | options).items() if value is not None}
    torch.manual_seed(fields.pop("seed", 0))
    config = getattr(transformers, config_class)(**fields)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_config(config, dtype=dtype).eval()


def prompts(batch):
    "Token ids and mask of one prompt of 13 tokens, or of three of 14, 5 and 9 tokens, padded on the left"
    chance = torch.Generator().manual_seed(7)
    if batch == 1: return torch.randint(3, 97, (1, 13), generator=chance), None
    ids, mask = torch.randint(3, 97, (3, 14), generator=chance), torch.ones(3, 14, dtype=torch.long)
    for row, padding in ((1, 9), (2, 5)): ids[row, :padding] = mask[row, :padding] = 0
    return ids, mask


class Oracle:
    "Drafts the answer itself among wrong tokens; every third tree is wrong from its third level on."
    def __init__(self, new, vocab_size, depth=5): # the answer of every row, as `generate` gave it
        self.new, self.vocab_size, self.depth = new, vocab_size, depth

    def start(self, target, batch): self.rows, self.done, self.calls = list(range(len(batch))), None, 0

    def observe(self, tokens, features, lengths, tree_logits=None):
        self.done = [1] * len(lengths) if self.done is None else [done + n for done, n in zip(self.done, lengths)]
        self.root, self.calls = at_end(tokens, lengths), self.calls + 1

    def draft(self, budget, choose=None): # two wrong drafts, a child of one of them, and the right one on every level
        nodes, depth = [[] for _ in self.rows], min(self.depth, budget - 1)
        for tree, row, done in zip(nodes, self.rows, self.done):
            above = 0
            for level, token in enumerate((self.new[row][done:done + depth] + [None] * depth)[:depth], 1):
                known, wrong = token is not None, 0 if token is None else (token + 1) % self.vocab_size
                right = (token + 2 * (level > 2 and self.calls % 3 == 0)) % self.vocab_size if known else 0
                first = 1 + len(tree)
                tree += [(wrong, above, level, known), (wrong, first, level + 1, known), (right, above, level, known)]
                above = first + 2
        table = torch.tensor([[(int(root), -1, 0, 1), *tree] for root, tree in zip(self.root, nodes)])
        tokens, parents, depths, valid = table.unbind(-1)
        self.candidates = DraftTree(tokens, parents, depths, -depths.float(), valid.bool())
        return self.candidates

    def keep(self, rows): self.rows, self.done, self.root = [self.rows[i] for i in rows], [self.done[i] for i in rows], self.root[rows]


def reference(target, batch, sampling):
    "The answers of the model's own `generate`, and the generator's state behind them"
    torch.manual_seed(5)
    answers = plain_generate(target, *prompts(batch), sampling, max_new_tokens=NEW)
    return answers, torch.get_rng_state()


def ours(target, drafter, batch, sampling):
    "The answers of our loop, what it counted, and the generator's state behind it"
    torch.manual_seed(5)
    answers, statistics = collect(decode(target, drafter, *prompts(batch), sampling.choose(), max_new_tokens=NEW), batch)
    return answers, statistics, torch.get_rng_state()


def random_drafter(target):
    "EAGLE-2 with a head of random weights"
    torch.manual_seed(6)
    return Eagle2Drafter(DraftHead.from_target(target.model).eval(), TreeConfig(3, 4, 12))


def compare(target, way, batch):
    "Answers of `generate`; whether both drafters gave the same tokens and left the generator in the same state; what the oracle's run counted"
    answers, state = reference(target, batch, WAYS[way])
    runs = [ours(target, drafter, batch, WAYS[way]) for drafter in (random_drafter(target), Oracle(answers, target.vocab_size))]
    equal = [new == answers and torch.equal(after, state) for new, _, after in runs]
    return answers, all(equal), runs[-1][1]
