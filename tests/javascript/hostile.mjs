// What a hostile or careless server sends. It is a WebSocket in memory here.
import { assert, CallTimeout, Client, ConnectionError, RpcError, test, until } from "./common.mjs"

/** A WebSocket whose other end is the test: `sent` is what came, `says` sends. */
class Fake {
  static last
  sent = []
  bufferedAmount = 0

  constructor(url) {
    this.url = url
    Fake.last = this
    setTimeout(() => this.onopen())
  }

  send(data) {
    this.sent.push(typeof data === "string" ? JSON.parse(data) : data)
  }

  says(message) {
    const isRaw = typeof message === "string" || message instanceof ArrayBuffer
    this.onmessage({ data: isRaw ? message : JSON.stringify({ jsonrpc: "2.0", ...message }) })
  }

  close() {
    this.isClosed = true
    this.onclose?.({ code: 1000, reason: "" })
  }
}

async function connected(options = {}) {
  const client = new Client("ws://server/", { WebSocket: Fake, timeout: 5000, ...options })
  await client.connect()
  return { client, socket: Fake.last }
}

/** A client with a call that waits. */
async function calling(method = "add", options = {}) {
  const { client, socket } = await connected({ retries: 0, ...options })
  const call = client.call(method, [1]).then((result) => ({ result }), (error) => ({ error }))
  await until(() => socket.sent.length)
  return { client, socket, call, id: socket.sent.at(-1).id }
}

const frame = (header, json, ...payloads) => {
  const parts = [Buffer.from(header), Buffer.from(json), ...payloads.map((each) => Buffer.from(each))]
  const whole = Buffer.concat(parts)
  return whole.buffer.slice(whole.byteOffset, whole.byteOffset + whole.length)
}

test("what is no JSON, too deep, too long or has too many values ends the connection, and nothing hangs", async () => {
  const json = `{"jsonrpc":"2.0","id":1,"result":{"$bin":0}}\n`
  const bad = [
    "{", "", "nul", '{"a": 01}', '{"id":1,"result":"\ud800', `{"id":1,"result":1${"0".repeat(5000)}}`,
    `{"jsonrpc":"2.0","id":1,"result":"${"x".repeat(2000)}"}`, // with maxMessageSize below
    `[${"[],".repeat(400)}1]`,
    new Uint8Array([0xff, 0xfe, 0x7b]).buffer,
    frame("@", ""), frame(`@${json.length}\n`, json), frame(`@${json.length} 0\n`, json), frame(`@${json.length} 4\n`, json, "abc"),
    frame(`@${json.length} 4\n`, json, "abcde"), frame(`@${json.length} 999999999999\n`, json, "abc"), frame("@9 1\n", json, "a"),
    frame(`@${json.length} 8 8\n`, json, "a".repeat(16)), frame(`@47 8\n`, `{"id":1,"result":[{"$bin":0},{"$bin":0},[[[]]]]}`, "a".repeat(8)),
    frame(`@${json.length} 8\n`, json.replace("0}", "1}"), "a".repeat(8)), frame(`@${json.length} 8\n`, json.replace("0}", "-"), "a".repeat(8)),
  ]
  for (const message of bad) {
    const { socket, call } = await calling("add", { limits: { maxMessageSize: 1500, maxValues: 500 } })
    socket.says(message)
    const { error } = await call
    assert.ok(error instanceof ConnectionError, `${String(message).slice(0, 60)}: ${error}`)
    assert.ok(socket.isClosed)
  }
})

test("a good frame is read, wherever its payloads lie", async () => {
  for (const blanks of [0, 3, 7]) {
    const { socket, call, id } = await calling()
    const json = `{"jsonrpc":"2.0","id":${id},"result":[{"$type":"ndarray","dtype":"<f8","shape":[1],"data":{"$bin":1}},{"$type":"bytes","data":{"$bin":0}}]}\n`
    const number = new Uint8Array(new Float64Array([1.5]).buffer)
    socket.says(frame(`@${Buffer.byteLength(json)} 3 8${" ".repeat(blanks)}\n`, json, "abc\0\0\0\0\0", number))
    const { result } = await call
    assert.deepEqual([result[0].data[0], ...result[1]], [1.5, 97, 98, 99])
  }
})

test("a result that is no array or image fails its call alone", async () => {
  const deep = JSON.parse(`${"[".repeat(200)}${"]".repeat(200)}`)
  const bad = [
    { $type: "ndarray", dtype: "<f4", shape: [3], data: "AAAAAA==" }, { $type: "ndarray", dtype: "<f4", shape: [-1], data: "AAAAAA==" },
    { $type: "ndarray", dtype: "<f4", shape: "1", data: "AAAAAA==" }, { $type: "ndarray", dtype: "<f4", shape: [1e300, 0], data: "" },
    { $type: "ndarray", dtype: "|O8", shape: [1], data: "AAAAAAAAAAA=" }, { $type: "ndarray", dtype: "__proto__", shape: [1], data: "AA==" },
    { $type: "ndarray", dtype: ["<f4"], shape: [0], data: "=" }, { $type: "ndarray", dtype: "<f4", shape: [1], data: "AAAA*A==" },
    { $type: "ndarray", dtype: "<f4", shape: [2 ** 27, 2 ** 27], data: "" }, { $type: "ndarray", dtype: "|u1", shape: Array(100).fill(1), data: "AA==" },
    { $type: "bytes", data: 1 }, { $type: "bytes", data: "A" }, { $type: "bytes" }, { $type: "bytes", data: "AA AA===" },
    { $type: "image", format: "raw", mode: "RGB", size: [1, 1], data: "AAAA AAA" }, { $type: "image", format: "raw", mode: "RGB", size: [9, 9], data: "AAAA" },
    { $type: "image", format: "raw", mode: "RGB", size: [1e9, 1e9], data: "AAAA" }, { $type: "image", format: "raw", mode: "RGB", data: "AAAA" },
    deep,
  ]
  for (const result of bad) {
    const { client, socket, call, id } = await calling()
    socket.says({ id, result })
    const { error } = await call
    assert.ok(error instanceof TypeError, JSON.stringify(result).slice(0, 80))
    const next = client.call("add")
    await until(() => socket.sent.length === 2)
    socket.says({ id: socket.sent[1].id, result: { $type: "what", data: [1] } })
    assert.deepEqual(await next, { $type: "what", data: [1] })
    client.close()
  }
})

test("replies that are none, and to nothing", async () => {
  const { socket, call, id, client } = await calling()
  for (const message of ["null", "1", '"text"', "[]", "[1, null, []]", "{}", '{"id": 99, "result": 1}', `{"id": "${id}", "result": 1}`, '{"id": {"a": 1}, "result": 1}',
    '{"id": 12345678901234567890, "error": {}}', '{"method": 1}']) socket.says(message)
  for (const method of ["$/item", "$/end", "$/credit", "$/cancelRequest", "$/event", "$/progress", "$/goAwaay", "$/"])
    for (const params of [undefined, null, 1, [], {}, { id, value: 1 }, { id: null }, { stream: "s1", n: 1e9, value: 1 }, { token: id, value: 1 }, { topic: {}, value: 1 }, { topic: "a", value: 1 }])
      socket.says({ method, params })
  socket.says({ id, error: null })
  assert.ok((await call).error instanceof RpcError)
  assert.ok(!socket.isClosed)
  const strange = []
  for (const error of ["text", 1, [], {}, { code: "x", message: 5 }, { code: 1 }, { code: 1, message: null, data: { executed: 1 } }]) {
    const next = client.call("add").catch((each) => strange.push(each))
    await until(() => socket.sent.at(-1).method === "add" && socket.sent.length > 1 + strange.length)
    socket.says({ id: socket.sent.at(-1).id, error })
    await next
  }
  assert.ok(strange.every((each) => each instanceof RpcError && Number.isInteger(each.code) && typeof each.message === "string"))
  const all = [client.call("a"), client.call("b")]
  await until(() => socket.sent.at(-1).method === "b")
  socket.says({ id: null, error: { code: -32700, message: "Parse error" } })
  for (const each of all) await assert.rejects(each, { code: -32700 })
  client.close()
})

test("items without credit end their stream, with a cancel", async () => {
  const { client, socket } = await connected()
  const stream = client.stream("count", [], { credit: 2 })
  const first = stream.next()
  await until(() => socket.sent.length)
  const { id } = socket.sent[0]
  assert.equal(socket.sent[0].stream, 2)
  for (let value = 0; value < 50; value++) socket.says({ method: "$/item", params: { id, value } })
  assert.equal((await first).value, 0)
  const got = []
  await assert.rejects(async () => {
    for await (const item of stream) got.push(item)
  }, { code: -32600 })
  assert.ok(got.length <= 3)
  assert.deepEqual(socket.sent.at(-1).params, { id })
  assert.equal(socket.sent.at(-1).method, "$/cancelRequest")
  client.close()
  for (const credit of [0, -1, 1.5, Infinity, NaN, "2"]) assert.throws(() => client.stream("count", [], { credit }), RangeError)
})

test("events that nothing reads are dropped, and none come of what was not subscribed to", async () => {
  const { client, socket } = await connected()
  const subscription = client.subscribe("a.*", { maxQueue: 5 })
  const begun = subscription.begin()
  await until(() => socket.sent.length)
  socket.says({ method: "$/event", params: { topic: "a.0", value: "too early" } })
  socket.says({ id: socket.sent[0].id, result: {} })
  await begun
  for (let value = 0; value < 100; value++) socket.says({ method: "$/event", params: { topic: "a.b", value } })
  for (const topic of ["b.b", "a", "a.b.c", "", ".", "a..", "x".repeat(1e6)]) socket.says({ method: "$/event", params: { topic, value: "no" } })
  assert.equal(subscription.dropped, 95)
  const got = []
  for (let i = 0; i < 5; i++) got.push((await subscription.next()).value.value)
  assert.deepEqual(got, [95, 96, 97, 98, 99])
  client.close()
})

test("a server that calls too much is refused, and its streams are bounded", async () => {
  const methods = { wait: (params, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))), async take([items]) {
    for await (const item of items) if (item === 3) return item
  } }
  const { client, socket } = await connected({ methods, limits: { maxCalls: 10 } })
  for (let id = 0; id < 30; id++) socket.says({ id, method: "wait" })
  await until(() => socket.sent.length === 20)
  assert.ok(socket.sent.every(({ error }) => error.code === -32002))
  for (let id = 0; id < 30; id++) socket.says({ method: "$/cancelRequest", params: { id } })
  await until(() => socket.sent.length === 30)
  assert.ok(socket.sent.slice(20).every(({ error }) => error.code === -32800))
  const stream = (id) => ({ $type: "stream", id })
  socket.says({ id: "a", method: "take", params: [stream("s")] })
  await until(() => socket.sent.at(-1).method === "$/credit")
  const { n } = socket.sent.at(-1).params
  for (let value = 0; value < n; value++) socket.says({ method: "$/item", params: { stream: "s", value } })
  await until(() => socket.sent.some(({ id }) => id === "a"))
  assert.equal(socket.sent.find(({ id }) => id === "a").result, 3)
  for (const [id, params] of [["b", [stream(1)]], ["c", [stream("s"), stream("s")]], ["d", Array.from({ length: 20 }, (_, i) => stream(`s${i}`))]])
    socket.says({ id, method: "take", params })
  await until(() => ["b", "c", "d"].every((wanted) => socket.sent.some(({ id }) => id === wanted)))
  assert.deepEqual(["b", "c", "d"].map((wanted) => socket.sent.find(({ id }) => id === wanted).error.code), [-32602, -32602, -32002])
  // Ids come back as they were written.
  const ids = ["12345678901234567890", "null", '"1"', "-7"]
  for (const id of ids) socket.says(`{"jsonrpc":"2.0","id":${id},"method":"no"}`)
  socket.send = (data) => socket.sent.push(data)
  for (const id of ids) socket.says(`{"jsonrpc":"2.0","id":${id},"method":"no"}`)
  await until(() => ids.every((id) => socket.sent.some((each) => typeof each === "string" && each.includes(`"id":${id},`))))
  client.close()
})

test("calls of a server that is lost are cancelled, and nothing is said", async () => {
  const cancelled = []
  const { client, socket } = await connected({ methods: { wait: (params, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => {
    cancelled.push(signal.reason)
    reject(signal.reason)
  })) } })
  const [before, said] = [console.error, []]
  console.error = (error) => said.push(error)
  for (const id of [1, 2]) socket.says({ id, method: "wait" })
  await until(() => client.state === "open")
  await new Promise((resolve) => setTimeout(resolve, 10))
  socket.close()
  await until(() => cancelled.length === 2)
  await new Promise((resolve) => setTimeout(resolve, 10))
  console.error = before
  assert.deepEqual([said, socket.sent], [[], []])
  assert.ok(cancelled.every((reason) => reason instanceof ConnectionError))
  client.close()
})

test("a batch of requests is answered as one; one that is too large ends the connection", async () => {
  const { client, socket } = await connected({ methods: { twice: ([number]) => 2 * number } })
  socket.says(JSON.stringify([{ id: 1, method: "twice", params: [4] }, { method: "twice", params: [4] }, { id: 2, method: "no" }, 7]))
  await until(() => socket.sent.length === 1)
  assert.deepEqual(socket.sent[0].map(({ id, result, error }) => [id, result ?? error.code]), [[1, 8], [2, -32601]])
  socket.says(JSON.stringify(Array.from({ length: 1001 }, () => ({ method: "twice", params: [1] }))))
  await until(() => socket.isClosed)
  client.close()
})

test("a server that goes away: what it has not read is called again elsewhere", async () => {
  const { client, socket } = await connected()
  const [first, second] = [client.call("a"), client.call("b")]
  await until(() => socket.sent.length === 2)
  socket.says({ method: "$/goAway", params: { last: socket.sent[0].id } })
  await until(() => Fake.last !== socket && Fake.last.sent.length === 1)
  assert.equal(Fake.last.sent[0].method, "b")
  Fake.last.says({ id: Fake.last.sent[0].id, result: "second" })
  socket.says({ id: socket.sent[0].id, result: "first" })
  assert.deepEqual(await Promise.all([first, second]), ["first", "second"])
  socket.close()
  assert.equal(client.state, "open")
  for (let round = 0; round < 3; round++) {
    const third = client.call("c")
    const from = Fake.last
    await until(() => from.sent.at(-1).method === "c")
    from.says({ id: from.sent.at(-1).id, error: { code: -32800, message: "Cancelled", data: { executed: false } } })
    await until(() => from.sent.filter(({ method }) => method === "c").length === 2 + 2 * round)
    from.says({ id: from.sent.at(-1).id, result: round })
    assert.equal(await third, round)
  }
  client.close()
})

test("calls that are not idempotent are not made again", async () => {
  const { client, socket, call } = await calling("pay", { retries: 3, reconnect: { first: 1 } })
  socket.close()
  await until(() => Fake.last !== socket && Fake.last.sent.length === 1)
  assert.equal(Fake.last.sent[0].method, "rpc.discover")
  Fake.last.says({ id: Fake.last.sent[0].id, result: { methods: [{ name: "pay" }, null, { name: "get", "x-idempotent": true }] } })
  assert.ok((await call).error instanceof ConnectionError)
  client.close()
})

test("a time-out that the server notices first is a time-out; its own limit is its error", async () => {
  const { client, socket } = await connected()
  const ended = async (options, data, isStream) => {
    const call = isStream ? client.stream("wait", [], options).next() : client.call("wait", [], options)
    const outcome = call.catch((error) => error)
    const sent = socket.sent.length
    await until(() => socket.sent.length > sent)
    socket.says({ id: socket.sent.at(-1).id, error: { code: -32003, message: "Deadline exceeded", data } })
    return outcome
  }
  for (const isStream of [false, true]) {
    for (const data of [undefined, { method: "wait", timeout: 59.99 }])
      assert.ok((await ended({ timeout: 60_000 }, data, isStream)) instanceof CallTimeout)
    assert.equal((await ended({ timeout: 60_000 }, { timeout: 1 }, isStream)).code, -32003)
    assert.equal((await ended({}, { timeout: 1 }, isStream)).code, -32003)
  }
  client.close()
})

test("a server that is silent is given up", async () => {
  const { client, socket } = await connected({ keepalive: 40 })
  const call = client.call("wait", [], { idempotent: false })
  await assert.rejects(call, /silent/)
  assert.ok(socket.sent.some(({ method }) => method === "rpc.ping"))
  client.close()
  const { client: hurried } = await connected({ timeout: 20 })
  await assert.rejects(hurried.call("wait"), CallTimeout)
  hurried.close()
})

test("integers are exact wherever they stand, and nothing else is taken for one", async () => {
  const cases = [
    ["12345678901234567890", 12345678901234567890n], ["-9007199254740993", -9007199254740993n], ["9007199254740991", 9007199254740991],
    ["[12345678901234567890,-12345678901234567890]", [12345678901234567890n, -12345678901234567890n]],
    ["12345678901234567890.5", 12345678901234567890.5], ["0.12345678901234567890", 0.1234567890123456789], ["12345678901234567890e2", 12345678901234567890e2],
    ["1e0000000000000000002", 100], ["1e+0000000000000000002", 100], ["1e-0000000000000000002", 0.01], ["-1.0000000000000000001", -1],
    ['"12345678901234567890"', "12345678901234567890"], ['"\\\\"', "\\"], ['["\\"12345678901234567890", 12345678901234567890]', ['"12345678901234567890', 12345678901234567890n]],
    ['{"12345678901234567890": "\\\\", "a\\\\": 12345678901234567890}', { "12345678901234567890": "\\", "a\\": 12345678901234567890n }],
    ['["\\\\\\"", 12345678901234567890, "\\"", 1]', ['\\"', 12345678901234567890n, '"', 1]], [`"${"1".repeat(5000)}"`, "1".repeat(5000)],
    [`1${"0".repeat(4000)}`, 10n ** 4000n],
  ]
  for (const [text, wanted] of cases) {
    const { client, socket, call, id } = await calling()
    socket.says(`{"jsonrpc":"2.0", "id":${id} ,"result":${text}}`)
    assert.deepEqual((await call).result, wanted, text.slice(0, 80))
    client.close()
  }
  for (const text of ["012345678901234567890", "-", "12345678901234567890x", "+12345678901234567890", "--12345678901234567890", '12345678901234567890""']) {
    const { socket, call, id } = await calling()
    socket.says(`{"jsonrpc":"2.0","id":${id},"result":${text}}`)
    assert.ok((await call).error instanceof ConnectionError, text)
  }
})

test("long strings of any kind are read, and deep nesting is refused, without an overflow", async () => {
  for (const text of ["x".repeat(2e7), "\n".repeat(5e6), "1234567890".repeat(2e6), ",[{".repeat(5e6), '"\\'.repeat(3e6)]) {
    const { client, socket, call, id } = await calling()
    socket.says({ id, result: [text, 2 ** 53] })
    assert.ok((await call).result[0] === text)
    client.close()
  }
  const { socket, call, id } = await calling()
  socket.says(`{"jsonrpc":"2.0","id":${id},"result":${"[".repeat(450_000)}${"]".repeat(450_000)}}`)
  assert.ok((await call).error instanceof Error)
})
