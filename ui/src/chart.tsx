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

interface Props {
  label: string
  look: Look
  /** Ascending; seconds if these are times. */
  x: number[]
  isTime: boolean
  series: Series[]
  height?: number
  format?: (value: number) => string
}

const HUES = ['accent', 'good', 'held', 'pause', 'run', 'bad'] as const
export const MOST_SERIES = HUES.length

export function Chart({ label, look, x, isTime, series, height = HEIGHT, format }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const [failed, setFailed] = useState(false)
  useEffect(() => {
    let over = false
    let plot: uPlot | undefined
    const resized = new ResizeObserver(() => plot?.setSize({ width: box.current!.clientWidth, height }))
    void Promise.all([import('uplot'), import('uplot/dist/uPlot.min.css')])
      .then(([{ default: Plot }]) => {
        if (over || !box.current) return
        plot = new Plot(options(Plot, { label, look, x, isTime, series, height, format }, box.current.clientWidth), [x, ...series.map((one) => one.values)], box.current)
        resized.observe(box.current)
      })
      .catch(() => setFailed(true))
    return () => {
      over = true
      resized.disconnect()
      plot?.destroy()
    }
  }, [x, series, look, isTime, height, theme.value])
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

function options(Plot: typeof uPlot, { look, isTime, series, height = HEIGHT, format }: Props, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement)
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim()
  const axis = { stroke: colour('muted'), grid: { stroke: colour('line'), width: 1 }, ticks: { stroke: colour('line'), width: 1 }, font: `12px ${style.getPropertyValue('--text')}` }
  return {
    width,
    height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: isTime }, ...(look === 'bars' ? { y: { range: (_plot, low, high) => [Math.min(0, low), high === low ? high + 1 : high * 1.05] } } : {}) },
    axes: [axis, { ...axis, size: 72, ...(format ? { values: (_plot, values) => values.map((value) => (value === null ? '' : format(value))) } : {}) }],
    series: [
      {},
      ...series.map((one, n): uPlot.Series => {
        const stroke = colour(HUES[n % HUES.length]!)
        return {
          label: one.name,
          stroke,
          width: look === 'points' ? 0 : 1.5,
          ...(look === 'bars' ? { fill: `${stroke}99`, paths: Plot.paths.bars!({ size: [0.7, 60] }), points: { show: false } } : {}),
          ...(look === 'points' ? { paths: () => null, points: { show: true, size: 5, fill: stroke } } : {}),
        }
      }),
    ],
  }
}
