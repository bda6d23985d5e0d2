// At a hub: a page offers methods, another calls them, and both hear of events.
import { assert, connect, NdArray, sockets, test, until, upTo } from "./common.mjs"

const [url] = process.argv.slice(2)

test("methods of one page are called by another, also behind a lost connection", async () => {
  const methods = { double: ({ values }) => NdArray.from(values.data.map((item) => 2 * item)), numbers: ([n]) => upTo(n) }
  const onConnect = ({ call }) => call("rpc.register", { name: "page", methods: ["double", "numbers"] })
  const { client: page } = connect(url, { methods, onConnect, reconnect: { first: 10 } })
  await page.connect()
  const socket = sockets.at(-1)
  const { client } = connect(url)
  const values = NdArray.from(Float32Array.from({ length: 5000 }, (_, i) => i))
  for (let i = 0; i < 3; i++) assert.equal((await client.call("double", { values })).data[4999], 2 * 4999)
  const got = []
  for await (const item of client.stream("page.numbers", [100])) got.push(item)
  assert.equal(got.length, 100)
  const left = client.subscribe("rpc.hub.left")
  await left.begin()
  socket.close()
  assert.equal((await left.next()).value.value.name, "page")
  await until(() => page.state === "open" && sockets.length === 3)
  assert.equal((await client.call("double", { values })).size, 5000)
  const events = page.subscribe("news.>")
  await events.begin()
  assert.equal(await client.publish("news.a", values, { retain: true }), 1)
  assert.equal((await events.next()).value.value.size, 5000)
  const late = client.subscribe("news.a")
  assert.equal((await late.next()).value.value.size, 5000)
})
