"""Build the site: one HTML page a notebook, made with pandoc from what is committed, and check every page.

    python scripts/site.py [--no-stage] [--out _site]

`scripts/stage_docs.py` stages the notebooks in `_proc/`, with the documentation of what they export (`--no-stage` takes what is
staged already). Pages stand in the order and the parts of the sidebar in `_quarto.yml`; nothing is executed, so a page shows the
saved outputs. Every fault is printed with its notebook and cell: a dead link or anchor, a missing picture or alternative text, a
warning by pandoc (TeX, citations), an unresolved reference, Quarto's syntax left in the text, an id used twice, anything that a
page would fetch from elsewhere, a notebook in no part. The last line counts pages and faults; exit status 1 if there are any.
Addresses on the web are not visited.
"""
import argparse
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "scripts/site_assets"
COLAB = "[Open in Colab]"  # begins the cell that scripts/colab.py writes; a page has the same link in its head
KINDS = {"eq": "Equation", "fig": "Figure", "tbl": "Table"}
HONOURED = {"label", "fig-cap", "fig-alt", "tbl-cap", "echo", "output", "include", "code-fold", "code-summary"}
HIDDEN = {"exports", "eval", "cuda", "slow", "warning"}
READER = "markdown-yaml_metadata_block+autolink_bare_uris"


class Faults(list):
    "Lines that say what is wrong, and where"

    def add(self, page, cell, message):
        line = f"{page}{f', cell {cell}' if cell else ''}: {message}"
        if line not in self:
            self.append(line)


# ---------------------------------------------------------------------------------------------------------------- pandoc


def pandoc(text, *options):
    "What pandoc writes, and its warnings, which it is told to fail at"
    import pypandoc
    command = [pypandoc.get_pandoc_path(), *options]
    done = subprocess.run([*command, "--fail-if-warnings"], input=text, capture_output=True, text=True, encoding="utf-8")
    warnings = re.findall(r"^\[WARNING\] (.*(?:\n(?!\[|Failing).*)*)", done.stderr, re.M)
    if done.returncode and not warnings:
        raise RuntimeError(f"pandoc failed: {done.stderr.strip()}")
    if warnings and not done.stdout:
        done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8")
    return done.stdout, [" ".join(warning.split()) for warning in warnings]


def walk(node, change):
    "Replace each node of pandoc's tree by what `change` makes of it, children first; a list stands for several nodes"
    if isinstance(node, list):
        made = []
        for child in node:
            new = walk(child, change)
            made.extend(new) if isinstance(new, list) and isinstance(child, dict) else made.append(new)
        return change(made) if made and all(isinstance(child, dict) and "t" in child for child in made) else made
    if isinstance(node, dict):
        node = {key: walk(value, change) for key, value in node.items()}
        return change(node) if "t" in node else node
    return node


def words(node):
    "The plain text of a piece of pandoc's tree, code blocks left out"
    if isinstance(node, list):
        return "".join(map(words, node))
    if not isinstance(node, dict) or node.get("t") in ("CodeBlock", "RawBlock", "RawInline"):
        return ""
    kind, content = node.get("t"), node.get("c")
    if kind in ("Space", "SoftBreak", "LineBreak"):
        return " "
    if kind == "Span" and "source-link" in content[0][1]:
        return ""
    if kind in ("Str", "Code", "Math"):
        return content if kind == "Str" else content[1]
    return words(content) + (" " if kind in ("Para", "Plain", "Header") else "")


# ------------------------------------------------------------------------------------------- from cells to pandoc's Markdown


def fence(text, attributes):
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {{{attributes}}}\n{text}\n{ticks}"


def directives(source):
    "`#|` lines at the top of a cell -> ({name: value}, the code below)"
    lines, found = source.split("\n"), {}
    while lines and (match := re.match(r"#\|\s*(.*)", lines[0])):
        name, colon, _ = match[1].partition(":")
        found.update(yaml.safe_load(match[1]) if colon else {name.strip(): True})
        lines.pop(0)
    return found, "\n".join(lines).strip("\n")


def terminal(text):
    "Text as a terminal would leave it: no colours, and of an overwritten line the last state"
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip("\n").split("\n"))


def joined(text):
    return "".join(text) if isinstance(text, list) else text


class Page:
    "One notebook (or .qmd file) on its way to HTML"

    def __init__(self, file, faults, out):
        self.file, self.faults, self.out, self.name = file, faults, out, f"nbs/{file.name}"
        self.pictures, self.lines, self.cells = {}, [], {}
        if file.suffix == ".ipynb":
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        else:
            head, text = re.fullmatch(r"(---\n.*?\n---\n)(.*)", file.read_text(encoding="utf-8"), re.S).groups()
            cells = [dict(cell_type="raw", source=head), dict(cell_type="markdown", source=text, id="text")]
        raw = joined(cells[0]["source"]) if cells and cells[0]["cell_type"] == "raw" else ""
        self.front = yaml.safe_load(raw.strip().strip("-")) if raw.startswith("---") else {}
        self.title, self.description = self.front.get("title", file.stem), self.front.get("description", "")
        self.address = self.front.get("output-file", f"{file.stem}.html")
        self.heading = " ".join([*re.findall(r"\A\d+(?=_)", file.stem), self.title])
        self.content = [cell for cell in cells if cell["cell_type"] != "raw" and "WARNING: THIS FILE WAS AUTOGENERATED" not in joined(cell["source"])
                        and not joined(cell["source"]).startswith(COLAB)]

    def fault(self, cell, message):
        self.faults.add(self.name, cell, message)

    def markdown(self):
        "The whole page as Markdown for pandoc, each cell in a division that carries its id"
        for number, cell in enumerate(self.content):
            cell.setdefault("id", str(number))
            self.cells[cell["id"]] = joined(cell["source"])
            text = self.code(cell) if cell["cell_type"] == "code" else joined(cell["source"])
            for line in f':::::::: {{.cell .{cell["cell_type"]} data-cell="{cell["id"]}"}}\n\n{text}\n\n::::::::\n\n'.split("\n"):
                self.lines.append((cell["id"], line))
        return "\n".join(line for _, line in self.lines)

    def code(self, cell):
        "A code cell: its source unless hidden, and its saved outputs"
        found, source = directives(joined(cell["source"]))
        for name in found.keys() - HONOURED - HIDDEN:
            self.fault(cell["id"], f"the directive `#| {name}` is neither honoured nor hidden")
        if found.get("include") is False:
            return ""
        parts = []
        if found.get("echo", True) is not False and source:
            parts.append(fence(source, ".python"))
            if fold := found.get("code-fold"):
                opened = f'<details class="exported"{" open" if fold == "show" else ""}><summary>{html.escape(str(found.get("code-summary", "Code")))}</summary>'
                parts = [fence(opened, "=html"), *parts, fence("</details>", "=html")]
        if found.get("output", True) is not False:
            parts.extend(self.outputs(cell, found))
        return "\n\n".join(parts)

    def outputs(self, cell, found):
        label, pictures, rest = found.get("label", ""), [], []
        for number, output in enumerate(cell.get("outputs", [])):
            kind, data = output["output_type"], output.get("data", {})
            if kind == "error":
                self.fault(cell["id"], f"the saved output is an error: {output.get('ename')}: {output.get('evalue')}")
            elif kind == "stream":
                text = terminal(joined(output["text"]))
                rest.append(text if found.get("output") == "asis" else fence(text, f".output .{output['name']}"))
            elif "text/html" in data:
                rest.append(fence(embedded(joined(data["text/html"]), found.get("fig-alt") or f"Output of a cell of {self.title}"), "=html"))
            elif kept := next((mime for mime in ("image/svg+xml", "image/png", "image/jpeg") if mime in data), None):
                pictures.append(self.picture(label or f"cell-{cell['id']}", len(pictures), kept, joined(data[kept])))
            elif "text/markdown" in data:
                rest.append(api(joined(data["text/markdown"])) if "show_doc" in joined(cell["source"]) else joined(data["text/markdown"]))
            elif "application/vnd.jupyter.widget-view+json" in data:
                if not re.search(r"\d+/\d+ \[", joined(data.get("text/plain", ""))):  # a progress bar is over by the time that it is saved
                    self.fault(cell["id"], "a widget without a static fallback (HTML or a picture) in its output")
            elif "text/latex" in data:
                rest.append(joined(data["text/latex"]))
            elif "text/plain" in data:
                rest.append(fence(terminal(joined(data["text/plain"])), ".output"))
        if pictures:
            alternatives = found.get("fig-alt", "")
            alternatives = alternatives if isinstance(alternatives, list) else [alternatives] * len(pictures)
            self.pictures.update(zip(pictures, alternatives))
            caption, shown = found.get("fig-cap"), "\n".join(f"![]({picture})" for picture in pictures)
            named = f"#{label} " if label.startswith("fig-") else ""
            rest.append(f"::::: {{{named}.fig}}\n{shown}\n\n{caption or ''}\n:::::")
        elif label.startswith(("fig-", "tbl-")) and rest:
            kind = label[:3]
            rest.append(f"::::: {{#{label} .{kind}}}\n\n" + "\n\n".join([rest.pop(), found.get(f"{kind}-cap", "")]) + "\n\n:::::")
        return rest

    def picture(self, name, number, mime, data):
        "Save one picture; its address"
        suffix = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}[mime]
        path = Path("figures") / f"{Path(self.address).stem}-{name}{f'-{number}' if number else ''}.{suffix}"
        (self.out / path).parent.mkdir(parents=True, exist_ok=True)
        (self.out / path).write_bytes(data.encode() if suffix == "svg" else base64.b64decode(data))
        return str(path)

    def place_of(self, warning):
        "The cell that a warning of pandoc is about: by the line that it names, or by the text that it quotes"
        if line := re.search(r"line (\d+)", warning):
            return self.lines[min(int(line[1]), len(self.lines)) - 1][0]
        quoted = re.search(r"citation (\S+) not found|TeX math (.*?),? rendering", warning)
        wanted = next(filter(None, quoted.groups())) if quoted else warning
        squeezed = re.sub(r"\s", "", wanted)
        return next((cell for cell, source in self.cells.items() if squeezed in re.sub(r"\s", "", source)), None)

    # ------------------------------------------------------------------------------------------------ pandoc's tree

    def read(self):
        "Pandoc's tree of the page, with equations, figures and tables numbered"
        text, warnings = pandoc(self.markdown(), "-f", READER, "-t", "json", "--columns=9999")  # wide tables get no fixed column widths
        for warning in warnings:
            self.fault(self.place_of(warning), f"pandoc warns: {warning}")
        self.tree, self.numbers, counts = json.loads(text), {}, Counter()

        def number(identifier):
            if identifier in self.numbers:
                self.fault(self.cell, f"{identifier} is defined twice")
            kind = identifier.split("-")[0]
            counts[kind] += 1
            self.numbers[identifier] = counts[kind]
            return counts[kind]

        self.change(lambda node: equations(node, number) if isinstance(node, list) else self.figure(node, number))
        found = sections(self.tree["blocks"], self.title)
        self.anchors = {anchor for _, anchor, *_ in found}
        self.names = {anchor for _, anchor, _, _, documented in found if documented}

    def change(self, change):
        "Walk the tree cell by cell, so that a fault knows its place"
        for place, block in enumerate(self.tree["blocks"]):
            self.cell = dict(block["c"][0][2]).get("data-cell") if block["t"] == "Div" else None
            self.tree["blocks"][place] = walk([block], change)[0]

    def resolve(self, site):
        "References and links lead where the site has their targets"
        changes = {"Cite": self.reference, "Link": lambda link: self.link(link, site), "Image": self.image, "Div": callout}
        self.change(lambda node: node if isinstance(node, list) else changes.get(node["t"], lambda same: same)(node))
        if self.front.get("nocite"):
            everything = dict(citationId="*", citationPrefix=[], citationSuffix=[], citationMode={"t": "NormalCitation"}, citationNoteNum=0, citationHash=0)
            self.tree["meta"]["nocite"] = {"t": "MetaInlines", "c": [{"t": "Cite", "c": [[everything], [{"t": "Str", "c": "@*"}]]}]}

    def figure(self, node, number):
        "A division of class fig or tbl becomes a figure with a numbered caption; so does a labelled picture of the text"
        if node["t"] == "Div" and {"fig", "tbl"} & set(node["c"][0][1]):
            (identifier, classes, pairs), blocks = node["c"]
            caption = blocks.pop()["c"] if len(blocks) > 1 and blocks[-1]["t"] in ("Para", "Plain") else []
            blocks = [dict(t="Plain", c=block["c"]) if block["t"] == "Para" else block for block in blocks]
            node = {"t": "Figure", "c": [[identifier, [], []], [None, [dict(t="Plain", c=caption)] if caption else []], blocks]}
        if node["t"] == "Figure" and (kind := node["c"][0][0].split("-")[0]) in KINDS:
            title = dict(t="Strong", c=[dict(t="Str", c=f"{KINDS[kind]} {number(node['c'][0][0])}: ")])
            caption = node["c"][1][1] = node["c"][1][1] or [dict(t="Plain", c=[])]
            caption[0]["c"].insert(0, title)
        return node

    def reference(self, node):
        "@eq-, @fig- and @tbl- become links; other citations are left to citeproc"
        names = [citation["citationId"] for citation in node["c"][0]]
        if not any(re.match(rf"({'|'.join(KINDS)}|sec)-", name, re.I) for name in names):
            return node
        made = []
        for name in names:
            known = self.numbers.get(name)
            if not known:
                self.fault(self.cell, f"unresolved reference @{name}")
            text = f"{KINDS[name.split('-')[0]]}\u00a0{known}" if known else f"[unresolved: {name}]"
            text = dict(t="Str", c=text)
            made += [dict(t="Str", c=", ")] * bool(made) + [{"t": "Link", "c": [["", ["crossref"], []], [text], [f"#{name}", ""]]} if known else text]
        return made

    def link(self, node, site):
        (attributes, inlines, (address, title)) = node["c"]
        if source := re.search(r"/blob/[^/]+/(?:\w+)/([\w/]+)\.py#L(\d+)$", address):
            module, line = source[1].replace("/", "."), int(source[2])
            self.check_source(site, source[1], line)
            made = [{"t": "Link", "c": [["", [], []], inlines, [f"source/{module}.html#L-{line}", ""]]}]
            if site.repository:
                made += [dict(t="Space"), {"t": "Link", "c": [["", [], []], [dict(t="Str", c="repository")], [f"{site.repository}/blob/{site.branch}/{site.package}/{source[1]}.py#L{line}", ""]]}]
            return {"t": "Span", "c": [["", ["source-link"], []], made]}
        return {"t": "Link", "c": [attributes, inlines, [site.address(address, self), title]]}

    def check_source(self, site, module, line):
        file = site.root / site.package / f"{module}.py"
        lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
        if not (0 < line <= len(lines) and re.match(r"\s*(def|class|@|async def|\w+ *=)", lines[line - 1])):
            self.fault(self.cell, f"the source link to line {line} of {module}.py meets no definition: export, then stage again")

    def image(self, node):
        (identifier, classes, pairs), inlines, target = node["c"]
        written = dict(pairs).get("fig-alt") or self.pictures.get(target[0])
        if written:
            inlines = [dict(t="Str", c=str(written))]
        self.copy(target[0])
        return {"t": "Image", "c": [[identifier, classes, [pair for pair in pairs if pair[0] != "fig-alt"]], inlines, target]}

    def copy(self, address):
        "A picture that stands beside the notebook goes to the site; a missing one is found by the checks"
        source = self.file.parent / unquote(address)
        if not urlsplit(address).scheme and not (self.out / address).exists() and source.is_file():
            (self.out / address).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, self.out / address)

    def body(self, site):
        "HTML of the content; the sections for the table of contents and the search stay in `sections`"
        self.resolve(site)
        self.sections = sections(self.tree["blocks"], self.title)
        options = ["-f", "json", "-t", "html5", "--mathml", "--wrap=preserve", "--citeproc", "-M", "link-citations=true", "-M", "lang=en"]
        if not self.front.get("nocite"):
            options += ["-M", "reference-section-title=References"]
        text, warnings = pandoc(json.dumps(self.tree), *options, f"--bibliography={site.root / 'nbs/references.bib'}")
        for warning in warnings:
            self.fault(self.place_of(warning), f"pandoc warns: {warning}")
        return text


def api(text):
    "What nbdev's `show_doc` wrote, as one division"
    return "::::: {.api}\n\n" + re.sub(r"\A---\n", "", text.strip()) + "\n\n:::::"


def embedded(text, title):
    "HTML output: as it is where it is a plain table, else in a frame of its own, so that its ids and styles stay its own"
    if not re.search(r"<script|<style(?! scoped)|<html|\bid=", text, re.I):
        return f'<div class="html-output">{text}</div>'
    return f'<iframe class="html-output" title="{html.escape(str(title))}" srcdoc="{html.escape(text)}"></iframe>'


def equations(inlines, number):
    "`$$ ... $$ {#eq-name}` becomes one numbered span"
    made, rest = [], list(inlines)
    while rest:
        node = rest.pop(0)
        if node["t"] == "Math" and node["c"][0]["t"] == "DisplayMath":
            after = 1 if rest and rest[0]["t"] in ("Space", "SoftBreak") else 0
            label = re.match(r"\{#(eq-[\w-]+)\}(.*)", rest[after]["c"]) if len(rest) > after and rest[after]["t"] == "Str" else None
            if label:
                del rest[:after + 1]
                shown = {"t": "Span", "c": [["", ["equation-number"], []], [dict(t="Str", c=f"({number(label[1])})")]]}
                node = {"t": "Span", "c": [[label[1], ["equation"], []], [node, shown]]}
                rest[:0] = [dict(t="Str", c=label[2])] if label[2] else []
        made.append(node)
    return made


def callout(node):
    "Quarto's callouts get their title"
    (identifier, classes, pairs), blocks = node["c"]
    kind = next((name.removeprefix("callout-") for name in classes if name.startswith("callout-")), None)
    if kind:
        title = dict(pairs).get("title")
        heading = [dict(t="Str", c=title or kind.capitalize())]
        if not title and blocks and blocks[0]["t"] == "Header":
            heading = blocks.pop(0)["c"][2]
        blocks = [dict(t="Para", c=[dict(t="Strong", c=heading)]), *blocks]
        return {"t": "Div", "c": [[identifier, ["callout", *classes], []], blocks]}
    return node


def sections(blocks, title):
    "[(level, anchor, heading, text, whether it documents code)] of a page, in order"
    found = [[1, "", title, "", False]]

    def read(blocks, documented):
        for block in blocks:
            if block["t"] == "Header":
                level, (anchor, _, _), inlines = block["c"]
                found.append([level, anchor, words(inlines).strip(), "", documented])
            elif block["t"] == "Div":
                read(block["c"][1], documented or "api" in block["c"][0][1])
            else:
                found[-1][3] += words(block) + " "
    read(blocks, False)
    return [(level, anchor, heading, " ".join(text.split()), documented) for level, anchor, heading, text, documented in found]


# ------------------------------------------------------------------------------------------------------------- the whole site


def parts_of(quarto):
    "_quarto.yml -> [(part or None, [file, ...]), ...], as its sidebar has them"
    found = []
    for entry in quarto["website"]["sidebar"]["contents"]:
        if isinstance(entry, dict) and "section" in entry:
            found.append((entry["section"], [item if isinstance(item, str) else item["href"] for item in entry["contents"]]))
        else:
            found.append((None, [entry if isinstance(entry, str) else entry["href"]]))
    return found


def repository(settings):
    "Address of the repository in settings.ini (`git_url`, or `user` and `repo`), or an empty string"
    return settings.get("git_url", "").rstrip("/") or (f"https://github.com/{settings['user']}/{settings['repo']}" if settings.get("user") else "")


def colab(address, branch, notebook):
    "Where Colab opens a notebook of a repository on GitHub; empty for other addresses"
    path = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?", address)
    return f"https://colab.research.google.com/github/{path[1]}/blob/{branch}/{notebook}" if path and notebook.endswith(".ipynb") else ""


class Site:
    def __init__(self, root, out, faults):
        self.root, self.out, self.faults, staged = root, out, faults, root / "_proc"
        parser = ConfigParser(delimiters=["="], interpolation=None)
        parser.read(root / "settings.ini", encoding="utf-8")
        settings = parser["DEFAULT"]
        self.package, self.branch, self.repository = settings["lib_name"], settings.get("branch", "main"), repository(settings)
        self.parts = parts_of(yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8")))
        files = {file.name: file for file in sorted([*staged.glob("*.ipynb"), *staged.glob("*.qmd")])}
        listed = [name for _, names in self.parts for name in names]
        for name in files.keys() - set(listed):
            faults.add(f"nbs/{name}", None, "is in no part of the sidebar in _quarto.yml")
        for name in [name for name in listed if name not in files]:
            faults.add("_quarto.yml", None, f"the sidebar lists {name}, which is not there")
        self.pages = {name: Page(files[name], faults, out) for name in [*listed, *sorted(files.keys() - set(listed))] if name in files}
        self.template = (ASSETS / "page.html").read_text(encoding="utf-8")

    def address(self, address, page=None):
        "A link as the notebooks have it -> as the site has it"
        path, sharp, anchor = address.partition("#")
        if path.startswith("/") and not path.startswith("//"):
            path, anchor = self.documented(path[1:] or "index.html", anchor, page)
        return (self.pages[path].address if path in self.pages else path) + sharp + anchor

    def documented(self, path, anchor, page):
        """Where nbdev's link to a name should lead: it links methods though only their class may be documented, and of two
        modules that define a name it knows one. Then the page's own definition comes first, and next the page of that name."""
        owner, known = anchor.rpartition(".")[0], self.anchors.get(path, set())
        if anchor not in known and owner in known:
            return path, owner
        choices = [address for address in self.anchors if anchor in self.names.get(address, ())]
        if len(choices) > 1:
            path = next((wanted for wanted in (page and page.address, f"{anchor}.html") if wanted in choices), path)
        return path, anchor

    def navigation(self, current, up=""):
        lines = []
        for part, names in self.parts:
            pages = [self.pages[name] for name in names if name in self.pages]
            if part and pages:
                lines.append(f"<li><span>{html.escape(part)}</span><ul>")
            for page in pages:
                here = ' aria-current="page"' if page is current else ""
                lines.append(f'<li><a href="{up}{page.address}"{here}>{html.escape(page.heading)}</a></li>')
            if part and pages:
                lines.append("</ul></li>")
        return "<ul>" + "\n".join(lines) + "</ul>"

    def write(self, address, title, body, *, up="", page=None, description="", contents="", before="", after=""):
        values = dict(title=html.escape(title), description=html.escape(description), up=up, navigation=self.navigation(page, up), body=body,
                      contents=contents, before=before, after=after, lead=f'<p class="lead">{html.escape(description)}</p>' if description else "")
        text = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], self.template)
        (self.out / address).parent.mkdir(parents=True, exist_ok=True)
        (self.out / address).write_text(text, encoding="utf-8")

    def build(self):
        pages = list(self.pages.values())
        for page in pages:
            page.read()
        self.anchors = {page.address: page.anchors for page in pages}
        self.names = {page.address: page.names for page in pages}
        bodies = {page.address: page.body(self) for page in pages}
        for number, page in enumerate(pages):
            neighbours = [(f'<a rel="prev" href="{pages[number - 1].address}">\u2190 {html.escape(pages[number - 1].heading)}</a>' if number else "<span></span>"),
                          (f'<a rel="next" href="{pages[number + 1].address}">{html.escape(pages[number + 1].heading)} \u2192</a>' if number + 1 < len(pages) else "")]
            notebook = colab(self.repository, self.branch, page.name)
            self.write(page.address, page.title, bodies[page.address], page=page, description=page.description, contents=contents(page.sections),
                       before=f'<p class="colab"><a href="{notebook}">Open in Colab</a></p>' if notebook else "",
                       after=f'<nav class="neighbours" aria-label="Previous and next page">{"".join(neighbours)}</nav>')
        self.sources()
        index = [[page.address, anchor, page.title, heading, text] for page in pages for _, anchor, heading, text, _ in page.sections]
        (self.out / "search.js").write_text(f"const SECTIONS = {json.dumps(index, ensure_ascii=False)};\n", encoding="utf-8")
        for name in ("site.css", "site.js"):
            shutil.copy(ASSETS / name, self.out / name)

    def sources(self):
        "One page a module, each line an anchor, so that every `source` link leads somewhere without a network"
        package = self.root / self.package
        modules = {file.relative_to(package).with_suffix("").as_posix().replace("/", "."): file for file in sorted(package.glob("*.py")) if file.name != "_modidx.py"}
        blocks = [piece for file in modules.values() for piece in
                  (fence(file.read_text(encoding="utf-8").rstrip("\n"), "#L .python .numberLines .lineAnchors"), fence("<!--next module-->", "=html"))]
        text, warnings = pandoc("\n\n".join(blocks), "-f", READER, "-t", "html5", "--wrap=none")
        for warning in warnings:
            self.faults.add(self.package, None, f"pandoc warns: {warning}")
        for name, body in zip(modules, text.split("<!--next module-->")):
            self.write(f"source/{name}.html", f"{self.package}.{name}", body, up="../",
                       description="Exported from the notebook of the same name." if name != "__init__" else "")


def contents(found):
    "The table of contents of one page"
    lines = []
    for level, anchor, heading, _, documented in found[1:]:
        if level <= 3 and anchor:
            text = html.escape(heading)
            lines.append(f'<li class="level-{level}"><a href="#{anchor}">{f"<code>{text}</code>" if documented else text}</a></li>')
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2><ul>{"".join(lines)}</ul></nav>' if lines else ""


# ------------------------------------------------------------------------------------------------------------------- checks


class Reading(HTMLParser):
    "Ids, links, pictures and text of one page, each with the cell that it stands in"

    FETCHED = dict(link="href", script="src", img="src", iframe="src", source="src", video="src", audio="src", object="data", embed="src", image="href", use="href")
    EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}

    def __init__(self, page, faults):
        super().__init__()
        self.page, self.faults, self.open, self.ids, self.links, self.fetched = page, faults, [], Counter(), [], []

    @property
    def cell(self):
        return next((cell for _, cell, _ in reversed(self.open) if cell), None)

    def fault(self, message):
        self.faults.add(self.page, self.cell, message)

    def inside(self, *tags):
        return any(tag in tags for tag, _, _ in self.open)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in self.EMPTY:
            self.open.append((tag, found.get("data-cell"), (found.get("class") or "").split()))
        if name := found.get("id"):
            self.ids[name] += 1
            if self.ids[name] == 2:
                self.fault(f'the id "{name}" is used twice')
        if tag == "a" and "href" in found:
            self.links.append((found["href"] or "", self.cell))
        if tag == "img" and not (found.get("alt") or "").strip():
            self.fault(f"a picture without alternative text: {(found.get('src') or '')[:60]}")
        if tag == "svg" and not (found.get("aria-label") or found.get("aria-hidden") or found.get("aria-labelledby")):
            self.fault("a drawing (svg) without alternative text (aria-label)")
        if tag == "iframe" and found.get("srcdoc"):
            inner = Reading(self.page, self.faults)
            inner.open = [("iframe", self.cell, [])]
            inner.feed(found["srcdoc"])
            self.fetched += inner.fetched
        address = found.get(self.FETCHED.get(tag, "")) or (found.get("xlink:href") if tag in ("image", "use") else None)
        if address and not address.startswith(("data:", "#")):
            self.fetched.append((address, self.cell))
        self.styles(found.get("style") or "")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if self.inside(tag):
            while self.open.pop()[0] != tag:
                pass

    def styles(self, text):
        for address in re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", text):
            self.fetched.append((address, self.cell))

    def handle_data(self, text):
        if self.inside("style"):
            return self.styles(text)
        if self.inside("script", "math"):
            return
        if self.inside("pre"):
            if re.match(r"\s*#\|", text) and any(tag == "pre" and "sourceCode" in classes for tag, _, classes in self.open):
                self.fault(f"a directive is still shown: {text.strip()[:60]}")
        elif not self.inside("code"):
            for left in re.findall(r":::+.{0,20}|\{#.{0,20}|#\|.{0,20}|\?@[\w-]+|(?<!\w)@(?:eq|fig|tbl|sec)-[\w-]+", text):
                self.fault(f"Quarto's syntax is still shown: {left.strip()}")
            if self.inside("p") and (left := re.search(r"\n(?:[-*+]|\d+\.|\|) .{0,20}", text)):
                self.fault(f"a list or table without an empty line above it: {left[0].strip()}")


def check(out, faults, names=()):
    "Read every page of a built site and name its faults; `names` maps addresses to the notebooks behind them. Returns the number of pages"
    names, pages = dict(names), {}
    for file in sorted(out.rglob("*.html")):
        address = file.relative_to(out).as_posix()
        pages[address] = Reading(names.get(address, address), faults)
        pages[address].feed(file.read_text(encoding="utf-8"))
    for file in sorted(out.rglob("*.css")):
        reading = Reading(file.name, faults)
        reading.styles(file.read_text(encoding="utf-8"))
        pages_fetched(file.name, reading, out, faults)
    for address, page in pages.items():
        pages_fetched(address, page, out, faults)
        for link, cell in page.links:
            problem = dead(address, link, out, pages)
            if problem:
                faults.add(page.page, cell, problem)
    return len(pages)


def pages_fetched(address, page, out, faults):
    for wanted, cell in page.fetched:
        if urlsplit(wanted).scheme or wanted.startswith("//"):
            faults.add(page.page, cell, f"the page would fetch {wanted[:80]}")
        elif not (out / Path(address).parent / unquote(urlsplit(wanted).path)).is_file():
            faults.add(page.page, cell, f"missing file or picture: {wanted}")


def dead(address, link, out, pages):
    "What is wrong with a link, or None"
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None if parts.scheme in ("http", "https", "mailto") else f"a link of unknown kind: {link[:80]}"
    target = os.path.normpath(Path(address).parent / unquote(parts.path)) if parts.path else address
    if not (out / target).is_file():
        return f"dead link: {link or '(empty)'}"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        return f"dead anchor: {link}"
    return None if parts.path or parts.fragment else "dead link: (empty)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "_site")
    parser.add_argument("--no-stage", action="store_true", help="take what stands in _proc/ already")
    args = parser.parse_args()
    faults, pages = Faults(), 0
    if not args.no_stage:
        print("Staging the notebooks ...", flush=True)
        done = subprocess.run([sys.executable, ROOT / "scripts/stage_docs.py"], cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, text=True)
        if done.returncode:
            faults.add("scripts/stage_docs.py", None, f"the notebooks could not be staged:\n{done.stderr[-3000:]}")
    if not faults:
        shutil.rmtree(args.out, ignore_errors=True)
        args.out.mkdir(parents=True)
        site = Site(ROOT, args.out, faults)
        site.build()
        pages = check(args.out, faults, {page.address: page.name for page in site.pages.values()})
    for fault in faults:
        print(fault)
    print(f"site: {pages} pages, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
