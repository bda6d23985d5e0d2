// In a page of Chromium: every dtype and image, both ways, and what only a browser has. `run` gives what went wrong.
import { Client, NdArray, RpcImage } from "/rpcstream.js"

const wrong = []
const expect = (is, what) => is || wrong.push(what)

async function checkValues(client, { dtypes, modes }) {
  for (const shape of [[2, 128], [9, 1, 641]])
    for (const dtype of dtypes) {
      const array = await client.call("make", [dtype, shape])
      expect(array instanceof NdArray && array.dtype === dtype.replace(">", "<"), `${dtype} is no array`)
      expect(await client.call("is_same", { dtype, shape, array }), `${dtype} [${shape}]`)
    }
  for (const mode of modes) {
    const image = await client.call("picture", [mode])
    expect(await client.call("is_picture", { mode, image }), `image ${mode}`)
    if (image.type !== "image/png") continue
    const drawn = await createImageBitmap(image)
    expect(drawn.width === 33 && drawn.height === 17, `${mode} is drawn as ${drawn.width} x ${drawn.height}`)
    if (mode === "RGB") await checkPixels(client, image, drawn)
  }
}

/** What the browser decodes of our PNG file are the pixels that came; what it can draw is sent. */
async function checkPixels(client, image, drawn) {
  const canvas = new OffscreenCanvas(33, 17)
  const context = canvas.getContext("2d")
  context.drawImage(drawn, 0, 0)
  const data = context.getImageData(0, 0, 33, 17)
  expect(image.pixels.every((value, i) => data.data[Math.floor(i / 3) * 4 + (i % 3)] === value), "the pixels of the PNG file")
  const page = Object.assign(document.createElement("canvas"), { width: 33, height: 17 })
  page.getContext("2d").drawImage(drawn, 0, 0)
  const shown = new Image()
  shown.src = URL.createObjectURL(image)
  await shown.decode()
  const sum = data.data.reduce((all, each) => all + each, 0)
  for (const each of [data, drawn, canvas, page, shown, await canvas.convertToBlob(), new File([await canvas.convertToBlob()], "a.png", { type: "image/png" })]) {
    const got = await client.call("image_numbers", [each])
    expect(got.size.join() === "33,17", `the size of a ${each.constructor.name}`)
    expect(got.sum === (got.mode === "RGB" ? sum - 255 * 33 * 17 : sum), `${each.constructor.name}: ${got.mode} ${got.sum} ${sum}`)
  }
  expect(image instanceof RpcImage && image instanceof Blob, "an image is a Blob")
}

async function checkConversation(client) {
  expect((await client.call("add", [2n ** 64n, 1])) === 2n ** 64n + 1n, "a large integer")
  const before = await client.call("seen")
  for await (const item of client.stream("count_to", [1_000_000])) if (item === 500) break
  for (let i = 0; (await client.call("seen")).cancelled === before.cancelled; i++) {
    if (i === 100) return wrong.push("the stream was not cancelled")
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  async function* numbers() {
    yield* [1, 2, 3]
  }
  expect((await client.call("total", [numbers()])) === 6, "a stream as an argument")
  const file = new Blob([new Uint8Array(100_000).fill(5)])
  expect((await client.call("echo", [file])).length === 100_000, "a file")
}

export async function run(given) {
  const asked = []
  const own = new Client(undefined, { token: given.token, methods: { confirm: ([text]) => asked.push(text) } })
  const http = new Client("/", { token: given.token })
  try {
    expect(own.url.protocol === "ws:" && http.url.protocol === "http:", "the addresses of the page's own server")
    for (const client of [own, http]) {
      await checkValues(client, given)
      await checkConversation(client)
    }
    const events = own.subscribe("news.*")
    await events.begin()
    await http.call("say", ["news.a", NdArray.from(new Float32Array(5000))])
    expect((await events.next()).value.value.size === 5000, "an event")
    await own.call("ask", ["confirm", ["Sure?"]])
    expect(asked.join() === "Sure?", "a call back")
  } catch (error) {
    wrong.push(`${error.stack}`)
  } finally {
    own.close()
  }
  return wrong
}
