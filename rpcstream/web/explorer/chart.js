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
  drawScales(context, area, (part) => {
    const value = low + part * (high - low)
    return short(isLog ? 10 ** value : value)
  }, (part) => {
    const index = Math.round(part * last)
    return last < 1 || (last < 4 && part % 1) ? [] : [index.toLocaleString(), index / last]
  })
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

const PARTS = [0, 0.25, 0.5, 0.75, 1]

/**
 * Lines across with their values at the left, and values below. `yText(part)` gives the text at a part of the height;
 * `xText(part)` gives a text and the part of the width where it stands, or nothing.
 */
export function drawScales(context, { zoom, top, bottom, left, right }, yText, xText) {
  context.strokeStyle = context.fillStyle = getComputedStyle(context.canvas.parentElement ?? context.canvas).color
  context.lineWidth = zoom / 2
  context.font = `${11 * zoom}px system-ui, sans-serif`
  for (const part of PARTS) {
    const y = bottom - part * (bottom - top)
    context.globalAlpha = 0.18
    context.beginPath()
    context.moveTo(left, y)
    context.lineTo(right, y)
    context.stroke()
    context.globalAlpha = 0.8
    context.textAlign = "right"
    context.textBaseline = "middle"
    context.fillText(yText(part), left - 6 * zoom, y)
    context.textAlign = "center"
    const [text, at] = xText(part)
    if (text !== undefined) context.fillText(text, left + at * (right - left), bottom + 14 * zoom)
  }
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
