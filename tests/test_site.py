"""The site is built from tiny notebooks, and each kind of fault is found where it is."""
import base64
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("build_site", ROOT / "scripts/site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)

PICTURE = dict(output_type="display_data", metadata={}, data={"text/plain": "<Figure>", "image/png": base64.b64encode(b"a picture").decode()})
DOCUMENTED = """---

[source](/blob/main/tiny/first.py#L1){target="_blank" style="float:right; font-size:smaller"}

### double

```python
def double(
    x:int, # a number
)->int: # twice as much
```

*Twice `x`; see `Other.save`.*"""


def text(source, name):
    return dict(cell_type="markdown", id=name, metadata={}, source=source)


def code(source, name, *outputs):
    return dict(cell_type="code", id=name, metadata={}, source=source, outputs=list(outputs), execution_count=1)


def printed(text, name="stdout"):
    return dict(output_type="stream", name=name, text=text)


def shown(**data):
    return dict(output_type="execute_result", metadata={}, execution_count=1, data={kind.replace("_", "/"): value for kind, value in data.items()})


GOOD = {
    "index.ipynb": [text("## Start\n\nGo to [First](00_first.ipynb#a-sum), or to [`double`](/first.html#double).", "start")],
    "00_first.ipynb": [
        text("## A sum\n\n$$ a = b $$ {#eq-sum}\n\nHere $a$ is @eq-sum, drawn in @fig-sum; after @eagle2.", "aaa1"),
        text("$$ c = d $$ {#eq-other}\n\nand @eq-other.", "aaa2"),
        code("#| echo: false\n#| output: asis\nshow_doc(double)", "aaa3", shown(text_markdown=DOCUMENTED, text_plain="...")),
        code('#| label: fig-sum\n#| fig-cap: "A sum, where $a=b$."\n#| fig-alt: "Two \\"equal\\" bars"\ndraw()', "aaa4", PICTURE),
        code("print(1 < 2)", "aaa5", printed("\x1b[32mTrue\x1b[0m & <b>\n"))]}


@pytest.fixture
def build(tmp_path):
    "Build a site of the given notebooks -> (its folder, its faults, the number of pages)"
    def run(notebooks, settings="", parts=None):
        (tmp_path / "nbs").mkdir(), (tmp_path / "_proc").mkdir(), (tmp_path / "tiny").mkdir()
        shutil.copy(ROOT / "nbs/references.bib", tmp_path / "nbs")
        (tmp_path / "settings.ini").write_text(f"[DEFAULT]\nlib_name = tiny\nrepo = tiny\n{settings}")
        (tmp_path / "tiny/first.py").write_text("def double(x): return 2 * x\n")
        listed = parts or ["index.ipynb", dict(section="Theory", contents=sorted(notebooks.keys() - {"index.ipynb"}))]
        (tmp_path / "_quarto.yml").write_text(json.dumps(dict(website=dict(sidebar=dict(contents=listed)))))
        for name, cells in notebooks.items():
            stem = re.sub(r"^\d+_", "", Path(name).stem)
            front = dict(cell_type="raw", id="raw", metadata={}, source=f"---\ntitle: {stem}\noutput-file: {stem}.html\n\n---\n")
            (tmp_path / "_proc" / name).write_text(json.dumps(dict(cells=[front, *cells])))
        out, faults = tmp_path / "_site", site.Faults()
        made = site.Site(tmp_path, out, faults)
        made.build()
        return out, faults, site.check(out, faults, {page.address: page.name for page in made.pages.values()})
    return run


def test_a_good_book_has_no_fault_and_shows_everything(build):
    out, faults, pages = build(GOOD)
    assert faults == [] and pages == 3  # two notebooks, one module
    page = (out / "first.html").read_text()
    assert 'href="#eq-sum"' in page and "Equation\u00a01" in page and "(2)" in page and "<math" in page
    assert re.search(r'<figure id="fig-sum">\s*<img[^>]*alt="Two &quot;equal&quot; bars"', page) and "<strong>Figure 1: </strong>" in page
    assert (out / "figures/first-fig-sum.png").read_bytes() == b"a picture"
    assert "True &amp; &lt;b&gt;" in page and "\x1b" not in page
    assert 'href="source/first.html#L-1"' in page and 'id="L-1"' in (out / "source/first.html").read_text()
    assert "Dynamic Draft Trees" in page and 'rel="prev" href="index.html"' in page
    assert "show_doc" not in page and "#|" not in page
    assert 'href="first.html#a-sum"' in (out / "index.html").read_text()


def test_search_index_holds_headings_and_text(build):
    out, _, _ = build(GOOD)
    index = json.loads((out / "search.js").read_text().removeprefix("const SECTIONS = ").rstrip(";\n"))
    assert ["first.html", "double", "first", "double", 'Twice x; see Other.save. Figure 1: A sum, where a=b. Two "equal" bars'] in index
    assert ["index.html", "start", "index", "Start", "Go to First, or to double."] in index
    assert any(row[1] == "a-sum" and "drawn in" in row[4] and "source" not in row[4] for row in index)


@pytest.mark.parametrize("cell, fault", [
    (text("[away](nowhere.ipynb)", "bad1"), "dead link: nowhere.ipynb"),
    (text("[away](index.ipynb#nowhere)", "bad1"), "dead anchor: index.html#nowhere"),
    (text("[here](#nowhere)", "bad1"), "dead anchor: #nowhere"),
    (text("![words](images/none.png)", "bad1"), "missing file or picture: images/none.png"),
    (text("![](https://example.org/a.png)", "bad1"), "the page would fetch https://example.org/a.png"),
    (code("draw()", "bad1", PICTURE), "a picture without alternative text"),
    (text("$$ \\nosuchthing{a} $$", "bad1"), "pandoc warns: Could not convert TeX math"),
    (text("as @nobody1999 says", "bad1"), "citation nobody1999 not found"),
    (text("by @eq-none", "bad1"), "unresolved reference @eq-none"),
    (text("$$ a $$ {#eq-twice}\n\n$$ b $$ {#eq-twice}", "bad1"), "eq-twice is defined twice"),
    (text("text\n::: {.note}\nno blank line", "bad1"), "Quarto's syntax is still shown: :::"),
    (text("Three things:\n- one\n- two", "bad1"), "a list or table without an empty line above it: - one"),
    (text("a word {#word-1} in between", "bad1"), "Quarto's syntax is still shown: {#word-1}"),
    (text("```python\n#| hide\nx\n```", "bad1"), "a directive is still shown: #| hide"),
    (text("[a]{#same} [b]{#same}", "bad1"), 'the id "same" is used twice'),
    (code("#| fig-wdith: 3\nx", "bad1"), "the directive `#| fig-wdith` is neither honoured nor hidden"),
    (code("1 / 0", "bad1", dict(output_type="error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])), "the saved output is an error: ZeroDivisionError"),
    (code("page", "bad1", shown(text_html="<html><script src='https://example.org/a.js'></script></html>")), "the page would fetch https://example.org/a.js"),
    (code("page", "bad1", shown(text_html="<svg><circle r='1'/></svg>")), "a drawing (svg) without alternative text"),
    (code("#| output: asis\nshow_doc(f)", "bad1", shown(text_markdown="[source](/blob/main/tiny/first.py#L7)\n\n### f")), "line 7 of first.py meets no definition"),
    (code("W()", "bad1", shown(**{"application_vnd.jupyter.widget-view+json": {}, "text_plain": "W()"})), "a widget without a static fallback"),
    (text("[a](javascript:alert)", "bad1"), "a link of unknown kind: javascript:alert"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_each_fault_is_found_in_its_cell(build, cell, fault):
    _, faults, _ = build({**GOOD, "01_second.ipynb": [text("## Fine\n\nBefore.", "fine"), cell, text("After.", "fine2")]})
    assert any(line.startswith("nbs/01_second.ipynb, cell bad1: ") and fault in line for line in faults), faults
    assert all(line.startswith("nbs/01_second.ipynb") for line in faults), faults


def test_a_notebook_in_no_part_is_a_fault_and_so_is_a_listed_one_that_is_missing(build):
    _, faults, _ = build(GOOD, parts=["index.ipynb", dict(section="Theory", contents=["02_gone.ipynb"])])
    assert faults == ["nbs/00_first.ipynb: is in no part of the sidebar in _quarto.yml", "_quarto.yml: the sidebar lists 02_gone.ipynb, which is not there"]


def test_a_link_to_a_method_leads_to_its_class_where_only_that_is_documented(build):
    link = text("[`double.save`](/first.html#double.save) and [`none.save`](/first.html#none.save)", "link")
    out, faults, _ = build({**GOOD, "01_second.ipynb": [link]})
    assert 'href="first.html#double"' in (out / "second.html").read_text()
    assert faults == ["nbs/01_second.ipynb, cell link: dead anchor: first.html#none.save"]


def test_a_name_defined_twice_leads_to_this_page_or_to_the_page_of_that_name(build):
    again = code("#| output: asis\n#| echo: false\nshow_doc(first)", "aaa9", shown(text_markdown="[source](/blob/main/tiny/first.py#L1)\n\n### first"))
    link = text("See [`first`](/third.html#first).", "link")
    notebooks = {**GOOD, "01_second.ipynb": [link], "03_third.ipynb": [again], "04_fourth.ipynb": [again, link]}
    notebooks["00_first.ipynb"] = [*GOOD["00_first.ipynb"], again]
    out, faults, _ = build(notebooks)
    assert not faults and 'href="first.html#first"' in (out / "second.html").read_text()
    assert 'href="fourth.html#first"' in (out / "fourth.html").read_text()


def test_colab_and_repository_links_follow_settings(build):
    linked = text(f"{site.COLAB}(https://colab.research.google.com/github/somebody/tiny/blob/main/nbs/00_first.ipynb)", "link")
    out, faults, _ = build({**GOOD, "00_first.ipynb": [linked, *GOOD["00_first.ipynb"]]}, settings="user = somebody\n")
    page = (out / "first.html").read_text()
    assert not faults and "https://colab.research.google.com/github/somebody/tiny/blob/main/nbs/00_first.ipynb" in page
    assert "https://github.com/somebody/tiny/blob/main/tiny/first.py#L1" in page
    assert page.count("Open in Colab") == 1  # the cell of the notebook that says the same is left out
    assert site.colab("https://git.example.org/a/b", "main", "nbs/a.ipynb") == ""


def test_widget_pages_stand_in_frames_of_their_own():
    framed = site.embedded("<html><p id='a'>&</p></html>", 'an "explorer"')
    assert framed.startswith("<iframe") and "title=\"an &quot;explorer&quot;\"" in framed and "&lt;p id=&#x27;a&#x27;&gt;&amp;amp;" not in framed
    assert site.embedded("<table><tr><td>1</td></tr></table>", "x").startswith("<div")


def test_a_labelled_page_or_table_of_an_output_is_a_figure_too(build):
    cells = [code('#| label: fig-page\n#| fig-cap: "All of it."\n#| fig-alt: "A page"\npage', "page", shown(text_html="<style>p {}</style><p id='a'>1</p>")),
             code('#| label: tbl-sums\n#| tbl-cap: "Two sums."\ntable', "table", shown(text_markdown="| a | b |\n|---|---|\n| 1 | 2 |")),
             text("In @fig-page and @tbl-sums.", "text")]
    out, faults, _ = build({**GOOD, "01_second.ipynb": cells})
    page = (out / "second.html").read_text()
    assert not faults and re.search(r'<figure id="fig-page">\s*<iframe[^>]*title="A page".*?<strong>Figure 1: </strong>All of it', page, re.S)
    assert re.search(r'<figure id="tbl-sums">\s*<table>.*?<strong>Table 1: </strong>Two sums', page, re.S) and "Table\u00a01</a>" in page


def test_terminal_keeps_the_last_state_of_a_line():
    assert site.terminal("\x1b[1mtwo\x1b[0m\n10%\r100%\n") == "two\n100%"


def test_every_directive_is_read():
    found, source = site.directives('#| label: fig-a\n#| fig-cap: "a: b"\n#| cuda\n#| echo: false\nx = 1\n#| not one')
    assert found == {"label": "fig-a", "fig-cap": "a: b", "cuda": True, "echo": False} and source == "x = 1\n#| not one"
