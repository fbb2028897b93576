// What a dataset holds, lacks and computes, on a canvas: a million positions are as many cells as there are pixels.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { withParameters } from './api'
import { useData } from './data'
import { count, counted } from './format'
import { concernsDataset, concernsJob } from './live'
import { Button, Loading, Problem } from './parts'
import { theme } from './theme'
import type { CoverageStrip, StripCell } from './types'

export interface Span {
  first: number
  last: number
  /** The first and the last partition, as the API takes them: positions have names where partitions do. */
  begin: string
  end: string
  name: string
}

const HEIGHT = 44
const COLOURS = ['good', 'line-strong', 'bad', 'run', 'wait'] as const

/** `choose` is called when somebody has dragged over a part of it. */
export function Strip({ dataset, producers, choose, chosen }: { dataset: string; producers: string[]; choose: (span: Span | undefined) => void; chosen?: Span }) {
  const [window, setWindow] = useState<{ first: string; last: string }>()
  const path = withParameters(`/api/v1/datasets/${encodeURIComponent(dataset)}/coverage`, { cells: 1000, first: window?.first, last: window?.last })
  const { data, error, reload } = useData<CoverageStrip>(path, (changed) => concernsDataset(changed, dataset) || concernsJob(changed, (job) => producers.includes(job)))
  if (error && !data) return <Problem error={error} retry={reload} />
  if (!data) return <Loading lines={2} />
  if (!data.cells.length) return <p class="muted">It holds nothing yet.</p>
  const zoom = () => {
    if (!chosen) return
    setWindow({ first: chosen.begin, last: chosen.end })
    choose(undefined)
  }
  return (
    <div class="strip">
      <Cells strip={data} choose={choose} chosen={chosen} />
      <div class="strip-foot">
        <span class="muted small">{data.names?.[0]}</span>
        <span class="strip-tools">
          {chosen && chosen.last > chosen.first && (
            <Button icon="plus" onClick={zoom}>
              Zoom in
            </Button>
          )}
          {window && (
            <Button icon="fit" onClick={() => (setWindow(undefined), choose(undefined))}>
              All of it
            </Button>
          )}
        </span>
        <span class="muted small">{data.names?.at(-1)}</span>
      </div>
      <Key strip={data} />
    </div>
  )
}

function Cells({ strip, choose, chosen }: { strip: CoverageStrip; choose: (span: Span | undefined) => void; chosen?: Span }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const [width, setWidth] = useState(800)
  const [hovered, setHovered] = useState<number>()
  const [held, setHeld] = useState<number>()
  const { cells, names = [], first = 0, last = 0, per_cell: per = 1 } = strip
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(entry!.contentRect.width))
    seen.observe(canvas.current!)
    return () => seen.disconnect()
  }, [])
  const span = (a: number, b: number): Span => {
    const [from, to] = a <= b ? [a, b] : [b, a]
    const [firstName = '', lastName = ''] = [names[from], names[to]]
    const [begin, end] = per === 1 ? [firstName, lastName] : [begins(firstName), ends(lastName)]
    const name = from === to ? firstName : `${begin} to ${end}`
    return { first: first + from * per, last: Math.min(last, first + (to + 1) * per - 1), begin, end, name }
  }
  useEffect(() => {
    const context = canvas.current!.getContext('2d')!
    const scale = devicePixelRatio
    canvas.current!.width = width * scale
    canvas.current!.height = HEIGHT * scale
    context.scale(scale, scale)
    draw(context, cells, width, per, { first, last, chosen, hovered })
  }, [cells, width, theme.value, chosen, hovered])
  const at = (event: MouseEvent) => {
    const { left, width: wide } = canvas.current!.getBoundingClientRect()
    return Math.max(0, Math.min(cells.length - 1, Math.floor(((event.clientX - left) / wide) * cells.length)))
  }
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key]
    if (step === undefined && event.key !== 'Enter' && event.key !== 'Escape') return
    event.preventDefault()
    if (event.key === 'Escape') return choose(undefined)
    const next = Math.max(0, Math.min(cells.length - 1, (hovered ?? -1) + (step ?? 0)))
    setHovered(next)
    if (event.key === 'Enter' || event.shiftKey) {
      const from = chosen && event.shiftKey ? Math.floor((chosen.first - first) / per) : next
      choose(span(from, next))
    }
  }
  const said = hovered === undefined || !cells[hovered] ? summary(strip) : `${names[hovered]}: ${words(cells[hovered], Math.min(per, last - first - hovered * per + 1))}`
  return (
    <>
      <canvas ref={canvas} class="strip-canvas" style={{ height: `${HEIGHT}px` }} tabIndex={0} role="slider" aria-label="Coverage. Arrow keys go through it, Enter chooses, Shift extends."
        aria-valuemin={0} aria-valuemax={cells.length - 1} aria-valuenow={hovered ?? 0} aria-valuetext={said} onKeyDown={onKeyDown}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId)
          setHeld(at(event))
          choose(span(at(event), at(event)))
        }}
        onPointerMove={(event) => {
          setHovered(at(event))
          if (held !== undefined) choose(span(held, at(event)))
        }}
        onPointerUp={() => setHeld(undefined)} onPointerLeave={() => setHovered(undefined)} />
      <p class="strip-said" aria-hidden="true">
        {said}
      </p>
    </>
  )
}

/** Of a range, as people write it. */
const begins = (name: string) => name.split(/ to |(?<=\d)\.\.|(?<=^-?\d+)-(?=\d+$)/)[0] ?? name
const ends = (name: string) => name.split(/ to |(?<=\d)\.\.|(?<=^-?\d+)-(?=\d+$)/).at(-1) ?? name

interface Marks {
  first: number
  last: number
  chosen?: Span
  hovered?: number
}

function draw(context: CanvasRenderingContext2D, cells: StripCell[], width: number, per: number, marks: Marks): void {
  const style = getComputedStyle(document.documentElement)
  const [present, missing, dead, running, waiting] = COLOURS.map((name) => style.getPropertyValue(`--${name}`).trim())
  context.clearRect(0, 0, width, HEIGHT)
  const wide = width / cells.length
  const gap = wide > 5 ? 1 : 0
  const size = (n: number) => (n === cells.length - 1 ? marks.last - marks.first - n * per + 1 : per)
  cells.forEach((cell, n) => {
    const x = n * wide
    const w = Math.max(0.6, wide - gap)
    const part = Math.min(1, (cell.present ?? 0) / size(n))
    context.globalAlpha = 0.35
    context.fillStyle = missing!
    context.fillRect(x, 6, w, HEIGHT - 12)
    context.globalAlpha = 1
    if (part > 0) {
      context.fillStyle = present!
      const high = (HEIGHT - 12) * Math.max(0.12, part)
      context.fillRect(x, HEIGHT - 6 - high, w, high)
    }
    const mark = cell.dead ? dead : cell.running ? running : cell.waiting ? waiting : undefined
    if (mark) {
      context.fillStyle = mark
      context.fillRect(x, 6, Math.max(w, 1.5), part > 0 ? 10 : HEIGHT - 12)
    }
  })
  if (marks.chosen) {
    const from = ((marks.chosen.first - marks.first) / per) * wide
    const to = ((marks.chosen.last - marks.first + 1) / per) * wide
    context.strokeStyle = style.getPropertyValue('--accent').trim()
    context.lineWidth = 2
    context.strokeRect(from + 1, 2, Math.max(3, to - from - 2), HEIGHT - 4)
  }
  if (marks.hovered !== undefined) {
    context.strokeStyle = style.getPropertyValue('--ink').trim()
    context.lineWidth = 1
    context.strokeRect(marks.hovered * wide, 4.5, Math.max(2, wide), HEIGHT - 9)
  }
}

function words(cell: StripCell, size: number): string {
  const present = cell.present ?? 0
  const parts = [present >= size ? 'present' : present > 0 ? `${count(present)} of ${count(size)} present` : 'missing']
  if (cell.running) parts.push(`${counted(cell.running, 'task')} running`)
  if (cell.waiting) parts.push(`${counted(cell.waiting, 'task')} waiting`)
  if (cell.dead) parts.push(counted(cell.dead, 'dead task'))
  return parts.join(', ')
}

function summary(strip: CoverageStrip): string {
  const sum = (of: keyof StripCell) => strip.cells.reduce((total, cell) => total + (cell[of] ?? 0), 0)
  const all = (strip.last ?? 0) - (strip.first ?? 0) + 1
  const present = sum('present')
  return `${count(present)} of ${count(all)} present${all > present ? `, ${count(all - present)} missing` : ''}. Drag over it to choose a part.`
}

function Key({ strip }: { strip: CoverageStrip }) {
  const has = useMemo(() => (of: keyof StripCell) => strip.cells.some((cell) => cell[of]), [strip])
  const entries: [string, string, boolean][] = [
    ['good', 'present', true],
    ['missing', 'missing', true],
    ['run', 'being computed', has('running')],
    ['wait', 'waiting', has('waiting')],
    ['bad', 'failed', has('dead')],
  ]
  return (
    <ul class="strip-key small muted">
      {entries.filter(([, , shown]) => shown).map(([colour, name]) => (
        <li key={name}>
          <span class={`swatch swatch-${colour}`} /> {name}
        </li>
      ))}
      {strip.tasks_left_out && <li>more tasks than are drawn</li>}
    </ul>
  )
}
