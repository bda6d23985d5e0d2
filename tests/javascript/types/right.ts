// What `tsc --strict` accepts.
import { CallTimeout, Client, Complex, ConnectionError, ImageResult, inSlices, NdArray, RpcError, RpcImage } from "rpcstream"

interface Api {
  add: { params: { a: number; b: number }; args: [number, number]; result: number; item: never }
  ping: { params: {}; args: []; result: "pong"; item: never }
  label: { params: { photo: Blob; top?: number }; args: [Blob, number?]; result: { name: string }[]; item: never }
  count: { params: { to: number }; args: [number]; result: number[]; item: number }
}

export async function typed(url: string, photo: File): Promise<number> {
  const client = new Client<Api>(url, { token: async () => "secret", reconnect: { first: 10 }, WebSocket: WebSocket })
  const sum: number = await client.call("add", { a: 1, b: 2 }, { timeout: 100, signal: AbortSignal.timeout(5) })
  const again: number = await client.call("add", [1, 2])
  const pong: "pong" = await client.call("ping")
  const names: string[] = (await client.call("label", { photo })).map(({ name }) => name)
  const stream = client.stream("count", { to: 3 }, { credit: 4, onCredit: (n) => n.toFixed() })
  for await (const item of stream) item.toFixed()
  await client.notify("add", [1, 2])
  client.close()
  return sum + again + pong.length + names.length
}

export async function untyped(): Promise<unknown> {
  const client = new Client(undefined, {
    methods: { confirm: ([question]: [string], { signal }) => question.length > 0 && !signal.aborted },
    onMessage: ({ direction, text, bytes, binary }) => [direction, text, bytes.toFixed(), binary],
    onState: (state) => state === "open",
    onConnect: ({ call }) => call("rpc.register", { name: "page" }),
    binary: "first",
    limits: { maxPngPixels: 1e6 },
  })
  const array: NdArray = await client.call("make", { dtype: "<f4", with: NdArray.from([[1, 2], [3, 4]], "<f4") })
  const rows = array.toArray()
  const exact = new NdArray("<i8", [2], new BigInt64Array(2))
  const image: ImageResult = await client.call("picture")
  const file: Blob = await image.toPng()
  const steps: number = await inSlices((function* () {
    yield
    return file.size
  })())
  const known: [string | undefined, Uint8Array | undefined, string] = [image.mode, image.pixels ?? image.file, image.type]
  for await (const { topic, value } of client.subscribe<number>("news.>", { maxQueue: 5 })) topic.at(value)
  try {
    await client.batch([["add", [1, 2]], ["note", { text: "x" }, { notify: true }]])
  } catch (error) {
    if (error instanceof RpcError) return [error.code.toFixed(), error.data, error.executed === false]
    if (error instanceof ConnectionError) return error.status
    if (error instanceof CallTimeout) return error.message
  }
  return [rows, steps, exact.data.length, new Complex(1, 2).real, known, await client.publish("a", 1), image instanceof RpcImage]
}
