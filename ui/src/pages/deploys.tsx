// Versions of DAGs: what serves, what is being built, and the ways from one to another.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { post, withParameters } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { count, counted } from '../format'
import { concernsDag, concernsJob } from '../live'
import { BuildingDiff, PlanFile } from './plan'
import { A, Button, Empty, Loading, Page, Problem, State, Time, toast } from '../parts'
import { address } from '../router'
import { isAdmin } from '../session'
import type { OverviewResponse, MovedResponse, VersionsResponse, VersionView } from '../types'

export function DeploysPage() {
  const { data, error, reload } = useData<OverviewResponse>('/api/v1/overview', (changed) => (changed.dags ?? []).length > 0)
  const dags = data?.dags ?? []
  return (
    <Page title="Deploys">
      {error && <Problem error={error} retry={reload} />}
      {!data && !error && <Loading />}
      {data && dags.length === 0 && (
        <Empty icon="deploys" title="Nothing is deployed yet">
          <p>See what a file would change, then deploy it:</p>
          <pre>{'traceplane plan dag.yaml\ntraceplane deploy dag.yaml'}</pre>
        </Empty>
      )}
      {isAdmin() && data && <PlanFile />}
      <div class="cards spaced">
        {dags.map(({ dag, version, jobs }) => (
          <section class="card" key={dag}>
            <h2><A href={address.deploys(dag)}>{dag}</A></h2>
            <p class="muted">Version {version} serves, {counted(jobs, 'job')}</p>
            <div class="actions">
              <A class="button" href={address.deploys(dag)}>Versions</A>
              <A class="button" href={address.graph({ dag })}>Graph</A>
            </div>
          </section>
        ))}
      </div>
    </Page>
  )
}

type Question = { what: 'cutover' | 'abort' } | { what: 'rollback'; to: number }

export function DagPage({ dag }: { dag: string }) {
  const { data, error, reload } = useData<VersionsResponse>(
    withParameters('/api/v1/versions', { dag, limit: 100 }),
    (changed) => concernsDag(changed, dag) || concernsJob(changed, (job) => job.startsWith(`${dag}/`)),
  )
  const [question, setQuestion] = useState<Question>()
  if (error && !data)
    return error.status === 404 ? (
      <Empty icon="deploys" title="There is no such DAG"><A class="button" href="/deploys">All DAGs</A></Empty>
    ) : (
      <Problem error={error} retry={reload} />
    )
  if (!data) return <Loading />
  const building = data.versions.find((one) => one.state === 'building')
  const active = data.versions.find((one) => one.state === 'active')
  const move = async (asked: Question) => {
    const body = asked.what === 'rollback' ? { dag, to: asked.to } : { dag }
    const done = await attempt(() => post<MovedResponse>(`/api/v1/${asked.what}`, body))
    if (done) toast(asked.what === 'abort' ? `Version ${done.version} is given up` : `Version ${done.version} serves`)
    reload()
  }
  return (
    <Page title={dag} side={<A class="button" href={address.graph({ dag })}>Graph</A>}>
      <div class="stack">
        {building && (
          <section class="card">
            <h2>Version {building.version} is being built</h2>
            <Progress version={building} active={active} />
            <BuildingDiff dag={dag} />
            {isAdmin() && (
              <div class="actions">
                <Button look="primary" icon="deploys" onClick={() => setQuestion({ what: 'cutover' })}>Cut over now</Button>
                <Button look="danger" icon="cross" onClick={() => setQuestion({ what: 'abort' })}>Give it up</Button>
              </div>
            )}
          </section>
        )}
        {isAdmin() && <PlanFile dag={dag} />}
        <div class="table-box">
          <table class="table">
            <thead>
              <tr><th>Version</th><th>State</th><th>Deployed</th><th>Served since</th><th><span class="hidden">What to do</span></th></tr>
            </thead>
            <tbody>
              {data.versions.map((one) => (
                <tr key={one.version}>
                  <td class="strong">{one.version}</td>
                  <td><State of={one.state} /></td>
                  <td><Time at={one.created_at} /></td>
                  <td><Time at={one.activated_at} /></td>
                  <td class="right">
                    {isAdmin() && one.state === 'retired' && (
                      <Button icon="retry" onClick={() => setQuestion({ what: 'rollback', to: one.version })}>Roll back to it</Button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
      {question?.what === 'cutover' && (
        <Confirm title={`Let version ${building?.version} serve?`} yes="Cut over" agree={() => move(question)} close={() => setQuestion(undefined)}>
          <p>All datasets of {dag} move to it in one transaction. It is refused while readers would lose something that version {active?.version ?? '—'} has.</p>
        </Confirm>
      )}
      {question?.what === 'abort' && (
        <Confirm title={`Give version ${building?.version} up?`} yes="Give it up" look="danger" agree={() => move(question)} close={() => setQuestion(undefined)}>
          <p>What it has computed is thrown away. {active ? `Version ${active.version} goes on serving.` : ''}</p>
        </Confirm>
      )}
      {question?.what === 'rollback' && (
        <Confirm title={`Roll back to version ${question.to}?`} yes="Roll back" look="danger" agree={() => move(question)} close={() => setQuestion(undefined)}>
          <p>
            All datasets of {dag} move in one transaction, and waiting tasks of version {active?.version} are canceled.
            {building && ` Version ${building.version}, which is being built, is given up.`}
          </p>
        </Confirm>
      )}
    </Page>
  )
}

function Progress({ version, active }: { version: VersionView; active?: VersionView }) {
  const datasets = version.datasets ?? []
  const waits = [
    version.unfinished ? `${counted(version.unfinished, 'task')} to go` : '',
    version.dead ? `${counted(version.dead, 'dead task')}` : '',
    version.replays ? `${counted(version.replays, 'job')} yet to get tasks for the past` : '',
    version.sources_behind ? `${counted(version.sources_behind, 'source')} behind` : '',
  ].filter(Boolean)
  return (
    <div class="stack">
      <p class="muted">
        {active ? `Version ${active.version} serves until it has caught up. ` : ''}
        {waits.length ? waits.join(', ') : 'Everything is computed'}
        {version.manual_cutover ? '. It waits for somebody to cut over.' : '.'}
      </p>
      {datasets.map((one) => (
        <div class="build" key={one.dataset}>
          <A href={address.dataset(one.dataset)}>{one.dataset}</A>
          <progress max={Math.max(1, one.serving)} value={one.serving ? one.built : 1} aria-label={`Built of ${one.dataset}`} />
          <span class="muted">{one.serving ? `${count(one.built)} of ${count(one.serving)} scopes` : 'new'}</span>
        </div>
      ))}
      {(version.lacking ?? []).map((one) => (
        <p class="said-box is-held" key={`${one.dataset} ${one.first}`}>
          Lacks {one.dataset} {one.scope}, which readers have now.
        </p>
      ))}
      {(version.behind ?? []).map((one) => (
        <p class="said-box is-held" key={one.job}>
          The source {one.job} has yet to emit {one.dataset} from {count(one.position)} on.
        </p>
      ))}
    </div>
  )
}
