// Each line behind such a comment is an error, or the comment is one.
import { Client, NdArray } from "rpcstream"

interface Api {
  add: { params: { a: number; b: number }; args: [number, number]; result: number; item: never }
  count: { params: { to: number }; args: [number]; result: number[]; item: number }
}

export async function wrong(client: Client<Api>): Promise<void> {
  // @ts-expect-error: no such method
  await client.call("ad", [1, 2])
  // @ts-expect-error: a wrong type
  await client.call("add", { a: 1, b: "2" })
  // @ts-expect-error: an argument is missing
  await client.call("add", { a: 1 })
  // @ts-expect-error: no arguments
  await client.call("add")
  // @ts-expect-error: one too many
  await client.call("add", [1, 2, 3])
  // @ts-expect-error: the result is a number
  const text: string = await client.call("add", [1, 2])
  // @ts-expect-error: it does not stream
  client.stream("add", [1, 2])
  // @ts-expect-error: no such option
  await client.call("add", [1, 2], { timeOut: 5 })
  // @ts-expect-error: the data is a typed array
  new NdArray("<f4", [2], [1, 2])
  // @ts-expect-error: only the client makes these
  client.state = "open"
  void text
}
