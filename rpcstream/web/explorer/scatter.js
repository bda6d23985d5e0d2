// Points in a plane, such as an embedding of two dimensions.

import { short } from "./chart.js"
import { h } from "./dom.js"
import { statistics } from "./statistics.js"

const [WIDTH, HEIGHT, EDGE] = [1440, 900, 60] // pixels of the canvas
const NEAR = 40

/** The points of an array of shape (n, 2) or (2, n): `at(index)` gives x and y. */
export function pointsOf(shape, data) {
  const isRows = shape[1] === 2
  const count = isRows ? shape[0] : shape[1]
  return { count, at: (index) => (isRows ? [data[2 * index], data[2 * index + 1]] : [data[index], data[count + index]]).map(Number) }
}

/** Whether an array can be points. */
export const arePoints = (shape, dtype) => shape.length === 2 && /f\d$/.test(dtype) && ((shape[1] === 2 && shape[0] > 2) || (shape[0] === 2 && shape[1] > 3))

export function scatter(points) {
  const canvas = h("canvas", { class: "line", role: "img", width: WIDTH, height: HEIGHT })
  const readout = h("p", { class: "note value" }, `${points.count.toLocaleString()} points`)
  const all = Array.from({ length: Math.min(points.count, 200_000) }, (_, index) => points.at(index))
  const [x, y] = [0, 1].map((axis) => statistics(all.map((each) => each[axis])))
  const place = (value, { least, greatest }, from, to) => from + ((value - least) / (greatest - least || 1)) * (to - from)
  const seen = all.map((each) => [place(each[0], x, EDGE, WIDTH - EDGE), place(each[1], y, HEIGHT - EDGE, EDGE)])
  canvas.setAttribute("aria-label", `scatter chart of ${points.count} points, x from ${short(x.least)} to ${short(x.greatest)}, y from ${short(y.least)} to ${short(y.greatest)}`)
  requestAnimationFrame(() => draw(canvas, seen, x, y))
  canvas.addEventListener("pointermove", ({ clientX, clientY }) => {
    const box = canvas.getBoundingClientRect()
    const at = [((clientX - box.left) / box.width) * WIDTH, ((clientY - box.top) / box.height) * HEIGHT]
    const found = nearest(seen, at)
    readout.textContent = found < 0 ? `${points.count.toLocaleString()} points` : `point ${found}: ${all[found].map(short).join(", ")}`
  })
  return h("div", null, canvas, readout)
}

/** The index of the point next to a place; -1 where none is near. */
function nearest(seen, [x, y]) {
  let [found, distance] = [-1, NEAR]
  seen.forEach((each, index) => {
    const away = Math.hypot(each[0] - x, each[1] - y)
    if (away < distance) [found, distance] = [index, away]
  })
  return found
}

function draw(canvas, seen, x, y) {
  const context = canvas.getContext("2d")
  const zoom = canvas.clientWidth ? WIDTH / canvas.clientWidth : 2
  const radius = (seen.length > 2000 ? 1.5 : 3) * zoom
  context.fillStyle = getComputedStyle(canvas).color
  context.globalAlpha = seen.length > 2000 ? 0.4 : 0.7
  for (const [left, top] of seen) {
    context.beginPath()
    context.arc(left, top, radius, 0, 2 * Math.PI)
    context.fill()
  }
  context.globalAlpha = 1
  context.fillStyle = getComputedStyle(canvas.parentElement).color
  context.font = `${12 * zoom}px system-ui, sans-serif`
  context.fillText(`y ${short(y.greatest)}`, 4 * zoom, 14 * zoom)
  context.fillText(`y ${short(y.least)}`, 4 * zoom, HEIGHT - 20 * zoom)
  context.fillText(`x ${short(x.least)}`, 70 * zoom, HEIGHT - 5 * zoom)
  context.textAlign = "right"
  context.fillText(`x ${short(x.greatest)}`, WIDTH - 4 * zoom, HEIGHT - 5 * zoom)
}
