// Results as Arrow: a million rows stay the few arrays that they arrive as. Loaded when the first query runs.
import { type DataType, Type, tableFromIPC } from '@uwdata/flechette'
import { type Column, hex, type Table } from './table'

export function tableOfArrow(bytes: Uint8Array): Table {
  const table = tableFromIPC(bytes, { useBigInt: true, useDecimalInt: true, useBigIntTimestamp: true })
  const children = table.schema.fields.map((_, n) => table.getChildAt(n))
  const types = table.schema.fields.map((field) => field.type)
  const columns: Column[] = table.schema.fields.map((field) => ({ name: field.name, type: nameOf(field.type) }))
  return { columns, length: table.numRows, cell: (row, column) => plain(children[column]!.at(row), types[column]!) }
}

/** As the JSON form of a result has it. */
function plain(value: unknown, type: DataType): unknown {
  if (value === null || value === undefined) return null
  switch (type.typeId) {
    case Type.Decimal:
      return scaled(BigInt(value as bigint | number), type.scale)
    case Type.Timestamp:
      return instant(BigInt(value as bigint | number), type.unit, type.timezone !== null && type.timezone !== undefined)
    case Type.Date:
      return new Date(Number(value)).toISOString().slice(0, 10)
    case Type.Time:
      return clock(BigInt(value as bigint | number), type.unit)
    case Type.Binary:
    case Type.LargeBinary:
    case Type.FixedSizeBinary:
    case Type.BinaryView:
      return hex(value as Uint8Array)
    default:
      return value
  }
}

const PER_SECOND = [1n, 1_000n, 1_000_000n, 1_000_000_000n] // by Arrow's TimeUnit
const LATEST_MS = 8_640_000_000_000_000n

function instant(value: bigint, unit: number, hasZone: boolean): string {
  const per = PER_SECOND[unit]!
  let seconds = value / per
  let rest = value % per
  if (rest < 0n) {
    rest += per
    seconds -= 1n
  }
  if (seconds * 1000n > LATEST_MS || seconds * 1000n < -LATEST_MS) return seconds > 0n ? 'infinity' : '-infinity'
  const text = new Date(Number(seconds) * 1000).toISOString().slice(0, -5)
  return `${text}${fraction(rest, unit)}${hasZone ? 'Z' : ''}`
}

function clock(value: bigint, unit: number): string {
  const per = PER_SECOND[unit]!
  return `${new Date(Number(value / per) * 1000).toISOString().slice(11, 19)}${fraction(value % per, unit)}`
}

const fraction = (rest: bigint, unit: number): string => (rest === 0n ? '' : `.${String(rest).padStart(unit * 3, '0')}`)

function scaled(value: bigint, scale: number): string {
  if (scale === 0) return String(value)
  const digits = String(value < 0n ? -value : value).padStart(scale + 1, '0')
  return `${value < 0n ? '-' : ''}${digits.slice(0, -scale)}.${digits.slice(-scale)}`
}

const FLOATS = ['half', 'float', 'double']

function nameOf(type: DataType): string {
  switch (type.typeId) {
    case Type.Dictionary:
      return nameOf(type.dictionary)
    case Type.Null:
      return 'null'
    case Type.Int:
      return `${type.signed ? '' : 'u'}${{ 8: 'tinyint', 16: 'smallint', 32: 'integer', 64: 'bigint' }[type.bitWidth]}`
    case Type.Float:
      return FLOATS[type.precision]!
    case Type.Utf8:
    case Type.LargeUtf8:
    case Type.Utf8View:
      return 'varchar'
    case Type.Bool:
      return 'boolean'
    case Type.Decimal:
      return `decimal(${type.precision},${type.scale})`
    case Type.Date:
      return 'date'
    case Type.Time:
      return 'time'
    case Type.Timestamp:
      return type.timezone ? 'timestamptz' : 'timestamp'
    case Type.Interval:
    case Type.Duration:
      return 'interval'
    case Type.List:
    case Type.LargeList:
    case Type.FixedSizeList:
      return `${nameOf(type.children[0]!.type)}[]`
    case Type.Struct:
      return 'struct'
    case Type.Map:
      return 'map'
    case Type.Union:
      return 'union'
    default:
      return 'blob'
  }
}
