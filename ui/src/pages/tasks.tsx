// Tasks by state, DAG, job and scope. What is chosen stands in the address.
import { useEffect, useState } from 'preact/hooks'
import { inWords } from '../actions'
import { ApiError, get, post, withParameters } from '../api'
import { useData } from '../data'
import { FilterInput } from '../fields'
import { counted, duration } from '../format'
import { A, Button, Empty, Loading, Page, Problem, sentence, State, Time, toast } from '../parts'
import { address, go, place, setQuery } from '../router'
import { concernsJob } from '../live'
import { mayWrite } from '../session'
import type { OverviewResponse, GraphResponse, TaskChanges, TasksResponse, TaskView } from '../types'

const STATES = ['queued', 'dispatched', 'running', 'completed', 'dead', 'canceled']
const STANDINGS = ['open', 'superseded', 'retired', 'acknowledged']
const PER_PAGE = 50

export function TasksPage() {
  const query = place.value.query
  const filter = {
    dag: query.get('dag') ?? '',
    job: query.get('job') ?? '',
    state: query.get('state') ?? '',
    standing: query.get('standing') ?? '',
    start: query.get('start') ?? '',
    end: query.get('end') ?? '',
  }
  const path = withParameters('/api/v1/tasks', { ...filter, limit: PER_PAGE })
  const first = useData<TasksResponse>(path, (changed) =>
    concernsJob(changed, (job) => (!filter.dag || job.startsWith(`${filter.dag}/`)) && (!filter.job || job === `${filter.dag}/${filter.job}`)),
  )
  const [older, setOlder] = useState<{ path: string; tasks: TaskView[]; done: boolean }>({ path, tasks: [], done: false })
  const [chosen, setChosen] = useState<Set<string>>(new Set())
  useEffect(() => setChosen(new Set()), [path])
  const more = older.path === path ? older : { path, tasks: [], done: false }
  const newest = first.data?.tasks ?? []
  const seen = new Set(newest.map((task) => task.task_id))
  const tasks = [...newest, ...more.tasks.filter((task) => !seen.has(task.task_id))]
  const isMore = newest.length >= PER_PAGE && !more.done
  const loadMore = async () => {
    const before = tasks.at(-1)!.task_id
    try {
      const next = await get<TasksResponse>(withParameters('/api/v1/tasks', { ...filter, before, limit: PER_PAGE }))
      setOlder({ path, tasks: [...more.tasks, ...next.tasks], done: next.tasks.length < PER_PAGE })
    } catch (error) {
      toast(error instanceof ApiError ? sentence(error.message) : String(error), true)
    }
  }
  const changeAll = async (what: 'retry' | 'cancel' | 'acknowledge') => {
    if (await changeTasks(what, [...chosen])) setChosen(new Set())
    first.reload()
  }
  const toggle = (id: string) => setChosen((before) => (before.has(id) ? new Set([...before].filter((one) => one !== id)) : new Set([...before, id])))
  const filtered = Object.values(filter).some(Boolean)
  return (
    <Page title="Tasks">
      <Filters filter={filter} />
      {first.error && <Problem error={first.error} retry={first.reload} />}
      {first.loading && !first.data && <Loading />}
      {first.data && tasks.length === 0 && (
        <Empty icon="tasks" title={filtered ? 'No task matches' : 'No task yet'}>
          {filtered ? (
            <A class="button" href="/tasks">
              Show all tasks
            </A>
          ) : (
            <p>
              Events of a source make tasks. For a source of the kind <em>manual</em>: <code>traceplane emit DATASET 0..9</code>
            </p>
          )}
        </Empty>
      )}
      {tasks.length > 0 && (
        <>
          <div class="table-box">
            <table class="table tasks">
              <thead>
                <tr>
                  {mayWrite() && (
                    <th class="narrow">
                      <input type="checkbox" aria-label="Choose all that are shown" checked={chosen.size > 0 && chosen.size === tasks.length}
                        onChange={(event) => setChosen(event.currentTarget.checked ? new Set(tasks.map((task) => task.task_id)) : new Set())} />
                    </th>
                  )}
                  <th>State</th>
                  <th>Job</th>
                  <th>Scope</th>
                  <th class="right">Attempt</th>
                  <th>Created</th>
                  <th class="right">Took</th>
                  <th>What happened</th>
                </tr>
              </thead>
              <tbody>
                {tasks.map((task) => (
                  <Row key={task.task_id} task={task} chosen={chosen.has(task.task_id)} toggle={mayWrite() ? toggle : undefined} />
                ))}
              </tbody>
            </table>
          </div>
          <div class="below">
            <span class="muted">{counted(tasks.length, 'task')} shown, the newest first</span>
            {isMore && <Button onClick={() => void loadMore()}>Show older ones</Button>}
          </div>
        </>
      )}
      {chosen.size > 0 && (
        <div class="bulk" role="group" aria-label="What to do with the chosen tasks">
          <span>{counted(chosen.size, 'task')} chosen</span>
          <Button icon="retry" onClick={() => void changeAll('retry')}>Retry</Button>
          <Button icon="minus" onClick={() => void changeAll('cancel')}>Cancel</Button>
          <Button icon="check" onClick={() => void changeAll('acknowledge')}>Acknowledge</Button>
          <Button look="ghost" icon="close" onClick={() => setChosen(new Set())} aria-label="Choose none" />
        </div>
      )}
    </Page>
  )
}

const DONE = { retry: 'will run again', cancel: 'canceled', acknowledge: 'acknowledged' }

/** Whether anything changed; says what did not, and why. */
export async function changeTasks(what: 'retry' | 'cancel' | 'acknowledge', ids: string[]): Promise<boolean> {
  try {
    const answer = await post<TaskChanges>(`/api/v1/tasks/${what}`, { task_ids: ids })
    const changed = Object.keys(answer.changed).length
    if (changed) toast(`${counted(changed, 'task')} ${DONE[what]}`)
    const why = [...new Set(Object.values(answer.why_unchanged ?? {}))]
    if (answer.unchanged.length) toast(`${counted(answer.unchanged.length, 'task')} left as before: ${why.join(', ')}`, true)
    return changed > 0
  } catch (error) {
    toast(error instanceof ApiError ? inWords(error) : String(error), true)
    return false
  }
}

function Row({ task, chosen, toggle }: { task: TaskView; chosen: boolean; toggle?: (id: string) => void }) {
  const begun = task.started_at ? new Date(task.started_at).getTime() : undefined
  const ended = task.finished_at ? new Date(task.finished_at).getTime() : undefined
  const waitsAgain = task.state === 'queued' && task.attempt > 0 && task.error
  return (
    <tr class={chosen ? 'chosen' : ''}>
      {toggle && (
        <td class="narrow">
          <input type="checkbox" checked={chosen} onChange={() => toggle(task.task_id)} aria-label={`Choose ${task.job} ${task.scope ?? ''}`} />
        </td>
      )}
      <td>
        <State of={waitsAgain ? 'retrying' : task.state} note={task.cancel_requested && task.state === 'running' ? 'canceling' : task.standing === 'open' ? undefined : task.standing} />
      </td>
      <td class="wide">
        <A href={address.task(task.task_id)} class="strong">
          {task.job}
        </A>{' '}
        <span class="muted">{task.dag}</span>
      </td>
      <td>
        {task.scope ?? <span class="muted">—</span>}
        {task.priority === 'backfill' && <span class="tag">backfill</span>}
        {task.kind === 'invalidation' && <span class="tag">correction</span>}
      </td>
      <td class="right">{task.attempt > 0 ? `${task.attempt} of ${task.max_attempts}` : <span class="muted">—</span>}</td>
      <td><Time at={task.created_at} /></td>
      <td class="right">{begun !== undefined && ended !== undefined ? duration(ended - begun) : <span class="muted">—</span>}</td>
      <td class="error-cell">{task.error && task.state !== 'completed' ? String(task.error.message ?? task.error.code ?? '') : ''}</td>
    </tr>
  )
}

function Filters({ filter }: { filter: Record<string, string> }) {
  const all = useData<OverviewResponse>('/api/v1/overview')
  const one = useData<GraphResponse>(filter.dag ? withParameters('/api/v1/graph', { dag: filter.dag }) : null)
  const dags = all.data?.dags.map(({ dag }) => dag) ?? []
  const jobs = one.data?.jobs.map((job) => job.job) ?? []
  const withChosen = (names: string[], one: string | undefined) => (one && !names.includes(one) ? [one, ...names] : names)
  return (
    <div class="filters" role="search">
      <Choice name="State" value={filter.state} of={STATES} all="Every state" choose={(state) => setQuery({ state, standing: state === 'dead' ? filter.standing : undefined })} />
      {filter.state === 'dead' && (
        <Choice name="Standing" value={filter.standing} of={STANDINGS} all="Whether open or not" choose={(standing) => setQuery({ standing })} />
      )}
      <Choice name="DAG" value={filter.dag} of={withChosen(dags, filter.dag)} all="All DAGs" choose={(dag) => setQuery({ dag, job: undefined, start: undefined, end: undefined })} />
      {filter.dag && (
        <Choice name="Job" value={filter.job} of={withChosen(jobs, filter.job)} all="All jobs" choose={(job) => setQuery({ job, start: undefined, end: undefined })} />
      )}
      {filter.job && (
        <>
          <Field name="From" value={filter.start} set={(start) => setQuery({ start, end: filter.end || start })} hint="position or date" />
          <Field name="To" value={filter.end} set={(end) => setQuery({ end, start: filter.start || end })} hint="position or date" />
        </>
      )}
      {Object.values(filter).some(Boolean) && (
        <Button look="ghost" icon="close" onClick={() => go('/tasks')}>
          Clear
        </Button>
      )}
    </div>
  )
}

function Choice({ name, value, of, all, choose }: { name: string; value?: string; of: string[]; all: string; choose: (value: string) => void }) {
  return (
    <label class="field">
      <span>{name}</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">{all}</option>
        {of.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  )
}

function Field({ name, value, set, hint }: { name: string; value?: string; set: (value: string) => void; hint: string }) {
  return (
    <label class="field">
      <span>{name}</span>
      <FilterInput value={value} placeholder={hint} size={12} set={set} />
    </label>
  )
}
