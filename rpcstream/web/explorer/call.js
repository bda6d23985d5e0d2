// The card of one call: its state, its time and its result; a call that runs can be stopped.

import { button, h, jsonText, shown, sizeOf, uid } from "./dom.js"
import { progressBar } from "./progress.js"
import { streamView, valueView } from "./values.js"
import { took } from "./wire.js"

/** A button that pauses a stream; `wait()` gives a promise while it is paused. */
function pauseButton(signal) {
  let wake = null
  let paused = null
  const node = button("Pause", () => {
    node.textContent = wake ? "Pause" : "Go on"
    if (wake) wake()
    else paused = new Promise((resolve) => (wake = resolve)).then(() => (wake = null))
  })
  signal.addEventListener("abort", () => wake?.())
  return { node, wait: () => paused }
}

/** Show the items of a stream as they come, and the result after them. */
async function showStream({ client, method, params }, { env, options, halt, output }) {
  const items = streamView(env)
  const pause = pauseButton(options.signal)
  halt.after(pause.node)
  output.append(items.node)
  const stream = client.stream(method.name, params, options)[Symbol.asyncIterator]()
  for (;;) {
    await pause.wait()
    const { value, done } = await stream.next()
    if (!done) items.add(value)
    else {
      pause.node.remove()
      if (value != null) output.append(h("h3", null, "Result"), valueView(value, env))
      return
    }
  }
}

function showError(error, output) {
  output.append(h("p", { class: "error" }, shown(error.message, 2000)))
  if (error.code !== undefined) output.append(h("p", { class: "note" }, `code ${error.code}`))
  if (error.data != null) output.append(h("details", null, h("summary", null, "Details"), valueView(error.data)))
}

/** The arguments of a call in short, such as "photo=cat.jpg size=4". */
const inShort = (values) => shown(Object.entries(values).map(([name, each]) => `${name}=${(each instanceof Blob && each.name) || jsonText(each, 0, 40)}`).join(" "), 120)

/** Fold the cards of finished calls, except `newest`, to one line each, which a click opens. */
export function foldCards(outputs, newest) {
  for (const card of [...outputs.children]) {
    const { state, title } = card.dataset
    if (!state || card === newest) continue
    const line = h("summary", null, `${title} `, h("span", { class: state === "failed" ? "error" : "note" }, state))
    card.replaceWith(h("details", { class: "older" }, line))
    line.after(card)
  }
}

/** Make a call (`client`, `wire`, `method`, `params`); gives its card. `onEnd` gets how it ended, in words, and its result. */
export function callCard(call, { values, pictures, isStream, credit }, onError, onEnd) {
  const { client, wire, method, params } = call
  const started = performance.now()
  const before = { ...wire.totals }
  const stop = new AbortController()
  const status = h("span", { role: "status" }, "running")
  const sizes = h("p", { class: "note sizes" })
  const halt = button("Stop", () => stop.abort(), { class: "stop" })
  const progress = progressBar()
  const output = h("div", { class: "output" })
  const id = uid()
  let result // of a call that is no stream, for the history
  const node = h("section", { class: "card", role: "group", "aria-labelledby": id, "data-title": `${new Date().toTimeString().slice(0, 8)} ${inShort(values)}` }, h("div", { class: "tools" }, h("h3", { id }, shown(method.name)), status, halt, progress.nodes), output, sizes)
  const end = (text) => {
    const { in: came, out: went, messages } = wire.totals
    status.textContent = text
    sizes.textContent = `${took(performance.now() - started)} · ${sizeOf(went - before.out)} sent · ${sizeOf(came - before.in)} received · ${messages - before.messages} messages`
    node.querySelectorAll(":scope > .tools button").forEach((each) => each.remove())
    progress.end()
    node.dataset.state = text
    onEnd(`${text}, ${sizes.textContent}`, result)
  }
  const work = async () => {
    const env = { pictures, name: method.name }
    const options = { credit, signal: stop.signal, onProgress: progress.report }
    if (isStream) return showStream(call, { env, options, halt, output })
    result = await client.call(method.name, params, { signal: stop.signal, onProgress: progress.report })
    output.append(valueView(result, env))
  }
  work().then(() => end("done"), (error) => {
    if (stop.signal.aborted) return end("stopped")
    result = { code: error.code, message: error.message }
    end("failed")
    showError(error, output)
    onError(error)
  })
  return node
}
