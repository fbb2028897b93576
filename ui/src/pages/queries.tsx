// SQL over datasets: an editor with completion, and the result as a table, as a chart, or beside another state.
import { useMemo, useState } from 'preact/hooks'
import { attempt } from '../actions'
import { ApiError, post } from '../api'
import { useData } from '../data'
import { bytes, count, counted, duration } from '../format'
import { Grid } from '../grid'
import { A, Button, Empty, Page, Problem, sentence, toast } from '../parts'
import { type Answer, type AsOf, ask, bodyOf, download, filled, type Format, nameOf, parametersOf } from '../query/asked'
import { AsOfField, SqlField } from '../query/fields'
import { ResultFigure } from '../query/figure'
import { address, go, place, setQuery } from '../router'
import { compared, isUnique, type Table } from '../table'
import type { OverviewResponse, QueryPlan } from '../types'

const KEPT = 'traceplane-query'
const LONGEST_LINK = 6_000

interface Run {
  /** One, or two that are compared. */
  answers: Answer[]
  asOf: AsOf[]
  bodies: Record<string, unknown>[]
  took: number
}

type Outcome = { run: Run } | { plan: QueryPlan } | { error: ApiError }

const inAddress = (name: string): AsOf | undefined => place.peek().query.get(name) ?? undefined

export function QueriesPage() {
  const [sql, setSql] = useState(place.peek().query.get('sql') ?? localStorage.getItem(KEPT) ?? '')
  const [asOf, setAsOf] = useState<AsOf>(inAddress('as_of') ?? '')
  const [versus, setVersus] = useState<AsOf | undefined>(inAddress('versus') === 'now' ? '' : inAddress('versus'))
  const [values, setValues] = useState<Record<string, string>>(() => valuesIn(place.peek().query))
  const [outcome, setOutcome] = useState<Outcome>()
  const [busy, setBusy] = useState<AbortController>()
  const all = useData<OverviewResponse>('/api/v1/overview')
  const dags = useMemo(() => dagsOf(all.data, sql), [all.data, sql])
  const names = parametersOf(sql)
  const isReady = sql.trim() !== '' && busy === undefined
  const remember = () => {
    localStorage.setItem(KEPT, sql)
    go(linkOf(sql, asOf, versus, values, names), 'replace')
  }
  const start = async (work: (signal: AbortSignal) => Promise<Outcome>) => {
    if (!isReady) return
    remember()
    const unset = names.filter((name) => !values[name])
    if (unset.length > 0) return setOutcome({ error: new ApiError(0, 'query.no_value', 'a parameter has no value', unset.map((name) => `$${name}`).join(', '), 'fill it in below the text') })
    const controller = new AbortController()
    setBusy(controller)
    try {
      setOutcome(await work(controller.signal))
    } catch (error) {
      setOutcome({ error: error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error)) })
    }
    setBusy(undefined)
  }
  const run = () =>
    void start(async (signal) => {
      const states = versus === undefined ? [asOf] : [asOf, versus]
      const bodies = states.map((state) => bodyOf(filled(sql, values), state))
      const begun = performance.now()
      const answers = await Promise.all(bodies.map((body) => ask(body, signal)))
      return { run: { answers, asOf: states, bodies, took: performance.now() - begun } }
    })
  const plan = () => void start(async () => ({ plan: await post<QueryPlan>('/api/v1/query-plan', bodyOf(filled(sql, values), asOf)) }))
  const share = () => {
    remember()
    if (sql.length > LONGEST_LINK) return toast(`The query has more than ${count(LONGEST_LINK)} characters: too many for a link. Make it a job or a virtual dataset.`, true)
    void navigator.clipboard?.writeText(location.href).then(() => toast('The link is copied. It holds the query, not its result.'))
  }
  return (
    <Page title="Queries">
      <div class="query">
        <section class="card query-card" aria-label="Query">
          <SqlField sql={sql} set={setSql} run={run} />
          {names.length > 0 && (
            <div class="query-tools">
              {names.map((name) => (
                <label class="field inline" key={name}>
                  <code>${name}</code>
                  <input value={values[name] ?? ''} onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
                    onKeyDown={(event) => event.key === 'Enter' && run()} />
                </label>
              ))}
            </div>
          )}
          <div class="query-tools">
            {busy ? (
              <Button icon="close" onClick={() => busy.abort()}>Stop</Button>
            ) : (
              <Button look="primary" icon="running" disabled={!isReady} onClick={run}>Run</Button>
            )}
            <kbd class="for-keyboards">Ctrl Enter</kbd>
            <Button disabled={!isReady} onClick={plan}>Plan</Button>
            <AsOfField label="As of" value={asOf} dags={dags} set={(value) => setAsOf(value ?? '')} />
            <AsOfField label="Beside" value={versus} dags={dags} set={setVersus} none="nothing" />
            <Button class="to-the-right" look="ghost" icon="copy" disabled={!sql.trim()} onClick={share}>Copy link</Button>
          </div>
        </section>
        {busy && <p class="muted" role="status">Running…</p>}
        {!busy && <Result outcome={outcome} hasText={sql.trim() !== ''} />}
      </div>
    </Page>
  )
}

const PREFIX = 'p.'

const valuesIn = (query: URLSearchParams): Record<string, string> =>
  Object.fromEntries([...query].filter(([name]) => name.startsWith(PREFIX)).map(([name, value]) => [name.slice(PREFIX.length), value]))

function linkOf(sql: string, asOf: AsOf, versus: AsOf | undefined, values: Record<string, string>, names: string[]): string {
  const query = new URLSearchParams(place.peek().query)
  for (const name of [...query.keys()]) if (name.startsWith(PREFIX)) query.delete(name)
  const stated: Record<string, string | undefined> = {
    sql: sql.length <= LONGEST_LINK ? sql : undefined,
    as_of: asOf,
    versus: versus === '' ? 'now' : versus,
    ...Object.fromEntries(names.map((name) => [PREFIX + name, values[name]])),
  }
  for (const [name, value] of Object.entries(stated)) {
    if (value) query.set(name, value)
    else query.delete(name)
  }
  return `/queries?${query}`
}

/** Those of datasets that the text names come first. */
function dagsOf(all: OverviewResponse | undefined, sql: string): string[] {
  const dags = all?.dags ?? []
  const named = dags.filter((one) => (one.datasets ?? []).some((name) => sql.includes(name)))
  return [...new Set([...named, ...dags].map((one) => one.dag))]
}

function Result({ outcome, hasText }: { outcome?: Outcome; hasText: boolean }) {
  if (!outcome)
    return (
      <Empty icon="queries" title={hasText ? 'Run it to see its rows' : 'Ask something'}>
        <p>One <code>select</code> over datasets, in DuckDB's dialect. It reads one consistent state of all of them. <code>$name</code> asks for a value.</p>
      </Empty>
    )
  if ('error' in outcome) return <Problem error={outcome.error} />
  if ('plan' in outcome) return <Plan plan={outcome.plan} />
  const task = outcome.run.answers.find((answer) => answer.task)?.task
  if (task)
    return (
      <section class="card">
        <h2>Spark runs it as a task</h2>
        {task.reason && <p>{sentence(task.reason)}</p>}
        <p>Its result becomes the dataset <A href={address.dataset(task.dataset)}>{task.dataset}</A>: <A href={address.task(task.task_id)}>the task</A></p>
      </section>
    )
  return <Answered run={outcome.run} />
}

function Plan({ plan }: { plan: QueryPlan }) {
  const left = plan.of_files - plan.files
  return (
    <section class="card plan">
      <h2>{plan.engine === 'spark' ? 'Spark' : 'DuckDB'} would run it</h2>
      <p>{sentence(plan.reason)}</p>
      {plan.of_files > 0 && <progress max={plan.of_files} value={plan.files} aria-label="Files that it would read" />}
      <p class="muted">
        It would read {count(plan.files)} of {counted(plan.of_files, 'file')}, about {bytes(plan.bytes)}.
        {left > 0 ? ` ${counted(left, 'file')} cannot hold a matching row and ${left === 1 ? 'is' : 'are'} left out.` : plan.of_files > 0 ? ' No file can be left out: conditions that compare a column with a constant would allow it.' : ''}
      </p>
      {Object.keys(plan.generations).length > 0 && (
        <details>
          <summary>Generations that it would read</summary>
          <ul class="lineage">
            {Object.entries(plan.generations).map(([dataset, generation]) => (
              <li key={dataset}><A href={address.dataset(dataset)}>{dataset}</A> <code>{generation}</code></li>
            ))}
          </ul>
        </details>
      )}
    </section>
  )
}

type View = 'table' | 'chart'

function Answered({ run }: { run: Run }) {
  const view = (place.value.query.get('view') ?? 'table') as View
  const [first, second] = run.answers.map((answer) => answer.table!)
  const rows = run.answers.map((answer) => counted(answer.table!.length, 'row')).join(' and ')
  return (
    <>
      <div class="result-head">
        <p class="muted" role="status">{rows} in {duration(run.took)}</p>
        <div class="switch" role="group" aria-label="Show as">
          {(['table', 'chart'] as const).map((one) => (
            <button key={one} type="button" aria-pressed={view === one} onClick={() => setQuery({ view: one === 'table' ? undefined : one })}>
              {one === 'table' ? 'Table' : 'Chart'}
            </button>
          ))}
        </div>
        <Downloads run={run} />
      </div>
      {view === 'chart' && <ResultFigure table={first!} />}
      {view === 'table' && second && <SideBySide left={first!} right={second} names={[nameOf(run.asOf[0]!), nameOf(run.asOf[1]!)]} />}
      {view === 'table' && !second && first!.columns.length > 0 && <Grid table={first!} label="Result" />}
    </>
  )
}

const FORMATS: Record<Format, string> = { csv: 'CSV', parquet: 'Parquet', arrow: 'Arrow' }

function Downloads({ run }: { run: Run }) {
  const [busy, setBusy] = useState<Format>()
  const save = async (format: Format) => {
    setBusy(format)
    await attempt(() => download(run.bodies[0]!, format, run.answers[0]!.bytes))
    setBusy(undefined)
  }
  return (
    <div class="downloads" role="group" aria-label="Download">
      {(Object.keys(FORMATS) as Format[]).map((format) => (
        <Button key={format} look="ghost" icon="download" disabled={busy !== undefined} onClick={() => void save(format)}>
          {busy === format ? '…' : FORMATS[format]}
        </Button>
      ))}
    </div>
  )
}

const BY_NUMBER = ''
const MOST_CHECKED = 1_000_000

function SideBySide({ left, right, names }: { left: Table; right: Table; names: [string, string] }) {
  const keys = left.columns.filter((column) => right.columns.some((other) => other.name === column.name)).map((column) => column.name)
  const usual = useMemo(() => {
    const small = left.length <= MOST_CHECKED && right.length <= MOST_CHECKED
    return (small && keys.find((key) => [left, right].every((table) => isUnique(table, table.columns.findIndex((one) => one.name === key))))) || BY_NUMBER
  }, [left, right])
  const [chosen, setChosen] = useState<string>()
  const [only, setOnly] = useState(false)
  const key = chosen ?? usual
  const { table, changed, onlyLeft, onlyRight } = useMemo(() => compared(left, right, names, key || undefined, only), [left, right, key, only])
  const same = changed + onlyLeft + onlyRight === 0
  return (
    <>
      <div class="result-head">
        <p role="status">
          {same ? 'Both are the same.' : (
            <>
              <span class="cell-changed">{counted(changed, 'row')} changed</span> <span class="cell-before">{count(onlyLeft)} only in {names[0]}</span> <span class="cell-after">{count(onlyRight)} only in {names[1]}</span>
            </>
          )}
        </p>
        <label class="field inline">
          <span>Same row by</span>
          <select value={key} onChange={(event) => setChosen(event.currentTarget.value)}>
            <option value={BY_NUMBER}>its number</option>
            {keys.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
        </label>
        <label class="check"><input type="checkbox" checked={only} onChange={(event) => setOnly(event.currentTarget.checked)} /> Differences only</label>
      </div>
      {table.length > 0 && <Grid table={table} label="Result" />}
    </>
  )
}
