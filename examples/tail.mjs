#!/usr/bin/env node
// What a process writes, as it comes, through Sandkeep's stream server; cut off, it goes on exactly where it was.
// Nothing is needed but Node's standard library.
//
//     node examples/tail.mjs SANDBOX PROCESS [unix:/PATH | tls://127.0.0.1:PORT]
//
// On a Unix socket the kernel says who you are. On TCP a token does, and a pin says who the server is. `stream.access` on the
// daemon's socket answers both: SANDKEEP_TOKEN=$(sandkeep rpc stream.access | jq -r .token), SANDKEEP_PIN the same by .pin

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request } from 'node:http'
import { connect } from 'node:net'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'

import { defaultSocket } from './client.mjs'

const PATIENCE_MS = 60_000 // how long a daemon may be away
const CONTINUATION = 0, TEXT = 1, CLOSE = 8, PING = 9, PONG = 10

/** Raised for what trying again does not mend: the daemon has said why. */
class Refused extends Error {}

/** A connection; over TLS to the server that has the pin, and to nobody else, as the token is sent next. */
async function connected(address) {
  if (address.startsWith('unix:')) {
    const socket = connect(address.slice('unix:'.length))
    await once(socket, 'connect')
    return socket
  }
  const { protocol, hostname, port } = new URL(address)
  if (protocol !== 'tls:') throw new Refused(`${address} has no TLS: give unix:/PATH or tls://HOST:PORT`)
  const host = hostname.replace(/^\[|\]$/g, '')
  // No authority has signed the certificate; the pin is looked at instead.
  const socket = connectTls({ host, port, minVersion: 'TLSv1.3', rejectUnauthorized: false })
  await once(socket, 'secureConnect')
  const shown = socket.getPeerCertificate().fingerprint256.replaceAll(':', '').toLowerCase()
  if (shown === process.env.SANDKEEP_PIN) return socket
  socket.destroy()
  throw new Refused(`who listens on ${address} has another key than SANDKEEP_PIN says, and was sent nothing`)
}

/** A websocket: the answered request's connection, with what came along with the answer. */
async function open(address, path) {
  const socket = await connected(address)
  const token = process.env.SANDKEEP_TOKEN
  const headers = {
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Version': 13,
    'Sec-WebSocket-Key': randomBytes(16).toString('base64'),
    ...(token && { Authorization: `Bearer ${token}` }),
  }
  return new Promise((resolve, reject) => {
    const asked = request({ createConnection: () => socket, path, headers })
    asked.on('upgrade', (_, socket, head) => resolve({ socket, head }))
    asked.on('response', async (answer) => {
      const body = Buffer.concat(await answer.toArray()).toString()
      const again = answer.statusCode === 503
      reject(new (again ? Error : Refused)(JSON.parse(body || 'null')?.error?.message ?? `status ${answer.statusCode}`))
    })
    asked.on('error', reject)
    asked.end()
  })
}

/** Send a frame. What a client sends is masked, as the protocol has it. */
function send(socket, opcode, payload) {
  const mask = randomBytes(4)
  const masked = payload.map((byte, at) => byte ^ mask[at % 4])
  socket.write(Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | payload.length]), mask, masked]))
}

/** The frames in what arrives. */
async function* frames({ socket, head }) {
  let held = head
  const take = () => {
    if (held.length < 2) return null
    const short = held[1] & 0x7f
    const start = { 126: 4, 127: 10 }[short] ?? 2
    if (held.length < start) return null
    const length = start === 2 ? short : start === 4 ? held.readUInt16BE(2) : Number(held.readBigUInt64BE(2))
    if (held.length < start + length) return null
    const frame = { final: held[0] >= 0x80, opcode: held[0] & 0x0f, payload: held.subarray(start, start + length) }
    held = held.subarray(start + length)
    return frame
  }
  for (let frame; (frame = take()); ) yield frame
  for await (const data of socket) {
    held = Buffer.concat([held, data])
    for (let frame; (frame = take()); ) yield frame
  }
}

/** The messages of a websocket: text as objects, the rest as bytes. */
async function* messages(websocket) {
  let pieces = [], kind = TEXT
  for await (const { final, opcode, payload } of frames(websocket)) {
    if (opcode === PING) send(websocket.socket, PONG, payload)
    if (opcode === CLOSE) return
    if (opcode >= CLOSE) continue
    if (opcode !== CONTINUATION) kind = opcode
    pieces.push(payload)
    if (!final) continue
    const whole = Buffer.concat(pieces)
    pieces = []
    yield kind === TEXT ? JSON.parse(whole.toString()) : whole
  }
}

/** Write out what comes until the process has ended, and answer how; undefined when the connection was cut before. */
async function follow(websocket, offsets) {
  for await (const message of messages(websocket)) {
    if (message instanceof Buffer) {
      const stream = message[0] // 1 is stdout, 2 is stderr
      const bytes = message.subarray(9)
      const out = stream === 2 ? process.stderr : process.stdout
      if (!out.write(bytes)) await once(out, 'drain') // whoever reads us slowly slows us, and nobody else
      offsets[stream] = Number(message.readBigUInt64BE(1)) + bytes.length
    } else if (message.kind === 'exit') return message
    else if (message.kind === 'note') console.error(message.message)
    else if (message.kind === 'error') throw new Refused(message.error.message)
  }
}

async function tail(address, sandbox, name) {
  const offsets = { 1: 0, 2: 0 }
  const path = `/v1/logs/${encodeURIComponent(sandbox)}/${encodeURIComponent(name)}`
  for (let gone; ; ) {
    try {
      const websocket = await open(address, `${path}?stdout=${offsets[1]}&stderr=${offsets[2]}&follow=1`)
      gone = undefined
      const end = await follow(websocket, offsets).finally(() => websocket.socket.destroy())
      if (end) return end
    } catch (error) {
      gone ??= Date.now()
      if (error instanceof Refused || Date.now() - gone > PATIENCE_MS) throw error
    }
    await sleep(100)
  }
}

const [sandbox, name, address = `unix:${dirname(defaultSocket())}/stream.sock`] = process.argv.slice(2)
if (!name) {
  console.error('usage: tail.mjs SANDBOX PROCESS [unix:/PATH | tls://127.0.0.1:PORT]')
  process.exitCode = 2
} else {
  tail(address, sandbox, name).then(
    (end) => (process.exitCode = end.exit_code ?? 125),
    (error) => {
      console.error(error.message)
      process.exitCode = 125
    },
  )
}
