// Rows of any number, behind what asks for one cell at a time.

export interface Column {
  name: string
  type: string
}

export type Mark = 'changed' | 'before' | 'after'

export interface Table {
  columns: Column[]
  length: number
  cell: (row: number, column: number) => unknown
  /** What is to be seen of a cell besides its value. */
  mark?: (row: number, column: number) => Mark | undefined
}

/** The JSON form of a result. */
export interface Rows {
  columns: Column[]
  rows: unknown[][]
}

export const tableOf = ({ columns, rows }: Rows): Table => ({ columns, length: rows.length, cell: (row, column) => rows[row]?.[column] })

export function textOf(value: unknown): string {
  if (typeof value === 'object' && value !== null)
    return JSON.stringify(value, (_, inner: unknown) => (typeof inner === 'bigint' ? String(inner) : inner instanceof Uint8Array ? hex(inner) : inner))
  return String(value)
}

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')

export const isNumeric = (type: string): boolean => /^(u?(tiny|small|big|huge)?int|integer|decimal|double|float|real|numeric)/i.test(type)
export const isTime = (type: string): boolean => /^(timestamp|date)/i.test(type)

/** What a cell is on an axis: times in seconds. */
export function numberOf(value: unknown, type: string): number | null {
  if (value === null || value === undefined) return null
  if (isTime(type)) {
    const at = Date.parse(typeof value === 'string' && !/Z$|[+-]\d\d:?\d\d$/.test(value) && value.includes('T') ? `${value}Z` : String(value))
    return Number.isNaN(at) ? null : at / 1000
  }
  const n = Number(value)
  return Number.isFinite(n) ? n : null
}

// Two results side by side -------------------------------------------------------------------------------

export interface Compared {
  table: Table
  changed: number
  onlyLeft: number
  onlyRight: number
}

const NONE = -1
const LEFT = 0
const RIGHT = 1

/** Rows of two results beside each other, where `key` says that they are the same; unset: by their numbers. */
export function compared(left: Table, right: Table, names: [string, string], key: string | undefined, differencesOnly: boolean): Compared {
  const columns = left.columns.filter((column) => right.columns.some((other) => other.name === column.name))
  const at = [left, right].map((table) => columns.map((column) => table.columns.findIndex((other) => other.name === column.name)))
  const pairs = key === undefined ? byNumber(left.length, right.length) : byKey(left, right, key)
  const rows: [Int32Array, Int32Array] = [new Int32Array(pairs.length / 2), new Int32Array(pairs.length / 2)]
  const counts = { changed: 0, onlyLeft: 0, onlyRight: 0 }
  let kept = 0
  for (let n = 0; n < pairs.length; n += 2) {
    const [a, b] = [pairs[n]!, pairs[n + 1]!]
    const differs = a === NONE || b === NONE || columns.some((_, c) => different(left.cell(a, at[LEFT]![c]!), right.cell(b, at[RIGHT]![c]!)))
    if (b === NONE) counts.onlyLeft += 1
    else if (a === NONE) counts.onlyRight += 1
    else if (differs) counts.changed += 1
    if (!differs && differencesOnly) continue
    rows[LEFT][kept] = a
    rows[RIGHT][kept] = b
    kept += 1
  }
  const width = columns.length
  const sideOf = (column: number) => (column < width ? LEFT : RIGHT)
  const cell = (row: number, column: number) => {
    const side = sideOf(column)
    const own = rows[side][row]!
    return own === NONE ? undefined : (side === LEFT ? left : right).cell(own, at[side]![column % width]!)
  }
  return {
    ...counts,
    table: {
      columns: [LEFT, RIGHT].flatMap((side) => columns.map((column) => ({ name: `${column.name} · ${names[side]}`, type: column.type }))),
      length: kept,
      cell,
      mark: (row, column) => {
        const [a, b] = [rows[LEFT][row]!, rows[RIGHT][row]!]
        if (b === NONE) return sideOf(column) === LEFT ? 'before' : undefined
        if (a === NONE) return sideOf(column) === RIGHT ? 'after' : undefined
        return different(cell(row, column % width), cell(row, (column % width) + width)) ? 'changed' : undefined
      },
    },
  }
}

function byNumber(left: number, right: number): Int32Array {
  const pairs = new Int32Array(Math.max(left, right) * 2)
  for (let n = 0; n * 2 < pairs.length; n += 1) {
    pairs[n * 2] = n < left ? n : NONE
    pairs[n * 2 + 1] = n < right ? n : NONE
  }
  return pairs
}

function byKey(left: Table, right: Table, key: string): number[] {
  const column = (table: Table) => table.columns.findIndex((one) => one.name === key)
  const waiting = new Map<string, number[]>()
  const [inLeft, inRight] = [column(left), column(right)]
  for (let row = right.length - 1; row >= 0; row -= 1) {
    const value = textOf(right.cell(row, inRight))
    const same = waiting.get(value)
    if (same) same.push(row)
    else waiting.set(value, [row])
  }
  const pairs: number[] = []
  for (let row = 0; row < left.length; row += 1) pairs.push(row, waiting.get(textOf(left.cell(row, inLeft)))?.pop() ?? NONE)
  const alone = [...waiting.values()].flat().sort((a, b) => a - b)
  for (const row of alone) pairs.push(NONE, row)
  return pairs
}

/** Whether a column tells the rows of a table apart. */
export function isUnique(table: Table, column: number): boolean {
  const seen = new Set<string>()
  for (let row = 0; row < table.length; row += 1) {
    const value = textOf(table.cell(row, column))
    if (seen.has(value)) return false
    seen.add(value)
  }
  return true
}

const different = (a: unknown, b: unknown): boolean => a !== b && textOf(a) !== textOf(b)
