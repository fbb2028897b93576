// What needs somebody: failures, what is stuck or held, sources that are late, messages that are dead.
import { useData } from '../data'
import { count, counted, duration } from '../format'
import { Icon } from '../icons'
import { A, Empty, Fact, Facts, Loading, Page, Problem, sentence, State, Time } from '../parts'
import { address } from '../router'
import { isAdmin } from '../session'
import type { OverviewResponse, GraphJob, GraphResponse, HealthResponse, StatusResponse } from '../types'

const SLOW_SECONDS = 10

export function HealthPage() {
  const { data, error, reload } = useData<StatusResponse>('/api/v1/status?unmet=true', () => true)
  const all = useData<OverviewResponse>('/api/v1/overview', (changed) => (changed.dags ?? []).length > 0)
  const waiting = useData<GraphResponse>('/api/v1/graph?waiting=true', (changed) => (changed.jobs ?? []).length + (changed.dags ?? []).length > 0)
  const health = useData<HealthResponse>('/api/v1/health', (changed) => (changed.jobs ?? []).length > 0)
  const jobs = waiting.data?.jobs ?? []
  const dags = all.data?.dags ?? []
  if (error && !data) return <Problem error={error} retry={reload} />
  if (!data) return <Loading />
  const dead = (data.failed ?? []).filter((one) => one.state === 'dead')
  const retrying = (data.failed ?? []).filter((one) => one.state === 'retrying')
  const checks = data.datasets.flatMap((one) => (one.failed_checks ?? []).map((check) => ({ dataset: one.dataset, ...check })))
  const letters = data.datasets.filter((one) => (one.dead_letters ?? 0) > 0)
  const messages = Object.entries(data.dead_messages ?? {})
  const stuck = data.stuck ?? []
  const held = jobs.filter((job) => job.hold)
  const paused = jobs.filter((job) => job.pause)
  const slow = data.outbox_lag_seconds > SLOW_SECONDS
  const isWell = !dead.length && !stuck.length && !checks.length && !letters.length && !messages.length && !slow && !health.data?.findings.some((one) => one.level === 'problem')
  return (
    <Page title="Health">
      {isWell && (
        <Empty icon="check" title="All is well">
          <p>No task is dead, nothing is stuck, and no check fails.</p>
        </Empty>
      )}
      <div class="cards wide-cards">
        {health.error && <Problem error={health.error} retry={health.reload} />}
        {health.data && <Doctor health={health.data} />}
        {slow && (
          <section class="card">
            <h2>Wake-ups are late</h2>
            <p>The oldest one has waited {duration(data.outbox_lag_seconds * 1000)} to be sent to workers. Does a dispatcher run, and can it reach the queue?</p>
          </section>
        )}
        {dead.length > 0 && (
          <section class="card">
            <h2>Dead tasks</h2>
            {dead.map((one) => (
              <p class="said-box is-dead" key={`${one.dag}${one.job}${one.code}`}>
                <A href={`${address.tasks({ dag: one.dag, job: one.job, state: 'dead', standing: 'open' })}`}>{one.dag}/{one.job}</A>: {counted(one.tasks, 'task')}{one.and_more ? ' or more' : ''}. {one.message} <code>{one.code}</code> <A href={address.task(one.newest)}>the newest</A>
              </p>
            ))}
          </section>
        )}
        {stuck.length > 0 && (
          <section class="card">
            <h2>Stuck</h2>
            {stuck.map((one) => (
              <p class="said-box is-held" key={`${one.dag}${one.job}`}><JobLink job={one} />: {sentence(one.sentence)}</p>
            ))}
          </section>
        )}
        {checks.length > 0 && (
          <section class="card">
            <h2>Checks that fail</h2>
            {checks.map((one) => (
              <p class="said-box is-held" key={`${one.dataset}${one.check}`}><A href={address.dataset(one.dataset)}>{one.dataset}</A>, <strong>{one.check}</strong>: {one.problem}</p>
            ))}
          </section>
        )}
        {letters.length > 0 && (
          <section class="card">
            <h2>Dead letters</h2>
            {letters.map((one) => (
              <p key={one.dataset}><A href={`/dead-letters?dataset=${encodeURIComponent(one.dataset)}`}>{one.dataset}</A>: {count(one.dead_letters!)}</p>
            ))}
          </section>
        )}
        {messages.length > 0 && (
          <section class="card">
            <h2>Messages that could not be delivered</h2>
            {messages.map(([channel, n]) => <p key={channel}>{channel}: {count(n)}</p>)}
          </section>
        )}
        {retrying.length > 0 && (
          <section class="card">
            <h2>Tried again by themselves</h2>
            {retrying.map((one) => (
              <p key={`${one.dag}${one.job}${one.code}`}><JobLink job={one} />: {counted(one.tasks, 'task')}, {one.message}</p>
            ))}
          </section>
        )}
        {(held.length > 0 || paused.length > 0) && (
          <section class="card">
            <h2>Held and paused</h2>
            {[...held, ...paused.filter((job) => !held.includes(job))].map((job) => (
              <p key={`${job.dag}/${job.job}`}><State of={job.pause ? 'paused' : 'held'} /> <JobLink job={job} /> <span class="muted">{why(job)}</span></p>
            ))}
          </section>
        )}
        {(data.cron ?? []).length > 0 && (
          <section class="card">
            <h2>Schedules</h2>
            <table class="table flat">
              <thead><tr><th>Source</th><th>Schedule</th><th>Last tick</th><th>Next</th></tr></thead>
              <tbody>
                {data.cron!.map((one) => (
                  <tr key={`${one.dag}/${one.job}`}>
                    <td><JobLink job={one} /></td>
                    <td><code>{one.schedule}</code></td>
                    <td><Time at={one.last_tick} /></td>
                    <td>{one.paused ? <State of="paused" /> : <Time at={one.next_tick} />}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
        )}
        <section class="card">
          <h2>Counts</h2>
          <Facts>
            <Fact name="Jobs">{count(dags.reduce((sum, one) => sum + one.jobs, 0))}</Fact>
            <Fact name="Datasets">{count(dags.reduce((sum, one) => sum + (one.datasets ?? []).length, 0))}</Fact>
            <Fact name="Running">{count(sum(data, 'running'))}</Fact>
            <Fact name="Waiting">{count(sum(data, 'queued') + sum(data, 'dispatched'))}</Fact>
            <Fact name="Superseded">{count(data.dead_superseded ?? 0)} <span class="muted">dead, and their work has been done since</span></Fact>
            <Fact name="Retired">{count(data.dead_retired ?? 0)} <span class="muted">dead, of jobs that are gone</span></Fact>
          </Facts>
        </section>
      </div>
    </Page>
  )
}

/** What `traceplane doctor` prints of the platform, and the processes that there are. */
function Doctor({ health }: { health: HealthResponse }) {
  const processes = health.processes ?? []
  const order = ['problem', 'warning', 'ok']
  const findings = [...health.findings].sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level))
  return (
    <>
      <section class="card">
        <h2>What the doctor finds</h2>
        <ul class="findings">
          {findings.map((one) => (
            <li key={one.code + one.sentence} class={`finding-${one.level}`}>
              <Icon name={one.level === 'ok' ? 'check' : one.level === 'warning' ? 'minus' : 'cross'} />
              <div>
                <span class="hidden">{one.level}: </span>
                {one.sentence}
                {one.next_step && <div class="muted small">{inCode(one.next_step)}</div>}
              </div>
            </li>
          ))}
        </ul>
      </section>
      {isAdmin() && (
        <section class="card">
          <h2>Processes</h2>
          {processes.length === 0 && <p class="muted">None has said that it is there. They do every ten seconds.</p>}
          {processes.length > 0 && (
            <div class="scrolled">
              <table class="table flat">
                <thead><tr><th>Process</th><th>State</th><th>Where</th><th>Started</th></tr></thead>
                <tbody>
                  {processes.map((one) => (
                    <tr key={`${one.kind} ${one.name}`}>
                      <td><strong>{one.kind}</strong> <span class="muted">{one.runtime ?? ''}</span></td>
                      <td>{one.is_silent ? <span class="state state-dead">silent since <Time at={one.seen_at} /></span> : <span class="state state-completed" title={one.version && `version ${one.version}`}>there</span>}</td>
                      <td>{one.name}</td>
                      <td><Time at={one.started_at} /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </section>
      )}
    </>
  )
}

/** What stands between backquotes is a command. */
const inCode = (text: string) => text.split('`').map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part))

const sum = (status: StatusResponse, state: string) => Object.values(status.counts).reduce((total, of) => total + (of[state] ?? 0), 0)

const JobLink = ({ job }: { job: { dag: string; job: string } }) => <A href={address.graph({ dag: job.dag, at: `job:${job.dag}/${job.job}` })}>{job.dag}/{job.job}</A>

function why(job: GraphJob): string {
  if (job.pause) return `by ${job.pause.paused_by}${job.pause.reason ? `: ${job.pause.reason}` : ''}`
  return job.hold?.job ? `by the queue of ${job.hold.job}` : ''
}
