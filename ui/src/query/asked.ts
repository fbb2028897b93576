// A query as it stands in the address: its text, the values of its parameters, and the states that it is asked of.
import { ApiError, errorOf, send } from '../api'
import type { Table } from '../table'
import type { QueryTask } from '../types'

/** Now, a time (ISO 8601), or a version (`dag@3`). */
export type AsOf = string

const VERSION = /^(.+)@(\d+)$/

export function versionOf(asOf: AsOf): { dag: string; version: number } | undefined {
  const found = VERSION.exec(asOf)
  return found ? { dag: found[1]!, version: Number(found[2]) } : undefined
}

export function nameOf(asOf: AsOf): string {
  if (!asOf) return 'now'
  if (versionOf(asOf)) return asOf
  return new Date(asOf).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })
}

export function bodyOf(sql: string, asOf: AsOf): Record<string, unknown> {
  const version = versionOf(asOf)
  if (version) return { sql, as_of_version: { [version.dag]: version.version } }
  return asOf ? { sql, as_of_time: asOf } : { sql }
}

// Parameters ---------------------------------------------------------------------------------------------

const PIECE = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|\$(\w*)\$[\s\S]*?(?:\$\2\$|$)|'(?:[^']|'')*'?|"(?:[^"]|"")*"?)|\$([A-Za-z_]\w*)/g

/** The names behind `$` outside of texts, names and comments, in their order. */
export function parametersOf(sql: string): string[] {
  return [...new Set([...sql.matchAll(PIECE)].map((found) => found[3]).filter((name) => name !== undefined))]
}

/** The text with a literal for each parameter: a number if it looks like one, else a text. */
export function filled(sql: string, values: Record<string, string>): string {
  return sql.replace(PIECE, (all: string, left: string | undefined, _tag, name: string | undefined) => {
    if (left !== undefined || name === undefined) return all
    const value = values[name] ?? ''
    return /^-?\d+(\.\d+)?$/.test(value) ? value : `'${value.replaceAll("'", "''")}'`
  })
}

// Asking -------------------------------------------------------------------------------------------------

const MARK = 'traceplane-error-mark'

export type Format = 'arrow' | 'csv' | 'parquet'

/** The bytes of a result; a failure in the middle of it is one. */
async function bytesOf(body: Record<string, unknown>, format: Format, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer> | QueryTask> {
  const mark = crypto.randomUUID()
  const answer = await send('POST', '/api/v1/query', { ...body, format }, { headers: { [MARK]: mark }, signal })
  if (answer.headers.get('traceplane-engine') === 'spark') return (await answer.json()) as QueryTask
  let bytes: Uint8Array<ArrayBuffer>
  try {
    bytes = new Uint8Array(await answer.arrayBuffer())
  } catch {
    if (signal?.aborted) throw new ApiError(0, 'stopped', 'it was stopped')
    throw new ApiError(0, 'query.cut_off', 'the result broke off', undefined, 'run it again')
  }
  const end = new TextDecoder().decode(bytes.subarray(-16_384))
  const at = end.lastIndexOf(mark)
  if (at >= 0) {
    const [, status = '500', error = ''] = /^ ?(\d+) ([\s\S]*)$/.exec(end.slice(at + mark.length)) ?? []
    throw errorOf(Number(status), error)
  }
  return bytes
}

export interface Answer {
  table?: Table
  bytes?: Uint8Array<ArrayBuffer>
  task?: QueryTask
}

export async function ask(body: Record<string, unknown>, signal: AbortSignal): Promise<Answer> {
  const [bytes, { tableOfArrow }] = await Promise.all([bytesOf(body, 'arrow', signal), import('../arrow')])
  return bytes instanceof Uint8Array ? { bytes, table: tableOfArrow(bytes) } : { task: bytes }
}

const TYPES: Record<Format, string> = { arrow: 'application/vnd.apache.arrow.stream', csv: 'text/csv', parquet: 'application/vnd.apache.parquet' }

/** Saves a result; what has arrived as Arrow is saved as it is. */
export async function download(body: Record<string, unknown>, format: Format, arrived?: Uint8Array<ArrayBuffer>): Promise<void> {
  const bytes = format === 'arrow' && arrived ? arrived : await bytesOf(body, format)
  if (!(bytes instanceof Uint8Array)) return
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([bytes], { type: TYPES[format] }))
  link.download = `result.${format}`
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}
