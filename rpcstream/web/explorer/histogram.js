// How often values occur, as bars.

import { inSlices } from "../rpcstream.js"
import { short } from "./chart.js"
import { h } from "./dom.js"
import { count } from "./statistics.js"

const [WIDTH, HEIGHT, MOST_BINS] = [640, 180, 48]

/** An SVG element. */
function drawn(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value)
  node.append(...children)
  return node
}

/** The ranges of the bars: one for each of few integers, else 48 of one width. */
function binsOf(dtype, { least, greatest }) {
  const isFew = /[biu]\d$/.test(dtype) && greatest - least < MOST_BINS
  return isFew ? [least - 0.5, greatest + 0.5, greatest - least + 1] : [least, greatest, greatest > least ? MOST_BINS : 1]
}

/** A node with the bars of the items of an array, which are drawn when they are counted. */
export function histogram(data, dtype, range) {
  const [from, to, bins] = binsOf(dtype, range)
  const readout = h("span", { class: "value" })
  const place = h("div", { class: "histogram" })
  inSlices(count(data, from, to, bins)).then((counts) => {
    const most = counts.reduce((a, b) => Math.max(a, b), 0)
    const nameOf = (at) => (to - from === bins ? short(from + at + 0.5) : `${short(from + (at * (to - from)) / bins)} to ${short(from + ((at + 1) * (to - from)) / bins)}`)
    const bars = [...counts].map((each, at) => {
      const high = each && Math.max(1, (each / most) * (HEIGHT - 4))
      return drawn("rect", { x: (at * WIDTH) / bins + 0.5, width: WIDTH / bins - 1, y: HEIGHT - high, height: high })
    })
    const label = `histogram from ${short(range.least)} to ${short(range.greatest)}, at most ${most} items in a bar`
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars)
    svg.addEventListener("pointermove", ({ clientX }) => {
      const box = svg.getBoundingClientRect()
      const at = Math.min(bins - 1, Math.max(0, Math.floor(((clientX - box.left) / box.width) * bins)))
      readout.textContent = `${nameOf(at)}: ${counts[at].toLocaleString()}`
    })
    svg.addEventListener("pointerleave", () => (readout.textContent = ""))
    place.append(svg, h("div", { class: "scale-marks" }, h("span", null, short(range.least)), readout, h("span", null, short(range.greatest))))
  })
  return place
}
