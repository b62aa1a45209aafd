// rhea against a running server: streams over AMQP 1.0. Prints "ok NAME" for each part.
const assert = require("node:assert")
const { readFileSync } = require("node:fs")
const { once } = require("node:events")
const rhea = require("rhea")

const PLAIN = { host: "localhost", port: process.env.AMQP_PORT }
const OFFSET = "rabbitmq:stream-offset-spec"
const { types } = rhea

async function withConnection(use, options = PLAIN) {
  const container = rhea.create_container()
  const login = { username: "guest", password: "guest", reconnect: false }
  const connection = container.connect({ ...login, ...options })
  await once(connection, "connection_open")
  try {
    return await use(connection)
  } finally {
    connection.close()
    await once(connection, "connection_close")
  }
}

const pairs = new WeakMap()

// The link pair of the management node, one for each connection.
async function pairOf(connection) {
  if (!pairs.has(connection)) {
    const end = { address: "/management" }
    const paired = { name: "pair", properties: { paired: true }, snd_settle_mode: 1, source: end, target: end }
    const answers = connection.open_receiver(paired)
    await once(answers, "receiver_open") // and with it there is credit for answers, before the first request
    const requests = connection.open_sender(paired)
    await once(requests, "sendable")
    pairs.set(connection, { answers, requests })
  }
  return pairs.get(connection)
}

async function request(connection, method, path, body = null) {
  const { answers, requests } = await pairOf(connection)
  const answered = once(answers, "message")
  requests.send({ message_id: 7, to: path, subject: method, reply_to: "$me", body })
  const [{ message }] = await answered
  assert.strictEqual(message.correlation_id, 7)
  return [message.subject, message.body]
}

async function create(connection, name) {
  await request(connection, "DELETE", `/queues/${name}`)
  const args = { "x-queue-type": "stream", "x-stream-filter-size-bytes": 32 }
  const [status, shown] = await request(connection, "PUT", `/queues/${name}`, { arguments: args })
  assert.strictEqual(status, "201")
  assert.strictEqual(shown.type, "stream")
}

// Publishes as far as there is credit, and resolves with the outcome of each message.
function publish(connection, address, messages) {
  return new Promise((resolve, reject) => {
    const sender = connection.open_sender({ target: { address } })
    const places = new Map()
    const outcomes = []
    let sent = 0
    sender.on("sender_error", () => reject(sender.error))
    sender.on("sendable", () => {
      while (sender.sendable() && sent < messages.length) {
        places.set(sender.send(messages[sent]).id, sent)
        sent += 1
      }
    })
    for (const outcome of ["accepted", "released", "rejected"]) {
      sender.on(outcome, ({ delivery }) => {
        outcomes[places.get(delivery.id)] = outcome
        places.delete(delivery.id)
        if (sent === messages.length && places.size === 0) {
          sender.close()
          sender.once("sender_close", () => resolve(outcomes))
        }
      })
    }
  })
}

// The first `count` messages, and the link's source as the server describes it.
async function take(connection, name, count, filter, options = {}) {
  const receiver = connection.open_receiver({
    source: { address: `/queues/${name}`, filter }, credit_window: 0, autoaccept: false, ...options,
  })
  await once(receiver, "receiver_open")
  const found = []
  const complete = new Promise((resolve) => {
    receiver.on("message", ({ message, delivery }) => {
      found.push(message)
      if (!delivery.remote_settled) delivery.accept()
      if (found.length === count) resolve()
    })
  })
  receiver.add_credit(count)
  await complete
  const source = receiver.source
  receiver.close()
  await once(receiver, "receiver_close")
  return { found, source }
}

const described = (name, value) => ({ [name]: types.wrap_described(value, name) })
const from = (value) => described(OFFSET, value)
const FIRST = from("first")
const text = (message) => message.body.content.toString()
const offset = (message) => Number(message.message_annotations["x-stream-offset"])
const range = (first, last) => [...Array(last - first).keys()].map((n) => first + n)

function numbers(count) {
  return range(0, count).map((n) => ({
    body: rhea.message.data_section(Buffer.from(`${n}`)),
    application_properties: { n, colour: ["red", "green", "blue"][n % 3] },
    message_annotations: { "x-stream-filter-value": ["red", "green", "blue"][n % 3] },
  }))
}

const parts = {
  async publish_and_confirm(connection) {
    await create(connection, "confirmed")
    const outcomes = await publish(connection, "/queues/confirmed", numbers(500))
    assert.deepStrictEqual(outcomes, Array(500).fill("accepted"))
    for (const snd_settle_mode of [0, 1]) {
      const { found } = await take(connection, "confirmed", 500, FIRST, { snd_settle_mode })
      assert.deepStrictEqual(found.map(text), range(0, 500).map(String))
      assert.deepStrictEqual(found.map(offset), range(0, 500))
    }
  },

  async offsets(connection) {
    await create(connection, "offsets")
    await publish(connection, "/queues/offsets", numbers(20))
    const after = async (value) => (await take(connection, "offsets", 2, from(value))).found.map(offset)
    assert.deepStrictEqual(await after(types.wrap_ulong(10)), [10, 11])
    assert.deepStrictEqual(await after(types.wrap_timestamp(Date.now() - 3_600_000)), [0, 1])
    assert.deepStrictEqual(await after(types.wrap_symbol("first")), [0, 1])
  },

  async filtering(connection) {
    await create(connection, "filtered")
    await publish(connection, "/queues/filtered", numbers(30))
    const value = described("rabbitmq:stream-filter", ["green"])
    const sql = { "sql-filter": types.wrap_described("colour = 'green' AND n > 20", "amqp:sql-filter") }
    const green = await take(connection, "filtered", 3, { ...FIRST, ...value, ...sql })
    assert.deepStrictEqual(green.found.map(offset), [22, 25, 28])
    assert.deepStrictEqual(Object.keys(green.source.filter).length, 3)
    const name = "amqp:application-properties-filter"
    const wanted = described(name, { colour: "&s:ue", n: types.wrap_double(5) })
    assert.deepStrictEqual((await take(connection, "filtered", 1, { ...FIRST, ...wanted })).found.map(offset), [5])
    const wrong = { "sql-filter": types.wrap_described("n >", "amqp:sql-filter") }
    const all = await take(connection, "filtered", 30, { ...FIRST, ...wrong })
    assert.deepStrictEqual(Object.keys(all.source.filter), [OFFSET])
  },

  async messages(connection) {
    await create(connection, "messages")
    const large = Buffer.alloc(1_000_000, "large")
    const sent = [
      { body: { a: [1, "b", null] }, subject: "value" },
      { body: rhea.message.sequence_section([1, "a", true]) },
      { body: rhea.message.data_sections([Buffer.from("a"), Buffer.from("bc")]) },
      { body: rhea.message.data_section(large) },
      { body: "", message_id: types.wrap_ulong(5), group_sequence: 3, creation_time: new Date(5_000) },
    ]
    const outcomes = await publish(connection, "/queues/messages", sent)
    assert.deepStrictEqual(outcomes, Array(5).fill("accepted"))
    const { found } = await take(connection, "messages", 5, FIRST)
    assert.deepStrictEqual([found[0].body, found[0].subject], [sent[0].body, "value"])
    assert.deepStrictEqual(found[1].body.content, [1, "a", true])
    assert.deepStrictEqual(found[2].body.content.map(String), ["a", "bc"])
    assert(found[3].body.content.equals(large))
    assert.deepStrictEqual([found[4].body, found[4].message_id, found[4].group_sequence], ["", 5, 3])
  },

  async routing(connection) {
    await create(connection, "routed")
    await request(connection, "PUT", "/exchanges/news", { type: "topic" })
    const binding = { source: "news", destination_queue: "routed", binding_key: "eu.#", arguments: {} }
    assert.deepStrictEqual(await request(connection, "POST", "/bindings", binding), ["204", null])
    const [one] = numbers(1)
    assert.deepStrictEqual(await publish(connection, "/exchanges/news/eu.de", [one]), ["accepted"])
    assert.deepStrictEqual(await publish(connection, "/exchanges/news/us", [one]), ["released"])
    const to = ["/queues/routed", "/exchanges/none/k", "/topic/old"].map((to) => ({ ...one, to }))
    const outcomes = await publish(connection, null, [...to, one])
    assert.deepStrictEqual(outcomes, ["accepted", "rejected", "rejected", "rejected"])
    const copied = { ...one, message_annotations: { "x-cc": ["eu.fr"] } }
    assert.deepStrictEqual(await publish(connection, "/exchanges/news/us", [copied]), ["accepted"])
    const { found } = await take(connection, "routed", 3, FIRST)
    assert.strictEqual(found[0].message_annotations["x-routing-key"], "eu.de")
    await request(connection, "DELETE", "/exchanges/news")
  },

  async credit(connection) {
    await create(connection, "credit")
    await publish(connection, "/queues/credit", numbers(5))
    const receiver = connection.open_receiver({
      source: { address: "/queues/credit", filter: FIRST }, credit_window: 0, autoaccept: false,
    })
    const found = []
    receiver.on("message", ({ message, delivery }) => {
      found.push(offset(message))
      delivery.release()
    })
    receiver.add_credit(100)
    receiver.drain_credit()
    await once(receiver, "receiver_drained")
    assert.deepStrictEqual(found, range(0, 5))
    assert.strictEqual(receiver.credit, 0)
    receiver.drain = false
    receiver.add_credit(1)
    const sixth = once(receiver, "message")
    await Promise.all([sixth, publish(connection, "/queues/credit", numbers(2))])
    assert.deepStrictEqual(found, range(0, 6))
    receiver.close()
  },

  async refusals() {
    const expect = (open, condition) => withConnection(async (connection) => {
      const link = open(connection)
      const refused = new Promise((resolve) => {
        for (const event of ["sender_error", "receiver_error"]) link.once(event, () => resolve(link.error))
        connection.once("session_error", ({ session }) => resolve(session.error))
      })
      assert.strictEqual((await refused).condition, condition)
    })
    await expect((c) => c.open_receiver("/queues/missing"), "amqp:not-found")
    await expect((c) => c.open_sender("/queues/missing"), "amqp:not-found")
    await expect((c) => c.open_sender("/topic/old"), "amqp:invalid-field")
    const wrong = from("somewhere")
    await withConnection((c) => create(c, "there"))
    await expect((c) => c.open_receiver({ source: { address: "/queues/there", filter: wrong } }), "amqp:precondition-failed")
  },

  async deletion(connection) {
    await create(connection, "deleted")
    const receiver = connection.open_receiver({ source: { address: "/queues/deleted" } })
    const sender = connection.open_sender("/queues/deleted")
    await Promise.all([once(receiver, "receiver_open"), once(sender, "sendable")])
    const closed = Promise.all([once(receiver, "receiver_error"), once(sender, "sender_error")])
    await withConnection((other) => request(other, "DELETE", "/queues/deleted"))
    await closed
    assert.strictEqual(receiver.error.condition, "amqp:resource-deleted")
    assert.strictEqual(sender.error.condition, "amqp:resource-deleted")
  },

  async tls() {
    const options = { port: process.env.AMQP_TLS_PORT, transport: "tls", ca: readFileSync(process.env.CA_FILE) }
    await withConnection(async (connection) => {
      await create(connection, "inside")
      await publish(connection, "/queues/inside", numbers(5))
      assert.strictEqual((await take(connection, "inside", 5, FIRST)).found.length, 5)
    }, { host: "localhost", ...options })
  },
}

async function main() {
  for (const [name, part] of Object.entries(parts)) {
    if (name === "tls" && !process.env.AMQP_TLS_PORT) continue
    await withConnection(part)
    console.log(`ok ${name}`)
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error)
  process.exit(1)
})
