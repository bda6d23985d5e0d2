// Arrays as sounds: samples of one or two channels, written as a WAV file of 16 bits.

import { inSlices } from "../rpcstream.js"
import { bytesView } from "./bytes.js"
import { h } from "./dom.js"

const [LEAST, MOST] = [1000, 30_000_000] // samples
const [SLOWEST, FASTEST] = [1000, 384_000] // samples per second
const PART = 32_768 // samples that are written at once
let latest = 44_100 // samples per second, as they were chosen last

/** Whether an array may be a sound: of shape (n,), (n, 1), (n, 2), (1, n) or (2, n), and not of bytes. */
export const isSound = ({ shape, size, dtype }) =>
  size >= LEAST && size <= MOST && (shape.length === 1 || (shape.length === 2 && Math.min(...shape) < 3)) && /f|i[248]/.test(dtype)

/** Work for `inSlices`: a WAV file. Samples from -1 to 1, or integers of 16 bits, are kept; others are made smaller until they fit, and infinite ones are silent. */
function* wav({ shape, dtype }, numbers, rate) {
  const channels = shape.length === 1 ? 1 : Math.min(...shape)
  const [acrossChannels, acrossTime] = shape[0] === channels ? [numbers.length / channels, 1] : [1, channels]
  let loudest = /f/.test(dtype) ? 1 : 32_768
  for (let at = 0; at < numbers.length; at++) {
    const size = Math.abs(Number(numbers[at]))
    if (size > loudest && size < Infinity) loudest = size
    if (at % PART === 0) yield
  }
  const scale = 32_767 / loudest
  const samples = new Int16Array(numbers.length)
  for (let at = 0; at < samples.length; at++) {
    samples[at] = Math.round(scale * Number(numbers[(at % channels) * acrossChannels + Math.floor(at / channels) * acrossTime]))
    if (at % PART === 0) yield
  }
  const head = new DataView(new ArrayBuffer(44))
  const put = (at, text) => [...text].forEach((each, index) => head.setUint8(at + index, each.charCodeAt(0)))
  const words = { 4: 36 + samples.byteLength, 16: 16, 24: rate, 28: rate * channels * 2, 40: samples.byteLength }
  const halves = { 20: 1, 22: channels, 32: 2 * channels, 34: 16 }
  for (const [at, value] of Object.entries(words)) head.setUint32(at, value, true)
  for (const [at, value] of Object.entries(halves)) head.setUint16(at, value, true)
  for (const [at, text] of [[0, "RIFF"], [8, "WAVEfmt "], [36, "data"]]) put(at, text)
  return new Blob([head, samples], { type: "audio/wav" })
}

const isRate = (rate) => rate >= SLOWEST && rate <= FASTEST

/** A player for an array, and a field for its rate; `given` is that of the result, if it has one. */
export function soundView(array, numbers, given) {
  const place = h("div")
  async function show(rate) {
    const file = await inSlices(wav(array, numbers, rate))
    URL.revokeObjectURL(place.querySelector("audio")?.src)
    place.replaceChildren(bytesView(file))
  }
  const field = h("input", { type: "number", min: SLOWEST, max: FASTEST, value: String(isRate(given) ? given : latest), onchange: () => {
    const rate = Math.round(Number(field.value))
    if (isRate(rate)) show((latest = rate))
  } })
  show(Number(field.value))
  return [h("label", null, "Samples per second ", field), place]
}
