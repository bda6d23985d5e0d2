// Editors of plain values: numbers, texts, dates, choices, and JSON.
// An editor is {node, input?, get(), set(value), fail?(path, text)}: `get` gives the value or throws Invalid.

import { h, jsonText, parseJson, shown } from "./dom.js"
import { Invalid, kindOf } from "./schemas.js"

/** An input of a type, or a textarea; `read` makes a value of its text. */
function input(type, props, read, write = (value) => String(value)) {
  const node = h(type === "textarea" ? "textarea" : "input", { ...(type === "textarea" ? { rows: 1 } : { type }), ...props })
  return { node, input: node, get: () => read(node.value), set: (value) => (node.value = value == null ? "" : write(value)), isBlank: () => !node.value }
}

function numberOf(text, isWhole) {
  const trimmed = text.trim()
  const isNumber = isWhole ? /^[+-]?\d+$/.test(trimmed) : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(trimmed)
  if (!isNumber) throw new Invalid(isWhole ? "a whole number is expected" : "a number is expected")
  const number = Number(trimmed)
  if (!Number.isFinite(number)) throw new Invalid("JSON has no number of this size")
  return isWhole && !Number.isSafeInteger(number) ? BigInt(trimmed.replace("+", "")) : number
}

function jsonOf(text) {
  try {
    return parseJson(text)
  } catch (error) {
    throw new Invalid(`not JSON: ${error.message}`)
  }
}

/** A number with both bounds can be dragged, too. */
function withSlider(schema, editor, isWhole) {
  const [min, max] = [schema.minimum, schema.maximum]
  if (!(Number.isFinite(min) && Number.isFinite(max) && min < max)) return editor
  const step = isWhole ? 1 : 10 ** Math.floor(Math.log10((max - min) / 50))
  const slider = h("input", { type: "range", min, max, step, "aria-label": "slider", oninput: () => (editor.input.value = slider.value) })
  const follow = () => (slider.value = editor.input.value || String(schema.default ?? min))
  editor.input.addEventListener("input", follow)
  slider.value = String(schema.default ?? min)
  const set = (value) => {
    editor.set(value)
    follow()
  }
  return { ...editor, set, node: h("div", { class: "row slider" }, editor.node, slider) }
}

const WIDGETS = { date: "date", "date-time": "datetime-local" }

/** The items of a list of plain values: JSON, or one a line; numbers may stand on one line, too. */
function itemsOf(text, kind) {
  const trimmed = text.trim()
  if (trimmed.startsWith("[")) {
    const items = jsonOf(trimmed)
    if (Array.isArray(items)) return items
  }
  if (kind === "string") return text.split("\n").map((line) => line.trimEnd()).filter(Boolean)
  return trimmed.split(/[\s,;]+/).filter(Boolean).map((each, at) => {
    try {
      return numberOf(each, kind === "integer")
    } catch (error) {
      error.message = `item ${at + 1}: ${error.message}`
      throw error
    }
  })
}

/** Texts as lines, where each of them is one line; JSON otherwise. */
function linesText(items) {
  const isPlain = Array.isArray(items) && items.every((each) => typeof each === "string" && each && each === each.trim() && !/^\[|\n/.test(each))
  return isPlain && items.length ? items.join("\n") : jsonText(items, 0, Infinity)
}

/** A list of plain values as text. */
function linesEditor(kind) {
  const placeholder = kind === "string" ? "One a line, or a JSON array" : "1, 2, 3"
  const editor = input("textarea", { spellcheck: "false", placeholder }, (text) => itemsOf(text, kind), linesText)
  return Object.assign(editor, { where: ([at]) => (typeof at === "number" ? `item ${at + 1}: ` : "") })
}

export const PLAIN_EDITORS = {
  lines: (schema, env) => linesEditor(kindOf(schema.items, env.schemas)[0]),
  boolean: () => {
    const node = h("select", null, h("option", null, "false"), h("option", null, "true"))
    return { node, input: node, get: () => node.value === "true", set: (value) => (node.value = String(Boolean(value))) }
  },
  integer: (schema) => withSlider(schema, input("text", { inputmode: "numeric", autocomplete: "off" }, (text) => numberOf(text, true)), true),
  number: (schema) => withSlider(schema, input("text", { inputmode: "decimal", autocomplete: "off" }, (text) => numberOf(text, false)), false),
  null: () => ({ node: h("span", { class: "note" }, "null"), get: () => null, set() {} }),
  string: (schema) => {
    const type = WIDGETS[schema.format]
    if (!type) return { ...input("textarea", { spellcheck: "false" }, (text) => text), isBlank: null } // "" is a text
    const isMoment = type === "datetime-local"
    const step = type === "date" ? null : 1
    return input(type, { step }, (text) => {
      if (!text) throw new Invalid(`a ${schema.format} is expected`)
      return isMoment ? new Date(text).toISOString() : text
    }, (value) => {
      const moment = new Date(value)
      return isMoment && !Number.isNaN(+moment) ? new Date(+moment - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : String(value)
    })
  },
  any: () => input("textarea", { spellcheck: "false", placeholder: "JSON" }, (text) => jsonOf(text || "null"), (value) => jsonText(value)),
  enum: (schema) => {
    const texts = schema.enum.map((each) => jsonText(each))
    const node = h("select", null, schema.enum.map((each, at) =>
      h("option", { value: String(at) }, shown(typeof each === "string" ? each : texts[at], 100))))
    return { node, input: node, get: () => schema.enum[Number(node.value)],
      set: (value) => (node.value = String(Math.max(0, texts.indexOf(jsonText(value))))) }
  },
}
