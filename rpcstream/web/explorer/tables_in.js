// Tables that are given to a method: cells that were copied from a spreadsheet, or CSV, with types for the columns.

import { inSlices } from "../rpcstream.js"
import { isFrame } from "./arrow.js"
import { COLUMNS, writeTable } from "./arrow_out.js"
import { checkSize, filePlace } from "./files.js"
import { h, shown, sizeOf } from "./dom.js"
import { Invalid } from "./schemas.js"
import { valueView } from "./values.js"

const MOST_COLUMNS = 1000
const SEPARATORS = ["\t", ",", ";"]

/** The rows of a text, without empty lines. Fields in quotes may have any character (RFC 4180). */
function* rowsOf(text) {
  const head = text.slice(0, Math.max(0, text.search(/[\r\n]|$/)))
  const counts = SEPARATORS.map((each) => head.split(each).length)
  const separator = SEPARATORS[counts.indexOf(Math.max(...counts))]
  const pattern = new RegExp(`(?:"([^"]*(?:""[^"]*)*)"|([^${separator}\\r\\n]*))(${separator}|\\r\\n?|\\n|$)`, "y")
  const rows = []
  let row = []
  for (;;) {
    const [, quoted, plain, end] = pattern.exec(text)
    row.push(quoted?.replaceAll('""', '"') ?? plain)
    if (end === separator) continue
    if (row.length > 1 || row[0]) rows.push(row)
    if (pattern.lastIndex >= text.length) return rows
    row = []
    yield
  }
}

/** The types that a column may have, the best one first. */
function* typesOf(cells) {
  let types = cells.some((each) => each !== null) ? Object.keys(COLUMNS) : ["text"]
  for (const each of cells) {
    if (each !== null) types = types.filter((type) => COLUMNS[type].is(each.trim()))
    if (types.length === 1) return types
    yield
  }
  return types
}

/** The columns of a text whose first row has their names, each with the types that it may have, the best one first. */
function* columnsOf(text) {
  if (text.includes("\0")) throw Error("this is no text: save the table as CSV")
  const [names = [], ...rows] = yield* rowsOf(text)
  const long = rows.findIndex((each) => each.length > names.length)
  if (!names.length) throw Error("a row with the names of the columns is expected")
  if (names.length > MOST_COLUMNS) throw Error(`more than ${MOST_COLUMNS} columns`)
  if (long >= 0) throw Error(`row ${long + 2} has ${rows[long].length} cells, the first row has ${names.length}`)
  const columns = []
  for (const [at, name] of names.entries()) {
    const cells = []
    for (const row of rows) {
      cells.push(row[at]?.trim() ? row[at] : null)
      yield
    }
    const types = yield* typesOf(cells)
    const isTaken = !name.trim() || names.indexOf(name) < at
    columns.push({ name: isTaken ? `${name.trim() || "column"}_${at + 1}` : name.trim(), cells, types, type: types[0] })
  }
  return columns
}

async function textOf(file) {
  const bytes = await file.arrayBuffer()
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes)
  } catch {
    return new TextDecoder("windows-1252").decode(bytes) // as spreadsheets may write it
  }
}

/** A table of pandas, polars or Arrow: typed, pasted, or a file, and shown as it will be sent. */
export function tableEditor(schema) {
  const $type = schema.properties.$type.const
  const text = h("textarea", { rows: 2, spellcheck: "false", placeholder: "Paste cells from a spreadsheet, or type CSV; the first row has the names", oninput: () => read(text.value) })
  const [choices, preview] = [h("div", { class: "row" }), h("div")]
  const view = h("div", { hidden: true }, choices, preview)
  let [frame, problem, turn] = [null, "", 0]
  const place = filePlace("CSV file", { accept: ".csv,.tsv,.txt,text/csv" }, async ([file]) => {
    checkSize(file)
    await read(await textOf(file), `${shown(file.name, 60)} · ${sizeOf(file.size)}`)
    text.value = ""
  }, text, view)
  place.file.setAttribute("aria-label", "file of the table")

  function show(data) {
    frame = data && { $type, data }
    view.hidden = !frame
    preview.replaceChildren(...(frame ? [valueView(frame)] : []))
  }
  /** Do some work in slices; its result, or undefined where other work has begun meanwhile, or it failed. */
  async function latest(work) {
    const mine = ++turn
    frame = null
    problem = "the table is still being read"
    try {
      const result = await inSlices(work)
      if (mine !== turn) return undefined
      problem = ""
      return result
    } catch (error) {
      if (mine === turn) place.state.textContent = problem = shown(error.message, 300)
    }
  }
  async function read(given, said = "") {
    turn++
    problem = ""
    show(null)
    place.state.textContent = said
    const columns = given.trim() && (await latest(columnsOf(given)))
    if (columns) await hold(columns)
  }
  async function write(columns) {
    const data = await latest(writeTable(columns))
    if (!data) return
    show(data)
    place.node.dispatchEvent(new Event("change", { bubbles: true }))
  }
  function hold(columns) {
    choices.replaceChildren(...columns.filter(({ types }) => types.length > 1).slice(0, 50).map((column) => {
      const select = h("select", { "aria-label": `type of ${shown(column.name, 40)}`, onchange: () => {
        column.type = select.value
        write(columns)
      } }, column.types.map((each) => h("option", null, each)))
      return h("label", null, `${shown(column.name, 40)} `, select)
    }))
    return write(columns)
  }
  return { node: place.node, input: text, isBlank: () => !frame && !text.value.trim(),
    get() {
      if (!frame) throw new Invalid(problem || "a table is expected: paste cells, or choose a CSV file")
      return frame
    },
    set(given) {
      turn++
      text.value = problem = ""
      choices.replaceChildren()
      show(isFrame(given) ? given.data : null)
    } }
}
