// A table of rows of any number: only those in sight are drawn.
import { useEffect, useRef, useState } from 'preact/hooks'
import { exact } from './format'
import { isNumeric, type Table, textOf } from './table'

const ROW_HEIGHT = 30
const BEYOND = 12
/** Browsers draw no taller elements than about this. */
const TALLEST = 8_000_000

export function Grid({ table, label }: { table: Table; label: string }) {
  const { columns, length } = table
  const box = useRef<HTMLDivElement>(null)
  const [view, setView] = useState({ top: 0, height: 600, part: 0 })
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setView((before) => ({ ...before, height: entry!.contentRect.height })))
    seen.observe(box.current!)
    return () => seen.disconnect()
  }, [])
  const whole = Math.min(TALLEST, length * ROW_HEIGHT)
  const visible = Math.min(length, Math.ceil(view.height / ROW_HEIGHT))
  // A pixel of a table that is taller than a browser draws stands for several rows, and its end for the last one.
  const top = whole === length * ROW_HEIGHT ? Math.floor(view.top / ROW_HEIGHT) : Math.floor(view.part * (length - visible))
  const first = Math.max(0, top - BEYOND)
  const shown = Array.from({ length: Math.max(0, Math.min(visible + BEYOND * 2, length - first)) }, (_, n) => first + n)
  const offset = Math.max(0, Math.min(view.top - (view.top % ROW_HEIGHT) - (top - first) * ROW_HEIGHT, whole - shown.length * ROW_HEIGHT))
  const look = (element: HTMLElement) =>
    setView({ top: element.scrollTop, height: element.clientHeight, part: Math.min(1, element.scrollTop / Math.max(1, element.scrollHeight - element.clientHeight)) })
  return (
    <div ref={box} class="grid-box" tabIndex={0} role="region" aria-label={label} onScroll={(event) => look(event.currentTarget)}>
      <table class="table grid" aria-rowcount={length + 1}>
        <thead>
          <tr>
            <th class="number-of">#</th>
            {columns.map((column, at) => (
              <th key={at} class={isNumeric(column.type) ? 'right' : ''}>
                {column.name} <span class="type">{column.type.toLowerCase()}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {offset > 0 && <Gap height={offset} columns={columns.length + 1} />}
          {shown.map((row) => (
            <tr key={row} aria-rowindex={row + 2}>
              <td class="number-of">{row + 1}</td>
              {columns.map((column, at) => (
                <Cell key={at} value={table.cell(row, at)} type={column.type} mark={table.mark?.(row, at)} />
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

function Cell({ value, type, mark }: { value: unknown; type: string; mark?: string }) {
  const look = `${isNumeric(type) ? 'right' : ''}${mark ? ` cell-${mark}` : ''}`
  if (value === undefined) return <td class={look} />
  if (value === null)
    return (
      <td class={look}>
        <span class="null">null</span>
      </td>
    )
  const text = textOf(value)
  return (
    <td class={look} title={hint(text, type)}>
      {text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text}
    </td>
  )
}

/** An instant in the reader's zone; the whole of a long text. */
function hint(text: string, type: string): string | undefined {
  if (type.toLowerCase() === 'timestamptz' && text.endsWith('Z')) return exact(new Date(text))
  return text.length > 40 ? text.slice(0, 2000) : undefined
}
