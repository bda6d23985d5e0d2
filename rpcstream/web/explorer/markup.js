// Markdown and programs as elements. What a server sends becomes elements of a few kinds, and text nodes.

import { h, iconButton, longText } from "./dom.js"

const LONGEST = 6000
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()"']+[\w/])/g

function inline(text) {
  const nodes = []
  let from = 0
  for (const found of text.matchAll(INLINE)) {
    const [all, code, strong, emphasis, label, target, address] = found
    nodes.push(text.slice(from, found.index))
    from = found.index + all.length
    if (code) nodes.push(h("code", null, code))
    else if (strong) nodes.push(h("strong", null, strong))
    else if (emphasis) nodes.push(h("em", null, emphasis))
    else nodes.push(h("a", { href: target ?? address, rel: "noopener noreferrer", target: "_blank" }, label ?? address))
  }
  return [...nodes, text.slice(from)].filter(Boolean)
}

/** Paragraphs, headings, lists and blocks of code; other Markdown, and text that is very long, stays as it is written. */
export function markdown(text) {
  if (text.length > LONGEST) return longText(text)
  const node = h("div", { class: "text" })
  for (const block of text.split(/\n\s*\n/)) {
    const lines = block.split("\n").filter((line) => line.trim())
    if (!lines.length) continue
    const heading = /^(#{1,6})\s+(.*)$/.exec(lines[0])
    if (/^\s*(```|>>>)/.test(lines[0]) || lines.every((line) => /^ {4}/.test(line)))
      node.append(h("pre", { tabindex: "0" }, lines.filter((line) => !/^\s*```/.test(line)).join("\n")))
    else if (lines.every((line) => /^\s*([-*+]|\d+\.)\s/.test(line) || /^\s{2,}/.test(line)) && /^\s*([-*+]|\d+\.)\s/.test(lines[0])) {
      const items = []
      for (const line of lines) {
        const item = /^\s*(?:[-*+]|\d+\.)\s+(.*)$/.exec(line)
        if (item) items.push(item[1])
        else items[items.length - 1] += ` ${line.trim()}`
      }
      node.append(h(/^\s*\d/.test(lines[0]) ? "ol" : "ul", null, items.map((item) => h("li", null, inline(item)))))
    } else if (heading) node.append(h("p", null, h("strong", null, inline([heading[2], ...lines.slice(1)].join(" ")))))
    else node.append(h("p", null, inline(lines.join("\n"))))
  }
  return node
}

const TOKENS = /(#[^\n]*|\/\/[^\n]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\b(from|import|with|as|for|in|of|await|async|const|new|print|None|True|False|null|true|false)\b|(\b\d[\d.]*(?:e[+-]?\d+)?\b)|((?<=^|\s)--?[a-zA-Z][\w-]*)/gm

/** The text of a program with its strings, numbers and words in colours. */
function highlighted(text) {
  if (text.length > LONGEST) return [text]
  const nodes = []
  let from = 0
  for (const found of text.matchAll(TOKENS)) {
    const kind = ["comment", "string", "word", "number", "option"][found.slice(1).findIndex((each) => each !== undefined)]
    if (kind === "comment" && /https?:$/.test(text.slice(0, found.index))) continue
    nodes.push(text.slice(from, found.index), h("span", { class: `code-${kind}` }, found[0]))
    from = found.index + found[0].length
  }
  return [...nodes, text.slice(from)].filter((each) => each !== "")
}

export async function copyText(text, said) {
  try {
    await navigator.clipboard.writeText(text)
    said.textContent = "Copied"
  } catch {
    said.textContent = "Select the text and copy it"
  }
  setTimeout(() => (said.textContent = ""), 2500)
}

/** A panel with one program for each language, of which one is shown. `write` gives the text for a language. */
export function codePanel(languages, write, label, ...tools) {
  const said = h("span", { class: "note", role: "status" })
  const text = h("pre", { tabindex: "0", role: "tabpanel", "aria-label": label })
  let chosen = languages[0]
  let shownText = ""
  const tabs = languages.map((name) => h("button", { type: "button", role: "tab", onclick: () => choose(name), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (step) choose(languages[(languages.indexOf(chosen) + step + languages.length) % languages.length], true)
  } }, name))
  function refresh() {
    const made = write(chosen)
    if (made === shownText) return
    shownText = made
    text.replaceChildren(...highlighted(made))
  }
  function choose(name, isFocused) {
    chosen = name
    tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(languages[at] === name))
      tab.tabIndex = languages[at] === name ? 0 : -1
      if (isFocused && languages[at] === name) tab.focus()
    })
    refresh()
  }
  choose(chosen)
  const copy = iconButton("copy", "", () => copyText(shownText, said), { "aria-label": "Copy", title: "Copy" })
  const node = h("section", { class: "code", "aria-label": "Code" },
    h("div", { class: "code-head" }, h("div", { role: "tablist", "aria-label": "language" }, tabs), said, h("div", { class: "code-tools" }, ...tools, copy)), text)
  return { node, refresh, said }
}
