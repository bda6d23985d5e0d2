// Numbers as lines, one for each name, with the least and the greatest value at the side.

import { h } from "./dom.js"
import { statistics } from "./statistics.js"

export const short = (number) => {
  if (typeof number === "bigint" || Number.isInteger(number)) return String(number)
  const text = Number(number.toPrecision(4)).toString()
  return text.replace(/(\d)e/, "$1e")
}

/** A number with four digits, and all of them on hover. */
export const numberNode = (value) => h("span", { class: "value", title: String(value) }, typeof value === "number" || typeof value === "bigint" ? short(value) : String(value))

export const lineCanvas = () => h("canvas", { class: "line", role: "img", width: 1440, height: 640, "aria-label": "line" })

/** The colours of lines, which both themes show. */
const COLOURS = ["", "#d9730d", "#0f9d78", "#c2399b", "#8a63d2", "#b58900", "#3b8fd6", "#c0504d"]
const colourOf = (canvas, at) => COLOURS[at % COLOURS.length] || getComputedStyle(canvas).color

/** Draw lists of numbers, by their names, as lines; on a scale of logarithms if `isLog`, with every `stride`th value. */
export function drawLines(canvas, series, isLog = false, stride = 1) {
  const { width, height } = canvas
  const context = canvas.getContext("2d", { willReadFrequently: true })
  const area = areaOf(canvas)
  const { zoom, top, bottom, left, right } = area
  const entries = Object.entries(series)
  const scaled = (value) => (isLog ? (value > 0 ? Math.log10(value) : NaN) : value)
  const all = entries.map(([, values]) => statistics(values))
  const [least, greatest] = [Math.min(...all.map((each) => each.least)), Math.max(...all.map((each) => each.greatest))]
  const [low, high] = isLog ? [Math.min(...entries.flatMap(([, values]) => [...values].map(scaled).filter(Number.isFinite))), scaled(greatest)] : [least, greatest]
  const y = (value) => bottom - ((scaled(value) - low) / (high - low || 1)) * (bottom - top)
  context.clearRect(0, 0, width, height)
  const count = entries[0]?.[1].length ?? 0
  const last = (count - 1) * stride
  const powers = isLog ? roundValues(low, high, true).map((each) => 10 ** each) : []
  const values = powers.length > 1 ? powers : isLog ? roundValues(10 ** low, 10 ** high) : roundValues(low, high)
  const places = last < 1 ? [] : roundValues(0, last, true)
  drawScales(context, area, values.map((each) => [short(each), y(each)]), places.map((each) => [each.toLocaleString(), left + (each / last) * (right - left)]))
  context.lineWidth = 1.6 * zoom
  entries.forEach(([, values], which) => {
    context.strokeStyle = colourOf(canvas, which)
    context.beginPath()
    let isBroken = true
    const step = Math.max(1, Math.floor(values.length / (2 * width)))
    for (let at = 0; at < values.length; at += step) {
      const value = Number(values[at])
      const x = values.length < 2 ? width / 2 : left + (at / (values.length - 1)) * (right - left)
      if (!Number.isFinite(scaled(value))) isBroken = true
      else if (isBroken) {
        context.moveTo(x - 1, y(value))
        context.lineTo(x, y(value))
        isBroken = false
      } else context.lineTo(x, y(value))
    }
    context.stroke()
  })
  const names = entries.map(([name]) => name).filter(Boolean).join(", ")
  canvas.setAttribute("aria-label", `${names ? `lines of ${names}, ` : "line of "}${count} numbers from ${least} to ${greatest}`)
}

/** Where a chart is drawn on its canvas, with room for its scales; `zoom` is how many of its pixels one of the page is. */
export function areaOf(canvas, edge = 0) {
  const { width, height } = canvas
  const zoom = canvas.clientWidth ? width / canvas.clientWidth : 2
  return { zoom, top: (12 + edge) * zoom, bottom: height - (24 + edge) * zoom, left: (58 + edge) * zoom, right: width - (16 + edge) * zoom }
}

/** Up to six round values in a range: multiples of 1, 2 or 5 times a power of ten. */
export function roundValues(low, high, isWhole = false) {
  if (!(high > low)) return Number.isFinite(low) ? [low] : []
  const power = 10 ** Math.floor(Math.log10((high - low) / 4))
  const round = power * [1, 2, 5, 10].find((each) => each * power * 5 >= high - low)
  const step = isWhole ? Math.max(1, round) : round
  const first = Math.ceil(low / step - 1e-9)
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, at) => (first + at) * step)
}

/**
 * Lines across with their values at the left, and values below. `rows` and `columns` are pairs of a text and its
 * place on the canvas.
 */
export function drawScales(context, { zoom, bottom, left, right }, rows, columns) {
  context.strokeStyle = context.fillStyle = getComputedStyle(context.canvas.parentElement ?? context.canvas).color
  context.lineWidth = zoom / 2
  context.font = `${11 * zoom}px system-ui, sans-serif`
  context.textBaseline = "middle"
  context.textAlign = "right"
  for (const [text, y] of rows) {
    context.globalAlpha = 0.18
    context.beginPath()
    context.moveTo(left, y)
    context.lineTo(right, y)
    context.stroke()
    context.globalAlpha = 0.8
    context.fillText(text, left - 6 * zoom, y)
  }
  context.textAlign = "center"
  for (const [text, x] of columns) context.fillText(text, x, bottom + 14 * zoom)
  context.globalAlpha = 1
}

const MOST_POINTS = 2000

/** Lines that grow: `add` takes a number or an object of numbers, and tells whether it could be drawn. */
export function liveChart() {
  const series = Object.create(null)
  const canvas = lineCanvas()
  const legend = h("div", { class: "legend" })
  const log = h("input", { type: "checkbox", onchange: () => draw() })
  const thinned = h("span", { class: "note", role: "status" })
  const node = h("figure", { class: "chart", hidden: true }, canvas, h("div", { class: "tools" }, legend, thinned, h("label", null, log, " Log scale")))
  let [count, seen, stride] = [0, 0, 1] // of `stride` values that were seen, one is kept
  function draw() {
    if (count < 2) return
    node.hidden = false
    drawLines(canvas, series, log.checked, stride)
    const names = Object.keys(series).filter(Boolean)
    if (legend.children.length !== names.length)
      legend.replaceChildren(...names.map((name, at) => {
        const mark = h("span", { class: "mark" })
        mark.style.background = colourOf(canvas, at)
        return h("span", null, mark, name.slice(0, 40))
      }))
  }
  /** Keep every second value, so that a stream without end has a line of its whole course. */
  function thin() {
    for (const name of Object.keys(series)) series[name] = series[name].filter((_, at) => at % 2 === 0)
    stride *= 2
    thinned.textContent = `One of ${stride} values is drawn`
  }
  return { node, draw, add(value) {
    const entries = typeof value === "number" || typeof value === "bigint" ? [["", value]] : typeof value === "object" && value !== null && !Array.isArray(value) ? Object.entries(value) : []
    const numbers = entries.filter(([, each]) => typeof each === "number")
    if (!numbers.length || numbers.length < entries.length / 2 || numbers.length > 12) return false
    count++
    if (seen++ % stride) return true
    for (const [name, each] of numbers) {
      series[name] ??= []
      series[name].push(Number(each))
    }
    if (Object.values(series).some((values) => values.length >= MOST_POINTS)) thin()
    return true
  } }
}
