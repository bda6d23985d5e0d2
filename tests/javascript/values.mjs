// Arrays of every dtype, images of every mode, and numbers, both ways, compared by numpy and Pillow.
import { assert, Complex, connect, inSlices, NdArray, RpcImage, test } from "./common.mjs"

const [url, given] = process.argv.slice(2)
const { dtypes, modes, text } = JSON.parse(given)
const { client, messages } = connect(url)

/** As `numbers` of service.py writes an item. */
function asText(item) {
  if (item instanceof Complex) return [asText(item.real), asText(item.imag)]
  if (typeof item === "bigint") return `${item}`
  if (typeof item === "boolean") return `${+item}`
  return item
}

/** The number of Python's `float.hex()`. */
function fromHex(written) {
  const [, sign, whole, fraction, exponent] = /^(-?)0x([01])\.([0-9a-f]+)p([+-]\d+)$/.exec(written) ?? []
  if (whole === undefined) return { nan: NaN, inf: Infinity, "-inf": -Infinity }[written]
  const size = parseInt(whole + fraction, 16) * 2 ** (-4 * fraction.length)
  const power = Number(exponent)
  return (sign ? -1 : 1) * size * 2 ** Math.trunc(power / 2) * 2 ** (power - Math.trunc(power / 2))
}

function assertSame(got, wanted, dtype) {
  if (Array.isArray(wanted)) return wanted.forEach((each, i) => assertSame(got[i], each, dtype))
  if (typeof got === "string" || /[iub]/.test(dtype.slice(1, 2)) && !dtype.includes("float")) assert.equal(`${got}`, wanted, dtype)
  else assert.ok(Object.is(got, fromHex(wanted)), `${dtype}: ${got} is not ${wanted}`)
}

test("every dtype", async () => {
  for (const shape of [[2, 128], [256, 0], [], [9, 1, 641]]) {
    for (const dtype of dtypes) {
      const array = await client.call("make", [dtype, shape])
      assert.ok(array instanceof NdArray)
      assert.equal(array.dtype, dtype.replace(">", "<"))
      assert.deepEqual(array.shape, shape)
      assert.equal(array.size, shape.reduce((a, b) => a * b, 1))
      assert.equal(await client.call("is_same", { dtype, shape, array }), true, `${dtype} [${shape}]`)
      if (array.size === 256) {
        const wanted = await client.call("numbers_of", [dtype, shape])
        assertSame(array.values().map(asText), wanted, dtype)
        assert.deepEqual(array.toArray().flat(), array.values())
        assert.equal(array.toArray().length, 2)
      }
    }
  }
  assert.equal(messages.some(({ binary }) => binary), !text)
})

test("arrays are made of lists and of typed arrays", async () => {
  const echo = async (value) => client.call("echo", [value])
  assert.deepEqual((await echo(NdArray.from([[1, 2], [3, 4], [5, 6]], "int16"))).toArray(), [[1, 2], [3, 4], [5, 6]])
  assert.deepEqual((await echo(NdArray.from([1, -2.5, 65519, 65520, 2 ** -24, 2 ** -25, 2 ** -14 * 0.9999, NaN, -0], "<f2"))).values(),
    [1, -2.5, 65504, Infinity, 2 ** -24, 0, 2 ** -14, NaN, -0])
  assert.deepEqual((await echo(NdArray.from([true, false], "bool"))).values(), [true, false])
  assert.deepEqual((await echo(NdArray.from([1n, 2], "<i8"))).values(), [1n, 2n])
  assert.deepEqual((await echo(NdArray.from([new Complex(1, -1), 2], "complex64"))).values(), [new Complex(1, -1), new Complex(2, 0)])
  assert.equal((await echo(NdArray.from(7, "<f4"))).toArray(), 7)
  assert.deepEqual((await echo(new Float32Array([1.5, 2]))).values(), [1.5, 2])
  assert.deepEqual((await echo(new BigUint64Array([2n ** 64n - 1n]))).values(), [2n ** 64n - 1n])
  const part = new Float64Array([0, 1, 2, 3]).subarray(1, 3)
  assert.deepEqual((await echo(new NdArray("float64", [2, 1], part))).toArray(), [[1], [2]])
})

test("arrays that make no sense are refused here", () => {
  assert.throws(() => new NdArray("<f4", [3], new Float32Array(2)), TypeError)
  assert.throws(() => new NdArray("<f4", [2], new Float64Array(2)), TypeError)
  assert.throws(() => new NdArray("<f4", [-1, -2], new Float32Array(2)), TypeError)
  for (const dtype of ["f4", "|f4", "<b1", "<U4", "|O", "<f16", "<i8[ns]", "<c4", "constructor", "__proto__", "<V2", undefined])
    assert.throws(() => new NdArray(dtype, [0], new Float32Array(0)), /dtype/, dtype)
  assert.throws(() => NdArray.from([[1, 2], [3]]), /lists/)
  assert.throws(() => NdArray.from([1], "bfloat16"), /bits/)
})

test("images of every mode", async () => {
  for (const mode of modes) {
    const image = await client.call("picture", [mode])
    assert.ok(image instanceof RpcImage && image instanceof Blob)
    assert.equal(await client.call("is_picture", { mode, image }), true, mode)
    const isPng = image.type === "image/png"
    assert.equal(isPng, ["1", "L", "LA", "RGB", "RGBA", "I;16"].includes(mode))
    if (image.mode !== undefined) assert.deepEqual([image.mode, image.width, image.height], [mode, 33, 17])
    if (!isPng) continue
    // The file that was made of raw pixels is one that Pillow reads, with the same pixels.
    const file = new Blob([await image.arrayBuffer()], { type: "image/png" })
    if (mode !== "I;16") assert.equal(await client.call("is_picture", { mode, image: file }), true, mode)
    assert.deepEqual((await client.call("image_numbers", [file])).sum, (await client.call("image_numbers", [image])).sum)
  }
})

test("images of raw pixels are made PNG files when they are wanted", async () => {
  const { client: calm } = connect(url, { limits: { maxPngPixels: 33 * 17 - 1 } })
  for (const mode of modes) {
    const image = await calm.call("picture", [mode])
    if (image.format !== "raw") continue
    assert.equal(image.type, "application/octet-stream")
    assert.equal(await client.call("is_picture", { mode, image }), true, mode)
    const whole = await client.call("picture", [mode])
    if (whole.type !== "image/png") await assert.rejects(image.toPng(), TypeError)
    else {
      assert.deepEqual(await (await image.toPng()).arrayBuffer(), await whole.arrayBuffer(), mode)
      assert.equal(await whole.toPng(), whole)
    }
  }
})

test("work in slices lets others run", async () => {
  const seen = []
  const timer = setInterval(() => seen.push("other"), 1)
  const result = await inSlices((function* () {
    for (const end = performance.now() + 100; performance.now() < end; ) yield
    return 7
  })())
  clearInterval(timer)
  assert.equal(result, 7)
  assert.ok(seen.length > 1)
  await assert.rejects(inSlices((function* () { throw new TypeError("no") })()), TypeError)
})

test("bytes, complex numbers, integers, and what JSON has", async () => {
  const echo = async (value) => client.call("echo", [value])
  for (const size of [0, 1, 2, 3, 5000, 100_001]) {
    const bytes = Uint8Array.from({ length: size }, (_, i) => (i * 7) % 256)
    assert.deepEqual(await echo(bytes), bytes)
    assert.deepEqual(await echo({ in: [bytes.buffer] }), { in: [bytes] })
  }
  for (const number of [0n, 2n ** 53n, -(2n ** 63n), 2n ** 64n, 10n ** 300n]) {
    const got = await echo({ deep: [number] })
    assert.equal(BigInt(got.deep[0]), number)
    assert.equal(typeof got.deep[0], number === 0n ? "number" : "bigint")
  }
  const kept = [Number.MAX_SAFE_INTEGER, -5, 1.5, 1e300, 0.1234567890123456789, "", "1234567890123456789", '"12345678901234567890"\\', "\u2028ä😀", true, null]
  assert.deepEqual(await echo(kept), kept)
  assert.deepEqual(await echo([...kept, 2n ** 60n]), [...kept, 2n ** 60n])
  for (const parts of [[1, -2], [NaN, Infinity], [-Infinity, -0]]) assert.deepEqual(await echo(new Complex(...parts)), new Complex(...parts))
  const special = [NaN, Infinity, -Infinity, { deep: [NaN, 1.5] }]
  assert.deepEqual(await echo(special), special)
  assert.equal(await client.call("half", [-Infinity]), -Infinity)
  assert.deepEqual(await echo([undefined, new Set([1])]), [null, [1]])
  const odd = JSON.parse('{"__proto__": {"a": 12345678901234567890}, "constructor": 1, "$type": "unknown"}')
  odd["__proto__"].a = 12345678901234567890n
  assert.deepEqual(await echo(odd), odd)
  assert.deepEqual(await echo(new Date(0)), "1970-01-01T00:00:00.000Z")
  const bin = { $bin: 0, data: new Float64Array(1000) }
  assert.equal((await echo(bin)).data.size, 1000)
  assert.equal((await echo(new Blob(["text"]))).length, 4)
  await assert.rejects(echo(() => 1), TypeError)
  const loop = []
  loop.push(loop)
  await assert.rejects(echo(loop), /deeper/)
})

test("a stream of Arrow, or what looks like one, keeps its form", async () => {
  const table = { $type: "arrow", kind: "table", data: new Uint8Array(5000).fill(7) }
  assert.equal(await client.call("echo", [table]).catch((error) => error.code), -32602)
})
