// Boxes that are drawn on a picture. The numbers below the picture are the same boxes.

import { NdArray } from "../rpcstream.js"
import { STEPS, drags, makeBoard, zoomOf } from "./board.js"
import { button, h } from "./dom.js"

const NEAR = 10 // pixels of the screen

/** The four numbers of a box as the parameter has them. */
function toValue(box, { keys, isSize, isObject, isWhole }) {
  const { left, top, right, bottom } = box
  const rounded = [left, top, right, bottom].map((each) => (isWhole ? Math.round(each) : Math.round(each * 10) / 10))
  const numbers = isSize ? [rounded[0], rounded[1], rounded[2] - rounded[0], rounded[3] - rounded[1]] : rounded
  return isObject ? { ...box.rest, ...Object.fromEntries(keys.map((key, at) => [key, numbers[at]])) } : numbers
}

/** A box of a value; null if it is none. */
function fromValue(value, { keys, isSize, isObject }) {
  const [left, top, third, fourth] = (isObject ? keys.map((key) => value?.[key]) : [...(value ?? [])]).map(Number)
  if (![left, top, third, fourth].every(Number.isFinite)) return null
  const box = { left, top, right: isSize ? left + third : third, bottom: isSize ? top + fourth : fourth }
  return isObject ? { ...box, rest: value } : box
}

const ordered = (box) => ({ ...box, left: Math.min(box.left, box.right), right: Math.max(box.left, box.right), top: Math.min(box.top, box.bottom), bottom: Math.max(box.top, box.bottom) })

function paint(canvas, boxes, chosen) {
  const context = canvas.getContext("2d", { willReadFrequently: true })
  const zoom = zoomOf(canvas)
  context.clearRect(0, 0, canvas.width, canvas.height)
  boxes.forEach(({ left, top, right, bottom }, at) => {
    const edge = [left, top, right - left, bottom - top]
    context.strokeStyle = "#fff"
    context.lineWidth = 4 * zoom
    context.strokeRect(...edge)
    context.strokeStyle = "#4338ca"
    context.lineWidth = 2 * zoom
    context.strokeRect(...edge)
    context.fillStyle = at === chosen ? "#4338ca40" : "#4338ca14"
    context.fillRect(...edge)
    if (boxes.length < 2) return
    context.font = `600 ${13 * zoom}px system-ui, sans-serif`
    context.fillStyle = "#4338ca"
    context.fillRect(left, top, 20 * zoom, 18 * zoom)
    context.fillStyle = "#fff"
    context.fillText(String(at + 1), left + 5 * zoom, top + 14 * zoom)
  })
}

/** What of a box is at a place: a corner to drag, the inside to move it, or nothing. */
function partAt({ left, top, right, bottom }, { x, y }, near) {
  const side = (value, low, high) => (Math.abs(value - low) <= near ? -1 : Math.abs(value - high) <= near ? 1 : 0)
  const [across, down] = [side(x, left, right), side(y, top, bottom)]
  if (across && down) return { across, down }
  return x > left && x < right && y > top && y < bottom ? { across: 0, down: 0 } : null
}

function moved(box, dx, dy, { across, down }) {
  const isWhole = !across && !down
  return { ...box, left: box.left + (isWhole || across < 0 ? dx : 0), right: box.right + (isWhole || across > 0 ? dx : 0),
    top: box.top + (isWhole || down < 0 ? dy : 0), bottom: box.bottom + (isWhole || down > 0 ? dy : 0) }
}

function kept(box, { width, height }) {
  const inside = (value, most) => Math.min(most, Math.max(0, value))
  return ordered({ ...box, left: inside(box.left, width), right: inside(box.right, width), top: inside(box.top, height), bottom: inside(box.bottom, height) })
}

/** The boxes of one parameter: what they are, which is chosen, and how they change. */
class Boxes {
  all = []
  chosen = -1

  constructor(isMany) {
    this.isMany = isMany
  }

  add(box) {
    this.all = this.isMany ? [...this.all, box] : [box]
    this.chosen = this.all.length - 1
  }

  change(box) {
    this.all = this.all.map((each, at) => (at === this.chosen ? box : each))
  }

  remove(at = this.chosen) {
    this.all = this.all.filter((_, each) => each !== at)
    this.chosen = this.all.length - 1
  }

  get current() {
    return this.all[this.chosen]
  }
}

/** An editor of boxes with a board above it. */
export function boxesOn(editor, drawing, env) {
  const boxes = new Boxes(drawing.isMany)
  const remove = button("Remove", () => act(() => boxes.remove()), { class: "quiet", title: "Remove the chosen box (Delete)" })
  const hint = h("span", { class: "note" }, drawing.isMany ? "Drag for a box; drag its corners or itself to change it." : "Drag a box.")
  const board = makeBoard(env.shelf, drawing.isMany ? "Draw boxes" : "Draw a box", show, hint, remove)
  const { canvas } = board
  const node = h("div", { class: "drawn" }, board.node, editor.node)

  function show() {
    if (board.isReady) paint(canvas, boxes.all, boxes.chosen)
    remove.hidden = !drawing.isMany || !boxes.current
  }
  /** Change the boxes, and give them to the editor. */
  function act(change) {
    change()
    show()
    const values = boxes.all.map((each) => toValue(each, drawing))
    if (!drawing.isMany && !values.length) return read() // a parameter that is one box keeps it
    editor.set(drawing.isMany ? values : values[0])
    node.dispatchEvent(new Event("change", { bubbles: true }))
  }
  /** Show the boxes that the editor has. */
  function read() {
    let value = null
    try {
      value = editor.get()
    } catch {} // it is not complete
    if (value instanceof NdArray) value = value.toArray()
    boxes.all = (drawing.isMany ? [...(value ?? [])] : [value]).map((each) => each && fromValue(each, drawing)).filter(Boolean)
    boxes.chosen = Math.min(boxes.chosen, boxes.all.length - 1)
    show()
  }
  for (const kind of ["input", "change"]) editor.node.addEventListener(kind, read)
  dragBoxes(canvas, boxes, act, show)
  canvas.addEventListener("keydown", (event) => onKey(event, canvas, boxes, act))
  show()
  return { ...editor, node, release: board.release, set(value) {
    editor.set(value)
    read()
  } }
}

/** Drags make a box, move one, or move its corner. */
function dragBoxes(canvas, boxes, act, show) {
  let drag = null
  drags(canvas, {
    start(place) {
      const near = NEAR * zoomOf(canvas)
      const at = boxes.all.findLastIndex((each) => partAt(each, place, near))
      boxes.chosen = at
      drag = { from: place, part: at < 0 ? null : partAt(boxes.all[at], place, near), box: boxes.all[at] }
      show()
    },
    move({ x, y }) {
      const { from, part, box } = drag
      if (box) boxes.change(moved(box, x - from.x, y - from.y, part))
      else {
        const made = { left: from.x, top: from.y, right: x, bottom: y }
        if (drag.isMade) boxes.change(made)
        else boxes.add(made)
        drag.isMade = true
      }
      show()
    },
    end: () => boxes.current && act(() => {
      boxes.change(kept(boxes.current, canvas))
      const { left, top, right, bottom } = boxes.current
      if (right - left < 1 || bottom - top < 1) boxes.remove()
    }),
  })
}

/** Enter makes a box, arrows move it or, with Shift, its size, Space chooses the next one, Delete removes it. */
function onKey(event, canvas, boxes, act) {
  const { width, height } = canvas
  const step = STEPS[event.key]?.map((each) => each * Math.max(1, Math.round(width / 100)))
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey
  if (!isPlain) return
  if (event.key === "Enter") act(() => boxes.add({ left: width / 4, top: height / 4, right: (3 * width) / 4, bottom: (3 * height) / 4 }))
  else if (event.key === " ") act(() => (boxes.chosen = (boxes.chosen + 1) % Math.max(1, boxes.all.length)))
  else if (event.key === "Delete" || event.key === "Backspace") act(() => boxes.remove())
  else if (step && boxes.current) act(() => boxes.change(kept(moved(boxes.current, ...step, event.shiftKey ? { across: 1, down: 1 } : { across: 0, down: 0 }), canvas)))
  else return
  event.preventDefault()
}
