// Search, the menu on narrow screens, and the choice of light or dark. No library, no network.
const up = document.currentScript?.dataset.up ?? document.querySelector("script[data-up]").dataset.up;
const root = document.documentElement;

const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
if (remembered()) root.dataset.theme = remembered();
document.querySelector("button.theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* kept for this page only */ }
});

const menu = document.querySelector("button.menu");
menu.addEventListener("click", () => {
  const open = document.body.classList.toggle("menu-open");
  menu.setAttribute("aria-expanded", open);
});

// every word must occur; a hit in a heading weighs more than one in the text
function find(query, sections) {
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const hits = [];
  for (const section of sections) {
    const [, , title, heading, text] = section.map(part => part.toLowerCase());
    if (!wanted.every(word => title.includes(word) || heading.includes(word) || text.includes(word))) continue;
    const score = wanted.reduce((sum, word) => sum + (heading === word ? 8 : heading.includes(word) ? 4 : 0) + (title.includes(word) ? 1 : 0) + (text.includes(word) ? 1 : 0), 0);
    hits.push([score, section]);
  }
  return hits.sort((a, b) => b[0] - a[0]).slice(0, 20).map(hit => hit[1]);
}

function around(text, query) {
  const word = query.toLowerCase().split(/\s+/).filter(Boolean)[0];
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 40);
  return (at ? "… " : "") + text.slice(at, at + 120) + (at + 120 < text.length ? " …" : "");
}

const form = document.querySelector("form.search");
const [input, list] = [form.querySelector("input"), form.querySelector("ol")];
function show() {
  list.replaceChildren(...find(input.value, SECTIONS).map(([page, anchor, title, heading, text]) => {
    const [item, link, snippet] = ["li", "a", "small"].map(tag => document.createElement(tag));
    link.href = up + page + (anchor ? "#" + anchor : "");
    link.textContent = heading === title ? title : `${title}: ${heading}`;
    snippet.textContent = around(text, input.value);
    item.append(link, snippet);
    return item;
  }));
  if (input.value.trim() && !list.children.length) list.append(Object.assign(document.createElement("li"), { textContent: "Nothing found" }));
  list.hidden = !input.value.trim();
}
input.addEventListener("input", show);
input.addEventListener("keydown", event => { if (event.key === "Escape") { input.value = ""; show(); } });
list.addEventListener("click", () => { list.hidden = true; });
document.addEventListener("click", event => { if (!form.contains(event.target)) list.hidden = true; });
form.addEventListener("submit", event => { event.preventDefault(); list.querySelector("a")?.click(); });

for (const frame of document.querySelectorAll("iframe.html-output")) {
  const fit = () => { const inner = frame.contentDocument; if (inner?.documentElement) frame.style.height = inner.documentElement.scrollHeight + 8 + "px"; };
  frame.addEventListener("load", fit);
  fit();
}
