// Forms out of JSON Schema: an editor for each kind of value, and fields with a label and an error.

import { button, h, longText, parseJson, shown, uid } from "./dom.js"
import { drawingOf, withDrawing } from "./draw.js"
import { FILE_EDITORS } from "./files.js"
import { PLAIN_EDITORS } from "./inputs.js"
import { Invalid, constraintsOf, isLike, kindOf, listOf, nameOfKind, resolve, sample, withoutNull } from "./schemas.js"
import { defaultText, typeText } from "./signature.js"
import { tableEditor } from "./tables_in.js"

const MOST_FIELDS = 500

/** An editor for a value of a schema. `name` is that of the parameter, which may be drawn on a picture. */
export function makeEditor(schema, env, level = 0, name = "") {
  // An object that holds itself, many times and without end, is made in part: the rest is JSON.
  if (env.left === undefined) setTimeout(() => (env.left = undefined))
  env.left = (env.left ?? 2000) - 1
  const [kind, found] = level > 24 || env.left < 0 ? ["any", {}] : kindOf(schema, env.schemas)
  const drawing = env.shelf && name ? drawingOf(name, schema, env.schemas) : null
  const plain = EDITORS[kind](found, env, level + 1, { name, drawing })
  const editor = drawing ? withDrawing(plain, drawing, env, name) : plain
  editor.limits = kind === "union" ? "" : constraintsOf({ ...found, ...resolve(schema, env.schemas) })
  return editor
}

const BIG = ["union", "object", "map", "list", "tuple"]

/** A labelled editor with its errors. One that is not required is sent once it was edited, until it is reset. */
class Field {
  #editor = null

  constructor(name, schema, env, { isRequired, description, level = 0 }) {
    const typed = isRequired ? schema : withoutNull(schema, env.schemas)
    const [kind] = kindOf(typed, env.schemas)
    Object.assign(this, { name, schema, env, level, typed, isRequired: Boolean(isRequired), isSent: Boolean(isRequired) })
    this.resolved = resolve(schema, env.schemas)
    this.default = "default" in this.resolved || "x-default" in this.resolved ? defaultText(this.resolved) : ""
    this.isBig = BIG.includes(kind)
    this.#makeNode(description ?? this.resolved.description)
    if (this.isRequired || !this.isBig) {
      this.#build()
      this.#preset()
    }
    this.#showHead()
    this.#show()
  }

  #makeNode(text) {
    const { isBig, isRequired } = this
    const name = shown(this.name, 60)
    const verb = isBig && this.env.shelf && drawingOf(this.name, this.typed, this.env.schemas) ? "Draw" : "Set"
    this.error = h("p", { class: "error", id: uid(), hidden: true })
    this.body = h("div", { class: "body", hidden: isBig && !isRequired })
    this.open = button(verb, () => this.#touch(), { class: "quiet", "aria-label": `${verb} ${name}` })
    this.reset = button("Reset", () => {
      this.release()
      this.node.dispatchEvent(new Event("change", { bubbles: true }))
    }, { class: "quiet", "aria-label": `Reset ${name}` })
    this.label = h(isBig ? "span" : "label", null, h("span", { class: "name" }, shown(this.name)))
    this.title = h(isBig ? "legend" : "div", { class: "head" }, this.label)
    this.node = h(isBig ? "fieldset" : "div", { class: "field" }, this.title, text && longText(String(text), "p", 300), this.body, this.error)
    for (const event of ["input", "change"]) this.body.addEventListener(event, () => this.#edited())
  }

  /** The type, the bounds and the default. */
  #showHead() {
    const editor = this.#editor
    const typeName = typeText(this.schema, this.env.schemas)
    const notes = [editor?.limits ? `${typeName}, ${editor.limits}` : typeName]
    if (this.default) notes.push(`default ${this.default}`)
    this.title.append(...notes.map((each) => h("span", { class: "note" }, each)), this.open, this.reset)
  }

  #hasPlaceholder() {
    return /^(text|textarea)$/.test(this.#editor?.input?.type)
  }

  #build() {
    if (this.#editor) return this.#editor
    const editor = (this.#editor = makeEditor(this.typed, this.env, this.level, this.name))
    if (editor.input) {
      editor.input.id = uid()
      if (!this.isBig) this.label.setAttribute("for", editor.input.id)
      editor.input.setAttribute("aria-describedby", this.error.id)
      const isNone = this.default === "None"
      if (!this.isRequired && this.default && this.#hasPlaceholder() && !(isNone && editor.input.placeholder)) Object.assign(editor.input, { placeholder: this.default, className: isNone ? "" : "preset" })
    }
    this.body.append(withUnit(editor, this.resolved["x-unit"]))
    return editor
  }

  /** What is edited is sent, and what is empty again is not. */
  #edited() {
    if (!this.isRequired && !this.isBig && this.#editor?.isBlank?.()) this.release(true)
    else this.#touch()
    this.#clear()
  }

  #touch() {
    this.#build()
    this.isSent = true
    this.#show()
  }

  /** It is not sent any more; unless `isKept`, the editor shows the default again. */
  release(isKept) {
    this.isSent = this.isRequired
    if (!isKept && this.#editor && !this.isRequired) {
      this.#editor.release?.()
      this.body.replaceChildren()
      this.#editor = null
      if (!this.isBig) this.#build()
      this.#preset()
    }
    this.#clear()
    this.#show()
  }

  #show() {
    const { isBig, isRequired, isSent } = this
    this.body.hidden = isBig && !isSent
    this.open.hidden = !isBig || isSent
    this.reset.hidden = isRequired || !isSent
  }

  #clear() {
    this.error.hidden = true
    this.#editor?.input?.removeAttribute("aria-invalid")
  }

  /** Choices show their default, which texts have as their placeholder. */
  #preset() {
    const isChoice = this.#editor?.input?.tagName === "SELECT"
    if ("default" in this.resolved && (isChoice || (this.isBig && this.#editor))) this.#setQuietly(this.resolved.default)
  }

  #setQuietly(value) {
    try {
      this.#build().set(value)
    } catch {} // a default that its own schema does not take
  }

  get() {
    if (!this.env.isDraft) this.#clear()
    return this.#build().get()
  }

  /** The value for a program that shows the call: where a required one is missing, an example of it. */
  draft() {
    this.env.isDraft = true // errors that are shown stay
    try {
      return this.#build().get()
    } catch {
      return sample(this.schema, this.env.schemas, this.name)
    } finally {
      this.env.isDraft = false
    }
  }

  set(value) {
    if (value === undefined) return this.release()
    this.#setQuietly(value)
    this.#touch()
  }

  /** Show an error at the part that the path names. */
  fail(path, message) {
    this.#touch()
    const editor = this.#build()
    if (path.length && editor.fail?.(path, message)) return true
    this.error.textContent = shown(`${editor.where?.(path) ?? ""}${message}`, 1000)
    this.error.hidden = false
    editor.input?.setAttribute("aria-invalid", "true")
    const place = editor.input ?? this.node.querySelector("input, select, textarea, button")
    place?.focus()
    return true
  }
}

const field = (...args) => new Field(...args)

/** An editor's node with the unit of its number behind it. */
function withUnit(editor, unit) {
  if (typeof unit !== "string" || !unit) return editor.node
  return h("div", { class: "with-unit" }, editor.node, h("span", { class: "unit" }, shown(unit, 20)))
}

/** Give the value of an editor; what it throws gets the step that leads there. */
function getAt(step, editor) {
  try {
    return editor.get()
  } catch (error) {
    if (error instanceof Invalid) error.path.unshift(step)
    throw error
  }
}
/** Items that are added and removed. */
function rows(makeRow, addText, fixed = 0) {
  const node = h("div", { class: "rows" })
  const all = []
  const add = () => {
    if (all.length >= MOST_FIELDS) return null
    const row = makeRow(all.length)
    if (all.length >= fixed) {
      row.node.append(button("Remove", () => {
        all.splice(all.indexOf(row), 1)
        row.node.remove()
        all.forEach((each, at) => each.rename?.(at))
        node.dispatchEvent(new Event("change", { bubbles: true }))
        more.focus()
      }, { "aria-label": "Remove this" }))
    }
    all.push(row)
    node.insertBefore(row.node, more)
    return row
  }
  const more = button(addText, () => add()?.node.querySelector("input, select, textarea, button")?.focus(), { class: "add" })
  node.append(more)
  const clear = () => all.splice(0).forEach((row) => row.node.remove())
  return { node, all, add, clear, more }
}

const EDITORS = {
  ...PLAIN_EDITORS,
  ...FILE_EDITORS,
  table: tableEditor,
  union: (choices, env, level) => {
    const kinds = choices.map((each) => kindOf(each, env.schemas))
    const body = h("div")
    const made = new Map()
    const select = h("select", { "aria-label": "type", onchange: () => show() }, kinds.map(([kind, found], at) =>
      h("option", { value: String(at) }, nameOfKind(kind, found))))
    function show() {
      const at = Number(select.value)
      if (!made.has(at)) made.set(at, makeEditor(choices[at], env, level))
      const editor = made.get(at)
      editor.input?.setAttribute("aria-label", "value")
      if (body.firstChild !== editor.node) body.replaceChildren(editor.node) // an input that is put in again loses the focus
      return editor
    }
    show()
    return { node: h("div", { class: "union" }, select, body), get: () => show().get(),
      set(value) {
        const at = kinds.findIndex(([kind, found]) => isLike(value, kind, found))
        select.value = String(Math.max(0, at))
        show().set(value)
      },
      fail: (path, text) => show().fail?.(path, text) }
  },
  object: (schema, env, level) => objectEditor(Object.entries(schema.properties).map(([name, each]) => ({
    name, schema: each, isRequired: listOf(schema.required).includes(name),
  })), env, level),
  map: (schema, env, level) => {
    const list = rows(() => {
      const key = h("input", { type: "text", "aria-label": "name", placeholder: "name" })
      const editor = makeEditor(schema.additionalProperties ?? {}, env, level)
      editor.input?.setAttribute("aria-label", "value")
      return { node: h("div", { class: "row" }, key, editor.node), key, editor }
    }, "Add an entry")
    return { node: list.node, get() {
      const made = Object.create(null)
      for (const { key, editor } of list.all) made[key.value] = getAt(key.value, editor)
      return made
    }, set(value) {
      list.clear()
      for (const [key, each] of Object.entries(value ?? {})) {
        const row = list.add()
        if (!row) break
        row.key.value = key
        row.editor.set(each)
      }
    }, fail: (path, text) => failAt(list.all.find(({ key }) => key.value === String(path[0])), path, text) }
  },
  list: (schema, env, level, { drawing }) => listEditor(() => (drawing ? { ...schema.items, "x-names": drawing.keys } : schema.items ?? {}), 0, env, level),
  tuple(schema, env, level, { drawing }) {
    const names = drawing?.keys ?? listOf(schema["x-names"])
    const editor = listEditor((at) => schema.prefixItems[at] ?? schema.items ?? {}, schema.prefixItems.length, env, level, { names, isClosed: !schema.items })
    editor.node.classList.toggle("compact", names.length > 0)
    return editor
  },
}

const failAt = (row, path, text) => row && (row.fail ? row.fail(path.slice(1), text) : row.editor.fail?.(path.slice(1), text))

function listEditor(schemaAt, fixed, env, level, { names = [], isClosed = false } = {}) {
  const nameAt = (at) => String(names[at] ?? `item ${at + 1}`)
  const list = rows((at) => {
    const item = field(nameAt(at), schemaAt(at), env, { isRequired: true, level })
    item.rename = (to) => (item.label.firstChild.textContent = nameAt(to))
    return item
  }, "Add an item", fixed)
  for (let at = 0; at < fixed; at++) list.add()
  list.more.hidden = isClosed
  const editor = { node: list.node, get: () => list.all.map((row, at) => getAt(at, row)),
    set(value) {
      while (list.all.length < value.length && list.add()) continue
      list.all.splice(Math.max(fixed, value.length)).forEach((row) => row.node.remove())
      value.forEach((each, at) => list.all[at]?.set(each))
    },
    fail: (path, text) => failAt(list.all[path[0]], path, text) }
  if (!fixed) list.node.append(...pasteJson(editor))
  return editor
}

/** A button and a text with which a list is given as JSON. */
function pasteJson(editor) {
  const said = h("p", { class: "error", role: "status" })
  const text = h("textarea", { rows: 2, spellcheck: "false", hidden: true, "aria-label": "JSON array", placeholder: "[…]" })
  const open = button("Paste JSON", () => {
    text.hidden = !text.hidden
    if (!text.hidden) text.focus()
  }, { class: "quiet" })
  text.addEventListener("input", (event) => {
    event.stopPropagation() // the form has changed only if this is a list
    try {
      const value = text.value.trim() ? parseJson(text.value) : null
      said.textContent = value === null || Array.isArray(value) ? "" : "A JSON array is expected."
      if (!Array.isArray(value)) return
      editor.set(value)
      editor.node.dispatchEvent(new Event("change", { bubbles: true }))
    } catch (error) {
      said.textContent = shown(`Not JSON: ${error.message}`, 300)
    }
  })
  return [open, text, said]
}

/** The fields of an object, or of the parameters of a method, in their order. */
export function objectEditor(members, env, level = 0) {
  const fields = new Map(members.slice(0, MOST_FIELDS).map((each) => [each.name, field(each.name, each.schema, env, { ...each, level })]))
  const node = h("div", { class: "fields" }, [...fields.values()].map((each) => each.node))
  if (members.length > MOST_FIELDS) node.append(h("p", null, `${members.length - MOST_FIELDS} more are not shown`))
  function sent(read) {
    const made = Object.create(null)
    for (const [name, each] of fields) if (each.isSent) made[name] = read(name, each)
    return made
  }
  return { node, draft: () => sent((_, each) => each.draft()), get: () => sent(getAt), set(value) {
    for (const [name, each] of fields) each.set(value && Object.hasOwn(value, name) ? value[name] : undefined)
  }, fail: (path, text) => failAt(fields.get(String(path[0])), path, text) }
}

