// The command palette (Ctrl+K): finds methods and actions by words of their names.

import { h, icon, shown, uid } from "./dom.js"

const MOST = 50

/** How well an entry fits the words that were typed; 0 if it does not. Names count more than descriptions. */
function fit({ text, more = "" }, words) {
  const [name, all] = [text.toLowerCase(), `${text} ${more}`.toLowerCase()]
  if (!words.every((word) => all.includes(word))) return 0
  if (!words.length || name === words.join(" ")) return 3
  if (name.startsWith(words[0])) return 2
  const parts = name.split(/[^\p{L}\p{N}]+/u)
  if (words.every((word) => parts.some((part) => part.startsWith(word)))) return 1.8
  return words.every((word) => name.includes(word)) ? 1.5 : 1
}

/** The entries that fit a text, the best ones first; each kind keeps its order. */
export function found(entries, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean)
  return entries.map((each) => [fit(each, words), each]).filter(([score]) => score).sort(([a], [b]) => b - a).slice(0, MOST).map(([, each]) => each)
}

/**
 * A palette; `entries()` gives what it offers, as `{text, more, icon, run}`, each time that it is opened.
 */
export function makePalette(entries) {
  const listId = uid()
  let all = []
  let shownOnes = []
  let chosen = 0
  const input = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": listId, "aria-autocomplete": "list",
    "aria-label": "Method or action", placeholder: "Find a method or an action", autocomplete: "off", spellcheck: "false", oninput: () => show() })
  const list = h("ul", { id: listId, role: "listbox", "aria-label": "methods and actions" })
  const none = h("p", { class: "note", role: "status" })
  const dialog = h("dialog", { class: "palette", "aria-label": "Command palette", onclick: (event) => event.target === dialog && dialog.close() }, input, list, none)

  function show() {
    shownOnes = found(all, input.value)
    chosen = 0
    none.textContent = shownOnes.length ? "" : "Nothing has this name."
    list.hidden = !shownOnes.length
    list.replaceChildren(...shownOnes.map((each, at) => h("li", { role: "option", id: `${listId}-${at}`, onclick: () => run(at), onpointermove: () => choose(at) },
      icon(each.icon), h("span", { class: each.isMethod ? "name" : null }, shown(each.text, 100)), h("span", { class: "note" }, shown(each.more ?? "", 120)))))
    choose(0)
  }
  function choose(at) {
    chosen = at
    ;[...list.children].forEach((node, index) => node.setAttribute("aria-selected", String(index === at)))
    input.setAttribute("aria-activedescendant", shownOnes.length ? `${listId}-${at}` : "")
  }
  function run(at) {
    const entry = shownOnes[at]
    if (!entry) return
    dialog.close()
    entry.run()
  }
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step && shownOnes.length) {
      choose((chosen + step + shownOnes.length) % shownOnes.length)
      list.children[chosen].scrollIntoView({ block: "nearest" })
    } else if (event.key === "Enter") run(chosen)
    else return
    event.preventDefault()
    event.stopPropagation()
  })
  return { node: dialog, open() {
    if (dialog.open) return dialog.close()
    all = entries()
    input.value = ""
    dialog.showModal()
    show()
  } }
}
