// amqplib against a running server: streams as AMQP 0-9-1 queues. Prints "ok NAME" for each part.
const assert = require("node:assert")
const { spawn } = require("node:child_process")
const { readFileSync, writeFileSync } = require("node:fs")
const { once } = require("node:events")
const path = require("node:path")
const amqp = require("amqplib")

const url = `amqp://guest:guest@localhost:${process.env.AMQP_PORT}`
const STREAM = { durable: true, arguments: { "x-queue-type": "stream", "x-stream-filter-size-bytes": 32 } }

async function withChannel(use, kind = "createChannel", options = {}) {
  const connection = await amqp.connect(url, options)
  connection.on("error", () => {})
  const channel = await connection[kind]()
  channel.on("error", () => {})
  try {
    return await use(channel, connection)
  } finally {
    await connection.close().catch(() => {})
  }
}

async function fill(queue, messages, options = () => ({})) {
  await withChannel(async (channel) => {
    await channel.assertQueue(queue, STREAM)
    messages.forEach((message, n) => channel.sendToQueue(queue, Buffer.from(message), options(n)))
    await channel.waitForConfirms()
  }, "createConfirmChannel")
}

// The first `count` messages, acknowledged one by one.
function take(queue, count, args, prefetch = 10) {
  return withChannel(async (channel) => {
    await channel.prefetch(prefetch)
    const found = []
    await new Promise((resolve, reject) => {
      channel
        .consume(
          queue,
          (message) => {
            found.push(message)
            channel.ack(message)
            if (found.length === count) resolve()
          },
          { arguments: args }
        )
        .catch(reject)
    })
    return found
  })
}

async function refused(action, code, pattern) {
  const error = await withChannel((channel, connection) =>
    new Promise((resolve) => {
      channel.on("error", resolve)
      connection.on("error", resolve)
      Promise.resolve(action(channel)).catch(resolve)
    })
  )
  assert.match(error.message, new RegExp(`${code}`))
  assert.match(error.message, pattern)
}

const text = (message) => message.content.toString()
const offset = (message) => message.properties.headers["x-stream-offset"]
const numbers = (count) => [...Array(count).keys()].map(String)

const parts = {
  async publish_and_confirm(queue) {
    await fill(queue, numbers(500))
    const found = await take(queue, 500, { "x-stream-offset": "first" })
    assert.deepStrictEqual(found.map(text), numbers(500))
    assert.deepStrictEqual(found.map(offset), numbers(500).map(Number))
  },

  async offsets(queue) {
    await fill(queue, numbers(100))
    const middle = await take(queue, 50, { "x-stream-offset": 50 })
    assert.deepStrictEqual(middle.map(text), numbers(100).slice(50))
    const now = Math.floor(Date.now() / 1000)
    const old = await take(queue, 100, { "x-stream-offset": { "!": "timestamp", value: now - 60 } })
    assert.deepStrictEqual(old.map(text), numbers(100))
    assert.deepStrictEqual((await take(queue, 100, { "x-stream-offset": "100s" })).map(text), numbers(100))
  },

  async filtering(queue) {
    const colours = ["red", "green", "blue"]
    const options = (n) => ({ headers: { "x-stream-filter-value": colours[n % 3], n } })
    await fill(queue, numbers(300), options)
    const wanted = { "x-stream-offset": "first", "x-stream-filter": ["green"] }
    const found = await take(queue, 100, wanted)
    assert(found.every((m) => m.properties.headers["x-stream-filter-value"] === "green"))
    const sql = { "x-stream-offset": "first", "x-stream-sql": "n BETWEEN 100 AND 109" }
    assert.deepStrictEqual((await take(queue, 10, sql)).map(offset), numbers(110).slice(100).map(Number))
  },

  async properties(queue) {
    const headers = { s: "text", i: 7, f: 1.5, b: true, nothing: null, data: Buffer.from([1, 2]) }
    const sent = {
      ...{ contentType: "a/b", contentEncoding: "gzip", correlationId: "c", replyTo: "r", messageId: "m" },
      ...{ timestamp: 1700000000, type: "t", appId: "a", userId: "guest", priority: 3, expiration: "60000" },
      headers,
    }
    await fill(queue, ["body"], () => ({ ...sent, persistent: true }))
    const [{ properties }] = await take(queue, 1, { "x-stream-offset": "first" })
    assert.strictEqual(properties.deliveryMode, 2)
    for (const [name, value] of Object.entries(sent)) {
      if (name !== "headers") assert.deepStrictEqual(properties[name], value, name)
    }
    const { data, "x-stream-offset": at, ...others } = properties.headers
    delete headers.data
    assert.deepStrictEqual({ ...others }, headers)
    assert.strictEqual(at, 0)
    assert.strictEqual(data.toString("latin1"), "\x01\x02") // bytes come back as text, as RabbitMQ does
  },

  async refusals(queue) {
    await fill(queue, ["one"])
    const consume = (channel, options) => channel.consume(queue, () => {}, options)
    await refused((c) => c.checkQueue("missing"), 404, /no queue 'missing'/)
    await refused((c) => c.assertQueue("classic"), 406, /x-queue-type=stream/)
    await refused((c) => consume(c, {}), 406, /prefetch/)
    await refused(async (c) => { await c.prefetch(1); return consume(c, { priority: 1 }) }, 406, /'x-priority'/)
    await refused(async (c) => { await c.prefetch(1); return consume(c, { noAck: true }) }, 540, /acknowledge/)
    await refused((c) => c.get(queue), 540, /basic.get/)
    const sql = { arguments: { "x-stream-sql": "n >" } }
    await refused(async (c) => { await c.prefetch(1); return consume(c, sql) }, 406, /\^/)
  },

  async deletion(queue) {
    await fill(queue, ["one"])
    await withChannel(async (channel) => {
      await channel.prefetch(10)
      const told = new Promise((resolve) => channel.consume(queue, (m) => m === null && resolve()))
      await withChannel((other) => other.deleteQueue(queue))
      await told
    })
  },

  async small_frames(queue) {
    await withChannel(async (channel) => {
      await channel.assertQueue(queue, STREAM)
      channel.sendToQueue(queue, Buffer.alloc(100_000, "x"))
      await channel.waitForConfirms()
    }, "createConfirmChannel", {})
    const connection = await amqp.connect(`${url}?frameMax=4096`)
    const channel = await connection.createChannel()
    await channel.prefetch(1)
    const [message] = await new Promise((resolve) =>
      channel.consume(queue, (m) => resolve([m]), { arguments: { "x-stream-offset": "first" } })
    )
    assert.strictEqual(message.content.length, 100_000)
    await connection.close()
  },

  // Messages to offset 19 were seen; those from 10 on were lost with the machine.
  async gap() {
    const queue = process.env.GAP_STREAM
    await withChannel(async (channel) => {
      numbers(3).forEach((message) => channel.sendToQueue(queue, Buffer.from(message)))
      await channel.waitForConfirms()
    }, "createConfirmChannel")
    for (const offset of [10, 15, 20]) {
      const found = await take(queue, 3, { "x-stream-offset": offset })
      assert.deepStrictEqual(found.map(text), numbers(3))
    }
  },

  async new_secret() {
    const connection = await amqp.connect(url)
    await connection.updateSecret(Buffer.from("new"), "because")
    await connection.close()
  },

  // The examples that come with the library, told nothing but where the server is.
  async stream_example() {
    const folder = path.join("node_modules", "amqplib", "examples", "stream_queues")
    const start = (name) => {
      const source = readFileSync(path.join(folder, name)).toString()
      writeFileSync(name, source.replaceAll("amqp://localhost", url))
      return spawn(process.execPath, [name], { stdio: ["ignore", "pipe", "inherit"] })
    }
    const sender = start("send_stream.js")
    await once(sender, "exit")
    const receiver = start("receive_stream.js")
    let printed = ""
    for await (const data of receiver.stdout) {
      printed += data
      if (printed.includes("Received 'Hello World!")) break
    }
    receiver.kill()
  },
}

async function main() {
  for (const [name, part] of Object.entries(parts)) {
    await part(`amqplib-${name}`)
    console.log(`ok ${name}`)
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error)
    process.exit(1)
  }
)
