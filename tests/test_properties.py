"""Every pure part against a slow and obvious one, on random trees and scores with ties, infinities and NaN.

A plain run tries 100 examples a property, the same ones each time. The thorough run tries 2,000 and more, and others each time:

    .venv/bin/python -m pytest tests/test_properties.py --hypothesis-profile=thorough
"""
import functools
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from architectures import RUN, build
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import TopPLogitsWarper
from transformers.cache_utils import Cache

from eagle2_nb import decode as loop
from eagle2_nb import draft_head, rerank, sampling, value, verify
from eagle2_nb import baselines, expand
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.target import Target
from eagle2_nb.value import DraftTree

INF, NAN = math.inf, math.nan
SEEDS = st.integers(0, 2**32 - 1)
KINDS = dict(equal=lambda x: 0 * x, ties=lambda x: (1.5 * x).round(), smooth=lambda x: 3 * x, steep=lambda x: 40 * x, huge=lambda x: 3e4 * x)
LAYERS = 2


@dataclass
class Scores:
    "Random numbers, many of them at once: equal, with ties, plain, or so steep that float16 overflows; some are replaced by infinities or NaN"
    seed: int
    kind: str
    special: list
    dtype: torch.dtype = torch.float32

    def of(self, *shape):
        chance = torch.Generator().manual_seed(self.seed)
        x = KINDS[self.kind](torch.randn(shape, generator=chance))
        if self.special and x.numel():
            at = torch.randint(x.numel(), (len(self.special),), generator=chance)
            x.view(-1)[at] = torch.tensor(self.special)
        return x.to(self.dtype)


def scores(special=(INF, -INF, NAN), dtypes=(torch.float32, torch.float16, torch.bfloat16)):
    some = st.just([]) | st.lists(st.sampled_from(special), max_size=4) if special else st.just([])
    return st.builds(lambda seed, *rest: Scores(seed, list(KINDS)[seed % len(KINDS)], *rest), SEEDS, some, st.sampled_from(dtypes))


def close(a, b, tolerance=1e-5): # numbers, of which infinities and NaN equal only themselves
    return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def same(a, b): # two tensors, likewise
    return torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


def log_softmax(logits): # of a list, in double precision
    top = max(logits)
    if any(x != x for x in logits) or math.isinf(top): return [NAN] * len(logits)
    total = top + math.log(sum(math.exp(x - top) for x in logits))
    return [min(0., x - total) for x in logits]


@st.composite
def trees(draw, most=16, vocabulary=9):
    "Parents and tokens of one tree, from a star to a chain; the children of a node have different tokens"
    spread, parents, tokens, used = draw(st.integers(1, most)), [-1], [draw(st.integers(0, vocabulary - 1))], set()
    for node in range(1, draw(st.integers(1, most))):
        parent = draw(st.integers(max(0, node - spread), node - 1))
        free = [token for token in range(vocabulary) if (parent, token) not in used]
        if not free: parent, free = node - 1, list(range(vocabulary))
        parents.append(parent); tokens.append(draw(st.sampled_from(free)))
        used.add((parent, tokens[-1]))
    return parents, tokens


def ancestors(parents, node): # the node's own included, root first
    return ([] if parents[node] < 0 else ancestors(parents, parents[node])) + [node]


def stacked(rows, log_values=None): # parents and tokens of every row -> DraftTree, shorter rows filled up with nodes that are none
    width = max(len(parents) for parents, _ in rows)
    depths = [[len(ancestors(parents, node)) - 1 for node in range(len(parents))] for parents, _ in rows]
    fill = lambda values, filler: torch.tensor([list(row) + [filler] * (width - len(row)) for row in values])
    depths, valid = fill(depths, 1), fill([[True] * len(parents) for parents, _ in rows], False)
    return DraftTree(fill([tokens for _, tokens in rows], 0), fill([parents for parents, _ in rows], 0), depths,
                     -depths.float() if log_values is None else log_values, valid)


# ---- the laws of notebook 00

@st.composite
def laws(draw, count=2, dtypes=(torch.float32, torch.float64)):
    "Laws over one vocabulary; zeros, one certain token and equal laws are frequent, and so are laws that differ by rounding only"
    n, dtype, found = draw(st.integers(1, 7)), draw(st.sampled_from(dtypes)), []
    for _ in range(count):
        if found and draw(st.integers(0, 3)) == 0: found.append(found[0] * (1 + draw(st.sampled_from([0, 1e-7])) * torch.arange(n, dtype=dtype))); continue
        weights = draw(st.lists(st.sampled_from([0., 0., 1e-12, .1, .25, 1., 1., 3.]), min_size=n, max_size=n).filter(any))
        found.append(torch.tensor(weights, dtype=dtype))
    return [law / law.sum() for law in found]


def near(a, b): # two laws
    return torch.allclose(a.double(), b.double(), rtol=0, atol=1e-12 if torch.float64 in (a.dtype, b.dtype) else 2e-6)


@given(laws())
def test_one_step_of_speculative_sampling_emits_the_targets_law(both):
    p, q = both
    assert near(sampling.output_law(p, q), p)
    accepted = [min(1., x / y) if y else 1. for x, y in zip(p.tolist(), q.tolist())]
    assert near(sampling.acceptance_probability(p, q), torch.tensor(accepted, dtype=p.dtype))
    assert close(sampling.expected_acceptance(p, q).item(), sum(map(min, p.tolist(), q.tolist())))
    rest, excess = sampling.residual(p, q), [max(0., x - y) for x, y in zip(p.tolist(), q.tolist())]
    expected = [x / sum(excess) for x in excess] if any(excess) else p.tolist()
    assert near(rest, torch.tensor(expected, dtype=p.dtype)) and (rest >= 0).all()


@given(laws(), SEEDS)
def test_a_sampled_token_is_one_that_the_target_could_choose(both, seed):
    (p, q), chance = both, torch.Generator().manual_seed(seed)
    drafted = torch.multinomial(q.expand(8, -1), 1, generator=chance)[:, 0]
    tokens, accepted = sampling.speculative_sample(p.expand(8, -1), q.expand(8, -1), drafted, chance)
    for x, token, kept in zip(drafted.tolist(), tokens.tolist(), accepted.tolist()):
        assert p[token] > 0
        if p[x] >= q[x] or p[x] == 0: assert kept == (p[x] > 0)
        assert token == x if kept else p[token] > q[token] or (p <= q).all()


def random_laws(seed, vocabulary, length): # a law after every prefix of at most `length` tokens, with zeros
    chance, found = random.Random(seed), {}
    for n in range(length + 1):
        for prefix in itertools.product(range(vocabulary), repeat=n):
            weights = torch.tensor([chance.choice([0., 0., 1., chance.random()]) for _ in range(vocabulary)], dtype=torch.float64)
            weights[chance.randrange(vocabulary)] += .1
            found[prefix] = weights / weights.sum()
    return found


@given(SEEDS, st.integers(2, 4), st.integers(0, 2))
def test_testing_the_children_in_turn_is_one_draw_and_leaves_the_law_alone(seed, vocabulary, depth):
    table, chance = random_laws(seed, vocabulary, depth + 1), random.Random(seed + 1)
    tree, level = {}, [()]
    for _ in range(depth):
        for path in level: tree[path] = chance.sample(range(vocabulary), chance.randint(0, vocabulary))
        level = [(*path, token) for path in level for token in tree[path]]
    walked = sampling.tree_walk_law(table, tree)
    assert sampling.law_distance(walked, sampling.tree_test_law(table, tree)) < 1e-9
    emitted = sampling.sequence_law(table, depth + 2, sampling.emitted_law(walked))
    plain = {path: math.prod(table[path[:i]][token].item() for i, token in enumerate(path)) for path in itertools.product(range(vocabulary), repeat=depth + 2)}
    assert sampling.law_distance(emitted, plain) < 1e-9
    for (path, bonus), weight in walked.items():                       # it ends at a node, with a token that is none of its children
        assert bonus not in tree.get(path, []) and all(token in tree[path[:i]] for i, token in enumerate(path))


@given(SEEDS, st.integers(2, 3), st.integers(0, 3))
def test_a_chain_of_drawn_drafts_leaves_the_law_alone(seed, vocabulary, length):
    table, draft = random_laws(seed, vocabulary, length + 1), random_laws(seed + 1, vocabulary, length)
    emitted = sampling.emitted_law(sampling.chain_law(table, draft, length))
    plain = sampling.sequence_law(table, length + 1)
    assert sampling.law_distance(sampling.sequence_law(table, length + 1, emitted), plain) < 1e-9


# ---- values

@given(scores(), scores(special=(-INF,), dtypes=[torch.float32]), st.integers(1, 2), st.integers(1, 32), st.integers(1, 9))
def test_a_childs_value_is_its_parents_times_its_confidence_and_never_above(logits, above, rows, k, vocabulary):
    logits, above = logits.of(rows, k, vocabulary), -above.of(rows, k).abs()
    found = value.child_log_values(above, logits)
    assert found.shape == logits.shape and found.dtype == torch.float32
    for parent, children, row in zip(above.flatten().tolist(), found.flatten(0, 1).tolist(), logits.flatten(0, 1).tolist()):
        assert all(close(child, parent + own) for child, own in zip(children, log_softmax(row)))
        assert not any(child > parent for child in children)


@given(trees())
def test_paths_and_places_of_a_drawing(row):
    parents, tree = row[0], stacked([row])
    assert all(value.path_to(tree, node) == ancestors(parents, node) for node in range(len(parents)))
    places, leaves = value.heights(tree), []
    def visit(node):
        below = [child for child, parent in enumerate(parents) if parent == node]
        for child in below: visit(child)
        if below: assert places[node] == (places[below[0]] + places[below[-1]]) / 2
        else: leaves.append(places[node])
    visit(0)
    assert leaves == [-n for n in range(len(leaves))]                  # one under the other


@given(st.lists(st.tuples(st.sampled_from([0., .1, .25, .5, .9, 1.]) | st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=40), st.integers(1, 12))
def test_a_reliability_curve_counts_every_confidence_once(pairs, bins):
    confidence, accepted = torch.tensor([c for c, _ in pairs]), torch.tensor([a for _, a in pairs])
    bin_of = [min(int(c), bins - 1) for c in (confidence * bins).tolist()]
    filled = [[pair for pair, b in zip(pairs, bin_of) if b == at] for at in range(bins)]
    expected = [(sum(c for c, _ in part) / len(part), sum(a for _, a in part) / len(part), len(part)) for part in filled if part]
    curve = value.reliability(confidence, accepted, bins)
    assert len(curve) == len(expected) and all(close(x, y) for row, other in zip(curve.tolist(), expected) for x, y in zip(row, other))
    error = sum(abs(c - a) * n for c, a, n in expected) / len(pairs)
    assert close(value.expected_calibration_error(curve), error) and error <= 1


# ---- expansion

class Paths:
    "A draft whose features are paths (token + 1 on each level), and whose logits depend on the path; it checks what it is shown"
    def __init__(self, table, rows, levels): # logits by the path's hash, [M, V]
        self.table, self.rows, self.read, self.depth = table, [], torch.zeros(rows, 0, levels, dtype=torch.float64), []
        self.weights, self.root = torch.arange(1, levels + 1, dtype=torch.float64) ** 2 + 1, torch.zeros(rows, levels, dtype=torch.float64)

    def score(self, features): return self.table[(features @ self.weights).long() % len(self.table)]

    def line(self, path): # tokens from the root's child on -> their row of the table
        return int(sum((token + 1) * w for token, w in zip(path, self.weights.tolist()))) % len(self.table)

    def level(self, tokens, features, mask, level):
        own = features.clone()
        own[..., level - 1] = (tokens + 1).double()
        self.read, self.depth = torch.cat([self.read, own], 1), self.depth + [level] * tokens.shape[1]
        upper = torch.arange(own.shape[2]) < torch.tensor(self.depth)[:, None]
        beginnings = torch.where(upper, own[:, :, None], 0.) == self.read[:, None]
        assert torch.equal(mask, beginnings.all(-1)), "a node sees its ancestors among all that was read, and itself"
        self.rows.append(own)
        return self.score(own), own


@dataclass
class Growth:
    "One expansion: scores, size, and what is left out"
    table: Scores
    rows: int
    k: int
    depth: int
    spare: int        # tokens that are never among the best
    reduced: bool     # does the draft score a part of the vocabulary?
    by_value: bool
    stop: int         # no level below this one is grown

    def run(self):
        table = self.table.of(40, self.k + self.spare)
        ids = 100 + 3 * torch.arange(self.k + self.spare) if self.reduced else None
        paths = Paths(table, self.rows, self.depth)
        root, config = torch.arange(self.rows) + 7, TreeConfig(self.depth, self.k, 2)
        tree = expand.expand(root, paths.score(paths.root), paths.root, paths.level, config, ids, self.by_value, lambda level, values: level <= self.stop)
        assert torch.equal(tree.tokens[:, 0], root) and (tree.parents[:, 0] == -1).all() and (tree.log_values[:, 0] == 0).all()
        return tree, paths, ids, config


growths = st.builds(Growth, scores(), st.integers(1, 2), st.integers(1, 32), st.integers(1, 12), st.integers(0, 6), st.booleans(), st.booleans(), st.integers(1, 16))


def frontiers(values, k): # values of one row -> for each level below the root the nodes on it, and of these the k best
    first, grown = 1, [0]
    while first < len(values):
        nodes = range(first, first + k * len(grown))
        grown = sorted(nodes, key=lambda node: (-values[node], node))[:k]
        yield list(nodes), grown
        first = nodes.stop


@given(growths)
def test_expansion_grows_the_best_nodes_of_each_level(growth):
    tree, paths, ids, _ = growth.run()
    own, k = torch.tensor([log_softmax(row) for row in paths.table.tolist()], dtype=torch.float64), growth.k
    columns = tree.tokens if ids is None else (tree.tokens - 100) // 3
    assert ids is None or torch.equal(ids[columns[:, 1:]], tree.tokens[:, 1:])
    for row in range(growth.rows):
        tokens, parents, values = (getattr(tree, name)[row].tolist() for name in ("tokens", "parents", "log_values"))
        grown, level = [0], 0
        for level, (nodes, best) in enumerate(frontiers(values, k), 1):
            assert [parents[node] for node in nodes] == [parent for parent in grown for _ in range(k)] and (tree.depths[row, nodes] == level).all()
            above = torch.tensor([[values[parent] if growth.by_value else 0.] for parent in grown], dtype=torch.float64)
            every = above + own[[paths.line([tokens[i] for i in ancestors(parents, parent)[1:]]) for parent in grown]]
            every, found, column = every.nan_to_num(-INF, neginf=-INF), tree.log_values[row, nodes].view(-1, k).double(), columns[row, nodes].view(-1, k)
            assert (column.sort().values.diff() > 0).all() and (found[:, 1:] <= found[:, :-1]).all(), "different tokens, best first"
            assert same(found, every.sort(descending=True).values[:, :k]) and same(found, every.gather(1, column)) and (found <= above).all()
            if level <= len(paths.rows): assert [[int(x) - 1 for x in node[:level]] for node in paths.rows[level - 1][row]] == [[tokens[i] for i in ancestors(parents, node)[1:]] for node in best]
            grown = best
        assert level == min(growth.depth, growth.stop) == len(paths.rows) + 1
        assert tree.valid[row].tolist() == [True] + [all(map(math.isfinite, values))] * (len(values) - 1)
    if growth.stop >= growth.depth: assert len(tree) == 1 + expand.candidate_count(TreeConfig(growth.depth, k))


# ---- reranking

def check_kept(kept, candidates, orders): # for each row the candidates to keep, in the stated order
    "What is kept is exactly that, in tree order, with parents before their children"
    for row, order in enumerate(orders):
        nodes = sorted(order)
        place = {node: i for i, node in enumerate(nodes)}
        above = candidates.parents[row, nodes].tolist()
        assert nodes[0] == 0 and all(parent in place for parent in above[1:]), "connected"
        assert kept.parents[row].tolist() == [-1] + [place[parent] for parent in above[1:]]
        assert all(parent < node for node, parent in enumerate(kept.parents[row].tolist()))
        for name in ("tokens", "depths", "log_values", "valid"): assert torch.equal(getattr(kept, name)[row], getattr(candidates, name)[row, nodes]), name


def budgets(draw, n): # below, at and above n nodes
    return draw(st.integers(1, n) | st.sampled_from([max(1, n - 1), n, n + 1, n + 50]))


def largest(key, depths, m): # the stated order: value descending, shallower first on ties, then as they stand
    return sorted(range(len(key)), key=lambda node: (-key[node], depths[node], node))[:m]


def falling(raw, parents): # no node above its parent
    for node in range(1, len(parents)): raw[node] = min(raw[node], raw[parents[node]])
    return raw


@given(st.data(), st.lists(trees(40), min_size=1, max_size=3), scores(special=(-INF,)))
def test_reranking_keeps_the_m_largest_of_any_tree(data, rows, raw):
    key = (-raw.of(3, 40).abs()).tolist()
    for values in key: values[0] = 0.
    levels = []
    for parents, tokens in rows:                                       # level by level, as expansion makes them
        depth = [len(ancestors(parents, node)) for node in range(len(parents))]
        order = sorted(range(len(parents)), key=lambda node: depth[node])
        levels.append(([-1] + [order.index(parents[node]) for node in order[1:]], [tokens[node] for node in order]))
    width = max(len(parents) for parents, _ in levels)
    log_values = torch.tensor([(falling(values, parents) + [-INF] * 40)[:width] for values, (parents, _) in zip(key, levels)])
    for row, (parents, _) in enumerate(levels): log_values[row, len(parents):] = -INF
    candidates = stacked(levels, log_values.to(raw.dtype))
    m = budgets(data.draw, width)
    kept = rerank.rerank(candidates, m)
    assert len(kept) == min(m, width)
    check_kept(kept, candidates, [list(range(width))[:1] + [node for node in largest(values, [0] * width, width) if node][:m - 1] for values in candidates.log_values.tolist()])


@given(st.data(), growths, st.booleans())
def test_what_is_kept_of_an_expansion_are_the_m_largest_connected(data, growth, reranking):
    candidates, _, _, config = growth.run()
    config = replace(config, total_tokens=budgets(data.draw, len(candidates)))
    key, most = rerank.what_to_keep(candidates, config, growth.by_value, reranking)
    kept, orders = rerank.rerank(candidates, most, key), []
    for row in range(growth.rows):
        values, parents, depths = (getattr(candidates, name)[row].tolist() for name in ("log_values", "parents", "depths"))
        if not reranking: orders.append([0, *itertools.chain(*(best for _, best in frontiers(values, growth.k)))][:config.total_tokens])
        else: orders.append(largest(values if growth.by_value else falling(values, parents), depths, config.total_tokens))
    assert len(kept) == most == len(orders[0]) <= config.total_tokens
    check_kept(kept, candidates, orders)
    if len(kept) <= 100: check_mask(verify.tree_mask(kept.parents), kept.parents)


@given(st.lists(trees(40), min_size=1, max_size=2), scores(special=(-INF, INF)))
def test_the_lowest_above_is_the_lowest_on_the_path(rows, raw):
    tree = stacked(rows)
    tree.log_values = raw.of(*tree.tokens.shape)
    for row, (parents, _) in enumerate(rows):
        values, lowest = tree.log_values[row].tolist(), rerank.lowest_above(tree)[row].tolist()
        assert [lowest[node] for node in range(len(parents))] == [min(values[i] for i in ancestors(parents, node)) for node in range(len(parents))]


# ---- the automatic size

@st.composite
def costs(draw):
    "Measured seconds; as a clock is not exact, a longer text may seem cheaper, and more tokens too"
    sizes = sorted({1, *draw(st.lists(st.integers(2, 80), max_size=5))})
    row = st.lists(st.floats(1e-4, 1e-1), min_size=len(sizes), max_size=len(sizes)).map(tuple)
    pair = st.tuples(row, row)
    low = draw(st.integers(1, 500))
    return rerank.CostModel((low, low + draw(st.integers(1, 2000))), tuple(sizes), draw(pair), draw(pair))


def slow_seconds(cost, what, context, tokens): # one number
    (low, high), (first, second) = getattr(cost, what), cost.contexts
    row = [a + max(0, (context - first) / (second - first)) * max(0, b - a) for a, b in zip(low, high)]
    if tokens >= cost.sizes[-1]: return row[-1] * tokens / cost.sizes[-1]
    at = max(i for i, size in enumerate(cost.sizes) if size <= tokens)
    share = (tokens - cost.sizes[at]) / (cost.sizes[at + 1] - cost.sizes[at])
    return row[at] + share * (row[at + 1] - row[at])


@given(costs(), st.sampled_from(["verify", "draft"]), st.integers(1, 10**6), st.lists(st.integers(1, 300), min_size=1, max_size=12).map(sorted))
@example(rerank.CostModel((128, 1024), (1, 2), ((.010, .011), (.009, .010)), ((.001, .001), (.001, .001))), "verify", 16000, [1, 2])
def test_seconds_are_interpolated_and_never_fall(cost, what, context, tokens):
    found = cost.seconds(what, context, tokens).tolist()
    expected = list(itertools.accumulate((slow_seconds(cost, what, context, n) for n in tokens), max))
    assert all(close(a, b, 1e-9) for a, b in zip(found, expected))
    assert min(found) > 0, "no forward takes less than no time"


@given(st.data(), costs(), scores(special=(-INF,), dtypes=[torch.float32]), st.integers(1, 4), st.integers(1, 60))
def test_the_chosen_size_pays_most(data, cost, raw, rows, n):
    key = -raw.of(rows, n).abs()
    key[:, 0] = 0
    budget, most = rerank.Budget(cost, data.draw(st.lists(st.integers(1, 4000), min_size=rows, max_size=rows))), budgets(data.draw, n)
    budget.tokens, budget.seconds = data.draw(st.floats(1, 1e3)), data.draw(st.floats(1e-3, 10))
    size = budget.size(key, most)
    seconds = budget.cost.seconds("verify", max(budget.context, 1), [rows * (m + 1) for m in range(min(most, n))]).tolist()
    best = [sorted((math.exp(x) for x in row), reverse=True) for row in key.tolist()]
    gains = [sum(sum(row[:m]) for row in best) - budget.rate * seconds[m - 1] for m in range(1, min(most, n) + 1)]
    assert 1 <= size <= most and gains[size - 1] >= max(gains) - 1e-5 * (1 + abs(max(gains)))


@given(costs(), scores(), st.integers(1, 3), st.integers(1, 5), SEEDS, st.booleans())
def test_the_automatic_size_keeps_its_accounts(cost, table, rows, k, seed, stops):
    chance, config = random.Random(seed), TreeConfig("auto" if stops else 5, k, "auto")
    budget = rerank.Budget(cost, [chance.randint(1, 900) for _ in range(rows)], stops)
    for _ in range(4):
        paths, before, context = Paths(table.of(40, k + 2), rows, 8), (budget.tokens, budget.seconds), budget.context
        kept = candidates = DraftTree.root(torch.zeros(rows, dtype=torch.long))
        drafted, share = 0, list(budget.share)
        if budget.go_on(1, candidates.log_values):
            candidates = expand.expand(candidates.tokens[:, 0], paths.score(paths.root), paths.root, paths.level, config, go_on=budget.go_on)
            key, most = rerank.what_to_keep(candidates, config)
            kept, drafted = rerank.rerank(candidates, budget.size(key, most), key), int(candidates.depths.max())
        budget.spent(kept)
        lengths = [chance.randint(1, 1 + int(kept.depths.max())) for _ in range(rows)]
        budget.emitted(lengths)
        price = lambda what, nodes: slow_seconds(cost, what, context, rows * nodes)
        paid = sum(price("draft", 1 if level == 1 else k) for level in range(1, drafted + 1)) + price("verify", len(kept))
        assert len(kept) <= min(config.most_tokens, len(candidates)) and close(budget.seconds - before[1], paid, 1e-6)
        assert budget.tokens - before[0] == sum(lengths) and budget.context == context + max(lengths) and not budget.step and (stops or drafted == 5 and budget.share == share)
        assert all(0 <= share <= 1 + 1e-5 for share in budget.share) and 0 < budget.rate < INF


# ---- verification

def check_mask(mask, parents):
    for row, above in zip(mask.tolist(), parents.tolist()):
        for node, sees in enumerate(row): assert [i for i, seen in enumerate(sees) if seen] == ancestors(above, node)


@given(st.lists(trees(48), min_size=1, max_size=3))
def test_a_node_sees_its_ancestors_and_itself(rows):
    tree = stacked(rows)
    check_mask(verify.tree_mask(tree.parents), tree.parents)


def slow_walk(tree, row, choice, finite, stop=(), limit=INF, ended=lambda tokens: False): # token chosen at each node, are its logits finite
    node, path, emitted = 0, [], []
    while True:
        emitted.append(choice[node])
        sound = finite[node] and choice[node] >= 0
        over = sound and ended(emitted)
        below = [child for child in range(1, len(tree)) if tree.parents[row, child] == node and tree.tokens[row, child] == choice[node] and tree.valid[row, child]]
        if below: path.append(below[0])
        if not below or not sound or over or choice[node] in stop or len(emitted) >= limit: return path, emitted, sound
        node = below[0]


@st.composite
def verdicts(draw, special=(INF, -INF, NAN)):
    "Trees, some of whose nodes are not valid, and the target's logits at all nodes, which agree with many drafts"
    rows = draw(st.lists(trees(), min_size=1, max_size=3))
    tree = stacked(rows)
    chance = random.Random(draw(SEEDS))
    logits = draw(scores(special)).of(*tree.tokens.shape, 9)
    for row, node in itertools.product(range(len(rows)), range(len(tree))):
        below = [child for child in range(1, len(tree)) if tree.parents[row, child] == node]
        if below and chance.random() < .8: logits[row, node, tree.tokens[row, chance.choice(below)]] = 30000.
        if node and chance.random() < .05: tree.valid[row, node] = False
    return tree, logits


def first_largest(row): return next((i for i, x in enumerate(row) if x != x), row.index(max(row)))


def facts(tree, logits, row): # choice and soundness at each node
    here = logits[row].tolist()
    return [first_largest(scores) for scores in here], [all(x == x for x in scores) and math.isfinite(max(scores)) for scores in here]


@given(verdicts())
def test_the_greedy_walk_follows_the_argmax(both):
    tree, logits = both
    for row, (path, emitted, sound) in enumerate(verify.greedy_walk(tree, logits)):
        expected = slow_walk(tree, row, *facts(tree, logits, row))
        assert sound == expected[2] and (not sound or (path, emitted) == expected[:2])


@given(st.data(), verdicts(), SEEDS, st.sets(st.integers(0, 8), max_size=2))
def test_the_walk_ends_at_a_node_and_follows_the_targets_choice(data, both, seed, stop):
    (tree, logits), chance = both, random.Random(seed)
    rows, finite = range(len(tree.tokens)), [facts(tree, logits, row)[1] for row in range(len(tree.tokens))]
    choice = [[facts(tree, logits, row)[0][node] if chance.random() < .8 else chance.choice([-1, chance.randint(0, 8)]) for node in range(len(tree))] for row in rows]
    limits, ends = [chance.randint(1, 6) for _ in rows], chance.choice([None, 3, 7])
    over, asked = lambda tokens: ends is not None and sum(tokens) % ends == 2, [[] for _ in rows]
    def pick(here, which, nodes, emitted):
        assert here.shape[0] == len(which) == len(emitted) and torch.equal(here.nan_to_num(), logits[which, nodes].nan_to_num())
        for row, node, tokens in zip(which, nodes.tolist(), emitted): assert tokens == [tree.tokens[row, i] for i in ancestors(tree.parents[row].tolist(), node)[1:]]
        return torch.tensor([choice[row][node] for row, node in zip(which, nodes.tolist())])
    def ended(row, tokens):
        asked[row].append(list(tokens))
        return over(tokens)
    found = verify.walk(tree, logits, pick, stop, limits, ended if ends else None)
    for row, (path, emitted, sound) in enumerate(found):
        assert (path, emitted, sound) == slow_walk(tree, row, choice[row], finite[row], stop, limits[row], over)
        nodes = [0, *path]
        assert all(tree.parents[row, b] == a for a, b in zip(nodes, nodes[1:])) and emitted[:len(path)] == tree.tokens[row, path].tolist()
        if ends: assert asked[row] == [emitted[:n] for n in range(1, len(emitted) + sound)]   # once for each token, unless it is none


@given(scores(), SEEDS, st.integers(1, 3), st.integers(1, 400), st.sampled_from([.01, .1, .5, .9, .999, .9999999]) | st.floats(1e-6, 1, exclude_max=True),
       st.integers(1, 3), st.sampled_from([1, 4, 32, 256]))
def test_top_p_without_sorting_is_top_p(raw, seed, rows, vocabulary, top_p, least, most):
    scores, warper = raw.of(rows, vocabulary).float(), TopPLogitsWarper(top_p, min_tokens_to_keep=least)
    torch.testing.assert_close(verify.nucleus(scores, warper, most), warper(None, scores), rtol=0, atol=0, equal_nan=True)


@given(SEEDS, st.sampled_from([k for k in KINDS if k != "huge"]), st.integers(1, 4), st.integers(1, 40), st.booleans(), st.sampled_from([0, 1, 3]))
def test_draws_are_those_of_multinomial_whatever_the_rows_pace(seed, kind, rows, vocabulary, own, top_k):
    chance = random.Random(seed)
    ends = [chance.randint(1, 9) for _ in range(rows)]                 # tokens of each text
    logits = Scores(seed, kind, []).of(rows, max(ends), vocabulary)
    source = lambda: [torch.Generator().manual_seed(seed + row) for row in range(rows)] if own else torch.Generator().manual_seed(seed)
    ours, theirs = source(), source()
    choose = verify.Sampling(.8, top_k, 1.).choose(ours)
    choose.start(rows, logits)
    weights = [choose.weights(None, logits[:, t], range(rows)) for t in range(max(ends))]
    if own: expected = [[torch.multinomial(weights[t][row], 1, generator=theirs[row]).item() for t in range(ends[row])] for row in range(rows)]
    else:
        blocks = [torch.multinomial(weights[t], 1, generator=theirs)[:, 0].tolist() for t in range(max(ends))]
        expected = [[blocks[t][row] for t in range(ends[row])] for row in range(rows)]
    found = [[] for _ in range(rows)]
    while going := [row for row in range(rows) if len(found[row]) < ends[row]]:
        alive = going
        while going:                                                   # one step: a walk of every row, some longer than others
            times = [len(found[row]) for row in going]
            tokens = choose.pick([None] * len(going), logits[going, times], going, times)
            for row, token in zip(going, tokens.tolist()): found[row].append(token)
            going = [row for row in going if len(found[row]) < ends[row] and chance.random() < .6]
        least = min((len(found[row]) for row in alive if len(found[row]) < ends[row]), default=0)
        choose.release(least)
        held = [t for t, _ in choose.random.blocks]
        assert all(least <= t < max(map(len, found)) for t in held), "what every row has used is forgotten"
    assert found == expected
    assert all(torch.equal(a.get_state(), b.get_state()) for a, b in (zip(ours, theirs) if own else [(ours, theirs)]))


@given(scores(), SEEDS, st.integers(1, 5), st.integers(1, 7), st.booleans())
def test_a_drawn_draft_gives_way_to_a_token_of_the_target(raw, seed, rows, vocabulary, same):
    chance = torch.Generator().manual_seed(seed)
    logits, q = raw.of(rows, vocabulary).float(), Scores(seed, "smooth", []).of(rows, vocabulary).softmax(-1)
    if same: q = torch.where(logits.softmax(-1).isnan(), q, logits.softmax(-1))
    drafted = torch.where(torch.rand(rows, generator=chance) < .3, -1, torch.multinomial(q, 1, generator=chance)[:, 0])
    choose = verify.Choose(do_sample=True, generator=chance)
    choose.start(rows, logits)
    tokens = verify.pick_drawn(choose, [None] * rows, logits, q, drafted, list(range(rows)))
    for token, draft, law, other in zip(tokens.tolist(), drafted.tolist(), logits.softmax(-1), q):
        if law.isnan().any(): assert token == -1
        else: assert law[token] > 0 and (draft < 0 or law[draft] < other[draft] or token == draft)
    greedy = verify.Choose().pick([None] * rows, logits, list(range(rows)), [0] * rows)
    assert greedy.tolist() == [-1 if any(x != x for x in row) else first_largest(row) for row in logits.tolist()]


# ---- the caches

class Slots:
    "Entries that no other entry equals"
    def __init__(self): self.next = 0

    def fresh(self, rows, n):
        self.next += rows * n
        return (torch.arange(rows * n, dtype=torch.float32) + self.next).view(rows, 1, n, 1)


@given(SEEDS, st.integers(1, 4), st.integers(1, 5))
def test_what_is_committed_are_the_accepted_nodes_in_order(seed, rows, rounds):
    chance, slots = random.Random(seed), Slots()
    cache = loop.KVCache(LAYERS, rows, "cpu")
    for layer in cache.layers: layer.buffer.block = 4                  # so that it grows often
    def write(n): # -> for each layer the entries
        written = [slots.fresh(len(cache.lengths), n) for _ in cache.layers]
        with cache.writing():
            for layer, new in zip(cache.layers, written):
                keys, values = layer.update(new, torch.cat([-new, new], -1))
                assert torch.equal(keys[:, :, cache.base:], new) and keys.shape[2] == values.shape[2] == cache.base + n
        return [new[:, 0, :, 0].tolist() for new in written]
    cache_lengths = [chance.randint(1, 6) for _ in range(rows)]
    texts = [[row[:n] for row, n in zip(layer, cache_lengths)] for layer in write(max(cache_lengths))]
    cache.lengths = cache_lengths
    for _ in range(rounds):
        n = chance.randint(1, 6)
        written = write(n)
        chain = chance.random() < .4                                   # a plain beginning of the tree, as a chain makes it
        paths = [[0] + (list(range(1, chance.randint(1, n))) if chain else sorted(chance.sample(range(1, n), chance.randint(0, n - 1)))) for _ in cache.lengths]
        cache.commit(paths)
        for layer, new in zip(texts, written):
            for text, row, path in zip(layer, new, paths): text += [row[node] for node in path]
        if chance.random() < .3:
            stay = sorted(chance.sample(range(len(cache.lengths)), chance.randint(1, len(cache.lengths))))
            cache.keep(stay)
            texts = [[layer[row] for row in stay] for layer in texts]
        if chance.random() < .3:
            longest = max(map(len, texts[0]))
            left = chance.randint(-2, longest + 2)                     # below 0: more is forgotten than there is
            cache.crop(left if left >= longest or left >= 0 and chance.random() < .5 else left - longest)
            left = max(0, left)
            texts = [[text[:left] for text in layer] for layer in texts]
        assert cache.lengths == [len(text) for text in texts[0]] and cache.base == cache.get_seq_length() == max(cache.lengths)
        assert cache.visible().tolist() == [[slot < n for slot in range(cache.base)] for n in cache.lengths]
        for layer, held in zip(cache.layers, texts):
            for row, text in enumerate(held):
                assert layer.buffer.keys[row, 0, :len(text), 0].tolist() == text
                assert layer.buffer.values[row, 0, :len(text)].tolist() == [[-x, x] for x in text]


@functools.cache
def llama(): return Target(build(*RUN["Llama"][:2]))


def alike(a, b): # what products of other shapes make of the same numbers
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def check_row(target, cache, row, text): # a row's slots are what one pass over its text writes
    fresh = loop.KVCache(target.layers, 1, "cpu")
    target.forward(torch.tensor([text]), cache=fresh, last_only=True)
    for layer, other in zip(cache.layers, fresh.layers):
        for mine, its in ((layer.buffer.keys, other.buffer.keys), (layer.buffer.values, other.buffer.values)): assert alike(mine[row, :, :len(text)], its[0, :, :len(text)])


@pytest.mark.parametrize("rows", [1, 2, 3])
@torch.no_grad()
def test_commit_equals_recompute(rows):
    @given(st.lists(trees(10, 90), min_size=2 * rows, max_size=2 * rows), SEEDS)
    def check(drafts, seed):
        target, chance, cache = llama(), random.Random(seed), loop.KVCache(llama().layers, rows, "cpu")
        texts = [[chance.randrange(97) for _ in range(chance.randint(1, 9))] for _ in range(rows)]
        width = max(map(len, texts))
        target.forward(torch.tensor([(text + [0] * width)[:width] for text in texts]), cache=cache, last_only=True)
        cache.lengths = [len(text) for text in texts]
        for batch in (drafts[:rows], drafts[rows:]):
            tree = stacked(batch)
            features, logits = verify.verify(target, tree, cache, cache.visible())
            ends = [chance.randrange(len(parents)) for parents, _ in batch]
            paths, before = [ancestors(parents, end) for (parents, _), end in zip(batch, ends)], cache.lengths
            was = [(layer.buffer.keys.clone(), layer.buffer.values.clone()) for layer in cache.layers]
            cache.commit(paths)
            for row, path in enumerate(paths):
                slots = [*range(before[row]), *(max(before) + node for node in path)]
                for layer, (keys, values) in zip(cache.layers, was):
                    assert torch.equal(layer.buffer.keys[row, :, :len(slots)], keys[row, :, slots]) and torch.equal(layer.buffer.values[row, :, :len(slots)], values[row, :, slots])
                texts[row] += tree.tokens[row, path].tolist()
        assert cache.lengths == [len(text) for text in texts]
        for row, (text, end) in enumerate(zip(texts, ends)):           # the second tree stood upon what the first one left
            again = target.forward(torch.tensor([text]), last_only=True)
            assert alike(logits[row, end], again[1][0, -1]) and alike(features[row, end], again[0][0, -1])
        check_row(target, cache, row, text)
    check()


class Recorder:
    "Stands for a head: writes the entries it is given, and records which of them every query sees, and where it stands"
    def __call__(self, embeddings, features, positions, mask, buffer, at):
        assert torch.equal(features, 2 * embeddings), "an embedding and the feature of the same pair"
        keys, values = buffer.write(embeddings[:, None], features[:, None], at)
        n = embeddings.shape[1]
        if mask is None: mask = torch.ones(n, n, dtype=torch.bool).tril().expand(len(embeddings), n, n)
        self.positions, self.seen = positions.tolist(), [[keys[row, 0, sees, 0].tolist() for sees in queries] for row, queries in enumerate(mask)]
        assert torch.equal(values, 2 * keys)
        return embeddings


@st.composite
def readings(draw):
    "Rounds of a draft cache: counts of new pairs for every row, then levels of guesses as places of their parents, and rows that stay"
    rows, found = draw(st.integers(1, 3)), []
    for _ in range(draw(st.integers(1, 3))):
        k, levels = draw(st.integers(1, 3)), draw(st.integers(0, 3))
        parents = [[[draw(st.integers(0, k - 1)) for _ in range(k)] for _ in range(levels)] for _ in range(rows)]
        stay = sorted(draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=rows)))
        found.append(([draw(st.integers(1, 4)) for _ in range(rows)], parents, k, levels, stay))
        rows = len(stay)
    return found


def line(parents, level, place): # of one row: indices of a guess's ancestors and itself among all guesses, k a level
    k = len(parents[0])
    return (line(parents, level - 1, parents[level][place]) if level else []) + [level * k + place]


def guess_mask(parents, level): # of all rows -> [B, k, (level + 1) * k]
    k = len(parents[0][0])
    seen = torch.zeros(len(parents), k, (level + 1) * k, dtype=torch.bool)
    for row, place in itertools.product(range(len(parents)), range(k)): seen[row, place, line(parents[row], level, place)] = True
    return seen


@given(readings())
def test_a_draft_cache_shows_every_query_its_own_text_and_ancestors(rounds):
    rows, slots, head = len(rounds[0][0]), Slots(), Recorder()
    cache, texts = draft_head.DraftCache(rows, "cpu"), [[] for _ in range(rows)]
    cache.buffer.block = 4
    for counts, parents, k, levels, stay in rounds:
        new = slots.fresh(len(counts), max(counts))[:, 0]
        cache.read(head, new, 2 * new, counts)
        for row, n in enumerate(counts):
            for i in range(n):
                texts[row].append(new[row, i].item())
                assert head.seen[row][i] == texts[row] and head.positions[row][i] == len(texts[row]) - 1
            assert max(head.positions[row]) < len(texts[row])
        assert cache.lengths == cache.filled.tolist() == [len(text) for text in texts]
        guesses = []
        for level in range(levels):
            new = slots.fresh(len(counts), k)[:, 0]
            guesses.append(new[..., 0].tolist())
            cache.guess(head, new, 2 * new, guess_mask(parents, level), level + 1)
            for row, place in itertools.product(range(len(counts)), range(k)):
                own = [guesses[at // k][row][at % k] for at in line(parents[row], level, place)]
                assert head.seen[row][place] == texts[row] + own and head.positions[row][place] == len(texts[row]) + level
        cache.keep(stay)
        texts = [texts[row] for row in stay]


@functools.cache
def head():
    torch.manual_seed(3)
    return DraftHead.from_target(llama().model).eval()


@given(readings(), SEEDS)
@torch.no_grad()
def test_a_draft_read_in_pieces_equals_one_read(rounds, seed):
    chance, rows, size = torch.Generator().manual_seed(seed), len(rounds[0][0]), llama().hidden_size
    cache, texts = draft_head.DraftCache(rows, "cpu"), [torch.zeros(0, 2 * size) for _ in range(rows)]
    cache.buffer.block = 4
    def alone(text): # all pairs of one row in one read -> what stands behind the last
        return draft_head.DraftCache(1, "cpu").read(head(), text[None, :, :size], text[None, :, size:], [len(text)])[0, -1]
    for counts, parents, k, levels, stay in rounds:
        new = torch.randn(len(counts), max(counts), 2 * size, generator=chance)
        predicted = draft_head.at_end(cache.read(head(), new[..., :size], new[..., size:], counts), counts)
        texts = [torch.cat([text, pairs[:n]]) for text, pairs, n in zip(texts, new, counts)]
        assert all(alike(mine, alone(text)) for mine, text in zip(predicted, texts))
        guesses = torch.zeros(len(counts), 0, 2 * size)
        for level in range(levels):
            guesses = torch.cat([guesses, torch.randn(len(counts), k, 2 * size, generator=chance)], 1)
            own = guesses[:, -k:]
            predicted = cache.guess(head(), own[..., :size], own[..., size:], guess_mask(parents, level), level + 1)
        if levels:                                                     # a guess stands where the text would go on with its path
            row = seed % len(counts)
            path = line(parents[row], levels - 1, seed % k)
            assert alike(predicted[row, seed % k], alone(torch.cat([texts[row], guesses[row, path]])))
        cache.keep(stay)
        texts = [texts[row] for row in stay]


# ---- the loop

@given(st.lists(st.integers(0, 5), max_size=12), st.sets(st.integers(0, 5), max_size=3))
def test_a_text_ends_with_its_first_end_token(tokens, stop):
    kept = []
    for token in tokens:
        kept.append(token)
        if token in stop: break
    assert loop.until_end(tokens, stop) == kept


@given(SEEDS, st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.sets(st.integers(0, 9), max_size=2), st.booleans())
def test_texts_hold_what_was_kept_and_end_where_they_must(seed, rows, width, wanted, stop, asks):
    chance = random.Random(seed)
    starts = [chance.randint(0, width - 1) for _ in range(rows)]
    target = SimpleNamespace(vocab_size=10, context=max(width - start for start in starts) + chance.randint(0, 9))
    ids = torch.tensor([[chance.randint(0, 9) for _ in range(width)] for _ in range(rows)])
    mask = torch.tensor([[int(i >= start) for i in range(width)] for start in starts])
    marks, asked = [chance.randint(0, 9) for _ in range(rows)], []
    def criterion(mark): # a text ends with the token `mark`
        def over(text, scores):
            asked.append(text[0].tolist())
            return text[:, -1] == mark
        return over
    texts = loop.Texts(target, ids, mask, wanted, list(stop), [[criterion(mark), lambda text, scores: torch.zeros(1, dtype=torch.bool)] for mark in marks] if asks else ())
    kept = [[] for _ in range(rows)]
    limits = [min(wanted, target.context - (width - start) + 1) for start in starts]
    assert texts.starts == starts and texts.limits == limits
    prompts = [row[start:] for row, start in zip(ids.tolist(), starts)]
    assert all(row[:len(prompt)] == prompt for row, prompt in zip(texts.aligned().tolist(), prompts))
    while going := [row for row in range(rows) if not texts.ended[row]]:
        deepest = texts.budget(going)                                  # positions of all nodes of a tree that is one level less deep lie within the context
        assert deepest == min(max(limits[row] - len(kept[row]) for row in going), min(target.context - len(prompts[row]) - len(kept[row]) + 1 for row in going)) >= 1
        for row in going:
            emitted, halted = [], False
            for token in [chance.randint(0, 9) for _ in range(chance.randint(1, 5))]:
                emitted.append(token)
                text = ids[row].tolist() + kept[row] + emitted
                if asks and len(kept[row]) + len(emitted) <= limits[row]:
                    halted = texts.halts(row, emitted, None)
                    assert halted == (token == marks[row]) and asked[-1] == text
                elif len(kept[row]) + len(emitted) <= limits[row]: assert texts.prefix(row, emitted).tolist() == text
                if halted: break
            added = texts.add(row, emitted, halted)
            expected = []
            for token in emitted:
                if len(kept[row]) + len(expected) < limits[row]: expected.append(token)
                if token in stop: break
            kept[row] += expected
            assert added == expected and texts.prefix(row, []).tolist() == ids[row].tolist() + kept[row]
            assert texts.ended[row] == (halted or kept[row][-1] in stop or len(kept[row]) == limits[row]) and texts.room(row) == limits[row] - len(kept[row])
    assert all(row[:len(prompt)] == (prompt + new)[1:][:len(prompt)] for row, prompt, new in zip(texts.aligned(1).tolist(), prompts, kept))


@given(st.lists(trees(), min_size=1, max_size=3), SEEDS)
def test_what_a_drafter_is_shown_are_the_accepted_nodes(rows, seed):
    chance, tree = random.Random(seed), stacked(rows)
    ends = [chance.randrange(len(parents)) for parents, _ in rows]
    path = [ancestors(parents, end)[1:] for (parents, _), end in zip(rows, ends)]
    tokens = [tree.tokens[row, nodes].tolist() + [chance.randrange(9)] * (chance.random() < .7 or not nodes) for row, nodes in enumerate(path)]
    features = torch.arange(tree.tokens.numel()).view(*tree.tokens.shape, 1)
    chosen, seen, lengths, logits = loop.observed(path, tokens, features, None)
    assert lengths == [len(new) for new in tokens] and chosen.shape == seen.shape[:2] == (len(rows), max(lengths))
    for row, n in enumerate(lengths):
        assert chosen[row, :n].tolist() == tokens[row] and seen[row, :n, 0].tolist() == features[row, ([0] + path[row])[:n], 0].tolist()
    under = loop.offered(tree, list(range(len(rows))), torch.tensor(ends))
    for row, ((parents, own), end) in enumerate(zip(rows, ends)):
        assert under[row].tolist() == [token if parent == end else -1 for token, parent in zip(own, parents)] + [-1] * (len(tree) - len(own))


@given(st.lists(st.integers(0, 6).flatmap(lambda depth: st.tuples(st.integers(0, depth), st.just(depth))), max_size=12))
def test_acceptance_by_depth_counts_the_trees_that_reach_it(pairs):
    expected = []
    for at in range(7):
        there = [accepted > at for accepted, depth in pairs if accepted >= at and depth > at]
        if there: expected.append(sum(there) / len(there))
    assert loop.conditional_acceptance([a for a, _ in pairs], [d for _, d in pairs]) == expected


BATCHES = [((13,), None), ((1,), 4), ((6, 6), None), ((3, 9), 4), ((4, 1, 7), None), ((2, 8, 5), 4)]   # lengths of the prompts, seed of an end token


@functools.cache
def answers(way, number, new=14): # -> prompts, mask, end tokens, the answers of `generate`, and the generator's state behind them
    lengths, end = BATCHES[number]
    chance = torch.Generator().manual_seed(number)
    ids, mask = torch.randint(3, 97, (len(lengths), max(lengths)), generator=chance), torch.ones(len(lengths), max(lengths), dtype=torch.long)
    for row, n in enumerate(lengths): ids[row, :max(lengths) - n] = mask[row, :max(lengths) - n] = 0
    run = lambda stop: (torch.manual_seed(5), loop.plain_generate(llama(), ids, mask, way, max_new_tokens=new, stop=stop))[1]
    stop = [] if end is None else [run([])[0][end]]
    return ids, mask, stop, run(stop), torch.get_rng_state()


class Guesser:
    "Drafts random trees, in which parts of the answer stand among wrong tokens, and nodes that are none"
    def __init__(self, answers, chance): self.answers, self.chance = answers, chance

    def start(self, target, batch): self.rows, self.done = list(range(len(batch))), [0] * len(batch)

    def observe(self, tokens, features, lengths, tree_logits=None): # the first record is the prompt's, one token further on
        self.done = [done + n for done, n in zip(self.done, lengths)] if any(self.done) else [1] * len(lengths)
        self.root = draft_head.at_end(tokens, lengths)

    def keep(self, rows): self.rows, self.done, self.root = [self.rows[i] for i in rows], [self.done[i] for i in rows], self.root[rows]

    def draft(self, budget, choose=None):
        drafts, chance = [], self.chance
        for row, done, root in zip(self.rows, self.done, self.root.tolist()):
            parents, tokens, depths, right = [-1], [root], [0], {0: 0}   # right: nodes on the answer's path, and how deep
            for _ in range(chance.randint(0, 12)):
                parent = max(right) if chance.random() < .6 else chance.randrange(len(parents))
                ahead = self.answers[row][done:]
                true = ahead[depths[parent]] if parent in right and depths[parent] < len(ahead) else None
                token = true if true is not None and chance.random() < .8 else chance.randrange(97)
                if depths[parent] + 1 >= budget or (parent, token) in zip(parents, tokens): continue
                if token == true: right[len(parents)] = depths[parent] + 1
                parents.append(parent); tokens.append(token); depths.append(depths[parent] + 1)
            drafts.append((parents, tokens))
        self.candidates = stacked(drafts)
        return self.candidates


def check_decode(way, number, drafter, new=14):
    ids, mask, stop, expected, state = answers(way, number, new)
    torch.manual_seed(5)
    found, statistics = loop.collect(loop.decode(llama(), drafter, ids, mask, way.choose(), new, stop), len(ids))
    assert found == expected and torch.equal(torch.get_rng_state(), state)
    assert [1 + sum(statistics.accept_lengths.get(row, [])) for row in range(len(ids))] == [len(new) for new in expected]


@pytest.mark.parametrize("way", [verify.Sampling(), verify.Sampling(.8, 20, .9)], ids=["greedy", "sampled"])
def test_whatever_is_drafted_the_text_is_the_targets_own(way):
    @given(st.integers(0, len(BATCHES) - 1), SEEDS)
    def check(number, seed): check_decode(way, number, Guesser(answers(way, number)[3], random.Random(seed)))
    check()


@given(st.data(), st.integers(0, len(BATCHES) - 1), st.booleans(), st.booleans(), costs())
def test_a_tree_of_any_size_leaves_the_text_alone(data, number, by_value, reranking, cost):
    auto = st.just("auto") if by_value and reranking else st.nothing()
    tree = TreeConfig(data.draw(st.integers(1, 5) | auto), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 30) | auto))
    check_decode(verify.Sampling(), number, rerank.Eagle2Drafter(head(), tree, cost, by_value, reranking), 7)


# ---- the rivals

@st.composite
def shapes(draw, most=20):
    "Paths of ranks, every one with its parent, in any order"
    paths = [()]
    for _ in range(draw(st.integers(1, most))):
        path = (*draw(st.sampled_from(paths)), draw(st.integers(0, 4)))
        if path not in paths: paths.append(path)
    return draw(st.permutations(paths[1:]))


@given(st.data(), shapes())
def test_a_shape_lists_parents_first_and_refuses_what_is_no_tree(data, paths):
    shape = baselines.TreeShape(paths)
    assert shape.paths == sorted(paths, key=lambda path: (len(path), path)) and len(shape) == len(paths) + 1 and shape.depth == max(map(len, paths))
    nodes = [(), *shape.paths]
    assert [nodes[parent] for parent in shape.parents] == [path[:-1] for path in shape.paths]
    depth = data.draw(st.integers(1, 8))
    assert shape.cut(depth).paths == [path for path in shape.paths if len(path) <= depth]
    inner = [path for path in paths if any(other[:-1] == path for other in paths)]
    broken = [[*paths, paths[0]], [*paths, ()], [*paths, (-1,)], [*paths, (True,)], []] + ([[path for path in paths if path != data.draw(st.sampled_from(inner))]] if inner else [])
    with pytest.raises(ValueError, match="paths: "): baselines.TreeShape(data.draw(st.sampled_from(broken)))


@given(shapes(), SEEDS, st.integers(2, 24))
def test_a_fitted_shape_keeps_the_positions_accepted_most_often(paths, seed, total):
    chance, shape = random.Random(seed), baselines.TreeShape(paths)
    steps = []
    for _ in range(chance.randint(0, 12)):
        own, parents = [shape, shape, shape.cut(1)][chance.randrange(3)], [-1] + shape.parents
        steps.append(SimpleNamespace(tree=own, path=[ancestors(parents, chance.randrange(len(own)))[1:] for _ in range(2)]))
    counts = baselines.count_positions(steps, shape)
    often = Counter(node for step in steps if len(step.tree) == len(shape) for path in step.path for node in path)
    assert counts.tolist() == [often[node] for node in range(1, len(shape))]
    best = sorted(range(1, len(shape)), key=lambda node: (-often[node], node))[:total - 1]
    assert baselines.fit_shape(shape, counts, total).paths == [shape.paths[node - 1] for node in sorted(best)]


@given(st.integers(1, 4), st.integers(1, 9))
def test_a_wide_shape_holds_the_smallest_products(depth, nodes):
    product = lambda path: math.prod(1.5 * (rank + 1) for rank in path)
    every = [path for level in range(1, depth + 1) for path in itertools.product(range(nodes), repeat=level)]
    shape = baselines.wide_shape(depth, nodes)
    key = lambda path: (round(product(path), 9), len(path))
    assert sorted(map(key, shape.paths)) == sorted(map(key, every))[:nodes]


@given(shapes(), scores(special=(-INF, NAN), dtypes=[torch.float32]), st.integers(1, 3))
@example([(0,)], Scores(0, "equal", [-INF]), 1)
def test_a_node_without_a_finite_value_is_none(paths, raw, rows):
    shape = baselines.TreeShape(paths)
    values, tokens = raw.of(rows, len(paths)), torch.arange(rows * len(paths)).view(rows, -1)
    tree = baselines.shaped_tree(torch.arange(rows), tokens, values, shape)
    assert tree.tokens.tolist() == [[row, *own] for row, own in enumerate(tokens.tolist())]
    assert all(row == [-1, *shape.parents] for row in tree.parents.tolist()) and all(row == [0, *map(len, shape.paths)] for row in tree.depths.tolist())
    assert tree.valid.tolist() == [[True, *map(math.isfinite, own)] for own in values.tolist()]
    assert tree.log_values.tolist() == [[0., *(-INF if x != x else x for x in own)] for own in values.tolist()]


@given(shapes(), scores(), st.integers(1, 2), st.integers(0, 4))
def test_a_static_tree_takes_the_ranks_of_its_shape(paths, table, rows, spare):
    shape = baselines.TreeShape(paths)
    drafter, draft = object.__new__(baselines.StaticTreeDrafter), Paths(table.of(40, 5 + spare), rows, shape.depth)
    drafter.root, drafter.feature, drafter.score, drafter._level, drafter.token_ids = torch.arange(rows), draft.root, draft.score, draft.level, None
    tree, own = drafter._grow(shape), [log_softmax(row) for row in draft.table.tolist()]
    for row in range(rows):
        tokens, values = tree.tokens[row].tolist(), tree.log_values[row].tolist()
        for node, path in enumerate(shape.paths, 1):
            parent = shape.parents[node - 1]
            above, confidences = values[parent], own[draft.line([tokens[i] for i in ancestors([-1] + shape.parents, parent)[1:]])]
            everything = sorted((-INF if above + c != above + c else above + c for c in confidences), reverse=True)
            mine = above + confidences[tokens[node]]
            assert close(values[node], everything[path[-1]]) and close(values[node], -INF if mine != mine else mine)
            assert bool(tree.valid[row, node]) == math.isfinite(values[node]) and (tree.valid[row, parent] or not tree.valid[row, node])
        for parent in range(len(tree)):
            children = [tokens[i + 1] for i, above in enumerate(shape.parents) if above == parent]
            assert len(set(children)) == len(children)


@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5), min_size=1, max_size=3))
def test_merged_continuations_share_their_beginnings(rows):
    tree = baselines.merge_continuations(torch.arange(len(rows)) + 5, rows)
    assert torch.equal(tree.log_values, -tree.depths.float())
    for row, lists in enumerate(rows):
        nodes = [node for node in range(len(tree)) if tree.valid[row, node]]
        parents, tokens = tree.parents[row].tolist(), tree.tokens[row].tolist()
        assert nodes == list(range(len(nodes))) and tokens[0] == row + 5 and all(parents[node] < node for node in nodes)
        paths = [tuple(tokens[i] for i in ancestors(parents, node)[1:]) for node in nodes]
        assert len(set(paths)) == len(paths) and [len(path) for path in paths] == tree.depths[row, nodes].tolist()
        assert set(paths) == {()} | {tuple(ahead[:n]) for ahead in lists for n in range(len(ahead) + 1)}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 5), st.integers(0, 30))
def test_prompt_lookup_finds_the_longest_and_last_place(text, longest, count, cut):
    index = baselines.NgramIndex(longest, count)
    index.learn(text[:cut]); index.learn(text[cut:])
    expected = []
    for n in range(1, min(longest, len(text)) + 1):
        ends = [end for end in range(n, len(text)) if text[end - n:end] == text[len(text) - n:]]
        if ends: expected = [text[ends[-1]:ends[-1] + count]]
    assert index.continuations() == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 30))
def test_the_pool_holds_the_last_different_continuations(text, length, ways, cut):
    pool = baselines.NgramPool(length, ways)
    pool.learn(text[:cut]); pool.learn(text[cut:])
    expected = []
    for at in range(len(text) - length - 1, -1, -1):
        ahead = text[at + 1:at + 1 + length]
        if text[at] == text[-1] and ahead not in expected: expected.append(ahead)
    assert pool.continuations() == expected[:ways]
