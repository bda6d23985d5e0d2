// The map of a hub: providers on the right, callers on the left, and the calls that pass between them.

import { shown } from "./dom.js"

const SPACE = "http://www.w3.org/2000/svg"
const MOST = 12 // on each side
const [WIDTH, STEP] = [760, 52]

function s(tag, props, ...children) {
  const node = document.createElementNS(SPACE, tag)
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value)
  node.append(...children)
  return node
}

/** The box of a client with its name, and what it does below it. */
function box(x, y, name, text, isBusy) {
  return s("g", { class: isBusy ? "map-box busy" : "map-box" },
    s("rect", { x, y: y - 19, width: 220, height: 38, rx: 8 }),
    s("text", { x: x + 12, y: y - 3, class: "map-name" }, shown(name, 28)),
    s("text", { x: x + 12, y: y + 12, class: "map-text" }, shown(text, 36)))
}

/** One side of the map; of more clients than fit, the number. */
function side(clients, height, isLeft) {
  const shownOnes = clients.slice(0, MOST)
  const rows = shownOnes.length + (clients.length > MOST ? 1 : 0)
  const [x, hubX] = isLeft ? [0, WIDTH / 2 - 40] : [WIDTH - 220, WIDTH / 2 + 40]
  const edge = isLeft ? 220 : WIDTH - 220
  const first = height / 2 - ((rows - 1) * STEP) / 2
  const nodes = shownOnes.flatMap((each, at) => {
    const y = first + at * STEP
    const isBusy = each.in_flight > 0
    const line = `M${edge} ${y}C${(edge + hubX) / 2} ${y} ${(edge + hubX) / 2} ${height / 2} ${hubX} ${height / 2}`
    const text = isLeft ? `${each.calls_made ?? 0} calls made` : `${each.methods.length} methods, ${each.calls_served ?? 0} calls served`
    return [s("path", { d: line, class: isBusy ? "map-line busy" : "map-line" }), box(x, y, each.name ?? each.address ?? "?", isBusy ? `${each.in_flight} in flight` : text, isBusy)]
  })
  if (clients.length > MOST) nodes.push(s("text", { x: x + 12, y: first + MOST * STEP, class: "map-text" }, `${clients.length - MOST} more`))
  return nodes
}

/** The clients of a hub as a picture; the table below it has the same facts. */
export function hubMap(clients) {
  const all = clients.map((each) => ({ ...each, methods: Array.isArray(each?.methods) ? each.methods : [] }))
  const providers = all.filter((each) => each.methods.length)
  const callers = all.filter((each) => !each.methods.length)
  const rows = Math.min(MOST + 1, Math.max(providers.length, callers.length, 1))
  const height = rows * STEP + 12
  const label = `map of the hub: ${callers.length} callers and ${providers.length} providers`
  return s("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    ...side(callers, height, true), ...side(providers, height, false),
    s("circle", { cx: WIDTH / 2, cy: height / 2, r: 26, class: "map-hub" }), s("text", { x: WIDTH / 2, y: height / 2 + 5, class: "map-hub-text" }, "Hub"))
}
