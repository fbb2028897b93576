// What the graph shows: nodes of jobs and datasets with what goes on in them, made from the API's answers.
import type { OverviewResponse, DatasetView, FailureView, GraphDataset, GraphJob, GraphRead, GraphResponse, StatusResponse, StuckView } from '../types'
import type { LayoutEdge } from './layout'

export interface JobNode {
  kind: 'job'
  id: string
  dag: string
  name: string
  job: GraphJob
  waiting: number
  running: number
  dead: number
  failures: FailureView[]
  stuck?: StuckView
  state: 'running' | 'dead' | 'held' | 'paused' | 'queued' | 'idle'
}

export interface DatasetNode {
  kind: 'dataset'
  id: string
  dag: string
  name: string
  dataset: GraphDataset
  view?: DatasetView
  /** Commits or events a second, since the last look. */
  rate?: number
  state: 'dead' | 'idle'
}

/** All of a DAG as one node, where there are too many to be read. */
export interface DagNode {
  kind: 'dag'
  id: string
  dag: string
  name: string
  jobs: number
  datasets: number
  waiting: number
  running: number
  dead: number
  state: 'running' | 'dead' | 'queued' | 'idle'
}

/** What a version is to another one. `breaking`: changed itself; `rebuilt`: because of what it reads. */
export type Change = 'added' | 'breaking' | 'rebuilt' | 'in_place' | 'removed'

export type Node = JobNode | DatasetNode | DagNode

export interface Edge extends LayoutEdge {
  role: 'feeds' | 'triggers' | 'reads' | 'writes'
}

export interface Graph {
  nodes: Node[]
  edges: Edge[]
}

export const MOST_NODES = 600

const jobId = (dag: string, job: string) => `job:${dag}/${job}`
const datasetId = (name: string) => `dataset:${name}`

/** Whether all DAGs are too many to be read at once, job by job. */
export const isTooMuch = ({ dags }: OverviewResponse): boolean => dags.reduce((sum, one) => sum + one.jobs + (one.datasets ?? []).length, 0) > MOST_NODES

export function graphOf(structure: GraphResponse, status: StatusResponse | undefined): Graph {
  const views = new Map(status?.datasets.map((view) => [view.dataset, view]))
  // What the platform adds before a job that waits for several inputs says nothing to people: the job reads what it reads.
  const within = new Map<string, GraphRead[]>()
  for (const job of structure.jobs) if (isWithin(job)) for (const name of job.writes ?? []) within.set(name, job.reads ?? [])
  const shown = structure.jobs.filter((job) => !isWithin(job))
  const nodes: Node[] = shown.map((job) => jobNode(job, status))
  const edges: Edge[] = []
  const known = new Set(structure.datasets.map((one) => one.dataset))
  const used = new Set<string>()
  for (const job of shown) {
    const id = jobId(job.dag, job.job)
    const reads = new Map((job.reads ?? []).flatMap((read) => within.get(read.dataset) ?? [read]).map((read) => [read.dataset, read]))
    for (const read of reads.values()) {
      if (!known.has(read.dataset)) continue
      used.add(read.dataset)
      edges.push({ from: datasetId(read.dataset), to: id, role: read.role ?? 'feeds' })
    }
    for (const name of job.writes ?? []) {
      if (!known.has(name)) continue
      used.add(name)
      edges.push({ from: id, to: datasetId(name), role: 'writes' })
    }
  }
  for (const dataset of structure.datasets) {
    if (within.has(dataset.dataset)) continue
    const view = views.get(dataset.dataset)
    const bad = (view?.dead_letters ?? 0) > 0 || (view?.failed_checks?.length ?? 0) > 0
    nodes.push({ kind: 'dataset', id: datasetId(dataset.dataset), dag: dataset.dag, name: dataset.dataset, dataset, view, state: bad ? 'dead' : 'idle' })
    for (const below of dataset.reads ?? [])
      if (known.has(below)) edges.push({ from: datasetId(below), to: datasetId(dataset.dataset), role: 'reads' })
  }
  return { nodes, edges }
}

const isWithin = (job: GraphJob): boolean => job.generated_for !== undefined && job.operator === 'scopes'

function jobNode(job: GraphJob, status: StatusResponse | undefined): JobNode {
  const counts = status?.counts[`${job.dag}/${job.job}`] ?? {}
  const failures = (status?.failed ?? []).filter((one) => one.dag === job.dag && one.job === job.job)
  const dead = failures.filter((one) => one.state === 'dead').reduce((sum, one) => sum + one.tasks, 0)
  const waiting = (counts.queued ?? 0) + (counts.dispatched ?? 0)
  const running = counts.running ?? 0
  const stuck = status?.stuck?.find((one) => one.dag === job.dag && one.job === job.job)
  const state = job.pause ? 'paused' : dead ? 'dead' : job.hold ? 'held' : running ? 'running' : waiting ? 'queued' : 'idle'
  return { kind: 'job', id: jobId(job.dag, job.job), dag: job.dag, name: job.job, job, waiting, running, dead, failures, stuck, state }
}

export function graphOfDags({ dags }: OverviewResponse, status: StatusResponse | undefined): Graph {
  const nodes = new Map<string, DagNode>(
    dags.map(({ dag, jobs, datasets }) => [dag, { kind: 'dag', id: `dag:${dag}`, dag, name: dag, jobs, datasets: (datasets ?? []).length, waiting: 0, running: 0, dead: 0, state: 'idle' }]),
  )
  for (const [job, counts] of Object.entries(status?.counts ?? {})) {
    const node = nodes.get(job.slice(0, job.indexOf('/')))
    if (!node) continue
    node.waiting += (counts.queued ?? 0) + (counts.dispatched ?? 0)
    node.running += counts.running ?? 0
  }
  for (const one of status?.failed ?? []) if (one.state === 'dead' && nodes.has(one.dag)) nodes.get(one.dag)!.dead += one.tasks
  for (const node of nodes.values()) node.state = node.dead ? 'dead' : node.running ? 'running' : node.waiting ? 'queued' : 'idle'
  const edges = dags.flatMap(({ dag, reads }) => (reads ?? []).filter((from) => nodes.has(from)).map((from): Edge => ({ from: `dag:${from}`, to: `dag:${dag}`, role: 'feeds' })))
  return { nodes: [...nodes.values()], edges }
}

/** What a node depends on, or what depends on it, however far. */
export function reachable(graph: Graph, from: string, way: 'up' | 'down'): Set<string> {
  const next = new Map<string, string[]>()
  for (const edge of graph.edges) {
    const [here, there] = way === 'down' ? [edge.from, edge.to] : [edge.to, edge.from]
    const others = next.get(here)
    if (others) others.push(there)
    else next.set(here, [there])
  }
  const seen = new Set<string>()
  const waiting = [from]
  for (let id = waiting.pop(); id !== undefined; id = waiting.pop())
    for (const other of next.get(id) ?? [])
      if (!seen.has(other)) {
        seen.add(other)
        waiting.push(other)
      }
  return seen
}

export const SIZE = {
  job: { width: 208, height: 66 },
  dataset: { width: 192, height: 48 },
  dag: { width: 220, height: 78 },
}
