// Long work in slices, between which the page answers to its user.

const SLICE = 12 // milliseconds

/** Run a generator to its end, and give what it returns. The first slice runs at once. */
export async function inSlices(work) {
  for (;;) {
    const end = performance.now() + SLICE
    do {
      const { value, done } = work.next()
      if (done) return value
    } while (performance.now() < end)
    await new Promise((resume) => setTimeout(resume))
  }
}
