// Pipelines that signals and schedules launch, with their rules, and what they launched.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { call, get, withParameters } from '../api'
import { useData } from '../data'
import { FilterInput } from '../fields'
import { count, counted, duration } from '../format'
import { A, Button, Empty, Loading, Page, Problem, sentence, State, Time, toast } from '../parts'
import { address, place, setQuery } from '../router'
import { mayWrite } from '../session'
import type { ExecutionsResponse, ExecutionView, PipelinesResponse, PipelineView, SignalsResponse, Subscription } from '../types'
import { Signals } from './signals'

const PIPELINES_SHOWN = 200
const EXECUTIONS_SHOWN = 100
const RECENT = 1000
const MINUTES = 60
const STATUSES = ['PENDING', 'RUNNING', 'COMPLETED', 'FAILED']
const IN_WORDS: Record<string, string> = { PENDING: 'Waiting', RUNNING: 'Running', COMPLETED: 'Completed', FAILED: 'Failed' }
const AS_TASKS: Record<string, string> = { PENDING: 'queued', RUNNING: 'running', COMPLETED: 'completed', FAILED: 'dead' }

export function TriggersPage() {
  const query = place.value.query
  const filter = { trigger_mode: query.get('mode') ?? '', ticker: query.get('ticker') ?? '' }
  const status = query.get('status') ?? ''
  const chosen = query.get('pipeline') ?? ''
  const pipelines = useData<PipelinesResponse>(withParameters('/api/v1/pipelines', { ...filter, limit: PIPELINES_SHOWN }), () => true)
  const recent = useData<ExecutionsResponse>(withParameters('/api/v1/executions', { limit: RECENT }), () => true)
  const signals = useData<SignalsResponse>('/api/v1/signals', () => true)
  const executions = useData<ExecutionsResponse>(withParameters('/api/v1/executions', { pipeline_id: chosen, status, limit: EXECUTIONS_SHOWN }), () => true)
  const [more, setMore] = useState<{ of: string; pipelines: PipelineView[]; done: boolean }>({ of: '', pipelines: [], done: false })
  const of = JSON.stringify(filter)
  const first = pipelines.data?.pipelines ?? []
  const shown = [...first, ...(more.of === of ? more.pipelines : [])]
  const isMore = first.length >= PIPELINES_SHOWN && !(more.of === of && more.done)
  const loadMore = async () => {
    const next = await attempt(() => get<PipelinesResponse>(withParameters('/api/v1/pipelines', { ...filter, after: shown.at(-1)!.pipeline_id, limit: PIPELINES_SHOWN })))
    if (next) setMore({ of, pipelines: [...(more.of === of ? more.pipelines : []), ...next.pipelines], done: next.pipelines.length < PIPELINES_SHOWN })
  }
  const turn = async (pipeline: PipelineView) => {
    const done = await attempt(() => call<PipelineView>('PATCH', `/api/v1/pipelines/${pipeline.pipeline_id}`, { is_active: !pipeline.is_active }))
    if (done) toast(done.is_active ? `${done.name} launches again` : `${done.name} is paused`)
    pipelines.reload()
  }
  const name = shown.find((one) => one.pipeline_id === chosen)?.name
  const watches = signals.data?.minutes.some((one) => one.has_trigger) || shown.some((one) => one.trigger_mode === 'signal' && one.is_active)
  const filtered = Boolean(filter.trigger_mode || filter.ticker)
  return (
    <Page title="Triggers">
      {signals.data && watches && <Signals of={signals.data} />}
      {recent.data && recent.data.executions.length > 0 && <Launches of={recent.data.executions} />}
      <div class="filters" role="search">
        <label class="field">
          <span>Launched by</span>
          <select value={filter.trigger_mode} onChange={(event) => setQuery({ mode: event.currentTarget.value })}>
            <option value="">Signals and schedules</option>
            <option value="signal">Signals</option>
            <option value="periodic">Schedules</option>
          </select>
        </label>
        <label class="field">
          <span>Ticker</span>
          <FilterInput data-search value={filter.ticker} placeholder="AAPL" size={12} set={(ticker) => setQuery({ ticker })} />
        </label>
      </div>
      {pipelines.error && <Problem error={pipelines.error} retry={pipelines.reload} />}
      {pipelines.loading && !pipelines.data && <Loading />}
      {pipelines.data && shown.length === 0 && (
        <Empty icon="triggers" title={filtered ? 'No pipeline matches' : 'No pipeline yet'}>
          {filtered ? <A class="button" href="/triggers">Show all</A> : (
            <>
              <p>A pipeline names the tickers whose signals launch a job, or a schedule:</p>
              <pre>traceplane pipeline create NAME --tickers AAPL --runs DAG/JOB</pre>
            </>
          )}
        </Empty>
      )}
      {shown.length > 0 && (
        <>
          <div class="table-box" tabIndex={0} role="region" aria-label="Pipelines">
            <table class="table">
              <thead>
                <tr><th>Pipeline</th><th>State</th><th>Launched by</th><th>Rules</th><th>Runs</th><th><span class="hidden">What to do</span></th></tr>
              </thead>
              <tbody>
                {shown.map((one) => (
                  <tr key={one.pipeline_id} class={one.pipeline_id === chosen ? 'chosen' : ''}>
                    <td>
                      <A class="strong" href={withParameters('/triggers', { mode: filter.trigger_mode, ticker: filter.ticker, pipeline: one.pipeline_id })}>{one.name}</A>{' '}
                      <span class="muted">{one.user_id}</span>
                    </td>
                    <td>{one.running ? <State of="running" /> : one.is_active ? <span class="muted">waits</span> : <State of="paused" />}</td>
                    <td class="wrap">{launchedBy(one)}</td>
                    <td class="wrap">{rulesOf(one)}</td>
                    <td>
                      {one.config.target === 'celery' ? <span class="muted">Celery</span> : (
                        <><A href={address.graph({ dag: one.config.dag!, at: `job:${one.config.dag}/${one.config.job}` })}>{one.config.job}</A> <span class="muted">{one.config.dag}</span></>
                      )}
                    </td>
                    <td class="right">
                      {mayWrite() && (
                        <Button icon={one.is_active ? 'pause' : 'running'} onClick={() => void turn(one)}>{one.is_active ? 'Pause' : 'Resume'}</Button>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {isMore && <div class="below"><span class="muted">{counted(shown.length, 'pipeline')} shown</span><Button onClick={() => void loadMore()}>Show more</Button></div>}
        </>
      )}
      {(shown.length > 0 || chosen) && (
        <section class="below-section" aria-label="Executions">
          <div class="section-head">
            <h2>Executions{chosen ? ` of ${name ?? 'one pipeline'}` : ''}</h2>
            <select aria-label="Status" value={status} onChange={(event) => setQuery({ status: event.currentTarget.value })}>
              <option value="">Every status</option>
              {STATUSES.map((one) => <option key={one} value={one}>{one.toLowerCase()}</option>)}
            </select>
            {chosen && <Button look="ghost" icon="close" onClick={() => setQuery({ pipeline: undefined })}>Of all pipelines</Button>}
          </div>
          {executions.error && <Problem error={executions.error} retry={executions.reload} />}
          {executions.data && executions.data.executions.length === 0 && <p class="muted">Nothing was launched yet. A signal on one of its tickers launches a pipeline that is idle.</p>}
          {executions.data && executions.data.executions.length > 0 && <Executions of={executions.data.executions} />}
        </section>
      )}
    </Page>
  )
}

/** How many were launched in each of the last minutes, and how they ended. */
function Launches({ of }: { of: ExecutionView[] }) {
  const now = Date.now()
  const ago = (one: ExecutionView) => Math.floor((now - Date.parse(one.created_at)) / 60_000)
  const within = of.filter((one) => ago(one) < MINUTES)
  const bars = Array.from({ length: MINUTES }, () => ({ launched: 0, failed: 0 }))
  for (const one of within) {
    const bar = bars[MINUTES - 1 - Math.max(0, ago(one))]!
    bar.launched += 1
    if (one.status === 'FAILED') bar.failed += 1
  }
  const most = Math.max(1, ...bars.map((bar) => bar.launched))
  const capped = of.length >= RECENT && within.length === of.length
  const running = of.filter((one) => one.status === 'RUNNING').length
  const failed = within.filter((one) => one.status === 'FAILED').length
  const said = `${capped ? 'At least ' : ''}${counted(within.length, 'launch', 'launches')} in the last hour, ${count(failed)} failed, ${count(running)} running`
  return (
    <section class="card launches">
      <p>{said}</p>
      <svg role="img" aria-label={`Launches per minute: at most ${most}`} viewBox={`0 0 ${MINUTES * 10} 48`} preserveAspectRatio="none">
        {bars.map((bar, n) => (
          <g key={n}>
            <rect class="launch" x={n * 10 + 1} width={8} y={48 - (bar.launched / most) * 46} height={(bar.launched / most) * 46} />
            <rect class="launch-failed" x={n * 10 + 1} width={8} y={48 - (bar.failed / most) * 46} height={(bar.failed / most) * 46} />
          </g>
        ))}
      </svg>
      <p class="muted small launches-foot"><span>an hour ago</span><span>at most {count(most)} a minute</span><span>now</span></p>
    </section>
  )
}

function Executions({ of }: { of: ExecutionView[] }) {
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="List of executions">
      <table class="table">
        <thead>
          <tr><th>Status</th><th>Pipeline</th><th>Because of</th><th>Launched</th><th class="right">Took</th><th>What happened</th></tr>
        </thead>
        <tbody>
          {of.map((one) => (
            <tr key={one.execution_id}>
              <td><State of={AS_TASKS[one.status]!} text={IN_WORDS[one.status]} /></td>
              <td>{one.target === 'task' ? <A class="strong" href={address.task(one.execution_id)}>{one.pipeline}</A> : <span class="strong">{one.pipeline}</span>}</td>
              <td class="wrap">{because(one)}</td>
              <td><Time at={one.created_at} /></td>
              <td class="right">{one.started_at && one.finished_at ? duration(Date.parse(one.finished_at) - Date.parse(one.started_at)) : <span class="muted">—</span>}</td>
              <td class="error-cell">{one.error ? sentence(String(one.error.message ?? one.error.code ?? '')) : ''}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function because(one: ExecutionView): string {
  if (one.scheduled_for) return 'its schedule'
  const signal = one.signal ?? {}
  const parts = [signal.signal_type, signal.ticker].filter(Boolean).map(String)
  return parts.length ? parts.join(' of ') : `signal ${one.signal_id ?? ''}`
}

function launchedBy(one: PipelineView): string {
  if (one.trigger_mode === 'periodic') return `${one.schedule ?? ''} (UTC)`
  const tickers = one.scanner_tickers ?? []
  const on = one.scanner_list ? `the list ${one.scanner_list}` : tickers.length > 6 ? `${tickers.slice(0, 5).join(', ')} and ${tickers.length - 5} more` : tickers.join(', ')
  return one.signal_subscriptions?.length ? `${one.signal_subscriptions.map(inWords).join('; ')} on ${on}` : `every signal on ${on}`
}

function inWords(of: Subscription): string {
  const confidence = of.min_confidence ? ` from ${of.min_confidence} %` : ''
  return `${of.direction ? `${of.direction.toLowerCase()} ` : ''}${of.signal_type ?? 'any signal'}${confidence}`
}

function rulesOf(one: PipelineView) {
  const rules = Object.entries(one.rules ?? {}).map(([name, value]) => `${name.replaceAll('_', ' ')}: ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`)
  if (one.launches_per_hour) rules.push(`${count(one.launches_per_hour)} an hour at most`)
  return rules.length ? rules.join('; ') : <span class="muted">none</span>
}
