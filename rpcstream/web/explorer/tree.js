// JSON as a tree: opened by clicks and keys, searched, and with the path of the chosen member to be copied.

import { inSlices } from "../rpcstream.js"
import { numberNode } from "./chart.js"
import { button, h, iconButton, jsonText, longText, save, shown } from "./dom.js"
import { copyText } from "./markup.js"

const MOST_CHILDREN = 100 // of a node; of more, there are nodes of ranges
const MOST_OPEN = 30 // rows that are there to begin with
const MOST_FOUND = 1000
const MOST_DEPTH = 130

const isBranch = (value) => typeof value === "object" && value !== null && !ArrayBuffer.isView(value) && !(value instanceof Blob) && !ArrayBuffer.isView(value.data)
const isIndex = (key) => typeof key === "number"
const stepText = (key) => `[${isIndex(key) ? key : JSON.stringify(key)}]`

/** A path as Python and JavaScript write it: result["boxes"][0]. */
const pathText = (path) => `result${path.map(stepText).join("")}`

const membersOf = (value) => (Array.isArray(value) ? value.map((_, at) => at) : Object.keys(value))

/** What stands behind a key that is closed. */
function summaryOf(value) {
  const count = Array.isArray(value) ? value.length : Object.keys(value).length
  return Array.isArray(value) ? `[${count.toLocaleString()}]` : `{${count.toLocaleString()}}`
}

function leafNode(value) {
  if (typeof value === "number" || typeof value === "bigint") return h("code", { class: "code-number" }, numberNode(value))
  if (typeof value === "string") return value.length > 200 ? longText(value, "span", 200) : h("code", { class: "code-string" }, JSON.stringify(value))
  return h("code", { class: "code-word" }, String(value))
}

/** A node of the tree: a member with its key, or a range of many members. `view` shows values that are no JSON. */
class Node {
  #children = null
  #group = null

  constructor(tree, value, path, range) {
    Object.assign(this, { tree, value, path, range })
    this.isOpen = false
    const name = range ? `${range[0]} … ${range[1] - 1}` : shown(path.at(-1) ?? "result", 200)
    const isLeaf = !range && !isBranch(value) && !(typeof value === "object" && value !== null)
    this.isLeaf = isLeaf || (isBranch(value) && membersOf(value).length === 0)
    const text = range ? null : isBranch(value) ? h("span", { class: "note" }, summaryOf(value)) : isLeaf ? leafNode(value) : h("span", { class: "note" }, jsonText(value).replace(/^"|"$/g, ""))
    this.row = h("span", { class: "tree-row" }, h("span", { class: range ? "note" : "key" }, name), " ", text)
    this.node = h("li", { role: "treeitem", tabindex: "-1", "aria-selected": "false", "aria-level": path.length + (range ? 2 : 1), ...(this.isLeaf ? {} : { "aria-expanded": "false" }) }, this.row)
    this.node.member = this
    this.row.addEventListener("click", () => {
      tree.select(this)
      if (!this.isLeaf) this.toggle()
    })
  }

  get children() {
    return (this.#children ??= this.#make())
  }

  #make() {
    if (this.isLeaf || !isBranch(this.value)) return []
    const keys = membersOf(this.value)
    const [start, end] = this.range ?? [0, keys.length]
    if (end - start <= MOST_CHILDREN) return keys.slice(start, end).map((key) => new Node(this.tree, this.value[key], [...this.path, key]))
    let step = MOST_CHILDREN
    while ((end - start) / step > MOST_CHILDREN) step *= MOST_CHILDREN
    return Array.from({ length: Math.ceil((end - start) / step) }, (_, at) =>
      new Node(this.tree, this.value, this.path, [start + at * step, Math.min(end, start + (at + 1) * step)]))
  }

  toggle(isOpen = !this.isOpen) {
    if (this.isLeaf || isOpen === this.isOpen) return
    this.isOpen = isOpen
    this.node.setAttribute("aria-expanded", String(isOpen))
    if (!this.#group) {
      this.#group = isBranch(this.value) ? h("ul", { role: "group" }, this.children.map((each) => each.node)) : h("div", null, this.tree.view(this.value))
      this.node.append(this.#group)
    }
    this.#group.hidden = !isOpen
  }
}

/** Work for `inSlices`: the paths at which a key or a value has a text in it. */
function* matches(value, words, path = [], found = []) {
  const key = path.at(-1)
  const text = `${isIndex(key) || key === undefined ? "" : key} ${isBranch(value) || typeof value === "object" ? "" : String(value).slice(0, 2000)}`
  if (path.length && text.toLowerCase().includes(words)) found.push(path)
  if (isBranch(value) && path.length < MOST_DEPTH) for (const each of membersOf(value)) {
    if (found.length >= MOST_FOUND) return found
    yield* matches(value[each], words, [...path, each], found)
    yield
  }
  return found
}

class Tree {
  constructor(value, view) {
    Object.assign(this, { value, view })
    this.path = h("code", null, "result")
    this.root = new Node(this, value, [])
    this.list = h("ul", { class: "tree", role: "tree", "aria-label": "result", onkeydown: (event) => this.#key(event) }, this.root.node)
    this.chosen = this.root
    this.root.node.tabIndex = 0
    this.#open()
  }

  /** Open nodes, level by level, while there are few rows. */
  #open() {
    let [waiting, rows] = [[this.root], 1]
    while (waiting.length) {
      const node = waiting.shift()
      if (node.isLeaf || !isBranch(node.value) || (rows += node.children.length) > MOST_OPEN && node !== this.root) continue
      node.toggle(true)
      waiting.push(...node.children)
    }
  }

  select(node, isFocused = true) {
    this.chosen.node.setAttribute("aria-selected", "false")
    this.chosen.node.tabIndex = -1
    this.chosen = node
    node.node.setAttribute("aria-selected", "true")
    node.node.tabIndex = 0
    if (isFocused) node.node.focus({ preventScroll: true })
    node.row.scrollIntoView({ block: "nearest" })
    this.path.textContent = pathText(node.path)
  }

  /** Open what is around a member, and choose it. */
  reveal(path) {
    let node = this.root
    while (node.path.length < path.length) {
      node.toggle(true)
      const key = path[node.path.length]
      const at = isIndex(key) ? key : Object.keys(node.value).indexOf(key)
      node = node.children.find((each) => (each.range ? each.range[0] <= at && at < each.range[1] : each.path.at(-1) === key))
    }
    this.select(node, false)
  }

  #key(event) {
    const items = [...this.list.querySelectorAll('[role="treeitem"]')].filter((each) => !each.parentElement.closest("[hidden]"))
    const at = items.indexOf(this.chosen.node)
    const { chosen } = this
    if (event.target !== chosen.node) return
    const go = (to) => items[to] && this.select(items[to].member)
    const around = chosen.node.parentElement.closest('[role="treeitem"]')
    const actions = {
      ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(items.length - 1),
      ArrowRight: () => (chosen.isOpen ? go(at + 1) : chosen.toggle(true)),
      ArrowLeft: () => (chosen.isOpen ? chosen.toggle(false) : around && this.select(around.member)),
      Enter: () => chosen.toggle(), " ": () => chosen.toggle(),
    }
    if (!Object.hasOwn(actions, event.key) || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    actions[event.key]()
  }
}

/** A search field, which goes from one place to the next with Enter, and tells how many there are. */
function searchField(tree) {
  const said = h("span", { class: "note", role: "status" })
  let [found, at, turn] = [[], 0, 0]
  const show = (next) => {
    at = (next + found.length) % (found.length || 1)
    if (found.length) tree.reveal(found[at])
    said.textContent = !input.value ? "" : found.length ? `${at + 1} of ${found.length}${found.length >= MOST_FOUND ? " or more" : ""}` : "not found"
  }
  const input = h("input", { type: "search", placeholder: "Search", "aria-label": "Search the result", oninput: async () => {
    const mine = ++turn
    const paths = input.value ? await inSlices(matches(tree.value, input.value.toLowerCase())) : []
    if (mine !== turn) return
    found = paths
    show(0)
  }, onkeydown: (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    show(at + (event.shiftKey ? -1 : 1))
  } })
  return [input, said]
}

/** The tree of a value, with a search and the path of the chosen member. `view` makes nodes of values that are no JSON. */
export function treeView(value, view, isSmall = false) {
  const tree = new Tree(value, view)
  if (isSmall) return tree.list
  const said = h("span", { class: "note", role: "status" })
  const copy = (name, text) => button(name, () => copyText(text(), said), { class: "quiet" })
  return h("div", { class: "tree-view" }, h("div", { class: "tools" }, searchField(tree)), tree.list,
    h("div", { class: "tools path" }, tree.path, copy("Copy path", () => pathText(tree.chosen.path)), copy("Copy value", () => jsonText(tree.chosen.value, 2, Infinity)),
      iconButton("save", "Save .json", () => save("result.json", new Blob([jsonText(value, 2, Infinity), "\n"], { type: "application/json" }))), said))
}
