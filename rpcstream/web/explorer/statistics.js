// Numbers about numbers: the least, the greatest, the mean, the standard deviation, and how often values occur.

const STEP = 32_768 // items between two points at which the work can be interrupted

/** The work of `statistics`, for `inSlices`. */
export function* describe(data) {
  let [least, greatest, nans, mean, squares] = [Infinity, -Infinity, 0, 0, 0]
  for (let at = 0; at < data.length; at++) {
    const value = Number(data[at])
    if (Number.isNaN(value)) nans++
    else {
      if (value < least) least = value
      if (value > greatest) greatest = value
      const off = value - mean
      mean += off / (at + 1 - nans)
      squares += off * (value - mean)
    }
    if (at % STEP === STEP - 1) yield
  }
  const count = data.length - nans
  return { least, greatest, mean: count ? mean : NaN, deviation: Math.sqrt(squares / count), nans }
}

/** The statistics of a list or a typed array; NaN counts as nothing but `nans`. */
export function statistics(data) {
  const work = describe(data)
  for (;;) {
    const { value, done } = work.next()
    if (done) return value
  }
}

/** Work for `inSlices`: how many items are in each of `bins` ranges of one width from `least` to `greatest`. */
export function* count(data, least, greatest, bins) {
  const counts = new Uint32Array(bins)
  const scale = bins / (greatest - least || 1)
  for (let at = 0; at < data.length; at++) {
    const value = Number(data[at])
    if (value >= least && value <= greatest) counts[Math.min(bins - 1, Math.floor((value - least) * scale))]++
    if (at % STEP === STEP - 1) yield
  }
  return counts
}
