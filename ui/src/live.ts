// What changes, as the gateway says it. One tab of a browser listens and tells the others: a browser opens few
// connections to a server, and a stream holds one.
import { signal } from '@preact/signals'
import { signedOut } from './api'

export interface Changed {
  jobs?: string[]
  datasets?: string[]
  dags?: string[]
  alerts?: boolean
  dead_letters?: boolean
}

export type Connection = 'connecting' | 'live' | 'lost'
export const connection = signal<Connection>('connecting')

type Listener = (changed: Changed) => void
const listeners = new Set<Listener>()
const others = new BroadcastChannel('traceplane-changes')

export function listen(listener: Listener): () => void {
  listeners.add(listener)
  return () => void listeners.delete(listener)
}

function tell(changed: Changed): void {
  for (const listener of [...listeners]) listener(changed)
}

function spread(changed: Changed): void {
  tell(changed)
  others.postMessage({ changed })
}

/** Whether a job, as dag/job, is among those that changed. */
export const concernsJob = (changed: Changed, of: (job: string) => boolean): boolean =>
  (changed.jobs ?? []).some((job) => job === '*' || of(job))

export const concernsDag = (changed: Changed, dag: string): boolean => (changed.dags ?? []).some((one) => one === '*' || one === dag)

export const concernsDataset = (changed: Changed, dataset: string): boolean =>
  (changed.datasets ?? []).some((one) => one === '*' || one === dataset)

others.onmessage = ({ data }: MessageEvent<{ changed?: Changed; connection?: Connection }>) => {
  if (data.changed) tell(data.changed)
  if (data.connection) connection.value = data.connection
}

function say(state: Connection): void {
  if (connection.peek() === state) return
  connection.value = state
  others.postMessage({ connection: state })
}

let opened = false

function open(): void {
  const stream = new EventSource('/api/v1/changes?for_seconds=120')
  stream.addEventListener('open', () => {
    say('live')
    // Nobody knows what changed between two streams.
    if (opened) spread({ jobs: ['*'], datasets: ['*'], dags: ['*'], alerts: true, dead_letters: true })
    opened = true
  })
  stream.addEventListener('changed', (event) => {
    spread(JSON.parse(event.data) as Changed)
  })
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return // a stream that ended opens again by itself
    say('lost')
    stream.close()
    setTimeout(() => (signedOut.peek() ? waitForSignIn() : open()), 5000)
  }
}

function waitForSignIn(): void {
  const stop = signedOut.subscribe((out) => {
    if (!out) queueMicrotask(() => (stop(), open()))
  })
}

export function start(): void {
  if (!navigator.locks) return open() // no secure context: each tab listens for itself
  void navigator.locks.request('traceplane-changes', () => {
    open()
    return new Promise<never>(() => undefined)
  })
  // The listening tab says how it stands only when that changes.
  if (connection.peek() === 'connecting') {
    void navigator.locks.query().then(({ held }) => {
      if (held?.some((lock) => lock.name === 'traceplane-changes')) connection.value = 'live'
    })
  }
}
