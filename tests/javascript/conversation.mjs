// Calls, batches, streams, cancels, progress and events, by WebSocket or HTTP.
import { assert, CallTimeout, connect, ConnectionError, NdArray, RpcError, sockets, test, until, upTo } from "./common.mjs"

const [url] = process.argv.slice(2)
const isHttp = url.startsWith("http")
const large = NdArray.from(Float64Array.from({ length: 10_000 }, (_, i) => i))
const asked = []
const methods = {
  confirm: ([question]) => `${question}!`,
  fail: () => { throw new Error("a secret of this page") },
  refuse: () => { throw new RpcError(8, "not here", [1]) },
  nothing: () => {},
  double: ([array]) => NdArray.from(array.data.map((item) => 2 * item)),
  forever: (params, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => {
    asked.push("aborted")
    reject(signal.reason)
  })),
  deaf: () => new Promise(() => {}),
  async *numbers([n]) {
    try {
      for (let i = 0; i < n; i++) {
        asked.push(i)
        yield i
      }
    } finally {
      asked.push("closed")
    }
  },
  async take([items]) {
    let sum = 0
    for await (const item of items) sum += item
    return sum
  },
}
const { client, messages } = connect(url, { methods })
const seen = () => client.call("seen")
const collect = async (items) => {
  const list = []
  for await (const item of items) list.push(item)
  return list
}

test("calls by name and by position", async () => {
  assert.equal(await client.call("add", { a: 2, b: 3 }), 5)
  assert.equal(await client.call("add", [2n ** 70n, 1]), 2n ** 70n + 1n)
  assert.deepEqual(await Promise.all(Array.from({ length: 200 }, (_, i) => client.call("add", [i, i]))), Array.from({ length: 200 }, (_, i) => 2 * i))
  assert.equal((await client.discover()).openrpc.slice(0, 1), "1")
})

test("errors", async () => {
  const error = await client.call("refuse").catch((each) => each)
  assert.ok(error instanceof RpcError && error instanceof Error)
  assert.deepEqual([error.code, error.message, error.data, error.method], [7, "no", { why: 1 }, "refuse"])
  assert.equal((await client.call("add", [1, "x"]).catch((each) => each)).data.path, "$[1]")
  assert.equal((await client.call("ad").catch((each) => each)).code, -32601)
})

test("notifications and batches", async () => {
  await client.notify("add", [1, 1])
  const got = await client.batch([["add", [1, 1]], ["refuse"], ["add", [1, 1], { notify: true }], ["echo", [large]]])
  assert.deepEqual([got[0], got[1].code, got[2], got[3].size], [2, 7, undefined, 10_000])
  assert.deepEqual(await client.batch([["add", [1, 1], { notify: true }]]), [undefined])
  assert.deepEqual(await client.batch([]), [])
  const tooMany = await client.batch(Array.from({ length: 1001 }, () => ["add", [1, 1]]))
  assert.deepEqual(new Set(tooMany.map(({ code }) => code)), new Set([-32004]))
})

test("streams, with credit", async () => {
  const credits = []
  const stream = client.stream("count_to", [100], { credit: 8, onCredit: (n) => credits.push(n) })
  assert.deepEqual(await collect(stream), Array.from({ length: 100 }, (_, i) => i))
  assert.equal(stream.result, null)
  assert.ok(credits.every((n) => n >= 0 && n <= 8) && credits.includes(8))
  assert.deepEqual(await stream.next(), { value: undefined, done: true })
  const failing = client.stream("fail_after", [2])
  assert.deepEqual([await failing.next(), await failing.next()].map(({ value }) => value), [0, 1])
  await assert.rejects(failing.next(), { code: 7 })
  assert.deepEqual(await failing.next(), { value: undefined, done: true })
  assert.deepEqual(await client.call("count_to", [3]), [0, 1, 2])
  const together = client.stream("count_to", [3])
  const got = await Promise.all([1, 2, 3, 4].map(() => together.next()))
  assert.deepEqual(got.map(({ value }) => value), [0, 1, 2, null])
})

test("a stream that is left is cancelled, and has not run ahead", async () => {
  const before = await seen()
  let last
  for await (const item of client.stream("count_to", [1_000_000], { credit: 4 })) {
    last = item
    if (item === 20) break
  }
  assert.equal(last, 20)
  await until(async () => (await seen()).cancelled === before.cancelled + 1)
  if (!isHttp) assert.ok((await seen()).yielded - before.yielded <= 20 + 4 + 3)
  const unread = client.stream("count_to", [1_000_000], { credit: 4 })
  await unread.next()
  if (!isHttp) await until(async () => (await seen()).yielded >= before.yielded + 20 + 4)
  await unread.return()
  await until(async () => (await seen()).cancelled === before.cancelled + 2)
  const never = client.stream("count_to", [10])
  await never.return()
  assert.deepEqual(await never.next(), { value: undefined, done: true })
})

test("streams as arguments", async () => {
  assert.equal(await client.call("total", [upTo(50)]), 1225)
  assert.equal(await client.call("total", { items: upTo(0) }), 0)
  let closed = 0
  async function* endless() {
    try {
      for (let i = 5; ; i++) yield i
    } finally {
      closed += 1
    }
  }
  if (!isHttp) {
    assert.equal(await client.call("first", [endless()]), 5)
    await until(() => closed === 1)
  }
  async function* breaking() {
    yield 1
    throw new RpcError(9, "out of ink")
  }
  const error = await client.call("total", [breaking()]).catch((each) => each)
  assert.equal(error.code, 9)
  async function* arrays() {
    for (let i = 0; i < 40; i++) yield large
  }
  const doubled = await collect(client.stream("double", [arrays()]))
  assert.deepEqual([doubled.length, doubled[39].data[9999]], [40, 2 * 9999])
})

test("signals and time-outs", async () => {
  const before = await seen()
  const reason = new Error("changed my mind")
  await assert.rejects(client.call("wait", [60], { signal: AbortSignal.abort(reason) }), reason)
  const stop = new AbortController()
  setTimeout(() => stop.abort(reason), 20)
  await assert.rejects(client.call("wait", [60], { signal: stop.signal }), reason)
  // The server may notice first that the time is over.
  const late = await Promise.allSettled(Array.from({ length: 40 }, (_, i) => client.call("wait", [60], { timeout: 30 + i })))
  assert.deepEqual(new Set(late.map(({ reason }) => reason.name)), new Set(["CallTimeout"]))
  const hurried = connect(url, { timeout: 100 })
  await hurried.client.connect()
  await assert.rejects(hurried.client.call("wait", [60]), CallTimeout)
  await until(async () => (await seen()).cancelled >= before.cancelled + 3)
  const patient = client.stream("count_to", [1_000_000], { signal: stop.signal })
  await assert.rejects(patient.next(), reason)
  const slow = client.stream("count_to", [100, 0.02], { timeout: 100 })
  await assert.rejects(collect(slow), CallTimeout)
  hurried.client.close()
})

test("progress", async () => {
  const got = []
  assert.equal(await client.call("work", [3], { onProgress: (value) => got.push(value.done) }), "ready")
  assert.deepEqual(got, [1, 2, 3])
  assert.deepEqual(await client.call("count_to", [3], { onProgress: () => {} }), [0, 1, 2])
})

test("what is on the wire is told", async () => {
  const from = messages.length
  await client.call("add", [1, 1])
  const [out, back] = messages.slice(from)
  assert.deepEqual([out.direction, JSON.parse(out.text).method, out.bytes, out.binary], ["out", "add", out.text.length, false])
  assert.deepEqual([back.direction, JSON.parse(back.text).result], ["in", 2])
  await client.call("echo", [large])
  await client.call("echo", [large])
  const [sent, came] = messages.slice(-2)
  assert.ok(sent.binary && came.binary && sent.text.includes('{"$bin":0}') && sent.bytes > 80_000)
})

test("a server is asked for frames before the first call", { skip: isHttp }, async () => {
  const { client: eager, messages: all } = connect(url, { binary: "first" })
  await eager.call("echo", [large])
  assert.deepEqual(all.map(({ direction, binary }) => `${direction} ${binary}`), ["out false", "in false", "out true", "in true"])
  assert.equal(JSON.parse(all[0].text).method, "rpc.hello")
})

test("a server that is not there", async () => {
  const { client: nobody } = connect(`${new URL(url).protocol}//127.0.0.1:1/`)
  await assert.rejects(nobody.call("add", [1, 1]), ConnectionError)
  nobody.close()
  await assert.rejects(nobody.call("add", [1, 1]), ConnectionError)
})

test("the server calls back", { skip: isHttp }, async () => {
  const ask = (method, ...params) => client.call("ask", [method, params])
  assert.equal(await ask("confirm", "Sure?"), "Sure?!")
  assert.equal(await ask("nothing"), null)
  assert.equal((await ask("double", large)).data[9999], 2 * 9999)
  const codes = []
  for (const method of ["refuse", "missing", "toString", "rpc.discover"]) codes.push((await ask(method)).code)
  assert.deepEqual(codes, [8, -32601, -32601, -32601])
  const failing = console.error
  console.error = (error) => asked.push(error.message)
  const failed = await ask("fail")
  console.error = failing
  assert.deepEqual([failed.code, JSON.stringify(failed).includes("secret"), asked.pop()], [-32603, false, "a secret of this page"])
  assert.equal(await ask("rpc.ping"), "pong")
  assert.equal(await client.call("ask_and_give_up", ["forever"]), "given up")
  await until(() => asked.pop() === "aborted")
  assert.equal(await client.call("ask_and_give_up", ["deaf"]), "given up")
})

test("the server's calls stream, both ways", { skip: isHttp }, async () => {
  assert.deepEqual(await client.call("ask_stream", ["numbers", 50]), Array.from({ length: 50 }, (_, i) => i))
  assert.equal(asked.pop(), "closed")
  assert.deepEqual(await client.call("ask", ["numbers", [3]]), [0, 1, 2])
  assert.equal(await client.call("send_items", [50]), 1225)
})

test("events", { skip: isHttp }, async () => {
  await client.call("say", ["kept.a", 1, true])
  const [all, one, again] = [client.subscribe("kept.>"), client.subscribe("kept.*.b"), client.subscribe("kept.>", { maxQueue: 2 })]
  const got = [Object.values((await all.next()).value)]
  await Promise.all([one.begin(), again.begin()])
  for (const [topic, value] of [["kept.b", large], ["other", 2], ["kept.x.b", 3], ["kept.end", 4]]) await client.call("say", [topic, value])
  for await (const { topic, value } of all) {
    got.push([topic, value.size ?? value])
    if (topic === "kept.end") break
  }
  assert.deepEqual(got, [["kept.a", 1], ["kept.b", 10_000], ["kept.x.b", 3], ["kept.end", 4]])
  assert.deepEqual((await one.next()).value, { topic: "kept.x.b", value: 3 })
  assert.equal((await again.next()).value.topic, "kept.x.b")
  assert.equal(again.dropped, 1)
  await one.return()
  assert.deepEqual(await one.next(), { value: undefined, done: true })
  await again.return()
  await until(async () => (await client.call("say", ["kept.b", 5])) === 0)
  await assert.rejects(client.subscribe("a.>.b").begin(), { code: -32602 })
})

test("events need a WebSocket", { skip: !isHttp }, () => assert.throws(() => client.subscribe("a"), /WebSocket/))

test("a lost connection: calls are made again where that is safe, and subscriptions", { skip: isHttp }, async () => {
  const states = []
  const { client } = connect(url, { reconnect: { first: 10 }, onState: (state) => states.push(state) })
  const events = client.subscribe("news")
  await events.begin()
  const socket = sockets.at(-1)
  const lost = assert.rejects(client.call("wait", [60]), ConnectionError)
  const kept = client.call("get_run")
  socket.close()
  await lost
  assert.ok((await kept) >= 1)
  await until(() => events.reconnects === 1)
  assert.equal(await client.call("say", ["news", 1]), 1)
  assert.deepEqual((await events.next()).value, { topic: "news", value: 1 })
  const slow = client.call("wait", [0.3], { idempotent: true })
  await new Promise((resolve) => setTimeout(resolve, 50))
  sockets.at(-1).close()
  assert.equal(await slow, null)
  assert.deepEqual(states, ["connecting", "open", "closed", "connecting", "open", "closed", "connecting", "open"])
  client.close()
  assert.deepEqual(await events.next(), { value: undefined, done: true })
  assert.equal(states.at(-1), "closed")
})

test("without reconnect a loss ends subscriptions and streams, and the next call connects", { skip: isHttp }, async () => {
  const { client } = connect(url)
  const events = client.subscribe("news")
  await events.begin()
  const stream = client.stream("count_to", [1_000_000], { credit: 1 })
  await stream.next()
  sockets.at(-1).close()
  await assert.rejects(events.next(), ConnectionError)
  await assert.rejects(collect(stream), ConnectionError)
  assert.equal(await client.call("add", [1, 1]), 2)
  client.close()
})
