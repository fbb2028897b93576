// A table of rows of any number: only those in sight are drawn.
import { useEffect, useRef, useState } from 'preact/hooks'

export interface Rows {
  columns: { name: string; type: string }[]
  rows: unknown[][]
}

const ROW_HEIGHT = 30
const BEYOND = 12
/** Browsers draw no taller elements than about this. */
const TALLEST = 8_000_000

export function Grid({ rows: { columns, rows }, label }: { rows: Rows; label: string }) {
  const box = useRef<HTMLDivElement>(null)
  const [view, setView] = useState({ top: 0, height: 600 })
  useEffect(() => {
    const seen = new ResizeObserver(() => setView((before) => ({ ...before, height: box.current!.clientHeight })))
    seen.observe(box.current!)
    return () => seen.disconnect()
  }, [])
  const whole = Math.min(TALLEST, rows.length * ROW_HEIGHT)
  const perPixel = rows.length / Math.max(1, whole)
  const inSight = Math.ceil(view.height / ROW_HEIGHT) + BEYOND * 2
  const first = Math.max(0, Math.min(rows.length - inSight, Math.floor(view.top * perPixel) - BEYOND))
  const shown = rows.slice(first, first + inSight)
  const offset = Math.min(first / Math.max(perPixel, 1e-9), Math.max(0, whole - shown.length * ROW_HEIGHT))
  return (
    <div ref={box} class="grid-box" tabIndex={0} role="region" aria-label={label} onScroll={(event) => setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
      <table class="table grid" aria-rowcount={rows.length + 1}>
        <thead>
          <tr>
            <th class="number-of">#</th>
            {columns.map((column) => (
              <th key={column.name} class={isNumber(column.type) ? 'right' : ''}>
                {column.name} <span class="type">{column.type.toLowerCase()}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {offset > 0 && <Gap height={offset} columns={columns.length + 1} />}
          {shown.map((row, n) => (
            <tr key={first + n} aria-rowindex={first + n + 2}>
              <td class="number-of">{first + n + 1}</td>
              {row.map((value, at) => (
                <Cell key={at} value={value} right={isNumber(columns[at]!.type)} />
              ))}
            </tr>
          ))}
          {whole - offset - shown.length * ROW_HEIGHT > 0 && <Gap height={whole - offset - shown.length * ROW_HEIGHT} columns={columns.length + 1} />}
        </tbody>
      </table>
    </div>
  )
}

const Gap = ({ height, columns }: { height: number; columns: number }) => (
  <tr aria-hidden="true" class="gap">
    <td colSpan={columns} style={{ height: `${height}px` }} />
  </tr>
)

const LONGEST = 300

function Cell({ value, right }: { value: unknown; right: boolean }) {
  if (value === null || value === undefined)
    return (
      <td class={right ? 'right' : ''}>
        <span class="null">null</span>
      </td>
    )
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value)
  return (
    <td class={right ? 'right' : ''} title={text.length > 40 ? text.slice(0, 2000) : undefined}>
      {text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text}
    </td>
  )
}

const isNumber = (type: string) => /^(u?(tiny|small|big|huge)?int|integer|decimal|double|float|real|numeric)/i.test(type)
