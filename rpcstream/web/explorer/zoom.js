// A picture or an array in a dialog, down to its pixels and their values, by wheel, pinch, keys and buttons.
//
// What is shown is a source: `{ width, height, image, region }`. `image` can be drawn, with one pixel or less for each
// item, and `region(x, y, width, height)` gives a function (x, y) that tells the values of a pixel as a list of texts.

import { h, iconButton, segments } from "./dom.js"

const FOR_VALUES = 46 // screen pixels for each pixel, from which on its values are written into it
const MOST_SCALE = 160
const KEYS = "Plus and minus zoom, 0 fits, 1 shows the actual size, the arrows move from pixel to pixel."
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }

/** Where a source is drawn: its point (x, y) lies in the middle of the canvas, `scale` screen pixels for a pixel. */
class Viewer {
  #source = null
  #place = { scale: 1, x: 0, y: 0 }
  #cursor = null
  #fingers = new Map()
  #isDue = false
  #isFit = true

  constructor(onCursor) {
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": KEYS })
    this.said = onCursor
    const on = (kind, listener) => this.canvas.addEventListener(kind, listener)
    on("wheel", (event) => this.#wheel(event))
    on("pointerdown", (event) => this.#down(event))
    on("pointermove", (event) => this.#move(event))
    for (const kind of ["pointerup", "pointercancel"]) on(kind, (event) => this.#fingers.delete(event.pointerId))
    on("keydown", (event) => this.#key(event))
    this.resized = new ResizeObserver(() => this.#resize())
    this.resized.observe(this.canvas)
  }

  /** Show another source; one of the same size stays at the same place. */
  show(source) {
    const isSame = this.#source?.width === source.width && this.#source?.height === source.height
    this.#source = source
    if (!isSame) {
      this.#cursor = null
      this.fit()
    }
    this.#tell()
  }

  get #size() {
    return [this.canvas.clientWidth, this.canvas.clientHeight]
  }

  get #fitScale() {
    const [width, height] = this.#size
    return Math.min(width / this.#source.width, height / this.#source.height) || 1
  }

  fit(scale = this.#fitScale) {
    const { width, height } = this.#source
    this.#place = { scale, x: width / 2, y: height / 2 }
    this.#isFit = scale === this.#fitScale
    this.#draw()
  }

  /** Zoom by a factor; what lies at a place of the canvas, by default its middle, stays there. */
  zoom(factor, at) {
    const [width, height] = this.#size
    const [dx, dy] = at ? [at[0] - width / 2, at[1] - height / 2] : [0, 0]
    const { scale, x, y } = this.#place
    const next = Math.min(MOST_SCALE, Math.max(Math.min(this.#fitScale, 1), scale * factor))
    this.#moveTo(x + dx / scale - dx / next, y + dy / scale - dy / next, next)
  }

  #moveTo(x, y, scale = this.#place.scale) {
    const { width, height } = this.#source
    this.#place = { scale, x: Math.min(width, Math.max(0, x)), y: Math.min(height, Math.max(0, y)) }
    this.#isFit = false
    this.#draw()
  }

  /** The pixel at a place of the canvas. */
  #pixelAt([left, top]) {
    const [width, height] = this.#size
    const { scale, x, y } = this.#place
    return [Math.floor(x + (left - width / 2) / scale), Math.floor(y + (top - height / 2) / scale)]
  }

  #point(x, y) {
    const isIn = x >= 0 && y >= 0 && x < this.#source.width && y < this.#source.height
    this.#cursor = isIn ? [x, y] : null
    this.#tell()
  }

  #tell() {
    this.said(this.#cursor ? pixelText(this.#source, ...this.#cursor) : `${this.#source.width} × ${this.#source.height}`)
    this.#draw()
  }

  #at = (event) => {
    const box = this.canvas.getBoundingClientRect()
    return [event.clientX - box.left, event.clientY - box.top]
  }

  #wheel(event) {
    event.preventDefault()
    const lines = event.deltaMode === 1 ? 30 : 1
    this.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.002)), this.#at(event))
    this.#point(...this.#pixelAt(this.#at(event)))
  }

  #down(event) {
    this.canvas.setPointerCapture(event.pointerId)
    this.#fingers.set(event.pointerId, this.#at(event))
  }

  #move(event) {
    const [before, now] = [this.#fingers.get(event.pointerId), this.#at(event)]
    if (before) {
      const other = [...this.#fingers].find(([id]) => id !== event.pointerId)?.[1]
      const { scale, x, y } = this.#place
      if (other) this.zoom(Math.hypot(now[0] - other[0], now[1] - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1), other)
      else this.#moveTo(x - (now[0] - before[0]) / scale, y - (now[1] - before[1]) / scale)
      this.#fingers.set(event.pointerId, now)
    }
    this.#point(...this.#pixelAt(now))
  }

  #key(event) {
    const { key } = event
    if (key === "+" || key === "=") this.zoom(1.5)
    else if (key === "-") this.zoom(1 / 1.5)
    else if (key === "0") this.fit()
    else if (key === "1") this.fit(1)
    else if (Object.hasOwn(MOVES, key)) this.#step(...MOVES[key].map((each) => each * (event.shiftKey ? 10 : 1)))
    else return
    event.preventDefault()
  }

  /** Move the cursor, and the picture with it where it would leave the middle. */
  #step(dx, dy) {
    const { width, height } = this.#source
    const [x, y] = this.#cursor ?? [Math.floor(this.#place.x), Math.floor(this.#place.y)]
    const next = [Math.min(width - 1, Math.max(0, x + dx)), Math.min(height - 1, Math.max(0, y + dy))]
    if (this.#place.scale > this.#fitScale) this.#moveTo(next[0] + 0.5, next[1] + 0.5)
    this.#point(...next)
  }

  #resize() {
    const sharp = globalThis.devicePixelRatio || 1
    this.canvas.width = Math.round(this.canvas.clientWidth * sharp)
    this.canvas.height = Math.round(this.canvas.clientHeight * sharp)
    if (!this.#source) return
    if (this.#isFit) this.fit()
    else this.#draw()
  }

  #draw() {
    if (!this.#isDue) requestAnimationFrame(() => {
      this.#isDue = false
      this.#paint()
    })
    this.#isDue = true
  }

  #paint() {
    const [wide, high] = this.#size
    const context = this.canvas.getContext("2d")
    const sharp = this.canvas.width / (wide || 1)
    const { scale, x, y } = this.#place
    const { image, width, height } = this.#source
    context.setTransform(sharp, 0, 0, sharp, 0, 0)
    context.clearRect(0, 0, wide, high)
    context.imageSmoothingEnabled = scale < 1
    // Only what can be seen is drawn: whole pixels, from `left` and `top` on.
    const [left, top] = this.#pixelAt([0, 0]).map((each) => Math.max(0, each))
    const [columns, rows] = [Math.min(width - left, Math.ceil(wide / scale) + 1), Math.min(height - top, Math.ceil(high / scale) + 1)]
    if (columns <= 0 || rows <= 0) return
    const part = image.width / width // below 1 where the image has not all pixels
    const to = [(left - x) * scale + wide / 2, (top - y) * scale + high / 2]
    context.drawImage(image, left * part, top * part, columns * part, rows * part, ...to, columns * scale, rows * scale)
    if (scale >= FOR_VALUES) this.#write(context, left, top, columns, rows, to)
    if (this.#cursor && scale >= 4) frame(context, (this.#cursor[0] - left) * scale + to[0], (this.#cursor[1] - top) * scale + to[1], scale)
  }

  /** Write the values into the pixels. */
  #write(context, left, top, columns, rows, to) {
    const { scale } = this.#place
    const values = this.#source.region(left, top, columns, rows)
    Object.assign(context, { font: "11px ui-monospace, monospace", textAlign: "center", textBaseline: "middle", lineWidth: 3, strokeStyle: "#000c", fillStyle: "#fff", lineJoin: "round" })
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
      const texts = values(left + column, top + row)
      texts.forEach((text, line) => {
        const where = [to[0] + (column + 0.5) * scale, to[1] + (row + 0.5) * scale + (line - (texts.length - 1) / 2) * 12]
        context.strokeText(text, ...where, scale - 4)
        context.fillText(text, ...where, scale - 4)
      })
    }
  }
}

function frame(context, left, top, size) {
  for (const [width, colour] of [[3, "#000"], [1.5, "#fff"]]) {
    Object.assign(context, { lineWidth: width, strokeStyle: colour })
    context.strokeRect(left, top, size, size)
  }
}

/** Where a pixel is, and its values, as a text. */
export const pixelText = (source, x, y) => `x ${x}, y ${y}: ${source.region(x, y, 1, 1)(x, y).join(", ")}`

/** Open the dialog. `sources` are `{ name, load }`, of which the last is shown first; `load` gives a source or its promise. */
export function openZoom(sources) {
  const said = h("output", { class: "pixel", role: "status" })
  const viewer = new Viewer((text) => (said.textContent = text))
  const show = async (name) => viewer.show(await sources.find((each) => each.name === name).load())
  const names = sources.map((each) => each.name)
  const tool = (name, label, onclick) => iconButton(name, "", onclick, { "aria-label": label, title: label })
  const dialog = h("dialog", { class: "zoom", "aria-label": "Zoom", onclose: () => {
    viewer.resized.disconnect()
    dialog.remove()
  } }, h("div", { class: "tools" }, said, names.length > 1 && segments("Shown", names, names.at(-1), show), h("span", { class: "spread" }),
    tool("plus", "Zoom in", () => viewer.zoom(1.5)), tool("minus", "Zoom out", () => viewer.zoom(1 / 1.5)), tool("fit", "Fit", () => viewer.fit()),
    tool("close", "Close", () => dialog.close())), viewer.canvas)
  document.body.append(dialog)
  show(names.at(-1)).then(() => {
    if (dialog.isConnected && !dialog.open) dialog.showModal()
    viewer.canvas.focus()
  }, () => dialog.remove())
}
