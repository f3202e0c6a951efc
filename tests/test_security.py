"""Text of models, prompts and files stays text: in pages, widgets, tables and on the terminal. And no code of others is asked for."""
import ast
import json
import re
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from checkpoints import PROMPT, small_target
from safetensors.torch import save_file
from test_site import build, code, printed, shown, text  # noqa: F401 (`build` is a fixture)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle2_nb.bench import markdown_table
from eagle2_nb.certify import certify
from eagle2_nb.cli import main
from eagle2_nb.draft_head import DraftHead
from eagle2_nb.expand import TreeConfig
from eagle2_nb.explorer import Playground, TokenTimeline, Trace, TreeExplorer, record, timeline_html, trace_page
from eagle2_nb.hub import examine
from eagle2_nb.target import environment, one_line

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = ["<script>alert(1)</script>", "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)", "</title><svg onload=alert(1)>", "-->", "<!--", "]]>",
           "&lt;script&gt;", "&#60;script&#62;", "</pre><iframe srcdoc='<script>1</script>'>", "javascript:alert(1)", "`|\n|---|", "\u2028\x00\x1b[31m", "$\\frac$", "{{7*7}}", "</style><style>*{display:none}"]


# no code of others

SOURCES = sorted([*ROOT.glob("eagle2_nb/*.py"), *ROOT.glob("scripts/*.py"), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("nbs/*.ipynb")])


def said(call):
    return {option.arg: getattr(option.value, "value", None) for option in call.keywords}


def source_of(path):
    "Python code of a module, or of a notebook without its commands to Jupyter"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        text = re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.M)
    return ast.parse(text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_is_unpickled_evaluated_or_trusted(path):
    for call in [node for node in ast.walk(source_of(path)) if isinstance(node, ast.Call)]:
        name = ast.unparse(call.func)
        if path.suffix == ".ipynb" and said(call).get("weights_only") is False:
            assert path.stem == "02_draft_head"            # which shows that the threat is real
            continue
        place = f"{path.name}:{call.lineno}: {name}"
        assert name not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "marshal.loads", "shelve.open"), place
        assert not re.fullmatch(r"(c?[pP]ickle|dill|joblib|cloudpickle)\.(loads?|Unpickler)", name), place
        assert name != "torch.load" or said(call).get("weights_only") is True, place
        assert not re.search(r"extractall$|\bextract$", name), place
        assert not said(call).get("shell") and not said(call).get("trust_remote_code") and not said(call).get("allow_pickle"), place
        if path.parent.name == "eagle2_nb" and re.search(r"Auto\w+\.from_(pretrained|config)$", name):
            kept = said(call)
            assert kept.get("trust_remote_code") is False or None in kept, f"{place}: says nothing of trust_remote_code, so that `transformers` asks whoever sits there"


# pages and widgets

class Reader(HTMLParser):
    "Tags with the names of their attributes, and all text"
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.values = [], "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.values += [value or "" for _, value in attributes]

    def handle_data(self, data):
        self.words += data

    def handle_comment(self, data):
        self.tags.append(("comment", ()))


def tokenizer_of(words):
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("\n\n", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module")
def traces():
    "The same decode with words that are harmless, and with words that are HTML"
    target, _ = small_target()
    head = DraftHead.from_target(target.model).eval()
    hostile = [f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(64)]
    harmless = [f"word{i}" for i in range(64)]
    make = lambda words: record(target, tokenizer_of(words), head, PROMPT, TreeConfig(3, 4, 10), max_new_tokens=16)
    plain, bad = make(harmless), make(hostile)
    plain.prompt, bad.prompt = "a prompt", " ".join(HOSTILE)
    assert [step.tokens for step in plain.steps] == [step.tokens for step in bad.steps]
    return plain, bad, hostile, (target, head)


def views(trace):
    "Every piece of HTML that a trace becomes"
    explorer, timeline = TreeExplorer(trace), TokenTimeline(trace)
    found = dict(page=trace_page(trace), timeline=timeline_html(trace, 1), widget=timeline.view.value)
    for step in range(len(trace.steps)):
        explorer.step.value = step
        found |= {f"explorer {step}": explorer.html(), f"view {step}": explorer.view.value, f"bundle {step}": explorer._repr_mimebundle_()["text/html"]}
        for _, node in explorer.node.options:
            explorer.node.value = node
            found[f"details {step} {node}"] = explorer.details.value
    explorer.recorded.value, explorer.total_tokens.value = False, 3
    return found | dict(smaller=explorer.html())


def test_text_of_a_model_adds_no_tag_and_no_attribute(traces):
    plain, bad, hostile, _ = traces
    pages, attacked = views(plain), views(bad)
    assert pages.keys() == attacked.keys() and len(pages) > 20
    for name in pages:
        read, found = Reader(pages[name]), Reader(attacked[name])
        assert found.tags == read.tags, name
        assert not [value for value in found.values if re.match(r"\s*(data|vbscript):", value)], name
    words = Reader(attacked["page"])
    assert bad.prompt in words.words                       # it is all there, as text
    shown = [hostile[token] for token in bad.token_ids]
    assert all(piece in words.words for piece in shown if "\x00" not in piece)
    assert not {tag for tag, _ in words.tags} & {"img", "iframe", "a", "link", "object", "embed", "form", "base"}
    assert not [name for _, names in words.tags for name in names if name.startswith("on") or name in ("href", "src", "srcdoc", "action", "xlink:href")]


def test_a_trace_from_a_file_adds_no_tag_either(traces, tmp_path):
    "Every text of the file that may be anything is HTML"
    plain, bad, *_ = traces
    bad = deepcopy(bad)
    bad.drafter = "<script>alert(1)</script>"
    bad.environment = {name: bad.drafter if isinstance(value, str) else value for name, value in bad.environment.items()}
    bad.environment["versions"] = {name: bad.drafter for name in bad.environment["versions"]}
    bad.save(tmp_path / "bad.json")
    again = Trace.load(tmp_path / "bad.json")
    assert Reader(trace_page(again)).tags == Reader(trace_page(plain)).tags


def test_a_playground_shows_text_as_text(traces):
    _, _, hostile, (target, head) = traces
    made = {}
    for name, words in (("plain", [f"word{i}" for i in range(64)]), ("bad", hostile)):
        player = Playground(target, tokenizer_of(words), head)
        controls = player.controls
        controls["prompt"].value, controls["raw"].value, controls["length"].value = f"{words[5]}\n\n{words[17]}", True, 8
        controls["depth"].value, controls["top_k"].value, controls["total_tokens"].value = 2, 3, 6
        player.start()
        player.thread.join(60)
        assert "the same ids" in controls["status"].value, controls["status"].value
        made[name] = Reader(player.html()).tags
        player.say(" ".join(HOSTILE))
        assert [tag for tag, _ in Reader(controls["status"].value).tags] == ["p"]
    assert made["plain"] == made["bad"]


def test_pages_of_the_site_show_output_as_text(build):  # noqa: F811
    bad = "<script>alert(1)</script> </code></pre><img src=x onerror=alert(1)> ` | ```\n:::\n<b onclick=x>"
    cells = [text("## Start\n\nWords.", "a1"), code("show()", "a2", printed(bad + "\n")), code("x", "a3", shown(text_plain=repr(bad))), code("x", "a4", printed(bad + "\n", "stderr")),
             code(f"bad = {bad!r}", "a5", printed("fine\n"))]
    harmless = json.loads(json.dumps(cells).replace(json.dumps(bad)[1:-1], "words"))
    out, _, _ = build({"index.ipynb": [text("## Start\n\nWords.", "s")], "00_first.ipynb": cells, "01_second.ipynb": [cells[0], *harmless[1:4]]})
    first, second = (Reader((out / name).read_text(encoding="utf-8")) for name in ("first.html", "second.html"))
    count = lambda reader, kind: sum(tag == kind for tag, _ in reader.tags)
    for kind in ("script", "img", "b", "iframe"):
        assert count(first, kind) == count(second, kind), kind
    handlers = lambda reader: sorted(name for _, names in reader.tags for name in names if name.startswith("on"))
    assert handlers(first) == handlers(second)
    assert "alert(1)" in first.words


# tables and the terminal

def columns(page):
    "How many cells each line of each table of a Markdown page has"
    return [{line.count("|") for line in table.splitlines()} for table in re.findall(r"(?:^\|.*\n?)+", page, re.M)]


def test_one_line_ends_neither_cell_nor_line_and_opens_no_tag():
    for bad in HOSTILE:
        made = one_line(f"a {bad} b\r\nc\x85d\u2029e\te")
        assert made.isprintable() and "|" not in made and "<" not in made and len(made.splitlines()) == 1 and made.startswith("a ") and made.endswith(" e")
    assert one_line("as it is, 1/2") == "as it is, 1/2" and one_line(None) == "None"


def test_the_doctors_table_holds_what_names_it_finds(tmp_path):
    folder = tmp_path / "a|b\n<b>"
    folder.mkdir()
    names = ["fc.weight|x|", "a\n| b | c |", "<script>alert(1)</script>", "\x1b[31mred", "`x`", "x" * 3000] + HOSTILE
    save_file({name: torch.zeros(2, 2) for name in names}, folder / "model.safetensors")
    for fields in ({}, dict(hidden_size=16, intermediate_size=32, num_attention_heads=2, vocab_size=64), {"hidden_size": "|\n|<script>"}):
        (folder / "config.json").write_text(json.dumps(fields))
        report = examine(folder)
        page = report.markdown()
        assert all(len(counts) == 1 for counts in columns(page)) and "<script" not in page and "\x1b" not in page and not report.loads
        assert page.splitlines()[0].startswith("**") and len(page) < 6000
        assert len(page.splitlines()) == len(report.rows and [0, 0]) + len(report.rows) + 3 + len(report.engines)


def test_the_tables_of_a_bench_hold_what_tasks_are_called(traces):
    *_, (target, _) = traces
    figures = dict(questions=1, failed=0, speedup=1.5, tau=2.)
    figures |= {f"{name}_ci": [1., 2.] for name in ("speedup", "tau")}
    tasks = {name: dict(eagle2=figures) for name in ("plain", "a|b", "c\n| d", "<script>alert(1)</script>")}
    page = markdown_table(dict(tasks=tasks, mean=dict(eagle2=figures), ratios={}, settings=environment(target) | dict(temperature=0, max_new_tokens=4, tree="2/3/8", repeats=1)))
    assert all(len(counts) == 1 for counts in columns(page)) and "<script" not in page and len(columns(page)) == 2


def test_a_certificate_is_a_regular_page(traces):
    *_, (target, head) = traces
    page = certify(target, None, head, [PROMPT], TreeConfig(2, 3, 8), max_new_tokens=6).markdown()
    table, = columns(page)
    assert table == {7} and "<" not in page


@pytest.mark.parametrize("name", ["no/such\x1b[31m", "a\nb", "x" * 4000, "<b>|"])
def test_an_error_on_the_terminal_is_one_printable_line(capsys, name):
    with pytest.raises(SystemExit) as left:
        main(["generate", "hello", "--head", name])
    out, err = capsys.readouterr()
    assert left.value.code == 2 and not out and err.count("\n") == 1 and err[:-1].isprintable() and len(err) < 2100
