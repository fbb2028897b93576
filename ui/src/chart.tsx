// Lines, bars or points over an axis of numbers or times. The library that draws them is loaded with the first chart.
import { useEffect, useRef, useState } from 'preact/hooks'
import type uPlot from 'uplot'
import { theme } from './theme'

export type Look = 'line' | 'bars' | 'points'

export interface Series {
  name: string
  values: (number | null)[]
}

const HEIGHT = 320
const AXIS = 92
/** Of bars, in pixels. */
const THINNEST = 3
const MINUTE_SECONDS = 60

interface Props {
  label: string
  look: Look
  /** Ascending; seconds if these are times. */
  x: number[]
  isTime: boolean
  /** What stands at 0, 1, … of the axis, if it is not one of numbers. */
  names?: string[]
  series: Series[]
  /** How much of the axis a bar stands for, from its value of x on; otherwise bars are around theirs. */
  span?: number
  height?: number
  format?: (value: number) => string
}

const HUES = ['accent', 'good', 'held', 'pause', 'run', 'bad'] as const
export const MOST_SERIES = HUES.length

export function Chart({ label, look, x, isTime, names, series, span, height = HEIGHT, format }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const [failed, setFailed] = useState(false)
  useEffect(() => {
    let over = false
    let plot: uPlot | undefined
    const resized = new ResizeObserver(([entry]) => plot?.setSize({ width: entry!.contentRect.width, height }))
    void Promise.all([import('uplot'), import('uplot/dist/uPlot.min.css')])
      .then(([{ default: Plot }]) => {
        if (over || !box.current) return
        plot = new Plot(options(Plot, { label, look, x, isTime, names, series, span, height, format }, box.current.clientWidth), [x, ...series.map((one) => one.values)], box.current)
        resized.observe(box.current)
      })
      .catch(() => setFailed(true))
    return () => {
      over = true
      resized.disconnect()
      plot?.destroy()
    }
  }, [x, series, look, isTime, names, height, theme.value])
  return (
    <figure class="chart">
      <div ref={box} class="chart-box" role="img" aria-label={label} style={{ minHeight: `${height}px` }} />
      {failed && <p class="muted">The chart could not be loaded. Reload the page.</p>}
      {series.length > 1 && (
        <figcaption class="chart-key small">
          {series.map((one, n) => (
            <span key={one.name}>
              <span class={`swatch hue-${HUES[n % HUES.length]}`} /> {one.name}
            </span>
          ))}
        </figcaption>
      )}
    </figure>
  )
}

/** So few values are marked, since a single one between gaps makes no line. */
const MOST_MARKED = 30

function options(Plot: typeof uPlot, { look, x, isTime, names, series, span, height = HEIGHT, format }: Props, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement)
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim()
  const axis = { stroke: colour('muted'), grid: { stroke: colour('line'), width: 1 }, ticks: { stroke: colour('line'), width: 1 }, font: `12px ${style.getPropertyValue('--text')}` }
  // Bars are as wide as the least distance between two, and the outer ones need room beside the first and last value.
  // Of a single time, the library would show three years.
  const beside = look === 'bars' || names ? leastDistance(x, isTime ? MINUTE_SECONDS : 1) * 0.6 : 0
  const widest = span ? Math.max(THINNEST, (span / (x.at(-1)! - x[0]! + 2 * beside)) * (width - AXIS)) : 60
  const across = names
    ? { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 1000], values: (_plot: uPlot, values: number[]) => values.map((at) => shortened(names[at] ?? '')) }
    : axis
  return {
    width,
    height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: isTime, ...(beside > 0 ? { range: (_plot: uPlot, low: number, high: number): [number, number] => [low - beside, (x.length === 1 ? low : high) + beside] } : {}) }, y: { range: (_plot, low, high) => heights(Plot, look, low, high) } },
    axes: [across, { ...axis, size: format ? AXIS : 72, ...(format ? { values: (_plot, values) => values.map((value) => (value === null ? '' : format(value))) } : {}) }],
    series: [
      {},
      ...series.map((one, n): uPlot.Series => {
        const stroke = colour(HUES[n % HUES.length]!)
        return {
          label: one.name,
          stroke,
          width: look === 'points' ? 0 : 1.5,
          ...(look === 'bars' ? { fill: `${stroke}99`, paths: Plot.paths.bars!({ size: [span ? 1 : 0.7, widest], align: span ? 1 : 0 }), points: { show: false } } : {}),
          ...(look === 'line' && one.values.filter((value) => value !== null).length <= MOST_MARKED ? { points: { show: true, size: 5 } } : {}),
          ...(look === 'points' ? { paths: () => null, points: { show: true, size: 5, fill: stroke } } : {}),
        }
      }),
    ],
  }
}

/** Where all values are the same, or there is none, the library would show a hundred. */
function heights(Plot: typeof uPlot, look: Look, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null || low === high) return [Math.min(0, low ?? 0), high !== null && high > 0 ? high * 1.2 : 1]
  if (look === 'bars') return [Math.min(0, low), high * 1.05]
  const [from, to] = Plot.rangeNum(low, high, 0.1, true)
  return [from ?? low, to ?? high]
}

function leastDistance(x: number[], ofOne: number): number {
  let least = Infinity
  for (let n = 1; n < x.length; n += 1) if (x[n]! > x[n - 1]!) least = Math.min(least, x[n]! - x[n - 1]!)
  return least === Infinity ? ofOne : least
}

const LONGEST_NAME = 14
const shortened = (name: string) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name)
