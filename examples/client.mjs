#!/usr/bin/env node
// A client of Sandkeep in Node, with nothing but its standard library: an image of a directory, a sandbox, a command, a
// process that is followed.
//
//     node examples/client.mjs [DIRECTORY]

import { randomUUID } from 'node:crypto'
import { realpathSync } from 'node:fs'
import { connect } from 'node:net'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

/** What the daemon refused or failed at. `code` is stable; `message` is a sentence for people. */
export class SandkeepError extends Error {
  constructor({ message, data = {} }) {
    super(message)
    this.name = 'SandkeepError'
    this.code = data.code ?? 'internal'
    this.data = data
  }
}

export const defaultSocket = () =>
  process.env.SANDKEEP_SOCKET ||
  (process.getuid() === 0
    ? '/run/sandkeep/sandkeep.sock'
    : `${process.env.XDG_RUNTIME_DIR || `${process.env.HOME}/.local/state`}/sandkeep/sandkeep.sock`)

/** A connection. Calls may overlap: each answer names its request, and they come in any order. */
export class Client {
  #waiting = new Map()
  #lastId = 0
  #socket
  #pieces = []
  #ended = null

  constructor(path = defaultSocket(), name = 'node') {
    this.#socket = connect(path)
    this.#socket.on('data', (data) => this.#hear(data))
    this.#socket.on('error', (error) => this.#end(error))
    this.#socket.on('close', () => this.#end(new Error('the daemon hung up')))
    this.call('rpc.hello', { client: name }).catch(() => {}) // whatever is wrong with the connection, the next call tells
  }

  /** Call a method. Answers its result, or throws a SandkeepError. */
  call(method, params = {}) {
    if (this.#ended) return Promise.reject(this.#ended)
    const id = ++this.#lastId
    this.#socket.write(JSON.stringify({ jsonrpc: '2.0', id, method, params }) + '\n')
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }))
  }

  close() {
    this.#socket.end()
  }

  #hear(data) {
    for (let end; (end = data.indexOf(10)) >= 0; data = data.subarray(end + 1)) {
      this.#take(JSON.parse(Buffer.concat([...this.#pieces, data.subarray(0, end)]).toString()))
      this.#pieces = []
    }
    if (data.length) this.#pieces.push(data)
  }

  #take({ id, result, error }) {
    const call = this.#waiting.get(id)
    if (!call) return // a notification, such as progress
    this.#waiting.delete(id)
    if (error) call.reject(new SandkeepError(error))
    else call.resolve(result)
  }

  #end(why) {
    this.#ended ??= why
    for (const call of this.#waiting.values()) call.reject(this.#ended)
    this.#waiting.clear()
  }
}

/** What a process writes, piece by piece from the given offsets, until it has ended. The last piece has its exit code. */
export async function* output(client, sandbox_id, name, stdout_offset = 0, stderr_offset = 0) {
  for (let piece; !piece?.ended; ) {
    piece = await client.call('process.read', { sandbox_id, name, stdout_offset, stderr_offset, wait_s: 30 })
    stdout_offset = piece.next_stdout_offset
    stderr_offset = piece.next_stderr_offset
    yield { ...piece, stdout: Buffer.from(piece.stdout, 'base64'), stderr: Buffer.from(piece.stderr, 'base64') }
  }
}

async function main(directory) {
  const client = new Client()
  let image_id, sandbox_id
  try {
    // A change that has a command_id is made once: asked for again, after a cut connection say, it gives the first answer.
    const change = { source: resolve(directory), clean: true, command_id: randomUUID() }
    ;({ image_id } = await client.call('image.create', change))
    ;({ sandbox_id } = await client.call('sandbox.create', { image_id, labels: { 'made-by': 'client.mjs' } }))
    console.log(`sandbox ${sandbox_id}`)

    const done = await client.call('sandbox.exec', { sandbox_id, command: ['sh', '-c', 'echo from inside; exit 3'] })
    process.stdout.write(Buffer.from(done.stdout, 'base64'))
    console.log(`it exited with ${done.exit_code}`)

    const command = 'for i in 1 2 3; do echo $i; sleep 0.1; done'
    await client.call('process.launch', { sandbox_id, name: 'counter', command })
    for await (const piece of output(client, sandbox_id, 'counter')) {
      process.stdout.write(piece.stdout)
      if (piece.ended) console.log(`counter exited with ${piece.exit_code}`)
    }
  } finally {
    if (sandbox_id) await client.call('sandbox.terminate', { sandbox_id })
    if (image_id) await client.call('image.remove', { image_id })
    client.close()
  }
}

if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
  main(process.argv[2] ?? '.').catch((error) => {
    console.error(`${error.message} [${error.code ?? 'internal'}]`)
    process.exitCode = 1
  })
}
