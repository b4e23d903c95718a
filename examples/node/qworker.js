// A client of qworker for Node: it sends, receives and settles. Written from docs/protocol.md.
//
//   const { connect } = require('./qworker.js')
//   const queue = (await connect({ url: 'redis://localhost' })).queue('shop', 'emails')
//   await queue.send({ task: 'send_email', args: ['ada@example.org'] })
//   await queue.work(async (message) => console.log(message.json()), { signal })
'use strict'

const { createHash, randomBytes } = require('node:crypto')
const { readFileSync } = require('node:fs')
const { hostname } = require('node:os')
const path = require('node:path')
const { setTimeout: sleep } = require('node:timers/promises')
const { createClient, ErrorReply, RESP_TYPES } = require('redis')

const SCRIPTS = process.env.QWORKER_SCRIPTS ?? path.join(__dirname, '..', '..', 'docs', 'scripts')
const GIVE_UP_MS = 60_000
const HEADER = /^q1 ([\w.-]+) (\d+) (\d+) (\d+) (\d+) (\d+)((?: .*)?)$/

/** A script refused the call; nothing was written. `code` is the first word of its reply: FULL, PAUSED, TOOLARGE, … */
class RefusedError extends Error {
  constructor(reply) {
    super(reply.map(String).join(' '))
    this.name = 'RefusedError'
    this.code = String(reply[0])
  }
}

/** Connects to a server; `url` as in node-redis, or `socket: { path }`. Close the connection at the end. */
async function connect(options = {}) {
  const client = createClient(options)
  client.on('error', () => {}) // Every call rejects with its own error; without a listener the process would end.
  await client.connect()
  return new Connection(client)
}

class Connection {
  #scripts = new Map()

  constructor(client) {
    this.client = client
    // Bodies are bytes.
    this.bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer })
  }

  queue(namespace, name) {
    return new Queue(this, namespace, name)
  }

  /** Closes the connection, without waiting for replies. */
  close() {
    this.client.destroy()
  }

  /**
   * Calls a script, and repeats the call if its reply is lost, for up to a minute; `repeated` makes the arguments of
   * the repetition. Does not repeat a call that the server answers with an error.
   */
  async call(name, keys, args, repeated = (same) => same) {
    const script = this.#script(name)
    const until = Date.now() + GIVE_UP_MS
    for (let pauseMs = 10; ; pauseMs = Math.min(pauseMs * 2, 500)) {
      try {
        const reply = await this.#evaluate(script, keys, args)
        const code = String(reply[0])
        if (code !== 'OK' && code !== 'DUPLICATE') throw new RefusedError(reply)
        return reply
      } catch (error) {
        if (error instanceof RefusedError || error instanceof ErrorReply || Date.now() > until) throw error
        args = repeated(args)
        await sleep(pauseMs)
      }
    }
  }

  async #evaluate(script, keys, args) {
    const words = ['EVALSHA', script.sha, String(keys.length), ...keys, ...args]
    try {
      return await this.bytes.sendCommand(words)
    } catch (error) {
      if (!(error instanceof ErrorReply) || !error.message.startsWith('NOSCRIPT')) throw error
      await this.client.sendCommand(['SCRIPT', 'LOAD', script.source])
      return await this.bytes.sendCommand(words)
    }
  }

  #script(name) {
    if (!this.#scripts.has(name)) {
      const source = readFileSync(path.join(SCRIPTS, `${name}.lua`))
      this.#scripts.set(name, { source, sha: createHash('sha1').update(source).digest('hex') })
    }
    return this.#scripts.get(name)
  }
}

/** One delivered message; `body` is a Buffer. Times are the server's, in ms since 1970. */
class Message {
  constructor({ id, body, lease, index, sentMs, receiveCount, deadlineMs, flags }) {
    Object.assign(this, { id, body, lease, index, sentMs, receiveCount, deadlineMs, flags })
  }

  json() {
    return JSON.parse(this.body.toString())
  }
}

class Queue {
  #connection
  #base
  #keys
  #announcedMs = 0
  #lane = { id: random(12), number: 0, last: Promise.resolve() }
  #waiting = null

  constructor(connection, namespace, name) {
    this.#connection = connection
    this.namespace = namespace
    this.name = name
    this.#base = `${namespace}:{${name}}:`
    const levels = Array.from({ length: 10 }, (_, level) => (level ? `ready:${level}` : 'ready'))
    const parts = ['suspect', 'delayed', 'unacked', 'wake', 'dead', 'meta', 'stats', 'unique', 'cancelled', 'journal']
    this.#keys = this.#named(...levels, ...parts)
  }

  /**
   * Stores a message once, however often its reply is lost; returns its id. Bytes are stored as they are, any other
   * body as JSON. Rejects with a RefusedError if the queue is full or paused, or the body too large.
   */
  async send(body, { delayMs = '', ttlMs = '', priority = 0 } = {}) {
    await this.#announce()
    const data = Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body))
    const id = random(10)
    const flags = priority ? ` p=${priority}` : ''
    const tail = Buffer.concat([Buffer.from(`${flags}\n`), data])
    const keys = this.#named(priority ? `ready:${priority}` : 'ready', 'delayed', 'wake', 'meta', 'stats')
    keys.push(...this.#named('producers', 'unique', 'journal'))
    // One call of a lane is in flight at a time; it gets its number when it starts.
    const lane = this.#lane
    const sent = lane.last.then(() => {
      lane.number += 1
      const words = ['', lane.id, lane.number, delayMs, ttlMs, priority, 1].map(String)
      return this.#connection.call('send', keys, [...words, `q1 ${id} `, tail, '0'])
    })
    lane.last = sent.catch((error) => {
      // Still in doubt: no newer send may use this lane.
      if (!(error instanceof RefusedError)) Object.assign(lane, { id: random(12), number: 0 })
    })
    await sent
    return id
  }

  /**
   * Receives up to `count` (1-1,000) messages into one lease, waiting up to `waitMs` for the first. A message with its
   * own visibility gets its own lease, unless `split` is false.
   */
  async receive(count = 1, { waitMs = 0, visibilityMs = '', suspects = 1, split = true } = {}) {
    const until = Date.now() + waitMs
    for (;;) {
      const { messages, foreign, hintMs } = await this.#receiveNow(count, visibilityMs, suspects)
      const leftMs = until - Date.now()
      if (split) await Promise.all(messages.map((message) => this.#split(message)))
      if (messages.length || (!foreign && leftMs <= 0)) return messages
      if (!foreign && hintMs !== 0) await this.#wait(leftMs, hintMs)
    }
  }

  /** Acks messages; returns for each whether it counted: false if its lease had run out. */
  async ack(...messages) {
    return this.#settle(messages, (message) => (message.flags.u ? 'unique' : 'ack'))
  }

  /** Counts a failure: the message comes back after `delayMs`, or is dead at its max receives. */
  async nack(message, { delayMs = 0, errorClass = '', error = '' } = {}) {
    const other = ['n', message.index, delayMs, '', '', errorClass, error.slice(0, 2048), '']
    return (await this.#settle([message], () => other))[0]
  }

  /** Gives messages back uncounted, to the head of the queue. */
  async release(...messages) {
    return this.#settle(messages, (message) => ['r', message.index, 0, '', '', '', '', ''])
  }

  /** Extends the leases of messages; returns false for each message whose lease is gone. */
  async extend(visibilityMs, ...messages) {
    const leases = [...new Set(messages.map((message) => message.lease))]
    if (!leases.length) return []
    const words = ['', String(visibilityMs), ...leases]
    const keys = this.#named('unacked', 'meta', 'cancelled')
    const reply = await this.#connection.call('extend', keys, words)
    const held = new Map(leases.map((lease, at) => [lease, String(reply[at + 2]) !== '0']))
    return messages.map((message) => held.get(message.lease))
  }

  /**
   * Handles messages one after the other until `signal` aborts: acks each, or nacks it if the handler throws, and
   * gives unstarted messages back.
   */
  async work(handler, { signal, count = 10, visibilityMs = 30_000, retryMs = 1000 } = {}) {
    while (!signal?.aborted) {
      // The leases are extended below, so no message needs its own.
      const messages = await this.receive(count, { waitMs: 2000, visibilityMs, split: false })
      const heartbeat = setInterval(() => this.extend(visibilityMs, ...messages).catch(() => {}), visibilityMs / 3)
      try {
        while (messages.length && !signal?.aborted) {
          await this.#handle(handler, messages[0], retryMs)
          messages.shift()
        }
      } finally {
        clearInterval(heartbeat)
        if (messages.length) await this.release(...messages)
      }
    }
  }

  /** Closes the waiting connection, if there is one. */
  close() {
    this.#waiting?.destroy()
    this.#waiting = null
  }

  async #handle(handler, message, retryMs) {
    try {
      await handler(message)
    } catch (error) {
      const words = { errorClass: error?.name ?? '', error: String(error?.stack ?? error) }
      await this.nack(message, { delayMs: retryMs, ...words })
      return
    }
    await this.ack(message)
  }

  async #receiveNow(count, visibilityMs, suspects) {
    const lease = random(12)
    const words = ['', '0', count, visibilityMs, suspects, WHO, 0].map(String)
    const resumed = (args) => [args[0], '1', ...args.slice(2)]
    const reply = await this.#connection.call(
      'settle_receive', [...this.#keys, this.#lease(lease)], words, resumed,
    )
    const [, nowMs, deadlineMs, , hintMs, , , , items, indices] = reply
    const messages = []
    const foreign = []
    items.forEach((item, at) => {
      const index = indices.length ? String(indices[at]) : String(items.length > 1 ? at + 1 : 0)
      const message = delivered(item, lease, index, Number(nowMs), Number(deadlineMs))
      if (message) messages.push(message)
      else foreign.push({ lease, index, flags: {} })
    })
    await this.#settle(foreign, ({ index }) => ['b', index, 'foreign', '', '', '', '', ''])
    return { messages, foreign: foreign.length, hintMs: Number(hintMs) }
  }

  async #split(message) {
    if (!(Number(message.flags.v) > 0)) return
    const lease = random(12)
    const keys = [...this.#named('unacked', 'meta'), this.#lease(message.lease), this.#lease(lease)]
    const reply = await this.#connection.call('split', keys, ['', message.index, message.flags.v])
    if (Number(reply[2]) > 0) Object.assign(message, { lease, deadlineMs: Number(reply[2]) })
  }

  /** `outcome` returns 'ack', 'unique', or the eight words of another outcome of a message. */
  async #settle(messages, outcome) {
    const counted = new Map()
    for (const lease of new Set(messages.map((message) => message.lease))) {
      const mine = messages.filter((message) => message.lease === lease)
      const [uniques, acks, others] = [[], [], []]
      for (const message of mine) {
        const what = outcome(message)
        if (what === 'unique') uniques.push(message)
        else if (what === 'ack') acks.push(message)
        else others.push({ message, what })
      }
      const words = [
        '', WHO, 1,
        acks.length, ...acks.map(({ index }) => index),
        uniques.length, ...uniques.flatMap(({ index, flags, id }) => [index, flags.u, id]),
        others.length, ...others.flatMap(({ what }) => what),
        0,
      ].map(String)
      const reply = await this.#connection.call('settle', [...this.#keys, this.#lease(lease)], words)
      const order = [...uniques, ...acks, ...others.map(({ message }) => message)]
      order.forEach((message, at) => counted.set(message, Number(reply[4][at]) === 1))
    }
    return messages.map((message) => counted.get(message))
  }

  /** Waits for the doorbell on a separate connection, at most 2 s, and no longer than until the next due message. */
  async #wait(leftMs, hintMs) {
    const mostMs = Math.min(leftMs, 2000, hintMs > 0 ? hintMs : Infinity)
    try {
      if (!this.#waiting) {
        this.#waiting = this.#connection.client.duplicate()
        this.#waiting.on('error', () => {})
        await this.#waiting.connect()
      }
      await this.#waiting.sendCommand(['BLPOP', `${this.#base}wake`, String(Math.max(mostMs, 10) / 1000)])
    } catch {
      await sleep(Math.min(mostMs, 100)) // The next receive reports the error.
    }
  }

  /** Adds the queue to the index, so that daemons find it; at most once a minute. */
  async #announce() {
    if (Date.now() - this.#announcedMs < 60_000) return
    await this.#connection.client.sendCommand(['HSETNX', `${this.namespace}:queues`, this.name, '1'])
    this.#announcedMs = Date.now()
  }

  #lease(id) {
    return `${this.#base}lease:${id}`
  }

  #named(...parts) {
    return parts.map((part) => this.#base + part)
  }
}

/** Reads an item; null if no consumer can take it. */
function delivered(item, lease, index, nowMs, deadlineMs) {
  if (item[0] === 0x7b || item[0] === 0x5b) { // { or [: plainly pushed JSON, a first delivery
    const flags = {}
    return new Message({
      id: `${lease}.${index}`, body: item, lease, index, sentMs: nowMs, receiveCount: 1, deadlineMs, flags,
    })
  }
  const end = item.indexOf(0x0a)
  const match = end < 0 ? null : HEADER.exec(item.subarray(0, end).toString('latin1'))
  if (!match) return null
  const flags = Object.fromEntries(
    match[7].split(' ').filter(Boolean).map((flag) => [flag[0], decodeURIComponent(flag.slice(2))]),
  )
  return new Message({
    id: match[1], body: item.subarray(end + 1), lease, index, sentMs: Number(match[2]),
    receiveCount: Number(match[3]) + 1, deadlineMs, flags,
  })
}

function random(bytes) {
  return randomBytes(bytes).toString('hex')
}

const WHO = `${hostname()}:${process.pid}`

module.exports = { Connection, Message, Queue, RefusedError, connect }
