// A mask that is painted on a picture: a picture in black and white, or an array, as the parameter is.

import { NdArray } from "../rpcstream.js"
import { STEPS, drags, makeBoard, zoomOf } from "./board.js"
import { button, h } from "./dom.js"

const TYPES = { "|b1": Uint8Array, "|u1": Uint8Array, "|i1": Int8Array, "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array }
const INK = "#4338ca"

function paint(context, { points, size, isErased }) {
  context.globalCompositeOperation = isErased ? "destination-out" : "source-over"
  Object.assign(context, { strokeStyle: INK, lineWidth: size, lineCap: "round", lineJoin: "round" })
  context.beginPath()
  context.moveTo(points[0].x, points[0].y)
  for (const { x, y } of points.length > 1 ? points : [points[0], points[0]]) context.lineTo(x, y)
  context.stroke()
}

/** Whether each pixel is painted, as `on` or 0. */
function valuesOf(canvas, Type, on) {
  const { width, height } = canvas
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height)
  const made = new Type(width * height)
  for (let at = 0; at < made.length; at++) made[at] = data[4 * at + 3] > 127 ? on : 0
  return made
}

/** The mask as a PNG, white where it is painted. It is made at once because a call may follow. */
function pictureOf(canvas, name) {
  const { width, height } = canvas
  const image = new ImageData(width, height)
  const pixels = new Uint32Array(image.data.buffer)
  const values = valuesOf(canvas, Uint8Array, 1)
  for (let at = 0; at < pixels.length; at++) pixels[at] = values[at] ? 0xffffffff : 0xff000000
  const made = h("canvas", { width, height })
  made.getContext("2d").putImageData(image, 0, 0)
  const bytes = Uint8Array.from(atob(made.toDataURL("image/png").split(",")[1]), (char) => char.charCodeAt(0))
  return new File([bytes], `${name}.png`, { type: "image/png" })
}

/** The strokes of a mask. */
class Strokes {
  all = []

  constructor(canvas) {
    this.canvas = canvas
  }

  get #context() {
    return this.canvas.getContext("2d", { willReadFrequently: true })
  }

  begin(point, size, isErased) {
    this.all.push({ points: [point], size, isErased })
    paint(this.#context, this.all.at(-1))
  }

  add(point) {
    const stroke = this.all.at(-1)
    stroke.points.push(point)
    paint(this.#context, { ...stroke, points: stroke.points.slice(-2) })
  }

  undo() {
    this.all.pop()
    this.#again()
  }

  clear() {
    this.all = []
    this.#again()
  }

  #again() {
    this.#context.clearRect(0, 0, this.canvas.width, this.canvas.height)
    for (const each of this.all) paint(this.#context, each)
  }
}

/** The tools of a brush: its size, in hundredths of the picture's width, and whether it erases. */
function brushTools(undo, clear) {
  const size = h("input", { type: "range", min: 1, max: 30, value: "6" })
  const eraser = h("input", { type: "checkbox" })
  for (const each of [size, eraser]) for (const kind of ["input", "change"]) each.addEventListener(kind, (event) => event.stopPropagation())
  return { nodes: [h("label", null, "Brush ", size), h("label", null, eraser, " Erase"), button("Undo", undo, { class: "quiet" }), button("Clear", clear, { class: "quiet" })],
    width: (canvas) => Math.max(1, (canvas.width * Number(size.value)) / 100), isErased: () => eraser.checked }
}

/** An editor of a mask with a board above it; what is painted takes the place of a file. */
export function maskOn(editor, drawing, env, name) {
  const act = (change) => {
    change()
    cache = null
    node.dispatchEvent(new Event("change", { bubbles: true }))
  }
  const tools = brushTools(() => act(() => strokes.undo()), () => act(() => strokes.clear()))
  const board = makeBoard(env.shelf, "Paint a mask", () => strokes.all.length && act(() => strokes.clear()), ...tools.nodes)
  const { canvas } = board
  const strokes = new Strokes(canvas)
  let cache = null
  canvas.classList.add("ink")
  const node = h("div", { class: "drawn" }, board.node, editor.node)
  for (const kind of ["input", "change"]) editor.node.addEventListener(kind, () => strokes.clear()) // a file was given
  drags(canvas, {
    start: (place) => strokes.begin(place, tools.width(canvas), tools.isErased()),
    move: (place) => strokes.add(place),
    end: () => act(() => {}),
  })
  paintByKeys(board, strokes, tools, act)
  function made() {
    const shape = [canvas.height, canvas.width]
    return drawing.isImage ? pictureOf(canvas, name) : new NdArray(drawing.dtype, shape, valuesOf(canvas, TYPES[drawing.dtype], drawing.dtype === "|u1" ? 255 : 1))
  }
  return { ...editor, node, release: board.release,
    get() {
      if (!strokes.all.length) return editor.get()
      if (env.isDraft && drawing.isImage) return new File([], `${name}.png`, { type: "image/png" })
      return (cache ??= made())
    },
    set(value) {
      strokes.clear()
      editor.set(value)
    },
    isBlank: () => !strokes.all.length && Boolean(editor.isBlank?.()) }
}

/** Arrows move the brush, Space puts it down or lifts it. A ring shows where it is, for the pointer, too. */
function paintByKeys({ canvas, cursor }, strokes, tools, act) {
  let [place, isDown] = [null, false]
  function show(at) {
    const across = (100 * tools.width(canvas)) / canvas.width
    cursor.hidden = false
    Object.assign(cursor.style, { width: `${across}%`, left: `${(100 * at.x) / canvas.width}%`, top: `${(100 * at.y) / canvas.height}%` })
  }
  canvas.addEventListener("pointermove", (event) => {
    const zoom = zoomOf(canvas)
    show({ x: event.offsetX * zoom, y: event.offsetY * zoom })
  })
  for (const kind of ["pointerleave", "blur"]) canvas.addEventListener(kind, () => {
    cursor.hidden = true
    isDown = false
  })
  canvas.addEventListener("keydown", (event) => {
    const step = STEPS[event.key]
    if ((!step && event.key !== " ") || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    place ??= { x: canvas.width / 2, y: canvas.height / 2 }
    const reach = event.shiftKey ? 1 : tools.width(canvas) / 2
    if (step) place = { x: place.x + step[0] * reach, y: place.y + step[1] * reach }
    else isDown = !isDown
    show(place)
    cursor.classList.toggle("down", isDown)
    if (isDown) act(() => (step ? strokes.add(place) : strokes.begin(place, tools.width(canvas), tools.isErased())))
  })
}
