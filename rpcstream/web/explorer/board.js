// The board: a picture with a canvas over it, one pixel of which is one of the picture's.

import { h, shown } from "./dom.js"
import { asStored } from "./pictures.js"

const LARGEST = 16_000_000

/** A board for what is drawn on the first picture of a form. `onSize` is called when it has another picture. */
export function makeBoard(shelf, label, onSize, ...tools) {
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": label, width: 0, height: 0 })
  const image = h("img", { alt: "" })
  const cursor = h("div", { class: "cursor", hidden: true })
  const stage = h("div", { class: "board-stage" }, image, canvas, cursor)
  const empty = h("p", { class: "note" }, "Choose a picture, and draw on it here.")
  const figure = h("figure", { hidden: true }, stage, h("div", { class: "tools" }, ...tools))
  const node = h("div", { class: "board" }, empty, figure)
  const board = { node, canvas, cursor, isReady: false }
  let shown_ = null
  async function show([name, blob] = []) {
    if (blob === shown_) return
    shown_ = blob
    board.isReady = false
    if (blob) {
      const stored = await asStored(blob)
      if (blob !== shown_) return // another picture came meanwhile
      image.src = URL.createObjectURL(stored)
      await image.decode().catch(() => null)
      URL.revokeObjectURL(image.src)
    }
    if (blob !== shown_) return
    const { naturalWidth: width, naturalHeight: height } = image
    board.isReady = Boolean(blob) && width > 0 && width * height <= LARGEST
    empty.textContent = blob && !board.isReady ? "This picture cannot be drawn on." : "Choose a picture, and draw on it here."
    figure.hidden = !board.isReady
    empty.hidden = board.isReady
    if (!board.isReady) return
    Object.assign(canvas, { width, height })
    canvas.setAttribute("aria-label", `${label} on ${shown(name, 60)}, ${width} by ${height}`)
    onSize()
  }
  board.release = shelf.follow(show)
  return board
}

/** The place of a pointer on a canvas, in pixels of the picture. */
function placeOf(event, canvas) {
  const { left, top, width, height } = canvas.getBoundingClientRect()
  const inside = (value, most) => Math.min(most, Math.max(0, value))
  return { x: inside(((event.clientX - left) / width) * canvas.width, canvas.width), y: inside(((event.clientY - top) / height) * canvas.height, canvas.height) }
}

/** How many pixels of the picture one pixel of the screen is. */
export const zoomOf = (canvas) => canvas.width / (canvas.clientWidth || canvas.width || 1)

/** Follow the pointer from where it is pressed until it is lifted. */
export function drags(canvas, { start, move, end }) {
  let isDown = false
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return
    isDown = true
    canvas.setPointerCapture(event.pointerId)
    start(placeOf(event, canvas), event)
  })
  canvas.addEventListener("pointermove", (event) => {
    if (!isDown) return
    for (const each of event.getCoalescedEvents?.() ?? [event]) move(placeOf(each, canvas))
  })
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => {
    if (isDown) end()
    isDown = false
  })
}

export const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }
