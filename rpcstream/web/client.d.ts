/** Types of client.js, the JavaScript client of rpcstream. Times are in milliseconds. */

/** One method of a server: its params by name and by position, its result, and the items of its stream. */
export interface MethodType {
  params: object
  args: readonly unknown[]
  result: unknown
  item: unknown
}

/** A server of which nothing is known: every method, with every value. */
export type AnyApi = Record<string, { params: any; args: any; result: any; item: any }>

/** What follows the name of a method: its params, which may be left out where none is required, and options. */
export type ParamsOf<M extends MethodType, Options> = {} extends M["params"]
  ? [params?: M["params"] | M["args"], options?: Options]
  : [params: M["params"] | M["args"], options?: Options]

/** The methods of an interface, as `rpcstream --stubs typescript` writes it. */
type Method<Api, K extends keyof Api> = Api[K] extends MethodType ? Api[K] : AnyApi[string]

/** The names of the methods that stream. */
export type Streaming<Api> = { [K in keyof Api]: [Method<Api, K>["item"]] extends [never] ? never : K }[keyof Api] &
  string

export type TypedArray =
  | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | BigInt64Array | BigUint64Array
  | Float32Array | Float64Array

/** A value of an array. */
export type Item = number | bigint | boolean | Complex

/** Lists in lists, as deep as an array has dimensions. */
export type Nested<T> = T | Nested<T>[]

/** An array of numpy. */
export class NdArray<Data extends TypedArray = TypedArray> {
  /** Throws TypeError where the dtype does not go over the wire, or the data is not what dtype and shape say. */
  constructor(dtype: string, shape: readonly number[], data: Data)
  /** An array of a typed array, or of (nested) lists of numbers, by default of "<f8". */
  static from(values: TypedArray | Uint8ClampedArray | Nested<Item>, dtype?: string, shape?: readonly number[]): NdArray
  /** As on the wire: "<f4", "|u1", "<M8[ns]", "bfloat16". */
  readonly dtype: string
  readonly shape: readonly number[]
  /**
   * The items in C order: two numbers for a complex one; of float16 a Float16Array where the engine has that, else the
   * bits in a Uint16Array, as of bfloat16; of float8 the bits in a Uint8Array.
   */
  readonly data: Data
  /** Number of items. */
  readonly size: number
  /** All items in a flat list. */
  values(): Item[]
  /** The items as nested lists; the one of an array without dimensions alone. */
  toArray(): Nested<Item>
}

/** A complex number. */
export class Complex {
  constructor(real: number, imag: number)
  readonly real: number
  readonly imag: number
}

/**
 * An image that has come: a Blob of its file. One that came as raw pixels is made a PNG file where PNG has its mode (1, L,
 * LA, RGB, RGBA, I;16) and `maxPngPixels` allows it, and else has the type "application/octet-stream".
 */
export class RpcImage extends Blob {
  private constructor()
  /** "png", "jpeg"..., or "raw". */
  readonly format: string
  /** Of raw pixels, as Pillow names it; undefined for a file. */
  readonly mode?: string
  readonly width?: number
  readonly height?: number
  /** Of raw pixels: row by row, as Pillow's `tobytes()`. */
  readonly pixels?: Uint8Array
  /** Of a file: its bytes. */
  readonly file?: Uint8Array
  /** The PNG file of raw pixels, made in slices. Rejects with TypeError for files, and for modes that PNG has not. */
  toPng(): Promise<Blob>
}

/** Run a generator to its end in slices of 12 ms, between which a page answers to its user; gives what it returns. */
export function inSlices<T>(work: Generator<unknown, T>): Promise<T>

/** What an image arrives as. */
export type ImageResult = RpcImage

/**
 * What an image may be sent as: a file (its `type` begins with "image/"), or what a browser can draw: ImageData,
 * ImageBitmap, a canvas, an <img>.
 */
export type ImageInput = Blob | { readonly width: number; readonly height: number }

/** The error object of a reply (JSON-RPC 2.0, section 5.1). A method that the server calls throws it to answer so. */
export class RpcError extends Error {
  constructor(code: number, message: string, data?: unknown)
  readonly code: number
  readonly data: any
  /** The called method. */
  readonly method?: string
  /** False where the server says that the call was not begun; else undefined. */
  readonly executed: false | undefined
}

/** There is no connection: it could not be made, or it was lost before the reply. */
export class ConnectionError extends Error {
  /** False: the call was not begun. */
  readonly executed?: false
  /** Of an HTTP response without a reply. */
  readonly status?: number
}

/** The time of a call was over before its reply. */
export class CallTimeout extends Error {}

/** A message on the wire. */
export interface Message {
  direction: "in" | "out"
  /** The JSON; of a binary frame without its payloads. A token is not shown. */
  text: string
  /** Its size on the wire. */
  bytes: number
  /** Whether it came in bytes: a binary frame. */
  binary: boolean
}

export interface CallContext {
  method: string
  /** Of the request; undefined for a notification. */
  id?: string | number | bigint | null
  /** Aborted when the server cancels the call, and when the connection is lost. */
  signal: AbortSignal
  /** Send the server a progress message. */
  progress(value: unknown): void
}

/** A method that the server may call. What it returns is the result; async iterables stream. */
export type Handler = (params: any, context: CallContext) => unknown

export interface Limits {
  /** Characters or bytes of a message that comes; a longer one ends the connection. 64 MiB. */
  maxMessageSize?: number
  /** Nesting of arrays and objects. 128. */
  maxDepth?: number
  /** Values of a message. 1,000,000. */
  maxValues?: number
  /** Requests of a batch of the server's. 1000. */
  maxBatch?: number
  /** Calls of the server's that run here, and streams among their arguments. 1024. */
  maxCalls?: number
  /** Raw images with more pixels are not made a PNG file when they arrive; `toPng()` makes it. Default: no limit. */
  maxPngPixels?: number
}

export interface ClientOptions {
  /** Authenticates the client; or a function that gives the token for each connection. */
  token?: string | (() => string | undefined | Promise<string | undefined>)
  /**
   * Whether large payloads travel as bytes where the server reads these. Default true: the first one travels as base64,
   * and the server is asked then. "first": it is asked before the first call. false: always base64.
   */
  binary?: boolean | "first"
  /** What the server may call: handlers by name, or a function that gives the handler of a name. */
  methods?: Record<string, Handler> | ((method: string) => Handler | undefined)
  /** Keep the connection: made again when it is lost, with pauses that grow. Default false: made by the next call. */
  reconnect?: boolean | { first?: number; longest?: number; factor?: number }
  /** Milliseconds that a call may take, connecting included. Default 60,000; 0: no limit. */
  timeout?: number
  /** Milliseconds that making a connection may take. Default 10,000. */
  connectTimeout?: number
  /** How often a call is made again that was lost and is idempotent: `idempotent` of the call, or as the server says. Default 3. */
  retries?: number
  /** Milliseconds without a byte of the server, after a ping in the middle, after which the connection is closed. Default: none. */
  keepalive?: number
  /** The class to make WebSockets with, in place of the global one: that of the package `ws`, for Node.js 20. */
  WebSocket?: new (url: string | URL) => any
  limits?: Limits
  /** Called on each new connection before all other calls, for example to register at a hub. */
  onConnect?(connection: { call(method: string, params?: unknown): Promise<any> }): unknown
  /** Called with each message on the wire. */
  onMessage?(message: Message): unknown
  onState?(state: "connecting" | "open" | "closed"): unknown
  /** An attempt to connect failed; the next one begins after `wait` milliseconds. */
  onRetry?(wait: number): unknown
}

export interface CallOptions {
  /** Cancels the call. */
  signal?: AbortSignal
  /** Milliseconds; the server is told. Default: that of the client. */
  timeout?: number
  /** Called with each progress message. */
  onProgress?(value: any): unknown
  /** The call may be made again when it is unknown whether it was carried out. Default: as the server says. */
  idempotent?: boolean
}

export interface StreamOptions extends CallOptions {
  /** Items that may be under way or wait here at once. Default 16. */
  credit?: number
  /** Called with the number of items that the server may still send, whenever it changes. */
  onCredit?(credit: number): unknown
}

/** The items of a call that streams. Leaving the loop early cancels the call. For one reader. */
export interface Stream<T = any> extends AsyncIterableIterator<T> {
  /** What the generator returned; undefined until the stream has ended. */
  readonly result: any
}

/** The events of a topic or pattern, for one reader. Ends with its loop, with `return()`, and with the client. */
export interface Subscription<T = any> extends AsyncIterableIterator<{ topic: string; value: T }> {
  /** Wait until the server has confirmed it: all values that are published from then on arrive. */
  begin(): Promise<void>
  /** Events that were dropped since the reader was too slow. */
  readonly dropped: number
  /** How often it was made again on a new connection; the events between are missing. */
  readonly reconnects: number
}

/** A call of a batch. */
export type BatchEntry = [method: string, params?: any, options?: { notify?: boolean }]

/**
 * Calls methods of a server. Params are an object (by name) or an array (by position); an async iterable among them is
 * sent as a stream.
 */
export class Client<Api = AnyApi> {
  /** `url`: HOST:PORT, ws:, wss:, http: or https:; in a page it may be relative, and left out for the WebSocket of its own server. */
  constructor(url?: string | URL, options?: ClientOptions)
  readonly url: URL
  readonly state: "connecting" | "open" | "closed"
  /** Call a method. Rejects with RpcError, ConnectionError, CallTimeout, or the reason of the signal. */
  call<K extends keyof Api & string>(
    method: K,
    ...rest: ParamsOf<Method<Api, K>, CallOptions>
  ): Promise<Method<Api, K>["result"]>
  /** Send a notification, which has no reply. Resolves when it is sent. */
  notify<K extends keyof Api & string>(
    method: K,
    ...rest: ParamsOf<Method<Api, K>, Pick<CallOptions, "signal" | "timeout">>
  ): Promise<void>
  /** The items of a method that streams, as they come. */
  stream<K extends Streaming<Api>>(
    method: K,
    ...rest: ParamsOf<Method<Api, K>, StreamOptions>
  ): Stream<Method<Api, K>["item"]>
  /** Send several calls as one message; gives their results, in place of each that failed its RpcError. */
  batch(calls: BatchEntry[], options?: CallOptions): Promise<any[]>
  /** The events of a topic or pattern. Not over HTTP. */
  subscribe<T = any>(pattern: string, options?: { signal?: AbortSignal; maxQueue?: number }): Subscription<T>
  /** Send an event to the subscribers of a topic of a hub; gives the number of connections that it is sent to. */
  publish(topic: string, value: unknown, options?: CallOptions & { retain?: boolean }): Promise<number>
  /** The OpenRPC document of the server's methods. */
  discover(options?: CallOptions): Promise<any>
  /** Connect now; else the first call does. */
  connect(): Promise<void>
  /** Close the connection: calls that wait fail, subscriptions end. */
  close(): void
}
