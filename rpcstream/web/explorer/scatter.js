// Points in a plane, such as an embedding of two dimensions.

import { inSlices } from "../rpcstream.js"
import { areaOf, drawScales, roundValues, short } from "./chart.js"
import { h } from "./dom.js"
import { describe } from "./statistics.js"

const [WIDTH, HEIGHT] = [1440, 900] // pixels of the canvas
const EDGE = 8 // pixels of the page between the outermost points and the scales
const NEAR = 40
const MOST_POINTS = 200_000
const MANY = 2000 // points, from which on they are small squares
const STEP = 1000 // points that are drawn at once

/** Whether an array can be points. */
export const arePoints = (shape, dtype) => shape.length === 2 && /f\d$/.test(dtype) && ((shape[1] === 2 && shape[0] > 2) || (shape[0] === 2 && shape[1] > 3))

/** The x and the y of points, in an array of shape (n, 2) or (2, n), as two lists. */
function axesOf(shape, data) {
  const isRows = shape[1] === 2
  const count = Math.min(MOST_POINTS, isRows ? shape[0] : shape[1])
  const axis = (which) => Float64Array.from({ length: count }, (_, at) => data[isRows ? 2 * at + which : which * shape[1] + at])
  return [axis(0), axis(1)]
}

export function scatter(shape, data) {
  const canvas = h("canvas", { class: "line", role: "img", width: WIDTH, height: HEIGHT, "aria-label": "scatter chart" })
  const axes = axesOf(shape, data)
  const count = axes[0].length
  const title = `${Math.max(...shape).toLocaleString()} points`
  const readout = h("p", { class: "note value" }, title)
  const follow = (seen) => canvas.addEventListener("pointermove", ({ clientX, clientY }) => {
    const box = canvas.getBoundingClientRect()
    const at = [((clientX - box.left) / box.width) * WIDTH, ((clientY - box.top) / box.height) * HEIGHT]
    const found = nearest(seen, count, at)
    readout.textContent = found < 0 ? title : `point ${found}: ${axes.map((each) => short(each[found])).join(", ")}`
  })
  requestAnimationFrame(() => inSlices(draw(canvas, axes)).then(follow)) // its size and colours are known in the page
  return h("div", null, canvas, readout)
}

/** The index of the point next to a place; -1 where none is near. */
function nearest([left, top], count, [x, y]) {
  let [found, distance] = [-1, NEAR]
  for (let at = 0; at < count; at++) {
    const away = Math.hypot(left[at] - x, top[at] - y)
    if (away < distance) [found, distance] = [at, away]
  }
  return found
}

/** Work for `inSlices`: draw the points; gives their places on the canvas as two lists. */
function* draw(canvas, axes) {
  const [x, y] = [yield* describe(axes[0]), yield* describe(axes[1])]
  canvas.setAttribute("aria-label", `scatter chart of ${axes[0].length} points, x from ${short(x.least)} to ${short(x.greatest)}, y from ${short(y.least)} to ${short(y.greatest)}`)
  const area = areaOf(canvas, EDGE)
  const { zoom } = area
  const place = ({ least, greatest }, from, to) => (value) => from + ((value - least) / (greatest - least || 1)) * (to - from)
  const [across, down] = [place(x, area.left, area.right), place(y, area.bottom, area.top)]
  const [left, top] = [axes[0].map(across), axes[1].map(down)]
  yield
  const context = canvas.getContext("2d", { willReadFrequently: true })
  const marks = ({ least, greatest }, to) => roundValues(least, greatest).map((each) => [short(each), to(each)])
  drawScales(context, area, marks(y, down), marks(x, across))
  const isMany = left.length > MANY
  const radius = (isMany ? 1.5 : 3) * zoom
  context.fillStyle = getComputedStyle(canvas).color
  context.globalAlpha = isMany ? 0.4 : 0.7
  for (let at = 0; at < left.length; at++) {
    if (isMany) context.fillRect(left[at] - radius, top[at] - radius, 2 * radius, 2 * radius)
    else {
      context.beginPath()
      context.arc(left[at], top[at], radius, 0, 2 * Math.PI)
      context.fill()
    }
    if (at % STEP === STEP - 1) yield
  }
  context.globalAlpha = 1
  return [left, top]
}
