// Datasets, and one of them: schema, rows, what it holds and lacks, who writes and reads it.
import { useEffect, useRef, useState } from 'preact/hooks'
import { attempt, inWords } from '../actions'
import { ApiError, get, post, withParameters } from '../api'
import { useData } from '../data'
import { brief, bytes, count, counted } from '../format'
import { Grid } from '../grid'
import { Icon } from '../icons'
import { concernsDag, concernsDataset } from '../live'
import { A, Button, Empty, Fact, Facts, Loading, Page, Problem, sentence, State, Time, toast, withCode } from '../parts'
import { address, place, setQuery } from '../router'
import { mayWrite } from '../session'
import { Freshness, Growth } from './growth'
import { type Span, Strip } from '../strip'
import { type Rows, type Table, tableOf } from '../table'
import type { BackfillResponse, CatalogEntry, CatalogResponse, ColumnView, DatasetDetail, DatasetHistory, DatasetView, ScopeExplanation, StatusResponse, VersionsResponse } from '../types'

export function DatasetsPage() {
  const wanted = place.value.query.get('find') ?? ''
  const path = withParameters('/api/v1/datasets', { find: useSettled(wanted), limit: PER_PAGE })
  const { data, error, loading, reload } = useData<CatalogResponse>(path, (changed) => (changed.datasets ?? []).length > 0)
  const shown = useRef<{ path: string; answer: CatalogResponse } | undefined>(undefined)
  if (data) shown.current = { path, answer: data } // until what is found with other letters is there
  const first = shown.current
  const [further, setFurther] = useState<{ path: string; datasets: CatalogEntry[]; after?: string }>({ path: '', datasets: [] })
  const more = first && further.path === first.path ? further : undefined
  const found = first && [...first.answer.datasets, ...(more?.datasets ?? [])]
  const after = more ? more.after : first?.answer.after
  const loadMore = async () => {
    const next = await attempt(() => get<CatalogResponse>(`${first!.path}&${new URLSearchParams({ after: after! })}`))
    if (next) setFurther({ path: first!.path, datasets: [...(more?.datasets ?? []), ...next.datasets], after: next.after })
  }
  return (
    <Page title="Datasets">
      <div class="filters" role="search">
        <label class="field search">
          <span class="hidden">Find datasets</span>
          <input type="search" data-search placeholder="Find datasets  /" value={wanted} onInput={(event) => setQuery({ find: event.currentTarget.value })} />
        </label>
      </div>
      {error && <Problem error={error} retry={reload} />}
      {loading && !found && <Loading />}
      {found?.length === 0 && (
        <Empty icon="dataset" title={wanted ? 'No dataset is called like that' : 'No dataset yet'}>
          {!wanted && <p>Jobs write datasets. They are there once their DAG is deployed: <code>traceplane deploy dag.yaml</code></p>}
        </Empty>
      )}
      {found && found.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead>
              <tr>
                <th>Dataset</th>
                <th>DAG</th>
                <th>Storage</th>
                <th class="right">Rows</th>
                <th class="right">Size</th>
                <th>Last position</th>
                <th class="right">Gaps</th>
                <th>Description</th>
              </tr>
            </thead>
            <tbody>
              {found.map((one) => (
                <tr key={one.dataset}>
                  <td class="wide"><A class="strong" href={address.dataset(one.dataset)}>{one.dataset}</A></td>
                  <td><A href={address.graph({ dag: one.dag })}>{one.dag}</A></td>
                  <td>{one.storage}</td>
                  <td class="right">{one.events !== undefined ? counted(one.events, 'event') : `${one.at_most ? '≤ ' : ''}${brief(one.rows)}`}</td>
                  <td class="right">{one.events === undefined && one.storage !== 'virtual' ? bytes(one.bytes) : <span class="muted">—</span>}</td>
                  <td>{one.cursor === undefined ? <span class="muted">—</span> : (one.cursor_name ?? count(one.cursor))}</td>
                  <td class="right">{one.coverage?.gap_count ? count(one.coverage.gap_count) : <span class="muted">—</span>}</td>
                  <td class="error-cell plain">{one.description}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {after !== undefined && <div class="actions"><Button onClick={() => void loadMore()}>Show more</Button></div>}
        </div>
      )}
    </Page>
  )
}

const PER_PAGE = 100
const SETTLED_MS = 200

/** The text once nobody has typed for a moment. */
function useSettled(text: string): string {
  const [settled, setSettled] = useState(text)
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), SETTLED_MS)
    return () => clearTimeout(timer)
  }, [text])
  return settled
}

export function DatasetPage({ name }: { name: string }) {
  const path = `/api/v1/datasets/${encodeURIComponent(name)}`
  const { data, error, reload } = useData<DatasetDetail>(path, (changed) => concernsDataset(changed, name) || (changed.dags ?? []).length > 0)
  const status = useData<StatusResponse>(withParameters('/api/v1/status', { dataset: name }), (changed) => concernsDataset(changed, name))
  const history = useData<DatasetHistory>(data ? `${path}/history` : null, (changed) => concernsDataset(changed, name))
  if (error && !data)
    return error.status === 404 ? (
      <Empty icon="dataset" title="There is no such dataset">
        <p>{error.nextStep && withCode(sentence(error.nextStep))}</p>
        <A class="button" href="/datasets">All datasets</A>
      </Empty>
    ) : (
      <Problem error={error} retry={reload} />
    )
  if (!data) return <Loading />
  const view = status.data?.datasets.find((one) => one.dataset === name)
  const entry = data.dataset
  const isVirtual = data.sql !== undefined || entry.storage === 'virtual'
  const hasNoPositions = entry.commits > 0 && entry.cursor === undefined && entry.coverage === undefined // such as a query's result
  return (
    <Page title={name} side={<A class="button" href={address.graph({ dag: entry.dag, at: `dataset:${name}` })}>In the graph</A>}>
      {entry.description && <p class="lead">{entry.description}</p>}
      <div class="columns">
        <div class="column-main">
          {!isVirtual && entry.events === undefined && !hasNoPositions && <Held name={name} producers={data.produced_by ?? []} />}
          <Checks view={view} />
          {!isVirtual && entry.events === undefined && <Growth history={history.data} />}
          <Schema columns={data.columns} position={data.position} />
          <Sample name={name} rows={entry.rows} isVirtual={isVirtual} />
          {data.sql && (
            <section class="card">
              <h2>Its SQL</h2>
              <pre tabIndex={0} role="region" aria-label="SQL of the dataset">{data.sql}</pre>
            </section>
          )}
        </div>
        <div class="column-side">
          <section class="card">
            <h2>Facts</h2>
            <Facts>
              <Fact name="DAG"><A href={address.deploys(entry.dag)}>{entry.dag}</A>{entry.version !== undefined && <span class="muted"> version {entry.version}</span>}</Fact>
              <Fact name="Storage">{isVirtual ? 'virtual' : entry.storage}</Fact>
              {!isVirtual && entry.events === undefined && <Fact name="Rows">{entry.at_most ? '≤ ' : ''}{count(entry.rows)}</Fact>}
              {!isVirtual && entry.events === undefined && <Fact name="Size">{bytes(entry.bytes)}</Fact>}
              {entry.events !== undefined && <Fact name="Events">{count(entry.events)}</Fact>}
              {!isVirtual && <Fact name="Commits">{count(entry.commits)}</Fact>}
              {entry.cursor !== undefined && <Fact name="Last position">{entry.cursor_name ?? count(entry.cursor)}</Fact>}
              {data.cron && <Fact name="Schedule"><code>{data.cron.schedule}</code> {data.cron.time_zone}</Fact>}
              {data.cron?.next_tick && <Fact name="Next tick"><Time at={data.cron.next_tick} /></Fact>}
              {data.read_roles && <Fact name="Read by roles">{data.read_roles.join(', ')}</Fact>}
              {data.write_roles && <Fact name="Written by roles">{data.write_roles.join(', ')}</Fact>}
            </Facts>
            {!isVirtual && entry.events === undefined && <Freshness history={history.data} />}
          </section>
          <Jobs title="Written by" jobs={data.produced_by ?? []} />
          <Jobs title="Read by" jobs={data.read_by ?? []} />
          <Versions dag={entry.dag} />
        </div>
      </div>
    </Page>
  )
}

function Jobs({ title, jobs }: { title: string; jobs: string[] }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      {jobs.length === 0 && <p class="muted">No job.</p>}
      <ul class="lineage">
        {jobs.map((job) => {
          const [dag = '', ...rest] = job.split('/')
          return (
            <li key={job}>
              <A href={address.graph({ dag, at: `job:${job}` })}>{rest.join('/')}</A> <span class="muted">{dag}</span>
            </li>
          )
        })}
      </ul>
    </section>
  )
}

const SHOWN_VERSIONS = 5

/** Of its DAG: each is a state of the dataset that can be gone back to, or asked about. */
function Versions({ dag }: { dag: string }) {
  const { data } = useData<VersionsResponse>(withParameters('/api/v1/versions', { dag, limit: SHOWN_VERSIONS }), (changed) => concernsDag(changed, dag))
  if (!data?.versions.length) return null
  return (
    <section class="card">
      <h2>Versions</h2>
      <ul class="lineage">
        {data.versions.map((one) => (
          <li key={one.version}>
            <A href={address.deploys(dag)}>{one.version}</A> <State of={one.state} /> <span class="muted"><Time at={one.activated_at ?? one.created_at} /></span>
          </li>
        ))}
      </ul>
    </section>
  )
}

function Held({ name, producers }: { name: string; producers: string[] }) {
  const [chosen, setChosen] = useState<Span>()
  const [why, setWhy] = useState<{ of: Span; answer: ScopeExplanation }>()
  const explain = async (span: Span) => {
    try {
      const path = withParameters(`/api/v1/datasets/${encodeURIComponent(name)}/explain`, { first: span.begin, last: span.end })
      setWhy({ of: span, answer: await get<ScopeExplanation>(path) })
    } catch (error) {
      toast(error instanceof ApiError ? inWords(error) : String(error), true)
    }
  }
  return (
    <section class="card">
      <h2>What it holds</h2>
      <Strip dataset={name} producers={producers} choose={setChosen} chosen={chosen} />
      {chosen && (
        <div class="chosen-span">
          <strong>{chosen.name}</strong>
          <Button icon="help" onClick={() => void explain(chosen)}>Why is it so?</Button>
          {mayWrite() && <Backfill key={`${chosen.first} ${chosen.last}`} name={name} span={chosen} />}
        </div>
      )}
      {why && chosen && why.of === chosen && (
        <ul class="reasons">
          {why.answer.reasons.map((reason, n) => (
            <li key={n}>{sentence(reason.sentence)}</li>
          ))}
        </ul>
      )}
    </section>
  )
}

const ONLY = { missing: 'what is missing', failed: 'what failed', all: 'all of it' }

function Backfill({ name, span }: { name: string; span: Span }) {
  const [only, setOnly] = useState<keyof typeof ONLY>('missing')
  const [tried, setTried] = useState<BackfillResponse>()
  const ask = async (dry: boolean) => {
    try {
      const answer = await post<BackfillResponse>('/api/v1/backfill', { dataset: name, start: span.begin, end: span.end, only, dry_run: dry })
      if (dry) return setTried(answer)
      setTried(undefined)
      toast(answer.created ? `${counted(answer.created, 'task')} of ${answer.job} will compute it` : 'There is nothing to compute')
    } catch (error) {
      toast(error instanceof ApiError ? inWords(error) : String(error), true)
    }
  }
  if (tried)
    return (
      <>
        <span>
          {tried.created ? `This makes ${counted(tried.created, 'task')} of ${tried.job}.` : 'Nothing to compute.'}
          {tried.unfinished > 0 && ` ${counted(tried.unfinished, 'scope')} under way already.`}
          {(tried.left_out ?? 0) > 0 && ` ${counted(tried.left_out!, 'scope')} left out: an input lacks something.`}
        </span>
        {tried.created > 0 && <Button look="primary" onClick={() => void ask(false)}>Compute</Button>}
        <Button look="ghost" onClick={() => setTried(undefined)}>Back</Button>
      </>
    )
  return (
    <>
      <label class="field inline">
        <span class="hidden">What to compute</span>
        <select value={only} onChange={(event) => setOnly(event.currentTarget.value as keyof typeof ONLY)}>
          {Object.entries(ONLY).map(([value, text]) => (
            <option key={value} value={value}>{text}</option>
          ))}
        </select>
      </label>
      <Button icon="retry" onClick={() => void ask(true)}>Backfill…</Button>
    </>
  )
}

function Checks({ view }: { view?: DatasetView }) {
  const failed = view?.failed_checks ?? []
  const letters = view?.dead_letters ?? 0
  if (!failed.length && !letters) return null
  return (
    <section class="card">
      <h2>What is wrong with it</h2>
      {letters > 0 && <p><State of="dead" /> <A href={`/dead-letters?dataset=${encodeURIComponent(view!.dataset)}`}>{counted(letters, 'dead letter')}</A>: rows that could not be written.</p>}
      <ul class="reasons">
        {failed.map((one) => (
          <li key={one.check}>
            Check <strong>{one.check}</strong>: {one.problem} {one.task_id && <A href={address.task(one.task_id)}>task</A>}
          </li>
        ))}
      </ul>
    </section>
  )
}

function Schema({ columns, position }: { columns: ColumnView[]; position?: string }) {
  return (
    <section class="card">
      <h2>Columns</h2>
      {columns.length === 0 && <p class="muted">Unknown until it has rows. Declare them in the DAG file to have them checked.</p>}
      {columns.length > 0 && (
        <table class="table flat">
          <thead>
            <tr><th>Name</th><th>Type</th><th>Marks</th><th>Computed from</th></tr>
          </thead>
          <tbody>
            {columns.map((column) => (
              <tr key={column.name}>
                <td class="strong">{column.name}</td>
                <td><code>{column.type}</code></td>
                <td>
                  {column.pii && <span class="tag is-pii"><Icon name="pii" /> personal data</span>}
                  {column.declassified && <span class="tag" title={column.declassified}>declassified</span>}
                  {!column.nullable && <span class="tag">not null</span>}
                  {column.name === position && <span class="tag">position</span>}
                </td>
                <td class="wrap muted">{column.derived_from?.join(', ') ?? ''}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  )
}

const SAMPLED = 100

function Sample({ name, rows, isVirtual }: { name: string; rows: number; isVirtual: boolean }) {
  const [shown, setShown] = useState<Table>()
  const [problem, setProblem] = useState<ApiError>()
  const [busy, setBusy] = useState(false)
  const load = async () => {
    setBusy(true)
    setProblem(undefined)
    try {
      setShown(tableOf(await post<Rows>('/api/v1/query', { sql: `select * from "${name.replaceAll('"', '""')}" limit ${SAMPLED}`, format: 'json' })))
    } catch (error) {
      setProblem(error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error)))
    }
    setBusy(false)
  }
  return (
    <section class="card">
      <h2>Rows</h2>
      {problem && <Problem error={problem} />}
      {!shown && (
        <Button icon="queries" disabled={busy || (!rows && !isVirtual)} onClick={() => void load()}>
          {busy ? 'Reading…' : rows || isVirtual ? 'Show some' : 'It has none yet'}
        </Button>
      )}
      {shown && <Grid table={shown} label={`Rows of ${name}`} />}
    </section>
  )
}
