// How a dataset grew: rows and bytes by when they were committed, and how fresh it is.
import { useMemo, useState } from 'preact/hooks'
import { Chart } from '../chart'
import { brief, bytes, count, counted, duration } from '../format'
import { Fact, Facts, Time } from '../parts'
import type { DatasetHistory } from '../types'

const MEASURES = { rows: 'Rows', bytes: 'Bytes', commits: 'Commits' }
type Measure = keyof typeof MEASURES

export function Growth({ history: data }: { history?: DatasetHistory }) {
  const [measure, setMeasure] = useState<Measure>('rows')
  const points = useMemo(() => data?.points ?? [], [data])
  const x = useMemo(() => points.map((point) => Date.parse(point.at) / 1000), [data])
  const series = useMemo(() => [{ name: MEASURES[measure], values: points.map((point) => point[measure]) }], [data, measure])
  if (!data || points.length === 0) return null
  return (
    <section class="card">
      <div class="result-head">
        <h2>How it grew</h2>
        <div class="switch" role="group" aria-label="Measure">
          {(Object.keys(MEASURES) as Measure[]).map((one) => (
            <button key={one} type="button" aria-pressed={measure === one} onClick={() => setMeasure(one)}>{MEASURES[one]}</button>
          ))}
        </div>
      </div>
      <Chart label={`${MEASURES[measure]} by when they were committed: ${points.map((point) => count(point[measure])).slice(-5).join(', ')} at last`} look="bars" x={x} isTime series={series} span={data.seconds}
        height={180} format={measure === 'bytes' ? bytes : brief} />
      <p class="muted small">
        By when they were committed, in spans of {duration((data.seconds ?? 0) * 1000)}, of what is still there.
        {data.is_cut && ` Only of ${counted(20_000, 'commit')} with the highest positions.`}
      </p>
    </section>
  )
}

export function Freshness({ history: data }: { history?: DatasetHistory }) {
  if (!data?.updated_at) return null
  return (
    <Facts>
      <Fact name="Last commit"><Time at={data.updated_at} /></Fact>
      <Fact name="Last rows"><Time at={data.filled_at} /></Fact>
    </Facts>
  )
}
