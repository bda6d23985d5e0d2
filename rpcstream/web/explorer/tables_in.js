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
const FOR_SEPARATOR = 100_000 // characters that are looked at
const STEP = 500 // cells between two points at which the work can be interrupted

/** What separates the cells of a text: as its first line says to Excel, or what its first row has the most of. */
function separatorOf(text) {
  const [said, separator] = /^sep=([^"\r\n])(\r\n?|\n|$)/i.exec(text) ?? [""]
  if (separator) return [separator, said.length]
  const head = text.slice(0, FOR_SEPARATOR).replace(/"[^"]*"/g, '""').match(/[^\r\n]+/)?.[0] ?? ""
  const counts = SEPARATORS.map((each) => head.split(each).length)
  return [SEPARATORS[counts.indexOf(Math.max(...counts))], 0]
}

/** Where a field in quotes that begins at `at` ends, behind its quotes; -1 where it does not. */
function endOfQuoted(text, at) {
  let end = text[at] === '"' ? text.indexOf('"', at + 1) : -1
  while (end >= 0 && text[end + 1] === '"') end = text.indexOf('"', end + 2)
  return end < 0 ? -1 : end + 1
}

/** The rows of a text, without empty lines. Fields in quotes may have any character (RFC 4180). */
function* rowsOf(text) {
  let [separator, at] = separatorOf(text)
  const ends = new RegExp(`${separator.replace(/\W/, "\\$&")}|\\r\\n?|\\n|$`, "g")
  const rows = []
  let row = []
  for (let cells = 1; ; cells++) {
    if (cells % STEP === 0) yield
    const quoted = endOfQuoted(text, at)
    const isQuoted = quoted === text.length || [separator, "\r", "\n"].includes(text[quoted])
    ends.lastIndex = isQuoted ? quoted : at
    const { 0: end, index } = ends.exec(text)
    row.push(isQuoted ? text.slice(at + 1, quoted - 1).replaceAll('""', '"') : text.slice(at, index))
    at = index + end.length
    if (end === separator) continue
    if (row.length > 1 || row[0]) rows.push(row)
    if (at >= text.length) return rows
    row = []
  }
}

/** The types that a column may have, the best one first. */
function* typesOf(cells) {
  let types = cells.some((each) => each !== null) ? Object.keys(COLUMNS) : ["text"]
  for (const [at, each] of cells.entries()) {
    if (at % STEP === 0) yield
    if (each !== null) types = types.filter((type) => COLUMNS[type].is(each.trim()))
    if (types.length === 1) return types
  }
  return types
}

/** The name of a column, which no other one has. */
function nameOf(given, at, taken) {
  let name = given.trim()
  const base = name || "column"
  for (let number = at + 1; !name || taken.has(name); number++) name = `${base}_${number}`
  taken.add(name)
  return name
}

/** The columns of a text whose first row has their names, each with the types that it may have, the best one first. */
function* columnsOf(text) {
  if (text.includes("\0")) throw Error("this is no text: save the table as CSV")
  const [names = [], ...rows] = yield* rowsOf(text)
  const long = rows.findIndex((each) => each.length > names.length)
  if (!names.length) throw Error("a row with the names of the columns is expected")
  if (names.length > MOST_COLUMNS) throw Error(`more than ${MOST_COLUMNS} columns`)
  if (long >= 0) throw Error(`row ${long + 2} has ${rows[long].length} cells, the first row has ${names.length}`)
  const [columns, taken] = [[], new Set()]
  for (const [at, name] of names.entries()) {
    const cells = []
    for (const row of rows) {
      if (cells.push(row[at]?.trim() ? row[at] : null) % STEP === 0) yield
    }
    const types = yield* typesOf(cells)
    columns.push({ name: nameOf(name, at, taken), cells, types, type: types[0] })
  }
  return columns
}

async function textOf(file) {
  checkSize(file)
  const bytes = await file.arrayBuffer()
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes)
  } catch {
    return new TextDecoder("windows-1252").decode(bytes) // as spreadsheets may write it
  }
}

/** Work for `inSlices`, which ends with undefined once `isWanted()` is false. */
function* whileWanted(work, isWanted) {
  while (isWanted()) {
    const { value, done } = work.next()
    if (done) return value
    yield
  }
}

/** A table of pandas, polars or Arrow: typed, pasted, or a file, and shown as it will be sent. */
export function tableEditor(schema) {
  const $type = schema.properties.$type.const
  const text = h("textarea", { rows: 2, spellcheck: "false", placeholder: "Paste cells from a spreadsheet, or type CSV; the first row has the names", oninput: () => (text.value.trim() ? read(() => columnsOf(text.value)) : forget()) })
  const [choices, preview] = [h("div", { class: "row" }), h("div")]
  const view = h("div", { hidden: true }, choices, preview)
  let [frame, problem, turn] = [null, "", 0]
  const place = filePlace("CSV file", { accept: ".csv,.tsv,.txt,text/csv" }, async ([file]) => {
    const reading = read(async () => columnsOf(await textOf(file)), `${shown(file.name, 60)} · ${sizeOf(file.size)}`)
    changed()
    if (await reading) text.value = ""
  }, text, view)
  place.file.setAttribute("aria-label", "file of the table")

  const changed = () => place.node.dispatchEvent(new Event("change", { bubbles: true }))
  function show(data) {
    frame = data && { $type, data }
    view.hidden = !frame
    preview.replaceChildren(...(frame ? [valueView(frame)] : []))
  }
  /** What the work that `begin` gives has as its result; undefined where other work has begun meanwhile, or it failed. */
  async function latest(begin) {
    const mine = ++turn
    const isWanted = () => mine === turn
    frame = null
    problem = "the table is still being read"
    try {
      const result = await inSlices(whileWanted(await begin(), isWanted))
      if (isWanted()) problem = ""
      return result
    } catch (error) {
      if (isWanted()) place.state.textContent = problem = shown(error.message, 300)
    }
  }
  /** Read the columns that `begin` gives; whether they are the table now. */
  async function read(begin, said = "") {
    show(null)
    place.state.textContent = said
    const columns = await latest(begin)
    return Boolean(columns && (await hold(columns)))
  }
  function forget() {
    turn++
    place.state.textContent = problem = ""
    choices.replaceChildren()
    show(null)
  }
  async function write(columns) {
    const data = await latest(() => writeTable(columns))
    if (!data) return false
    show(data)
    changed()
    return true
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
  return { node: place.node, input: text, isBlank: () => !frame && !problem && !text.value.trim(),
    get() {
      if (!frame) throw new Invalid(problem || "a table is expected: paste cells, or choose a CSV file")
      return frame
    },
    set(given) {
      forget()
      text.value = ""
      show(isFrame(given) ? given.data : null)
    } }
}
