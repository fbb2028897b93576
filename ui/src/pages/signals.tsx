// What pipelines made of the signals of the last hour, and how late the trigger is.
import { useMemo } from 'preact/hooks'
import { Chart } from '../chart'
import { brief, counted, duration } from '../format'
import type { SignalMinuteView, SignalsResponse } from '../types'

const HEIGHT = 130
const SILENT_MINUTES = 2

const rate = (n: number) => (n < 10 ? String(Number(n.toPrecision(2))) : brief(Math.round(n)))
const seconds = (n: number) => duration(n * 1000)

export function Signals({ of: data }: { of: SignalsResponse }) {
  // The present minute is not over, so it would end every line too low.
  const over = useMemo(() => data.minutes.slice(0, -1), [data])
  const x = useMemo(() => over.map((one) => Date.parse(one.at) / 1000), [over])
  const rates = useMemo(
    () => [
      { name: 'signals a second', values: over.map((one) => perSecond(one, one.signals)) },
      { name: 'matches a second', values: over.map((one) => perSecond(one, one.matches)) },
    ],
    [over],
  )
  const lags = useMemo(() => [{ name: 'lag', values: over.map((one) => one.lag_seconds ?? null) }], [over])
  const silent = [...data.minutes].reverse().findIndex((one) => one.has_trigger)
  const latest = data.minutes.slice(-SILENT_MINUTES)
  const lag = most(latest)
  if (silent < 0) {
    return (
      <section class="card signals" aria-label="Signals">
        <h2>Signals</h2>
        <p class="said-box is-dead">No trigger was there in the last hour, so no signal launches a pipeline. Start one: <code>traceplane trigger run</code></p>
      </section>
    )
  }
  return (
    <section class="card signals" aria-label="Signals">
      <h2>Signals</h2>
      {silent >= SILENT_MINUTES && <p class="said-box is-dead">No trigger has been there for {counted(silent, 'minute')}.</p>}
      <ul class="facts-line">
        {!data.is_limited && <li><strong>{rate(overall(latest, 'signals'))}</strong> signals a second</li>}
        {!data.is_limited && <li><strong>{rate(overall(latest, 'matches'))}</strong> matches a second</li>}
        <li>{lag === null ? 'how far behind the topic is unknown' : <><strong>{seconds(lag)}</strong> behind the topic</>}</li>
      </ul>
      <div class="signal-charts">
        {!data.is_limited && <Chart label="Signals and matches a second, in the last hour" look="line" x={x} isTime series={rates} height={HEIGHT} format={rate} />}
        {lags[0]!.values.some((one) => one !== null) && (
          <div>
            <Chart label="How far the trigger was behind the topic, in the last hour" look="line" x={x} isTime series={lags} height={HEIGHT} format={seconds} />
            <p class="chart-key small"><span><span class="swatch hue-accent" /> behind the topic</span></p>
          </div>
        )}
      </div>
      <p class="muted small">
        {data.is_limited ? 'Counts are of all pipelines, and you may not see all of them. ' : 'Signals on tickers that a pipeline watches, and pipelines that they matched. '}
        Behind the topic: the longest from publishing a signal until it was processed.
      </p>
    </section>
  )
}

const perSecond = (one: SignalMinuteView, n?: number) => (n === undefined ? null : n / Math.max(1, one.seconds))

function overall(of: SignalMinuteView[], measure: 'signals' | 'matches'): number {
  const there = of.filter((one) => one.has_trigger)
  return there.reduce((sum, one) => sum + (one[measure] ?? 0), 0) / Math.max(1, there.reduce((sum, one) => sum + one.seconds, 0))
}

function most(of: SignalMinuteView[]): number | null {
  const known = of.flatMap((one) => one.lag_seconds ?? [])
  return known.length ? Math.max(...known) : null
}
