// The chart builder: which columns, drawn how. What is chosen stands in the address.
import { useMemo } from 'preact/hooks'
import { Chart, type Look, MOST_SERIES } from '../chart'
import { count } from '../format'
import { place, setQuery } from '../router'
import { isNumeric, isTime, numberOf, type Table, textOf } from '../table'

const LOOKS: Record<Look, string> = { line: 'Lines', bars: 'Bars', points: 'Points' }
const MOST_POINTS = 100_000

export function ResultFigure({ table }: { table: Table }) {
  const query = place.value.query
  const numeric = table.columns.filter((column) => isNumeric(column.type))
  const axes = table.columns.filter((column) => isNumeric(column.type) || isTime(column.type))
  const asked = query.get('look') ?? ''
  const look = Object.hasOwn(LOOKS, asked) ? (asked as Look) : 'line'
  const x = table.columns.find((column) => column.name === query.get('x')) ?? axes.find((column) => isTime(column.type)) ?? axes[0] ?? table.columns[0]
  const chosen = query.get('y')?.split(',')
  const y = (chosen ? numeric.filter((column) => chosen.includes(column.name)) : numeric.filter((column) => column !== x).slice(0, 1)).slice(0, MOST_SERIES)
  const data = useMemo(() => pointsOf(table, x?.name, y.map((column) => column.name)), [table, x?.name, y.map((column) => column.name).join()])
  if (numeric.length === 0) return <p class="muted">A chart needs a column of numbers.</p>
  const toggle = (name: string) => {
    const names = y.map((column) => column.name)
    setQuery({ y: (names.includes(name) ? names.filter((one) => one !== name) : [...names, name]).join() })
  }
  return (
    <section class="card">
      <div class="chart-tools">
        <label class="field inline">
          <span>Draw</span>
          <select value={look} onChange={(event) => setQuery({ look: event.currentTarget.value })}>
            {Object.entries(LOOKS).map(([one, text]) => <option key={one} value={one}>{text}</option>)}
          </select>
        </label>
        <label class="field inline">
          <span>Across</span>
          <select value={x?.name} onChange={(event) => setQuery({ x: event.currentTarget.value })}>
            {table.columns.map((column) => <option key={column.name} value={column.name}>{column.name}</option>)}
          </select>
        </label>
        <fieldset class="choices">
          <legend>Up</legend>
          {numeric.map((column) => (
            <label key={column.name}>
              <input type="checkbox" checked={y.includes(column)} onChange={() => toggle(column.name)} /> {column.name}
            </label>
          ))}
        </fieldset>
      </div>
      {y.length > 0 && <Chart label={`${y.map((one) => one.name).join(', ')} by ${x?.name}`} look={look} x={data.x} isTime={data.isTime} names={data.names} series={data.series} />}
      {data.leftOut > 0 && <p class="muted small">Every {count(data.leftOut + 1)}th row is drawn.</p>}
    </section>
  )
}

function pointsOf(table: Table, across: string | undefined, up: string[]) {
  const at = table.columns.findIndex((column) => column.name === across)
  const type = table.columns[at]?.type ?? ''
  const isAxis = isNumeric(type) || isTime(type)
  const step = Math.max(1, Math.ceil(table.length / MOST_POINTS))
  const rows: number[] = []
  const where: number[] = []
  const names: string[] = []
  for (let row = 0; row < table.length; row += step) {
    const value = isAxis ? numberOf(table.cell(row, at), type) : names.push(textOf(table.cell(row, at))) - 1
    if (value === null) continue
    rows.push(row)
    where.push(value)
  }
  const order = rows.map((_, n) => n).sort((a, b) => where[a]! - where[b]!)
  return {
    x: order.map((n) => where[n]!),
    isTime: isTime(type),
    names: isAxis ? undefined : names,
    leftOut: step - 1,
    series: up.map((name) => {
      const column = table.columns.findIndex((one) => one.name === name)
      return { name, values: order.map((n) => numberOf(table.cell(rows[n]!, column), table.columns[column]!.type)) }
    }),
  }
}
