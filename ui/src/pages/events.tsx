// Events: the latest ones, and one of them with everything that it caused, as a tree on a time axis.
import { useEffect, useMemo, useState } from 'preact/hooks'
import { attempt } from '../actions'
import { get, withParameters } from '../api'
import { useData } from '../data'
import { FilterInput } from '../fields'
import { brief, bytes, count, counted, duration, isKept, nameOfDataset } from '../format'
import { Icon, type IconName } from '../icons'
import { concernsJob } from '../live'
import { A, Button, Copy, DatasetName, Empty, Loading, Page, Problem, State, Time } from '../parts'
import { address, go, place, setQuery } from '../router'
import type { OverviewResponse, Effect, EffectsResponse, EventList, EventView } from '../types'

const PER_PAGE = 50
const MOST_COUNTED = 1000

export function EventsPage() {
  const query = place.value.query
  const filter = {
    dataset: query.get('dataset') ?? '',
    kind: query.get('kind') ?? '',
    start: query.get('start') ?? '',
    end: query.get('end') ?? '',
    task_id: query.get('task_id') ?? '',
    commit_id: query.get('commit_id') ?? '',
  }
  const path = withParameters('/api/v1/events', { ...filter, limit: PER_PAGE })
  const first = useData<EventList>(path, (changed) => (changed.datasets ?? changed.jobs ?? []).length > 0)
  const all = useData<OverviewResponse>('/api/v1/overview')
  const [older, setOlder] = useState<{ path: string; events: EventView[]; before?: number }>({ path: '', events: [] })
  const more = older.path === path ? older : undefined
  const newest = first.data?.events ?? []
  const shown = new Set(newest.map((event) => event.event_id))
  const events = [...newest, ...(more?.events ?? []).filter((event) => !shown.has(event.event_id))]
  const before = more ? more.before : first.data?.before
  const loadMore = async () => {
    const next = await attempt(() => get<EventList>(withParameters('/api/v1/events', { ...filter, before, limit: PER_PAGE })))
    if (next) setOlder({ path, events: [...(more?.events ?? []), ...next.events], before: next.before })
  }
  const filtered = Object.values(filter).some(Boolean)
  return (
    <Page title="Events">
      <div class="filters" role="search">
        <label class="field">
          <span>Dataset</span>
          <FilterInput data-search list="event-datasets" value={filter.dataset} placeholder="All datasets" size={26}
            set={(dataset) => setQuery({ dataset, start: undefined, end: undefined })} />
        </label>
        <datalist id="event-datasets">
          {all.data?.dags.flatMap((one) => one.datasets ?? []).map((name) => <option key={name} value={name} />)}
        </datalist>
        <label class="field">
          <span>Kind</span>
          <select value={filter.kind} onChange={(event) => setQuery({ kind: event.currentTarget.value })}>
            <option value="">Every kind</option>
            <option value="data">New data</option>
            <option value="invalidation">Corrections</option>
          </select>
        </label>
        {filter.dataset && (
          <>
            <Field name="From" value={filter.start} set={(start) => setQuery({ start, end: start && (filter.end || start) })} />
            <Field name="To" value={filter.end} set={(end) => setQuery({ end, start: end && (filter.start || end) })} />
          </>
        )}
        {filter.task_id && <span class="tag">of one task</span>}
        {filter.commit_id && <span class="tag">of commit {filter.commit_id}</span>}
        {filtered && <Button look="ghost" icon="close" onClick={() => go('/events')}>Clear</Button>}
      </div>
      {first.error && <Problem error={first.error} retry={first.reload} />}
      {first.loading && !first.data && <Loading />}
      {first.data && events.length === 0 && (
        <Empty icon="events" title={filtered ? 'No event matches' : 'No event yet'}>
          {before !== undefined && before !== null ? (
            <p>None among the newest events of the platform. <Button onClick={() => void loadMore()}>Look through older ones</Button></p>
          ) : filtered ? (
            <A class="button" href="/events">Show all events</A>
          ) : (
            <p>Events say what changed, and make tasks. For a source of the kind <em>manual</em>: <code>traceplane emit DATASET 0..9</code></p>
          )}
        </Empty>
      )}
      {events.length > 0 && (
        <>
          <div class="table-box" tabIndex={0} role="region" aria-label="Events">
            <table class="table">
              <thead>
                <tr><th>Event</th><th>Dataset</th><th>Scope</th><th>When</th><th>Produced by</th></tr>
              </thead>
              <tbody>
                {events.map((event) => <Row key={event.event_id} event={event} />)}
              </tbody>
            </table>
          </div>
          <div class="below">
            <span class="muted">
              {counted(events.length, 'event')} shown, {filter.start ? 'the last position first' : 'the newest first'}
              {first.data?.more ? '; there are more: narrow the range' : ''}
            </span>
            {before !== undefined && before !== null && <Button onClick={() => void loadMore()}>Show older ones</Button>}
          </div>
        </>
      )}
    </Page>
  )
}

function Row({ event }: { event: EventView }) {
  return (
    <tr>
      <td><A class="strong" href={address.event(String(event.event_id))}>{event.event_id}</A></td>
      <td><DatasetName of={event.dataset} /></td>
      <td>{event.scope}<Tags of={event} /></td>
      <td><Time at={event.created_at} /></td>
      <td>
        {event.task_id ? (
          <><A href={address.task(event.task_id)}>{event.job}</A> <span class="muted">{event.dag}</span></>
        ) : (
          <span class="muted">{isKept(event.dataset) ? 'the dispatcher' : 'a source'}</span>
        )}
      </td>
    </tr>
  )
}

function Tags({ of }: { of: EventView }) {
  return (
    <>
      {of.kind === 'invalidation' && <span class="tag">correction</span>}
      {of.backfill && <span class="tag">backfill</span>}
      {of.serving === false && <span class="tag">not serving</span>}
    </>
  )
}

function Field({ name, value, set }: { name: string; value: string; set: (value: string) => void }) {
  return (
    <label class="field">
      <span>{name}</span>
      <FilterInput value={value} placeholder="position or date" size={12} set={set} />
    </label>
  )
}

// What one of them caused ----------------------------------------------------------------------------

interface Node {
  key: string
  effect: Effect
  level: number
  begins: number
  ends?: number
  below: Node[]
}

const pathOf = (id: string) => (/^\d+$/.test(id) ? `/api/v1/events/${id}/effects` : `/api/v1/tasks/${encodeURIComponent(id)}/effects`)

/** `id`: the number of an event, or the UUID of a task. */
export function EffectsPage({ id }: { id: string }) {
  const [extras, setExtras] = useState<{ key: string; answer: EffectsResponse }[]>([])
  const [closed, setClosed] = useState<Set<string>>(new Set())
  const path = pathOf(id)
  const { data, error, reload } = useData<EffectsResponse>(path, (changed) => concernsJob(changed, (job) => jobs.has(job)))
  const tree = useMemo(() => (data ? grown(data, extras) : undefined), [data, extras])
  const jobs: Set<string> = useMemo(() => new Set(data?.effects.flatMap((one) => (one.task ? [`${one.task.dag}/${one.task.job}`] : []))), [data])
  if (error && !data)
    return error.status === 404 || error.status === 400 ? (
      <Page title="Events">
        <Empty icon="events" title="There is no such event or task">
          <p>It may be of another organization, of a dataset that you may not read, or so old that its history is gone.</p>
          <A class="button" href="/events">All events</A>
        </Empty>
      </Page>
    ) : (
      <Problem error={error} retry={reload} />
    )
  if (!tree) return <Loading />
  const { root, nodes } = tree
  const tasks = nodes.filter((node) => node.effect.task && node.effect.shown_at === undefined)
  const events = nodes.filter((node) => node.effect.event && node.effect.shown_at === undefined).length - (root.effect.event ? 1 : 0)
  const dead = tasks.filter((node) => node.effect.task!.state === 'dead').length
  const unfinished = tasks.filter((node) => !node.effect.task!.finished_at).length
  const loadMore = async (node: Node) => {
    const next = await attempt(() => get<EffectsResponse>(withParameters(pathOf(idOf(node.effect)), { after: node.effect.next })))
    if (next) setExtras((before) => [...before, { key: node.key, answer: next }])
  }
  const toggle = (key: string, open?: boolean) =>
    setClosed((before) => {
      const after = new Set(before)
      if (open ?? before.has(key)) after.delete(key)
      else after.add(key)
      return after
    })
  const { event, task } = root.effect
  return (
    <Page title={event ? <>Event {event.event_id} <span class="muted">{nameOfDataset(event.dataset)} {event.scope}</span></> : <>What {task!.job} <span class="muted">{task!.scope}</span> caused</>}
      side={
        <>
          {event?.task_id && <A class="button" href={address.event(event.task_id)}>From the task that produced it</A>}
          {task && <A class="button" href={address.task(task.task_id)}>The task</A>}
        </>
      }>
      <div class="crumbs">
        <A href="/events">Events</A>
        <span aria-hidden="true">/</span>
        {event ? <A href={`/events?${new URLSearchParams({ dataset: event.dataset })}`}>{nameOfDataset(event.dataset)}</A> : <A href={address.tasks({ dag: task!.dag, job: task!.job })}>{task!.job}</A>}
        <span aria-hidden="true">/</span>
        <Copy text={id} />
      </div>
      <ul class="facts-line">
        <li><strong>{count(tasks.length)}</strong> {tasks.length === 1 ? 'task' : 'tasks'}</li>
        <li><strong>{count(events)}</strong> {events === 1 ? 'event' : 'events'}</li>
        <li><strong>{duration(tree.to - tree.from)}</strong> {unfinished ? 'so far' : 'from first to last'}</li>
        {unfinished > 0 && <li class="is-run"><strong>{count(unfinished)}</strong> unfinished</li>}
        {dead > 0 && <li class="is-bad"><strong>{count(dead)}</strong> dead</li>}
      </ul>
      {root.below.length === 0 && !root.effect.left_out ? (
        <Empty icon="events" title={event ? 'It has caused nothing yet' : 'It has produced nothing yet'}>
          <p>{event ? 'No job that serves reads this dataset, or the dispatcher has not come to it.' : 'A task produces events when it commits.'}</p>
          {event && !isKept(event.dataset) && <A class="button" href={address.graph({ at: `dataset:${event.dataset}` })}>Who reads it</A>}
        </Empty>
      ) : (
        <Tree root={root} from={tree.from} to={tree.to} closed={closed} toggle={toggle} loadMore={(node) => void loadMore(node)} />
      )}
    </Page>
  )
}

const idOf = (effect: Effect): string => (effect.event ? String(effect.event.event_id) : effect.task!.task_id)

function grown(data: EffectsResponse, extras: { key: string; answer: EffectsResponse }[]) {
  const nodes: Node[] = []
  const byKey = new Map<string, Node>()
  const add = (answer: EffectsResponse, under?: Node) => {
    const placed: Node[] = []
    for (const effect of answer.effects) {
      if (effect.parent === undefined && under) {
        // The root of what was loaded later is already here.
        under.effect = { ...under.effect, left_out: effect.left_out, next: effect.next }
        placed.push(under)
        continue
      }
      const parent = effect.parent === undefined ? undefined : placed[effect.parent]
      const key = parent ? `${parent.key}/${idOf(effect)}` : idOf(effect)
      const begins = Date.parse(effect.event?.created_at ?? effect.task!.created_at)
      const ends = effect.task ? (effect.task.finished_at ? Date.parse(effect.task.finished_at) : undefined) : begins
      const node: Node = { key, effect, level: parent ? parent.level + 1 : 1, begins, ends, below: [] }
      placed.push(node)
      if (parent) parent.below.push(node)
      nodes.push(node)
      byKey.set(key, node)
    }
  }
  add(data)
  for (const { key, answer } of extras) {
    const under = byKey.get(key)
    if (under) add(answer, under)
  }
  for (const node of nodes) node.below.sort((a, b) => a.begins - b.begins)
  const root = nodes[0]!
  const from = root.begins
  const to = nodes.reduce((latest, node) => Math.max(latest, node.ends ?? Date.now()), from)
  return { root, nodes, from, to: Math.max(to, from + 1) }
}

interface TreeProps {
  root: Node
  from: number
  to: number
  closed: Set<string>
  toggle: (key: string, open?: boolean) => void
  loadMore: (node: Node) => void
}

function Tree({ root, from, to, closed, toggle, loadMore }: TreeProps) {
  const [focused, setFocused] = useState(root.key)
  const rows = useMemo(() => {
    const visible: { node: Node; more: boolean }[] = []
    const walk: { node: Node; next: number }[] = []
    const enter = (node: Node) => {
      visible.push({ node, more: false })
      walk.push({ node, next: closed.has(node.key) ? Infinity : 0 })
    }
    enter(root)
    while (walk.length) {
      const step = walk.at(-1)!
      const child = step.node.below[step.next++]
      if (child) enter(child)
      else {
        if (step.node.effect.left_out && step.next !== Infinity) visible.push({ node: step.node, more: true })
        walk.pop()
      }
    }
    return visible
  }, [root, closed])
  const keyOf = (row: { node: Node; more: boolean }) => (row.more ? `${row.node.key} more` : row.node.key)
  const here = rows.some((row) => keyOf(row) === focused) ? focused : root.key
  useEffect(() => setFocused(root.key), [root.key])
  const move = (key: string) => {
    setFocused(key)
    document.querySelector<HTMLElement>(`[data-effect="${CSS.escape(key)}"]`)?.focus()
  }
  const onKeyDown = (event: KeyboardEvent, node: Node, more: boolean) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== event.currentTarget) return
    const at = rows.findIndex((row) => row.node === node && row.more === more)
    const parent = node.key.slice(0, node.key.lastIndexOf('/'))
    const open = !closed.has(node.key)
    if (event.key === 'ArrowDown' && rows[at + 1]) move(keyOf(rows[at + 1]!))
    else if (event.key === 'ArrowUp' && rows[at - 1]) move(keyOf(rows[at - 1]!))
    else if (event.key === 'Home') move(root.key)
    else if (event.key === 'End') move(keyOf(rows.at(-1)!))
    else if (more && (event.key === 'Enter' || event.key === ' ')) loadMore(node)
    else if (more && event.key === 'ArrowLeft') move(node.key)
    else if (!more && event.key === 'ArrowRight' && node.below.length) open ? move(node.below[0]!.key) : toggle(node.key, true)
    else if (!more && event.key === 'ArrowLeft') node.below.length && open ? toggle(node.key, false) : parent && move(parent)
    else if (!more && event.key === 'Enter') go(linkOf(node))
    else return
    event.preventDefault()
  }
  const part = (at: number) => ((at - from) / (to - from)) * 100
  return (
    <div class="effects card">
      <div class="effects-head" aria-hidden="true">
        <span>What happened</span>
        <span class="axis">
          {[0, 0.25, 0.5, 0.75, 1].map((at) => (
            <span key={at} style={{ left: `${at * 100}%` }}>{at === 0 ? 'start' : `+${duration((to - from) * at)}`}</span>
          ))}
        </span>
      </div>
      <div role="tree" aria-label="What it caused">
        {rows.map(({ node, more }) =>
          more ? (
            <div key={`${node.key} more`} class="effect-more" role="treeitem" data-effect={`${node.key} more`} aria-level={node.level + 1}
              tabIndex={`${node.key} more` === here ? 0 : -1} style={{ paddingLeft: `${indent(node.level + 1) + 40}px` }} onClick={() => loadMore(node)}
              onFocus={() => setFocused(`${node.key} more`)} onKeyDown={(event) => onKeyDown(event, node, true)}>
              <Icon name="plus" /> {node.effect.left_out! >= MOST_COUNTED ? '1,000 or more' : count(node.effect.left_out!)} more of {nameOf(node)}
            </div>
          ) : (
            <div key={node.key} class={`effect effect-${node.effect.event ? 'event' : 'task'}`} role="treeitem" data-effect={node.key}
              aria-level={node.level} aria-expanded={node.below.length ? !closed.has(node.key) : undefined} aria-label={spoken(node)}
              tabIndex={node.key === here ? 0 : -1} onFocus={() => setFocused(node.key)} onKeyDown={(event) => onKeyDown(event, node, false)}>
              <span class="effect-name" style={{ paddingLeft: `${indent(node.level)}px` }}>
                <button type="button" class="fold" tabIndex={-1} aria-hidden="true" disabled={!node.below.length} onClick={() => toggle(node.key)}>
                  {node.below.length > 0 && <Icon name={closed.has(node.key) ? 'right' : 'down'} />}
                </button>
                <Icon name={iconOf(node)} />
                <Name node={node} />
              </span>
              <span class="effect-time" aria-hidden="true"><Bar node={node} part={part} to={to} from={from} /></span>
            </div>
          ),
        )}
      </div>
    </div>
  )
}

const indent = (level: number) => Math.min(level - 1, 14) * 18

const linkOf = ({ effect }: Node) => (effect.event ? address.event(String(effect.event.event_id)) : address.task(effect.task!.task_id))

const nameOf = ({ effect }: Node) => (effect.event ? `${nameOfDataset(effect.event.dataset)} ${effect.event.scope}` : `${effect.task!.job} ${effect.task!.scope ?? ''}`)

const iconOf = ({ effect }: Node): IconName => (effect.event ? 'events' : 'job')

function spoken(node: Node): string {
  const { event, task, shown_at } = node.effect
  const again = shown_at !== undefined ? ', shown above' : ''
  if (event) return `Event ${nameOfDataset(event.dataset)} ${event.scope}${again}`
  const rows = (task!.commits ?? []).reduce((sum, one) => sum + one.rows, 0)
  return `Task ${task!.job} ${task!.scope ?? ''}: ${task!.state}${task!.commits?.length ? `, committed ${counted(rows, 'row')}` : ''}${again}`
}

function Name({ node }: { node: Node }) {
  const { event, task, shown_at } = node.effect
  const again = shown_at !== undefined && <span class="muted small">shown above</span>
  if (event)
    return (
      <>
        <A tabIndex={-1} href={linkOf(node)}>{nameOfDataset(event.dataset)}</A> <span>{event.scope}</span>
        <Tags of={event} /> {again}
      </>
    )
  const commits = task!.commits ?? []
  return (
    <>
      <A tabIndex={-1} class="strong" href={linkOf(node)}>{task!.job}</A> <span>{task!.scope}</span>
      <State of={task!.state} note={task!.attempt > 1 ? `attempt ${task!.attempt} of ${task!.max_attempts}` : undefined} />
      {commits.map((one) => (
        <span class="tag plain" key={one.commit_id} title={`Commit ${one.commit_id} of ${one.dataset} ${one.scope}, ${bytes(one.bytes)}`}>
          {brief(one.rows)} {one.rows === 1 ? 'row' : 'rows'}
        </span>
      ))}
      {task!.more_commits && <span class="tag plain">…</span>} {again}
    </>
  )
}

/** Waiting and running as lengths, an event as a mark. */
function Bar({ node, part, from, to }: { node: Node; part: (at: number) => number; from: number; to: number }) {
  const { event, task } = node.effect
  if (event) {
    const at = part(node.begins)
    return <><span class="moment" style={{ left: `${at}%` }} /><After from={at} at={at} text={node.begins === from ? '' : `+${duration(node.begins - from)}`} /></>
  }
  const started = task!.started_at ? Date.parse(task!.started_at) : undefined
  const ended = node.ends ?? to
  const a = part(node.begins)
  const b = part(Math.min(ended, started ?? ended))
  const c = part(ended)
  const text = started === undefined ? `waits ${duration(ended - node.begins)}` : duration(ended - started)
  return (
    <>
      <span class="span-waited" style={{ left: `${a}%`, width: `${Math.max(0, b - a)}%` }} />
      {started !== undefined && <span class={`span-ran is-${task!.state}`} style={{ left: `${b}%`, width: `${Math.max(0, c - b)}%` }} />}
      <After from={a} at={c} text={text} />
    </>
  )
}

/** Beside its bar, on the side where there is room. */
function After({ from, at, text }: { from: number; at: number; text: string }) {
  return <span class="bar-text" style={at > 75 ? { right: `calc(${100 - from}% + 10px)` } : { left: `calc(${at}% + 10px)` }}>{text}</span>
}
