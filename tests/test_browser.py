"""The explorer in a real browser: widgets in JupyterLab, the page of a trace, its page of the site.

Where no browser is found these tests are skipped; EAGLE2_BROWSER=1 makes that a failure, EAGLE2_BROWSER=0 leaves them out."""
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from inspect import getsource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from playwright.sync_api import expect, sync_playwright

from eagle2_nb.expand import TreeConfig
from eagle2_nb.explorer import about, about_in_words, heading_of, picture, record, recorded, reranked, summary_of, trace_page

ROOT = Path(__file__).resolve().parent.parent
WANTED = os.environ.get("EAGLE2_BROWSER", "")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SCRIPT, IMAGE = "<script>window.hacked=1</script>", '<img src=x onerror="window.hacked=2">'
LONG = 60_000   # milliseconds that JupyterLab or a kernel may need on a busy machine
NOTEBOOK = [
    "from eagle2_nb.explorer import Playground, TokenTimeline, Trace, TreeExplorer\ntrace = Trace.load('decode.json')",
    "TreeExplorer(trace)",
    "TokenTimeline(trace)",
]


def pair():
    "A tiny random target, its words, and a random head"
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    from eagle2_nb.draft_head import DraftHead
    from eagle2_nb.target import Target
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=12, eos_token_id=None)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *(f" w{i}" for i in range(1, 12))])}, unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Split(Regex(r" ?[^ ]+"), "isolated"), decoders.Fuse()
    target = Target(AutoModelForCausalLM.from_config(LlamaConfig(**sizes, initializer_range=0.3)).eval())
    return target, PreTrainedTokenizerFast(tokenizer_object=words), DraftHead.from_target(target.model).eval()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if WANTED == "0": pytest.skip("EAGLE2_BROWSER=0")
    if not CHROMIUM: (pytest.fail if WANTED else pytest.skip)("no Chromium was found; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        places = {name: str(tmp_path_factory.mktemp("chromium")) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, env=os.environ | places)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def trace(browser):
    "A decode of the tiny pair whose prompt and words would like to be markup"
    target, words, head = pair()
    trace = record(target, words, head, " w5 w3 w7", TreeConfig(3, 3, 8), max_new_tokens=16, stop=())
    assert any(step.path for step in trace.steps)   # with so few words drafts are accepted even at random
    markup = SCRIPT, IMAGE, f"</title></svg></textarea>{IMAGE}"
    trace.texts = {token: markup[token % 5] if token % 5 < 3 else f" w{token}" for token in trace.texts}
    trace.steps = [replace(step, pieces=[trace.texts[token] for token in step.emitted]) for step in trace.steps]
    return replace(trace, prompt=SCRIPT + IMAGE)


@contextmanager
def opened(browser, **options):
    "A page -> page, the addresses that it asked for, what it complained about"
    context = browser.new_context(viewport=dict(width=1500, height=1000), **options)
    seen = SimpleNamespace(page=context.new_page(), requests=[], complaints=[])
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("requestfailed", lambda request: seen.complaints.append(f"{request.url}: {request.failure}"))
    seen.page.on("console", lambda message: message.type in ("error", "warning") and seen.complaints.append(message.text))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    try: yield seen
    finally: context.close()


def unharmed(page):
    "Nothing of a text was run or made an element"
    assert page.evaluate("window.hacked") is None
    assert not page.locator("img[src=x]").count() and not page.locator("script", has_text="hacked").count()


def test_page_of_a_trace(browser, trace, tmp_path):
    file = tmp_path / "decode.html"
    file.write_text(trace_page(trace), encoding="utf-8")
    with opened(browser, offline=True) as seen:
        page = seen.page
        page.goto(file.as_uri())
        section, about_node = page.locator("section:visible"), page.locator("section:visible .about")

        def shows(number):
            expect(section).to_have_count(1)
            expect(section.locator("h2")).to_have_text(heading_of(trace, number))
            expect(page.locator("#told")).to_have_text(heading_of(trace, number))
            expect(section.locator(".node")).to_have_count(len(picture(trace, number).nodes))
            expect(section.locator(".row")).to_have_count(len(trace.steps[number].kept))
            assert set(page.locator(".answer .here").evaluate_all("tokens => tokens.map(token => +token.dataset.step)")) == {number}
            return section.locator("svg").first.inner_html()

        trees = [shows(1)]
        page.get_by_role("button", name="Next").click()
        trees.append(shows(2))
        page.keyboard.press("ArrowRight")
        trees.append(shows(3))
        page.locator("#step").focus()
        page.keyboard.press("ArrowRight")
        trees.append(shows(4))
        assert len(set(trees)) == 4, "the tree did not change"
        page.get_by_role("button", name="Back").click()
        assert shows(3) == trees[2]
        page.locator(".answer span[data-step='2']").first.click()
        assert shows(2) == trees[1]

        node = trace.steps[2].kept[-1]
        section.locator(f".node[data-node='{node}']").click()
        expect(about_node).to_have_text(about_in_words(about(trace, 2, node, recorded(trace, 2))))
        assert section.locator(".row.on").get_attribute("data-node") == str(node)
        section.locator(".node").first.focus()
        expect(about_node).to_have_text(about_in_words(about(trace, 2, 0, recorded(trace, 2))))

        assert page.locator("pre").inner_text() == trace.prompt == SCRIPT + IMAGE
        assert page.locator(".answer").text_content() == trace.answer and {SCRIPT, IMAGE} & {piece for step in trace.steps for piece in step.pieces}
        unharmed(page)
        assert seen.requests == [file.as_uri()] and not seen.complaints
    with opened(browser, java_script_enabled=False) as seen:   # every step, one below the other
        seen.page.goto(file.as_uri())
        expect(seen.page.locator("section:visible")).to_have_count(len(trace.steps))
        expect(seen.page.locator(".controls")).to_be_hidden()


def test_explorer_on_the_site(browser):
    file = ROOT / "_site/explorer.html"
    if not file.exists(): (pytest.fail if WANTED else pytest.skip)("the site is not built; build it: make site")
    with opened(browser, offline=True) as seen:
        seen.page.goto(file.as_uri())
        frames = seen.page.locator("iframe.html-output")
        expect(frames).not_to_have_count(0)
        for number in range(frames.count()):
            assert frames.nth(number).get_attribute("title") and frames.nth(number).content_frame.locator("svg").first.bounding_box()["height"] > 20
        broken = seen.page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
        assert not broken and not seen.complaints and all(address.startswith(("file:", "data:", "about:")) for address in seen.requests)


@contextmanager
def jupyterlab(folder):
    "A server of its own, without the user's settings -> its address and token; it and its kernels are gone afterwards"
    home, token = folder / "jupyter", secrets.token_hex(16)
    (home / "config/labconfig").mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (home / "config/labconfig/page_config.json").write_text(json.dumps(news))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    environment = os.environ | places | dict(IPYTHONDIR=str(home / "ipython"), JUPYTER_TOKEN=token, OMP_NUM_THREADS="1")
    (folder / "work").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder / 'work'}",
               "--ServerApp.shutdown_no_activity_timeout=300", "--MappingKernelManager.cull_idle_timeout=300"]   # the server ends itself should this process be killed
    with open(folder / "log", "w") as log: server = psutil.Popen(command, cwd=folder / "work", env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        told, patience = home / f"runtime/jpserver-{server.pid}.json", time.monotonic() + LONG / 1000
        while not (told.exists() and (found := told.read_text()).endswith("}")):
            assert server.poll() is None and time.monotonic() < patience, (folder / "log").read_text()[-3000:]
            time.sleep(0.1)
        yield json.loads(found)["url"], token
    finally:
        family = [server, *server.children(recursive=True)] if server.is_running() else [server]
        server.terminate()
        _, alive = psutil.wait_procs(family, timeout=20)
        for process in alive: process.kill()
        psutil.wait_procs(alive, timeout=10)
    assert not alive, f"did not end by themselves: {alive}"


def slider(place, name):
    "The handle of a slider"
    return place.locator(".widget-slider", has=place.page.get_by_text(name, exact=True)).locator(".noUi-handle")


def test_widgets_in_jupyterlab(browser, trace, tmp_path):
    (tmp_path / "work").mkdir()
    trace.save(tmp_path / "work/decode.json")
    cells = [dict(cell_type="code", id=f"cell-{i}", metadata={}, source=source, outputs=[], execution_count=None)
             for i, source in enumerate([*NOTEBOOK, f"{getsource(pair)}\nPlayground(*pair())"])]
    kernel = dict(kernelspec=dict(name="python3", display_name="Python 3", language="python"))
    (tmp_path / "work/explorer.ipynb").write_text(json.dumps(dict(cells=cells, metadata=kernel, nbformat=4, nbformat_minor=5)))
    with jupyterlab(tmp_path) as (address, token), opened(browser) as seen:
        page = seen.page
        page.set_default_timeout(LONG)
        page.goto(f"{address}lab/tree/explorer.ipynb?token={token}")
        expect(page.locator(".jp-CodeCell")).to_have_count(len(cells), timeout=LONG)
        expect(page.get_by_role("button", name="Python 3 (ipykernel) | Idle")).to_be_visible(timeout=LONG)   # what is run before is lost
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        outputs = [page.locator(".jp-CodeCell").nth(i).locator(".jp-OutputArea-output") for i in range(len(cells))]
        explores(page, outputs[1], trace)
        tells(outputs[2], trace)
        plays(outputs[3], outputs[1], trace)
        text = page.locator(".jp-Notebook").inner_text()
        assert not page.locator(".jp-OutputArea-output .widget-label").evaluate_all("labels => labels.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)")
        assert "model not found" not in text and "Error displaying widget" not in text and "Traceback" not in text
        unharmed(page)
        assert {address.split("/")[2] for address in seen.requests if address.startswith("http")} == {address.split("/")[2]}


def explores(page, output, trace):
    "The tree follows the sliders, the sentence the chosen node"
    tree, rows, whole = output.locator("svg").first, output.locator(".row"), max(len(step.kept) for step in trace.steps)

    def shows(number, selection, node=0):
        expect(tree).to_have_attribute("aria-label", summary_of(trace, number, selection, picture(trace, number, selection)), timeout=LONG)
        expect(output).to_contain_text(heading_of(trace, number))
        expect(output.locator(".node")).to_have_count(len(picture(trace, number, selection).nodes))
        expect(rows).to_have_count(len(selection.kept))
        expect(output).to_contain_text(about_in_words(about(trace, number, node, selection)))
        return tree.inner_html()

    trees = [shows(1, recorded(trace, 1))]
    slider(output, "step").focus()
    page.keyboard.press("ArrowRight")
    trees.append(shows(2, recorded(trace, 2)))
    slider(output, "total_tokens").focus()
    page.keyboard.press("ArrowLeft")
    trees.append(shows(2, reranked(trace, 2, whole - 1)))
    page.keyboard.press("ArrowLeft")
    trees.append(shows(2, reranked(trace, 2, whole - 2)))
    slider(output, "depth").focus()
    page.keyboard.press("ArrowLeft")
    trees.append(shows(2, reranked(trace, 2, whole - 2, depth=2)))
    assert len(set(trees)) == len(trees), "the tree did not change"
    output.get_by_label("as recorded").check()
    assert shows(2, recorded(trace, 2)) == trees[1]
    node = trace.steps[2].kept[-1]
    output.locator("select").select_option(index=sorted(picture(trace, 2).nodes, key=lambda n: (n is None, n)).index(node))
    shows(2, recorded(trace, 2), node)
    assert output.locator(".node.on").get_attribute("data-node") == output.locator(".row.on").get_attribute("data-node") == str(node)


def tells(output, trace):
    "The answer is there as text, and the slider marks a step of it"
    assert output.locator(".answer").text_content() == trace.answer
    slider(output, "step").press("ArrowRight")
    expect(output.locator(".answer .here[data-step='1']")).to_have_count(len(trace.steps[1].emitted), timeout=LONG)


def plays(output, other, trace):
    "A run ends with the ids of `generate`; during a long one another widget still answers, until it is stopped; an error is told"
    prompt, run, stop = output.locator("textarea"), output.get_by_role("button", name="Run"), output.get_by_role("button", name="Stop")
    prompt.fill(" w5 w3 <b>w7</b>")
    run.click()
    expect(output).to_contain_text("the same ids", timeout=LONG)
    expect(output.locator(".answer span")).to_have_count(64)
    slider(output, "new tokens").press("End")
    run.click()
    expect(run).to_be_disabled()
    expect(output.locator(".answer span")).not_to_have_count(0)
    slider(other, "step").press("ArrowRight")
    expect(other).to_contain_text(heading_of(trace, 3), timeout=LONG)
    expect(run).to_be_disabled()   # it is still at work
    stop.click()
    expect(output).to_contain_text("; stopped", timeout=LONG)
    assert output.locator(".answer span").count() < 512
    prompt.fill("")
    run.click()
    expect(output).to_contain_text("ValueError: prompt: is empty", timeout=LONG)
    expect(run).to_be_enabled()
