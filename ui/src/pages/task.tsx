// One task: what it is doing or why it is not, what it read and wrote, what it printed.
import type { ComponentChildren } from 'preact'
import { useData } from '../data'
import { count, counted, duration } from '../format'
import { type Changed, concernsJob } from '../live'
import { A, Button, Copy, DatasetName, Empty, Fact, Facts, Loading, Page, Problem, sentence, State, Time, withCode } from '../parts'
import { address } from '../router'
import { mayWrite } from '../session'
import type { AttemptView, ExplainResponse, LineageView, TaskDetail, TaskLogs, TaskView } from '../types'
import { changeTasks } from './tasks'

const MOST_LINES = 60

export function TaskPage({ id }: { id: string }) {
  const path = `/api/v1/tasks/${encodeURIComponent(id)}`
  const explained = useData<ExplainResponse>(`${path}/explain`, (changed) => concerned(changed))
  const ours = explained.data && `${explained.data.dag}/${explained.data.job}`
  const concerned = (changed: Changed): boolean => concernsJob(changed, (job) => job === ours)
  const detail = useData<TaskDetail>(path, concerned)
  const logs = useData<TaskLogs>(`${path}/logs`, concerned)
  if (detail.error && !detail.data)
    return detail.error.status === 404 || detail.error.code === 'task.bad_id' ? (
      <Empty icon="tasks" title="There is no such task">
        <p>It may be of another organization, or so old that its history is gone.</p>
        <A class="button" href="/tasks">All tasks</A>
      </Empty>
    ) : (
      <Problem error={detail.error} retry={detail.reload} />
    )
  if (!detail.data) return <Loading />
  const { task, inputs, outputs, reads, attempts } = detail.data
  const change = async (what: 'retry' | 'cancel' | 'acknowledge') => {
    await changeTasks(what, [task.task_id])
    detail.reload()
    explained.reload()
  }
  const isOver = ['completed', 'dead', 'canceled'].includes(task.state)
  return (
    <Page
      title={
        <>
          {task.job} <span class="muted">{task.scope ?? ''}</span>
        </>
      }
      side={
        mayWrite() && (
          <>
            {(task.state === 'dead' || task.state === 'canceled') && task.standing !== 'retired' && (
              <Button icon="retry" look={explained.data?.retry_helps === false ? undefined : 'primary'} onClick={() => void change('retry')}>Retry</Button>
            )}
            {task.state === 'dead' && task.standing === 'open' && (
              <Button icon="check" onClick={() => void change('acknowledge')}>Acknowledge</Button>
            )}
            {!isOver && (
              <Button icon="minus" look="danger" disabled={task.cancel_requested} onClick={() => void change('cancel')}>
                {task.cancel_requested ? 'Canceling' : 'Cancel'}
              </Button>
            )}
          </>
        )
      }
    >
      <div class="crumbs">
        <A href={address.graph({ dag: task.dag, at: `job:${task.dag}/${task.job}` })}>{task.dag}</A>
        <span aria-hidden="true">/</span>
        <A href={address.tasks({ dag: task.dag, job: task.job })}>{task.job}</A>
        <span aria-hidden="true">/</span>
        <Copy text={task.task_id} />
        <A class="after-crumbs" href={address.event(task.task_id)}>Everything it caused</A>
      </div>
      <div class="columns">
        <div class="column-main">
          <Why task={task} explained={explained.data} />
          <Logs logs={logs.data} refused={logs.error?.message} running={task.state === 'running'} />
        </div>
        <div class="column-side">
          <Card title="State">
            <p><State of={task.state} note={task.standing} /></p>
            <Line task={task} attempts={attempts ?? []} />
            <Attempts of={attempts ?? []} />
            <Facts>
              <Fact name="Attempt">{task.attempt} of {task.max_attempts}</Fact>
              <Fact name="Created"><Time at={task.created_at} /></Fact>
              <Fact name="Started"><Time at={task.started_at} /></Fact>
              <Fact name="Finished"><Time at={task.finished_at} /></Fact>
              <Fact name="Priority">{task.priority ?? 'normal'}</Fact>
              <Fact name="Made by">{task.kind === 'invalidation' ? 'a correction' : 'new data'}</Fact>
              {task.worker_id && <Fact name="Worker">{task.worker_id}</Fact>}
            </Facts>
            {task.progress && <Progress of={task.progress} isOver={task.state === 'completed'} />}
          </Card>
          <Card title="What fed it">
            <Lineage of={inputs} linked none="No event: it was asked for by hand, or by a schedule." />
            {(reads ?? []).map((read) => (
              <p class="small" key={read.dataset}>
                Read all of <A href={address.dataset(read.dataset)}>{read.dataset}</A>{' '}
                {read.committed_at ? <>as of <Time at={read.committed_at} /></> : 'while it was empty'}
                {read.newer ? `; ${read.newer} commits are newer` : ''}
              </p>
            ))}
          </Card>
          <Card title="What it produced">
            <Lineage of={outputs} none={isOver ? 'Nothing.' : 'Nothing yet: outputs become visible when it commits.'} />
          </Card>
        </div>
      </div>
    </Page>
  )
}

function Card({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      {children}
    </section>
  )
}

/** Its attempts on a time axis, and how long it waited before, between and after them. */
function Line({ task, attempts }: { task: TaskView; attempts: AttemptView[] }) {
  const began = millis(task.created_at)
  const ended = task.finished_at ? millis(task.finished_at) : Date.now()
  const spans: { key: string; ms: number; look: string; told: string }[] = []
  let until = began
  let waited = 0
  for (const one of attempts) {
    const from = Math.max(until, millis(one.started_at))
    const to = Math.max(from, one.ended_at ? millis(one.ended_at) : ended)
    if (from > until) spans.push({ key: `before ${one.attempt}`, ms: from - until, look: 'span-waited', told: `waited ${duration(from - until)}` })
    waited += from - until
    spans.push({ key: `${one.attempt}`, ms: to - from, look: `span-ran is-${one.outcome}`, told: `attempt ${one.attempt}: ${OUTCOMES[one.outcome]} after ${duration(to - from)}` })
    until = to
  }
  if (ended > until) {
    spans.push({ key: 'after', ms: ended - until, look: 'span-waited', told: `waited ${duration(ended - until)}` })
    waited += ended - until
  }
  const ran = Math.max(0, ended - began - waited)
  return (
    <div class="span-line">
      <div class="span-bar">
        {spans.map((span) => (
          <div key={span.key} class={span.look} title={span.told} style={{ flexGrow: Math.max(1, span.ms), flexBasis: '4px' }} />
        ))}
      </div>
      <div class="span-words small muted">
        <span>waited {duration(waited)}</span>
        {attempts.length > 0 && <span>{task.finished_at ? 'ran' : 'has run'} {duration(ran)}</span>}
      </div>
    </div>
  )
}

const OUTCOMES = {
  running: 'running',
  completed: 'completed',
  failed: 'failed',
  lost: 'its worker fell silent',
  returned: 'its worker was stopped',
  canceled: 'canceled',
}

/** One attempt is told by the facts of the task. */
function Attempts({ of }: { of: AttemptView[] }) {
  if (of.length < 2 && of.every((one) => one.outcome === 'running' || one.outcome === 'completed')) return null
  return (
    <ol class="attempts">
      {of.map((one) => (
        <li key={one.attempt} class={`is-${one.outcome}`}>
          <span class="attempt-number">{one.attempt}</span>
          <span>
            {OUTCOMES[one.outcome]}
            {one.ended_at && <> after {duration(millis(one.ended_at) - millis(one.started_at))}</>}
            {one.code && <> <code>{one.code}</code></>}
            <span class="muted small"> <Time at={one.started_at} />{one.worker_id && <>, {one.worker_id}</>}</span>
          </span>
        </li>
      ))}
    </ol>
  )
}

const millis = (at: string): number => new Date(at).getTime()

/** Spark tells stages and tasks with each heartbeat, so the last it told is not how a completed task ended; operators may tell
 *  figures of their own. */
function Progress({ of, isOver }: { of: Record<string, unknown>; isOver: boolean }) {
  const { stages, tasks, tasks_done, spark_ui, application, ...own } = of
  const link = typeof spark_ui === 'string' && /^https?:\/\//.test(spark_ui) ? spark_ui : undefined
  const all = Number(tasks ?? 0)
  const done = Math.min(all, Number(tasks_done ?? 0))
  return (
    <div class="spark">
      {!isOver && all > 0 && (
        <>
          <progress max={all} value={done} aria-label="Tasks of Spark that are done" />
          <p class="small muted span-words">
            <span>{count(done)} of {counted(all, 'Spark task')} done</span>
            <span>{counted(Number(stages ?? 0), 'stage')}</span>
          </p>
        </>
      )}
      {link && <a class="small" href={link} target="_blank" rel="noreferrer">Stages in Spark's own pages</a>}
      {!link && application !== undefined && <p class="small muted">Spark application {String(application)}</p>}
      {Object.keys(own).length > 0 && (
        <Facts>
          {Object.entries(own).map(([name, value]) => (
            <Fact key={name} name={name.replaceAll('_', ' ')}>{typeof value === 'object' ? JSON.stringify(value) : String(value)}</Fact>
          ))}
        </Facts>
      )}
    </div>
  )
}

function Why({ task, explained }: { task: TaskView; explained?: ExplainResponse }) {
  const title = { dead: 'Why it failed', running: 'What it is doing', completed: 'How it went', canceled: 'Why it stopped' }[task.state] ?? 'Why it waits'
  const error = explained?.error ?? (task.state === 'completed' ? undefined : task.error)
  return (
    <Card title={title}>
      {!explained && <Loading lines={2} />}
      {explained && explained.reasons.length === 0 && !error && <p>{task.state === 'completed' ? 'It committed what it computed.' : 'Nothing holds it.'}</p>}
      <ul class="reasons">
        {explained?.reasons.map((reason) => (
          <li key={reason.code}>{sentence(reason.sentence)}</li>
        ))}
      </ul>
      {error && <Failure error={error} />}
      {explained?.next_step && (
        <p class="next-step">
          <strong>Next:</strong> {withCode(sentence(explained.next_step))}
          {explained.retry_helps === false && ' Trying again as it is would fail again.'}
        </p>
      )}
    </Card>
  )
}

/** Where a worker keeps the code of a deploy, which says nothing to whoever wrote it. */
const CODE_FOLDER = /(^|[\s"'(])\/[^"'\n]*?\/code_bundles\/[0-9a-f]{64}\//gm

/** The user's own line stands out of the frames of libraries. */
function Failure({ error }: { error: Record<string, unknown> }) {
  const text = (name: string) => (error[name] === undefined || error[name] === null ? undefined : String(error[name]).replaceAll(CODE_FOLDER, '$1'))
  const traceback = text('traceback')?.trimEnd().split('\n') ?? []
  const file = text('file')
  const line = text('line')
  const printed = Array.isArray(error.logs) ? (error.logs as unknown[]).map(String) : []
  const isOwn = (row: string) => file !== undefined && line !== undefined && row.includes(file) && row.includes(`line ${line}`)
  const own = traceback.findIndex(isOwn)
  return (
    <div class="failure">
      <p class="failure-head">
        <code>{text('code') ?? 'error'}</code> {text('type') && <strong>{text('type')}</strong>}
      </p>
      <p class="failure-text">{text('message')}</p>
      {text('value') && <p><code>{text('value')}</code></p>}
      {file && <p class="small muted">{file}{line ? `, line ${line}` : ''}</p>}
      {traceback.length > 0 && (
        <pre class="traceback" tabIndex={0} role="region" aria-label="Traceback">
          {traceback.map((row, n) => (
            <span key={n} class={own >= 0 && (n === own || n === own + 1) ? 'own' : ''}>{row + '\n'}</span>
          ))}
        </pre>
      )}
      {printed.length > 0 && (
        <pre class="traceback" tabIndex={0} role="region" aria-label="What it printed last">{printed.slice(-MOST_LINES).join('\n')}</pre>
      )}
    </div>
  )
}

function Logs({ logs, refused, running }: { logs?: TaskLogs; refused?: string; running: boolean }) {
  return (
    <Card title="Log">
      {refused && <p class="muted">{sentence(refused)}</p>}
      {!logs && !refused && <Loading lines={3} />}
      {logs && logs.attempts.length === 0 && (
        <p class="muted">{running ? 'The log appears when the attempt ends.' : 'It wrote nothing. What operators print, and write with task.log, appears here.'}</p>
      )}
      {logs?.attempts.map((attempt, n) => (
        <details key={attempt.attempt} open={n === 0}>
          <summary>
            Attempt {attempt.attempt} <span class="muted"><Time at={attempt.written_at} /></span>
          </summary>
          <pre class="log" tabIndex={0} role="region" aria-label={`Log of attempt ${attempt.attempt}`}>{attempt.text}</pre>
        </details>
      ))}
    </Card>
  )
}

function Lineage({ of, none, linked }: { of: LineageView[]; none: string; linked?: boolean }) {
  if (!of.length) return <p class="muted">{none}</p>
  return (
    <ul class="lineage">
      {of.slice(0, 100).map((one) => (
        <li key={one.event_id}>
          <DatasetName of={one.dataset} /> <A href={address.event(String(one.event_id))} title={`Event ${one.event_id}`}>{one.scope}</A>
          {one.kind === 'invalidation' && <span class="tag">correction</span>}
          {linked && <A class="small" href={address.task(one.producer_id)}>see the task that wrote it</A>}
        </li>
      ))}
      {of.length > 100 && <li class="muted">and {of.length - 100} more</li>}
    </ul>
  )
}
