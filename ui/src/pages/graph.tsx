// Datasets and jobs, live.
import { useMemo, useRef, useState } from 'preact/hooks'
import { inWords } from '../actions'
import { ApiError, post, withParameters } from '../api'
import { type Loaded, useData } from '../data'
import { brief, bytes, count, counted } from '../format'
import { type DatasetNode, type Edge, graphOf, graphOfDags, isTooMuch, type JobNode, type Node } from '../graph/model'
import { GraphView, saying } from '../graph/view'
import { A, Button, Empty, Fact, Facts, Loading, Problem, sentence, State, toast } from '../parts'
import { address, go, place, setQuery } from '../router'
import { mayWrite } from '../session'
import type { ColumnLineage, OverviewResponse, DatasetDetail, GraphResponse, StatusResponse } from '../types'

export function GraphPage() {
  const query = place.value.query
  const dag = query.get('dag') ?? ''
  const chosen = query.get('at') ?? undefined
  const [wanted, setWanted] = useState('')
  const all = useData<OverviewResponse>('/api/v1/overview', (changed) => (changed.dags ?? []).length > 0)
  const ofDags = !dag && all.data && isTooMuch(all.data) ? all.data : undefined
  const isAsked = dag !== '' || (all.data !== undefined && !ofDags)
  const structure = useData<GraphResponse>(isAsked ? withParameters('/api/v1/graph', { dag }) : null, (changed) => (changed.dags ?? []).length + (changed.jobs ?? []).length > 0)
  const ofStatus = ofDags ? '/api/v1/status?datasets=false' : withParameters('/api/v1/status', { dag })
  const status = useData<StatusResponse>(isAsked || ofDags ? ofStatus : null, (changed) => (changed.jobs ?? changed.datasets ?? []).length > 0 || (changed.datasets ?? []).length > 0)
  const error = structure.error ?? all.error
  const rates = useRates(status.data)
  const dags = useMemo(() => all.data?.dags.map((one) => one.dag) ?? [], [all.data])
  const graph = useMemo(() => {
    if (ofDags) return graphOfDags(ofDags, status.data)
    if (!structure.data) return undefined
    const drawn = graphOf(structure.data, status.data)
    for (const node of drawn.nodes) if (node.kind === 'dataset') node.rate = rates.get(node.name)
    return drawn
  }, [ofDags, structure.data, status.data, rates])
  const found = useMemo(() => {
    const text = wanted.trim().toLowerCase()
    if (!text || !graph) return undefined
    return new Set(graph.nodes.filter((node) => `${node.dag}/${node.name}`.toLowerCase().includes(text)).map((node) => node.id))
  }, [wanted, graph])
  const choose = (id: string | undefined) => setQuery({ at: id, column: undefined })
  const column = query.get('column') ?? undefined
  const lineage = useData<ColumnLineage>(
    column && chosen?.startsWith('dataset:') ? withParameters(`/api/v1/datasets/${encodeURIComponent(chosen.slice(8))}/column-lineage`, { column }) : null,
  )
  const traced = useMemo(() => (lineage.data && graph ? along(lineage.data, graph.edges) : undefined), [lineage.data, graph])
  const open = (node: Node) => {
    if (node.kind === 'dag') go(address.graph({ dag: node.dag }))
    else if (node.kind === 'dataset') go(address.dataset(node.name))
    else go(address.tasks({ dag: node.dag, job: node.name }))
  }
  const node = graph?.nodes.find((one) => one.id === chosen)
  const searched = (event: KeyboardEvent) => {
    if (event.key !== 'Enter' || !found?.size) return
    choose([...found][0])
    setWanted('')
  }
  return (
    <div class="graph-page">
      <header class="bar">
        <h1>Graph</h1>
        <label class="field">
          <span class="hidden">DAG</span>
          <select value={dag} onChange={(event) => go(event.currentTarget.value ? address.graph({ dag: event.currentTarget.value }) : '/graph')}>
            <option value="">All DAGs</option>
            {dags.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <label class="field search">
          <span class="hidden">Find jobs and datasets</span>
          <input type="search" data-search placeholder="Find jobs and datasets  /" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} onKeyDown={searched} />
        </label>
        {found && <span class="muted small">{counted(found.size, 'match', 'matches')}</span>}
        <Legend />
        {graph && <Totals nodes={graph.nodes} />}
      </header>
      {error && <Problem error={error} retry={() => (all.reload(), structure.reload())} />}
      {!graph && !error && <Loading />}
      {graph && graph.nodes.length === 0 && <Nothing />}
      {graph && graph.nodes.length > 0 && (
        <div class="graph-and-panel">
          <GraphView key={dag} graph={graph} chosen={node?.id} found={found ?? traced} choose={choose} open={open} />
          {node && <Panel node={node} close={() => choose(undefined)} changed={structure.reload} lineage={lineage} />}
        </div>
      )}
    </div>
  )
}

const RATE_OVER_MS = 5_000

/** How many commits or events a second came to each dataset, over the last seconds. */
function useRates(status?: StatusResponse): Map<string, number> {
  const before = useRef<{ at: number; seen: Map<string, number> }[]>([])
  return useMemo(() => {
    if (!status) return new Map()
    const now = { at: performance.now(), seen: new Map(status.datasets.map((one) => [one.dataset, one.commits || (one.events ?? 0)])) }
    const looks = [...before.current, now]
    while (looks.length > 2 && looks[1]!.at < now.at - RATE_OVER_MS) looks.shift()
    before.current = looks
    const first = looks[0]!
    const seconds = (now.at - first.at) / 1000
    if (seconds <= 0) return new Map()
    const rates = new Map<string, number>()
    for (const [name, number] of now.seen) {
      const more = number - (first.seen.get(name) ?? number)
      if (more > 0) rates.set(name, more / seconds)
    }
    return rates
  }, [status])
}

function Nothing() {
  return (
    <Empty icon="graph" title="Nothing is deployed yet">
      <p>A DAG file names sources, jobs and datasets. Deploy one, and they appear here:</p>
      <pre>traceplane deploy dag.yaml</pre>
    </Empty>
  )
}

function Legend() {
  return (
    <details class="legend">
      <summary>Legend</summary>
      <ul>
        <li><State of="running" /> tasks are running</li>
        <li><State of="queued" /> tasks wait</li>
        <li><State of="held" /> a queue further down is full, so that this job waits</li>
        <li><State of="paused" /> somebody paused the job</li>
        <li><State of="dead" /> tasks failed for good</li>
        <li><span class="line-sample" /> its changes make tasks</li>
        <li><span class="line-sample dashed" /> it is read, and its changes make no tasks</li>
        <li>A bar in front of a job is its queue; a full one holds what feeds it.</li>
      </ul>
    </details>
  )
}

function Totals({ nodes }: { nodes: Node[] }) {
  const sum = (of: 'running' | 'waiting' | 'dead') => nodes.reduce((total, node) => total + (node.kind === 'dataset' ? 0 : node[of]), 0)
  return (
    <div class="totals">
      <A href="/tasks?state=running" class="total is-running"><strong>{brief(sum('running'))}</strong> running</A>
      <A href="/tasks?state=queued" class="total"><strong>{brief(sum('waiting'))}</strong> waiting</A>
      <A href="/tasks?state=dead&standing=open" class={sum('dead') ? 'total is-dead' : 'total'}><strong>{brief(sum('dead'))}</strong> dead</A>
    </div>
  )
}

// What is chosen -------------------------------------------------------------------------------------

function Panel({ node, close, changed, lineage }: { node: Node; close: () => void; changed: () => void; lineage: Loaded<ColumnLineage> }) {
  return (
    <section class="panel" aria-label={`About ${node.name}`}>
      <header>
        <div>
          <p class="muted small">{node.kind === 'dag' ? 'DAG' : `${node.kind === 'job' ? 'Job' : 'Dataset'} of ${node.dag}`}</p>
          <h2>{node.name}</h2>
        </div>
        <Button icon="close" look="ghost" onClick={close} aria-label="Close" />
      </header>
      {node.kind === 'job' && <AboutJob node={node} changed={changed} />}
      {node.kind === 'dataset' && <><AboutDataset node={node} /><Columns key={node.name} dataset={node.name} lineage={lineage} /></>}
      {node.kind === 'dag' && (
        <A class="button primary" href={address.graph({ dag: node.dag })}>
          Show its jobs
        </A>
      )}
    </section>
  )
}

function AboutJob({ node, changed }: { node: JobNode; changed: () => void }) {
  const job = node.job
  const change = async (what: 'pause' | 'resume') => {
    try {
      await post(`/api/v1/jobs/${what}`, { dag: job.dag, job: job.job })
      toast(what === 'pause' ? `${job.job} is paused` : `${job.job} goes on`)
      changed()
    } catch (error) {
      toast(error instanceof ApiError ? inWords(error) : String(error), true)
    }
  }
  return (
    <>
      <p class="panel-state">
        {node.state === 'idle' ? <span class="muted">Nothing to do at the moment</span> : <State of={node.state} note={saying(node)} />}
      </p>
      {job.pause && (
        <p class="said-box">
          Paused by <strong>{job.pause.paused_by}</strong>{job.pause.reason ? `: ${job.pause.reason}` : '.'}
        </p>
      )}
      {job.hold && <p class="said-box is-held">{held(node)}</p>}
      {node.stuck && <p class="said-box is-held">{sentence(node.stuck.sentence)}</p>}
      {node.failures.map((one) => (
        <p class="said-box is-dead" key={`${one.code} ${one.newest}`}>
          <A href={address.task(one.newest)}>
            {counted(one.tasks, 'task')}{one.and_more ? ' or more' : ''} {one.state === 'dead' ? 'dead' : 'will be tried again'}
          </A>
          {': '}
          {one.message} <code>{one.code}</code>
        </p>
      ))}
      <Facts>
        <Fact name="Operator">{job.operator}</Fact>
        <Fact name="Runtime">{job.runtime}</Fact>
        {job.source_kind && <Fact name="Source">{job.source_kind}</Fact>}
        <Fact name="Version">{job.version}</Fact>
        <Fact name="Running">{count(node.running)}{job.max_concurrency ? ` of ${count(job.max_concurrency)}` : ''}</Fact>
        <Fact name="Waiting">{count(node.waiting)}{job.max_queue_depth ? ` of ${count(job.max_queue_depth)}` : ''}</Fact>
        {job.generated_for && <Fact name="Generated for">{job.generated_for}</Fact>}
      </Facts>
      <Names title="Reads" names={(job.reads ?? []).map((read) => read.dataset)} />
      <Names title="Writes" names={job.writes ?? []} />
      <div class="actions">
        <A class="button" href={address.tasks({ dag: job.dag, job: job.job })}>Its tasks</A>
        {mayWrite() && (
          <Button icon={job.pause ? 'running' : 'pause'} onClick={() => void change(job.pause ? 'resume' : 'pause')}>
            {job.pause ? 'Resume' : 'Pause'}
          </Button>
        )}
      </div>
    </>
  )
}

function held(node: JobNode): string {
  const { level, job, metric, figure, threshold } = node.job.hold!
  const what = level === 1 ? 'Tasks of backfills are held back' : 'Its tasks are held back'
  if (!job) return `${what} by a job further down.`
  const queue = metric === 'queue_age_seconds' ? `the oldest task of ${job} has waited ${brief(figure ?? 0)} s` : `the queue of ${job} has ${brief(figure ?? 0)} tasks`
  return `${what}: ${queue}, and its limit is ${brief(threshold ?? 0)}.`
}

function AboutDataset({ node }: { node: DatasetNode }) {
  const { view, dataset } = node
  return (
    <>
      {(view?.failed_checks ?? []).map((one) => (
        <p class="said-box is-held" key={one.check}>
          Check <strong>{one.check}</strong>: {one.problem}
        </p>
      ))}
      {(view?.dead_letters ?? 0) > 0 && <p class="said-box is-dead">{counted(view!.dead_letters!, 'dead letter')}: rows that could not be written.</p>}
      <Facts>
        <Fact name="Storage">{dataset.storage}</Fact>
        {view && view.events === undefined && <Fact name="Rows">{view.at_most ? '≤ ' : ''}{count(view.rows)}</Fact>}
        {view && view.events === undefined && <Fact name="Size">{bytes(view.bytes)}</Fact>}
        {view?.events !== undefined && <Fact name="Events">{count(view.events)}</Fact>}
        {view && <Fact name="Commits">{count(view.commits)}</Fact>}
        {node.rate !== undefined && <Fact name="Now">{node.rate.toFixed(1)} {view?.events === undefined ? 'commits' : 'events'} a second</Fact>}
        {view?.cursor !== undefined && <Fact name="Last position">{view.cursor_name ?? count(view.cursor)}</Fact>}
        {view?.coverage?.gap_count ? <Fact name="Gaps">{count(view.coverage.gap_count)}</Fact> : null}
      </Facts>
      <Names title="Computed from" names={dataset.reads ?? []} />
      <div class="actions">
        <A class="button" href={address.dataset(dataset.dataset)}>Open it</A>
        <A class="button" href={withParameters('/events', { dataset: dataset.dataset })}>Its events</A>
      </div>
    </>
  )
}

/** Its columns; one of them is followed through the graph. */
function Columns({ dataset, lineage }: { dataset: string; lineage: Loaded<ColumnLineage> }) {
  const { data } = useData<DatasetDetail>(`/api/v1/datasets/${encodeURIComponent(dataset)}`)
  const chosen = place.value.query.get('column') ?? ''
  if (!data?.columns.length) return null
  const others = lineage.data?.columns.filter((one) => one.dataset !== dataset) ?? []
  return (
    <div class="names">
      <h3>Columns</h3>
      <ul class="columns-list" aria-label="Follow a column">
        {data.columns.map((one) => {
          const isChosen = one.name.toLowerCase() === chosen.toLowerCase()
          return (
            <li key={one.name}>
              <button type="button" class="column" aria-pressed={isChosen} onClick={() => setQuery({ column: isChosen ? undefined : one.name })}>
                {one.name} <span class="muted">{one.type}</span>
              </button>
            </li>
          )
        })}
      </ul>
      {chosen && lineage.error && <p class="small muted">{sentence(lineage.error.message)}</p>}
      {chosen && lineage.data && others.length === 0 && <p class="small muted">Nothing is known of where it comes from or goes to: that is known where SQL computes a dataset.</p>}
      {chosen && others.length > 0 && (
        <>
          <h3>Through {counted(new Set(others.map((one) => one.dataset)).size, 'dataset')}{lineage.data?.cut ? ' and more' : ''}</h3>
          <ul class="small">
            {others.map((one) => (
              <li key={`${one.dataset}.${one.column}`}>
                <A href={withParameters('/graph', { dag: place.value.query.get('dag') ?? undefined, at: `dataset:${one.dataset}`, column: one.column })}>{one.dataset}.{one.column}</A>
                {(one.derived_from ?? []).length > 0 && <span class="muted"> from {one.derived_from!.join(', ')}</span>}
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  )
}

/** The datasets that a column passes, and the jobs between them. */
function along(lineage: ColumnLineage, edges: Edge[]): Set<string> {
  const nodes = new Set(lineage.columns.map((one) => `dataset:${one.dataset}`))
  const steps = new Set(lineage.columns.flatMap((one) => (one.derived_from ?? []).map((from) => `dataset:${from.slice(0, from.lastIndexOf('.'))}>dataset:${one.dataset}`)))
  const into = edges.filter((edge) => nodes.has(edge.from) && edge.to.startsWith('job:'))
  for (const edge of into)
    if (edges.some((next) => next.from === edge.to && steps.has(`${edge.from}>${next.to}`))) nodes.add(edge.to)
  return nodes
}

function Names({ title, names }: { title: string; names: string[] }) {
  if (!names.length) return null
  return (
    <div class="names">
      <h3>{title}</h3>
      <ul>
        {names.map((name) => (
          <li key={name}>
            <A href={withParameters('/graph', { dag: place.value.query.get('dag') ?? undefined, at: `dataset:${name}` })}>{name}</A>
          </li>
        ))}
      </ul>
    </div>
  )
}
